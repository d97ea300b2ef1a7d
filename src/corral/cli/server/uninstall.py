"""`corral uninstall` removes what Corral has made on this machine outside its data folder, and with --purge also the data."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from corral.cli.client import aws_profiles, data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import endpoint_of_folder
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, format_bytes, print_json, print_line, print_message, print_table
from corral.cli.runs.notify_process import records_of
from corral.cli.server.docker_socket import NETWORKS, docker_request, engine_address, running_containers
from corral.cli.server.down import delete_data, end_node, stop_server, unfinished_tasks
from corral.cli.server.service import remove_unit, require_removable
from corral.cli.server.systemd_unit import Unit
from corral.process.data_folder import CONFIGURATION, FILES, FOLDERS, HOLDER, LOCK, account_work_folder, remove_account_work

SHELL_FILES = (".bashrc", ".bash_profile", ".zshrc", ".config/fish/config.fish")
DOCKER_S = 60.0


@dataclass(frozen=True, slots=True)
class Removal:
    kind: str
    name: str
    remove: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Kept:
    kind: str
    name: str
    why: str


@click.command(short_help="Remove what Corral has made on this machine.")
@data_option
@click.option("--purge", is_flag=True, help="Also delete the data folder, with all objects, images, logs, keys and settings.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed, and what was kept, as JSON.")
def uninstall(data: DataFolder, purge: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Stop Corral, and remove what it has made outside its data folder: the systemd unit, Docker networks, the login of docker at
    the registry, AWS profiles and records of notifications. The data is kept, unless you add --purge.

    Asks first. Refuses while tasks run.
    """
    if purge:
        _require_own_folder(data.path)
    _require_no_tasks(data)
    removals, kept = list(_removals(data)), list(_kept(data, purge))
    if purge and (files := _files_in(data.path)):
        size = format_bytes(sum(_size(path) for path in files))
        removals.append(Removal("data", f"{data.path} ({size}): all data, keys and settings", partial(_delete_folder, data.path)))
    if not as_json:
        _show(removals, kept)
    if dry_run or not removals:
        _finish(removals, kept, as_json, removed=False)
        return
    if not yes:
        _confirm()
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the removal of a unit prints the commands
        for each in removals:
            each.remove()
    _finish(removals, kept, as_json, removed=True)


# The checks


def _require_own_folder(folder: Path) -> None:
    """Raise a CliError if Corral has not used the folder: a folder of another program may contain files with the same names."""
    try:
        is_own = (folder / LOCK).read_bytes().startswith(HOLDER)
    except OSError:
        is_own = False
    found = [path.name for path in _files_in(folder)]
    if not is_own and found not in ([], [CONFIGURATION]):
        raise CliError(
            f"{folder} is not a data folder of Corral ({', '.join(found)}). Nothing was removed. Pass another one with --data."
        )


def _require_no_tasks(data: DataFolder) -> None:
    """Raise a CliError if tasks of this Corral have not stopped. If the server does not run, find their processes."""
    is_running = data_folder.pid_of(data) is not None
    if is_running:
        alive = unfinished_tasks(endpoint_of_folder(data)).total()
    else:
        alive = len(_processes(data.path)) + len(_containers(data.path))
    if alive:
        have = f"{count(alive, 'task')} of the Corral on {data.path} {'has' if alive == 1 else 'have'} not stopped"
        first = "" if is_running else f"`{data_folder.start_command(data)}` and then "
        stop = data_folder.start_command(data).replace("up --detach", "down --stop-tasks")
        raise CliError(f"{have}. Nothing was removed. Wait for the end of all tasks, or stop them with {first}`{stop}`.")


def _processes(folder: Path) -> list[int]:
    """Return the processes of tasks that run while the server does not: the children of the spawner."""
    with suppress(OSError, ValueError):
        spawner = int((folder / "node" / "spawner.lock").read_text())
        if str(folder / "node").encode() in Path(f"/proc/{spawner}/cmdline").read_bytes():
            children = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
            return [int(pid) for pid in children if not _is_guard(pid)]
    return []


def _is_guard(pid: str) -> bool:
    """Return True for the child process of the spawner that watches the output of tasks. It has the spawner's command line."""
    with suppress(OSError):
        return b"corral.node.spawner" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return True  # the process has just ended


def _containers(folder: Path) -> list[Any]:
    with suppress(OSError, ValueError, KeyError):
        host_id = json.loads((folder / "node" / "host.json").read_text())["host_id"]
        return running_containers(engine_address(), host_id)
    return []


# What Corral has made


def _removals(data: DataFolder) -> Iterator[Removal]:
    """Yield what can be removed, in the order of the removal."""
    about = data_folder.running(data)
    for unit in (Unit(data.path, system=False), Unit(data.path, system=True)):
        if unit.is_installed():
            require_removable(unit)
            yield Removal("unit", str(unit.path), partial(remove_unit, unit))
    if about is not None:
        yield Removal("server", f"process {about['pid']} at {about['url']}", partial(_stop, data))
    if node := [name for name in ("agent", "spawner") if _is_locked(data.path / "node" / f"{name}.lock")]:
        yield Removal("processes", " and ".join(f"the {name}" for name in node), partial(end_node, data.path))
    for name in NETWORKS:
        if (network := _network(name)) is not None and not network.get("Containers"):
            yield Removal("Docker network", name, partial(_remove_network, name))
    for registry in _logins(data, about):
        yield Removal("Docker login", registry, partial(_log_out, registry))
    config, credentials = aws_profiles.files()
    for name in aws_profiles.names(_access_key(data.path), config, credentials):
        yield Removal(
            "AWS profile", f"{name} in {config} and {credentials}", partial(aws_profiles.remove, name, config, credentials)
        )
    if (folder := data.path / "node").exists() and (work := account_work_folder(folder)).exists():
        yield Removal("work folders", str(work), partial(remove_account_work, work))
    if (records := records_of(data)).exists():
        yield Removal("notifications", str(records), partial(shutil.rmtree, records))


def _kept(data: DataFolder, purge: bool) -> Iterator[Kept]:
    for name in NETWORKS:
        if (network := _network(name)) is not None and (using := network.get("Containers")):
            yield Kept("Docker network", name, f"{count(len(using), 'container')} of another Corral use it")
    if not purge and _files_in(data.path):
        yield Kept("data", str(data.path), "--purge deletes it")
    for path in (Path.home() / name for name in SHELL_FILES):
        with suppress(OSError):
            if "corral completion" in path.read_text(errors="replace"):
                yield Kept("completion", str(path), "delete the line with `corral completion` yourself")
    yield Kept("program", os.path.abspath(sys.argv[0]), f"`{_program_removal()}` removes it")


def _is_locked(lock: Path) -> bool:
    with suppress(OSError), lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _stop(data: DataFolder) -> None:
    if (pid := data_folder.pid_of(data)) is not None:  # the removal of the unit may have stopped it
        stop_server(data, pid)


def _network(name: str) -> dict[str, Any] | None:
    """Return the description of a Docker network. Return None if it does not exist, or if there is no engine."""
    with suppress(OSError, ValueError):
        status, about = docker_request(engine_address(), "GET", f"/networks/{name}")
        if status == 200 and isinstance(about, dict):
            return about
    return None


def _remove_network(name: str) -> None:
    status, about = docker_request(engine_address(), "DELETE", f"/networks/{name}")
    if status >= 400 and status != 404:
        print_message(f"the Docker network {name} was not removed: {(about or {}).get('message', status)}")


def _logins(data: DataFolder, about: dict[str, Any] | None) -> Iterator[str]:
    """Yield the addresses of this Corral's registry at which docker is logged in (`corral login`)."""
    from corral.configuration.file import ConfigurationError, read_file

    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        known = json.loads((folder / "config.json").read_text()).get("auths", {})
        port = urlsplit(about["url"]).port if about is not None else read_file(data.path).values()["up.port"]
    except (OSError, ValueError, AttributeError, ConfigurationError):
        return
    if (registry := f"localhost:{port}") in known and shutil.which("docker") is not None:
        yield registry


def _log_out(registry: str) -> None:
    done = subprocess.run(
        ["docker", "logout", registry], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOCKER_S
    )
    if done.returncode:
        print_message(f"`docker logout {registry}` failed: {done.stderr.strip()}")


def _access_key(folder: Path) -> str:
    try:
        return str(json.loads((folder / "credentials.json").read_text())["access_key"])
    except (OSError, ValueError, KeyError):
        return ""


def _files_in(folder: Path) -> list[Path]:
    """Return Corral's files and folders in the data folder."""
    return [folder / name for name in sorted(FILES | {*FOLDERS}) if os.path.lexists(folder / name)]


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    with suppress(OSError):
        return sum(_size(inside) for inside in path.iterdir()) if path.is_dir() else path.lstat().st_size
    return 0


def _delete_folder(folder: Path) -> None:
    """Delete the data and the settings. Keep the folder if it contains files that are not Corral's."""
    delete_data(folder)
    (folder / CONFIGURATION).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _program_removal() -> str:
    if "/pipx/" in sys.prefix:
        return "pipx uninstall corral"
    return "uv tool uninstall corral" if "/uv/tools/" in sys.prefix else "pip uninstall corral"


# The messages


def _show(removals: list[Removal], kept: list[Kept]) -> None:
    if removals:
        print_table([{"REMOVES": each.kind, "WHAT": each.name} for each in removals])
        print_line()
    print_table([{"KEEPS": each.kind, "WHAT": each.name, "WHY": each.why} for each in kept])


def _confirm() -> None:
    if not os.isatty(0):
        raise CliError("nothing was removed. Add --yes to remove without a question.")
    click.confirm("Remove these?", abort=True, err=True)


def _finish(removals: list[Removal], kept: list[Kept], as_json: bool, *, removed: bool) -> None:
    if as_json:
        print_json(
            {
                "removed" if removed else "toBeRemoved": [{"kind": each.kind, "name": each.name} for each in removals],
                "kept": [{"kind": each.kind, "name": each.name, "reason": each.why} for each in kept],
            }
        )
    elif not removals:
        print_line("There is nothing to remove.")
    elif removed:
        print_line("Removed.")
