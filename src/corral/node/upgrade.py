"""The upgrade of a joined host to the version of its server.

A wheel is unpacked into a folder of the host's data, `versions/NAME`, together with the wheels of dependencies that this Python
lacks. The installation of the host does not change. A trial start of the new agent must succeed. Then the file `versions/current`
names the folder, and the agent executes itself again with it. Runs continue. If anything fails, the old agent goes on.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from corral.core.errors import Refused
from corral.model.agent_protocol import UpgradeOrder, Wheel
from corral.node import wheel_choice
from corral.process.data_folder import VERSIONS
from corral.version import full_version

CURRENT = "current"
FETCH_PATH = "/_corral/upgrade/"
FETCH_S, TRIAL_S = 60.0, 60.0
IMPORT_ALL = (
    "import importlib, pkgutil, corral.node\n"
    "for each in pkgutil.walk_packages(corral.node.__path__, 'corral.node.'): importlib.import_module(each.name)"
)


def fetch_from(port: int, digest: str) -> bytes:
    """Return a file of the server, through the gateway of this host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=FETCH_S)
    try:
        connection.request("GET", FETCH_PATH + digest)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Refused(f"The server has not sent a wheel: {error or type(error).__name__}.") from None
    finally:
        connection.close()
    if response.status != 200:
        raise Refused(f"The server has not sent a wheel: HTTP {response.status}.")
    return content


def install(data: Path, order: UpgradeOrder, fetch: Callable[[str], bytes], arguments: Sequence[str]) -> Path:
    """Unpack the new version, and try it. `arguments` are those of the agent. Raise Refused: then nothing has changed."""
    folder = data / VERSIONS / order.files[0].sha256[:16]
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700, parents=True)
    try:
        _unpack(order.files[0], fetch, fresh)
        for wheel in _missing(fresh, order.files[1:]):
            _unpack(wheel, fetch, fresh)
        _try(fresh, arguments)
        _sync(fresh)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except OSError as error:
        raise Refused(f"The new version cannot be written to {fresh}: {error}.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    content = json.dumps({"folder": folder.name, "version": order.version, "replaces": full_version()})
    _replace(data / VERSIONS / CURRENT, content if not _current(data) else _keep_base(data, folder.name, order.version))
    _remove_unused(folder)
    return folder


def restart(folder: Path, arguments: Sequence[str]) -> None:
    """Execute the agent of the new version instead of this process."""
    os.environ["PYTHONPATH"] = str(folder)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "corral.node", *arguments])


def follow_upgrade(data: Path, arguments: Sequence[str]) -> None:
    """Execute the upgraded agent, if this one is the installation that was upgraded. An installation that changed since is used."""
    current = _current(data)
    if current is None or os.environ.get("PYTHONPATH", "").startswith(str(data / VERSIONS)):
        return
    folder = data / VERSIONS / current["folder"]
    if current["replaces"] == full_version() and folder.is_dir():
        restart(folder, arguments)


def _current(data: Path) -> dict[str, str] | None:
    with suppress(OSError, ValueError):
        found: dict[str, str] = json.loads((data / VERSIONS / CURRENT).read_bytes())
        return found
    return None


def _keep_base(data: Path, name: str, version: str) -> str:
    """Return the next content of `current` for an agent that runs from an upgrade: the installation below it is the same."""
    before = _current(data) or {}
    return json.dumps({"folder": name, "version": version, "replaces": before.get("replaces", "")})


def _replace(path: Path, content: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    with open(fresh, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def _sync(folder: Path) -> None:
    """Write all files of a folder to the disk: `current` must not name a version that a power failure has damaged."""
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _remove_unused(folder: Path) -> None:
    """Remove the other versions, except those that a process uses: the spawner of an earlier version lives until its runs end."""
    used = list[bytes]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            used += [each for each in path.read_bytes().split(b"\0") if each.startswith(b"PYTHONPATH=")]
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder and not any(os.fsencode(other) in each for each in used):
            shutil.rmtree(other, ignore_errors=True)


def _try(folder: Path, arguments: Sequence[str]) -> None:
    """Start the new agent with the options of this one, without any work, and import all modules of the new version for hosts."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    for words in (("-c", IMPORT_ALL), ("-m", "corral.node", *arguments, "--find-gpus", "")):
        try:
            done = subprocess.run(
                [sys.executable, "-P", *words], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=TRIAL_S, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Refused(f"The new version does not start: it did not respond within {TRIAL_S:.0f} s.") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise Refused(f"The new version does not start: {lines[-1] if lines else f'exit code {done.returncode}'}.")


def _unpack(wheel: Wheel, fetch: Callable[[str], bytes], folder: Path) -> None:
    content = fetch(wheel.sha256)
    if sha256(content).hexdigest() != wheel.sha256:
        raise Refused(f"{wheel.name} has arrived damaged.")
    try:
        wheel_choice.unpack(wheel.name, content, folder)
    except wheel_choice.NoWheel as why:
        raise Refused(str(why)) from None


def _missing(folder: Path, offered: Sequence[Wheel]) -> list[Wheel]:
    """Return the wheels of dependencies that this Python lacks. Raise Refused if one of them is not offered."""
    [distribution] = metadata.distributions(path=[str(folder)])
    by_name = {wheel.name: wheel for wheel in offered}
    chosen, lacking = wheel_choice.choose_wheels(distribution.requires or (), list(by_name))
    if lacking:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"
        raise Refused(
            f"The new version needs {', '.join(lacking)} for {python}. Put these wheels into a folder on the server, and name it "
            "with `corral config set upgrade.wheels FOLDER`."
        )
    return [by_name[name] for name in chosen]
