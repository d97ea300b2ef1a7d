"""Finds the server of a data folder: its process, its URL and its keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from corral.cli.printing.errors import CliError, NotRunning, TasksLost
from corral.process.data_folder import JOINED

_used: set[Path] = set()  # the folders whose servers this process has found


class DataFolder(NamedTuple):
    path: Path
    chosen: bool  # True if --data was on the command line: then AWS_ENDPOINT_URL and AWS_PROFILE are ignored


def _from_option(context: click.Context, parameter: click.Parameter, value: Path | None) -> DataFolder:
    source = context.get_parameter_source(parameter.name or "")
    path = value if value is not None else Path.home() / ".corral"
    return DataFolder(path.expanduser().absolute(), source is click.core.ParameterSource.COMMANDLINE)


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        envvar="CORRAL_DATA",
        callback=_from_option,
        help="Corral's data folder (default: $CORRAL_DATA, else ~/.corral).",
    )(function)


def running(data: DataFolder) -> dict[str, Any] | None:
    """Return the content of server.json, such as the url and the pid of the server. Return None if no server runs."""
    about = _read(data.path / "server.json")
    return about if about is not None and serves(about["pid"], data.path) else None


def require_running(data: DataFolder) -> dict[str, Any]:
    about = running(data)
    if about is None:
        raise NotRunning(not_running(data))
    _used.add(data.path)
    return about


def refuse_deleted() -> None:
    """Raise TasksLost if a data folder that this process has used was deleted."""
    for path in _used:
        if not (path / "state.db").exists():  # the rest of the folder may be deleted a moment later
            raise TasksLost(f"the data folder {path} was deleted, so Corral has ended, and its tasks, too.")


def not_running(data: DataFolder) -> str:
    host = joined_host(data)
    if host is not None:
        server = host["door"].rpartition(":")[0]
        return f"This machine is host {host['name']} of the server at {server}. Run this command there."
    return f"Corral is not running on {data.path}. Start it with `{start_command(data)}`."


def host_folder() -> Path:
    """Return the default folder of a host that has joined a server on another machine."""
    return Path(os.environ.get("CORRAL_HOST_DATA") or Path.home() / ".corral-host").expanduser().absolute()


def joined_host(data: DataFolder) -> dict[str, Any] | None:
    """Return the record of a joined host, if this is its folder, or if this machine has its folder and no server of its own."""
    is_elsewhere = not data.chosen and not os.path.exists(data.path)
    path = (host_folder() if is_elsewhere else data.path) / JOINED
    record: dict[str, Any] | None = _read(path) if os.path.isfile(path) else None  # False also for a path that cannot be read
    return record


def start_command(data: DataFolder) -> str:
    plain = DataFolder(Path.home() / ".corral", chosen=False)
    return "corral up --detach" if data.path == plain.path else f"corral up --detach --data {data.path}"


def keys(data: DataFolder) -> dict[str, str]:
    """Return the root keys of a data folder: access_key and secret_key."""
    found = _read(data.path / "credentials.json")
    if found is None:
        path = data.path / "credentials.json"
        raise CliError(f"The root keys are missing: {path} does not exist. Restart Corral to create new keys.")
    return {"access_key": found["access_key"], "secret_key": found["secret_key"]}


def pid_of(data: DataFolder) -> int | None:
    """Return the process id of the folder's server, or None if no server runs.

    A starting server has no server.json yet, so read the lock file, too.
    """
    about = _read(data.path / "server.json")
    if about is not None and serves(about["pid"], data.path):
        return int(about["pid"])
    try:
        holder = (data.path / "lock").read_text().rpartition(" ")[2]
    except FileNotFoundError:
        return None
    return int(holder) if holder.isdigit() and serves(int(holder), data.path) else None


def serves(pid: int, folder: Path) -> bool:
    """Return True if the process with this id is the Corral server of a folder.

    The files of the folder contain the id of the last server. After a crash, a process of another program may have that id.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        its_folder = Path(os.readlink(f"/proc/{pid}/cwd"), arguments[arguments.index("--data") + 1])
    except (OSError, ValueError, IndexError):
        return False
    return "corral.server" in arguments and its_folder.resolve() == folder.resolve()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CliError(f"{path} is not valid JSON: {error}") from None
