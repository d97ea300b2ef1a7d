"""The upgrade of a joined host to the version of its server.

A wheel is unpacked into a folder of the host's data, `versions/NAME`, together with the wheels of dependencies that this Python
lacks. The installation of the host does not change. A trial start of the new agent must succeed. Then the file `versions/current`
names the folder, and the agent executes itself again with it. Runs continue. If anything fails, the old agent goes on.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path, PurePosixPath

from corral.core.errors import Refused
from corral.model.agent_protocol import UpgradeOrder, Wheel
from corral.process.data_folder import VERSIONS
from corral.version import full_version

CURRENT = "current"
FETCH_PATH = "/_corral/upgrade/"
FETCH_S, TRIAL_S = 60.0, 60.0
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?")
CONDITION = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9a-z.*+!-]*)")
WHEEL_NAME = re.compile(r"([^-]+)-([^-]+)(?:-[0-9][^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")


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
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except OSError as error:
        raise Refused(f"The new version cannot be written to {fresh}: {error}.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    content = json.dumps({"folder": folder.name, "version": order.version, "replaces": full_version()})
    _replace(data / VERSIONS / CURRENT, content if not _current(data) else _keep_base(data, folder.name, order.version))
    return folder


def restart(folder: Path, arguments: Sequence[str]) -> None:
    """Execute the agent of the new version instead of this process."""
    os.environ["PYTHONPATH"] = str(folder)
    os.execv(sys.executable, [sys.executable, "-m", "corral.node", *arguments])


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


def _unpack(wheel: Wheel, fetch: Callable[[str], bytes], folder: Path) -> None:
    content = fetch(wheel.sha256)
    if sha256(content).hexdigest() != wheel.sha256:
        raise Refused(f"{wheel.name} has arrived damaged.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                parts = PurePosixPath(name).parts
                if not parts or parts[0] == "/" or ".." in parts:
                    raise Refused(f"{wheel.name} is not a wheel: it contains the path {name}.")
                if parts[0].endswith(".data") and parts[1:2] not in (("purelib",), ("platlib",)):
                    continue  # scripts, headers and data
                path = folder.joinpath(*(parts[2:] if parts[0].endswith(".data") else parts))
                if name.endswith("/"):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise Refused(f"{wheel.name} is not a wheel: {error}.") from None


def _try(folder: Path, arguments: Sequence[str]) -> None:
    """Start the new agent with the options of this one, without any work."""
    command = [sys.executable, "-m", "corral.node", *arguments, "--find-gpus", ""]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_S, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"The new version does not start: it did not respond within {TRIAL_S:.0f} s.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Refused(f"The new version does not start: {lines[-1] if lines else f'exit code {done.returncode}'}.")


def _missing(folder: Path, offered: Sequence[Wheel]) -> list[Wheel]:
    """Return the wheels of dependencies that this Python lacks. Raise Refused if one of them is not offered."""
    [distribution] = metadata.distributions(path=[str(folder)])
    chosen, lacking = list[Wheel](), list[str]()
    for requirement in distribution.requires or ():
        parsed = REQUIREMENT.match(requirement)
        if parsed is None or _is_installed(parsed[1], parsed[2]):
            continue
        fitting = [wheel for wheel in offered if _fits(wheel.name, parsed[1], parsed[2])]
        if fitting:
            chosen.append(fitting[-1])
        else:
            lacking.append(f"{parsed[1]}{parsed[2]}".strip())
    if lacking:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor} on {platform.machine()}"
        raise Refused(
            f"The new version needs {', '.join(lacking)} for {python}. Put these wheels into a folder on the server, and name it "
            "with `corral config set upgrade.wheels FOLDER`."
        )
    return chosen


def _is_installed(name: str, conditions: str) -> bool:
    try:
        return satisfies(metadata.version(name), conditions)
    except metadata.PackageNotFoundError:
        return False


def satisfies(version: str, conditions: str) -> bool:
    """Whether a version fulfils conditions such as `>=1.44,<1.45`. Only the numbers of versions are compared."""
    own = _numbers(version)
    for operator, text in CONDITION.findall(conditions):
        other = _numbers(text.rstrip(".*"))
        same = own[: len(other)] == other if text.endswith(".*") else _padded(own, other) == _padded(other, own)
        is_less = _padded(own, other) < _padded(other, own)
        fulfilled = {
            ">=": not is_less, "<": is_less, "<=": is_less or same, ">": not is_less and not same, "==": same, "!=": not same,
            "~=": not is_less and own[: len(other) - 1] == other[:-1],
        }[operator]  # fmt: skip
        if not fulfilled:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _padded(numbers: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * (len(other) - len(numbers))


def _fits(file: str, name: str, conditions: str) -> bool:
    """Whether a wheel is of this dependency, and fits this Python and this platform."""
    parsed = WHEEL_NAME.fullmatch(file)
    if parsed is None or _normal(parsed[1]) != _normal(name) or not satisfies(parsed[2], conditions):
        return False
    minor = sys.version_info.minor
    pythons, abis, platforms = (parsed[at].split(".") for at in (3, 4, 5))
    stable = "abi3" in abis and any(re.fullmatch(r"cp3\d+", each) and int(each[3:]) <= minor for each in pythons)
    own = f"cp3{minor}" in pythons and f"cp3{minor}" in abis
    plain = "py3" in pythons and "none" in abis
    return (own or stable or plain) and any(_fits_platform(each) for each in platforms)


def _fits_platform(tag: str) -> bool:
    if tag == "any":
        return True
    found = re.fullmatch(r"(?:manylinux_(\d+)_(\d+)|manylinux(?:1|2010|2014)|linux)_(\w+)", tag)
    if found is None or found[3] != platform.machine():
        return False
    library, version = platform.libc_ver()
    needed = (int(found[1]), int(found[2])) if found[1] else (0, 0)
    return library == "glibc" and _numbers(version) >= needed


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
