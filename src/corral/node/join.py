"""The program with which a host joins a server. `corral join` starts it, with the token on standard input.

Start it with python -m corral.node.join --data DIR --server ADDRESS:PORT --name NAME.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.node import node_folder
from corral.node.fingerprint import given_or_found
from corral.node.joined_host import Token, join
from corral.node.server_access import AUTHORITY, CERTIFICATE, KEY, RECORD, Joined
from corral.process.control_characters import escape_controls
from corral.process.data_folder import DATABASES, lock_folder, validate_folder
from corral.process.options import parse_options

FRESH = "new"  # the folder in a host's folder in which it joins as a new host


class JoinOptions(Struct, frozen=True, rename="kebab"):
    data: str
    server: str
    name: str
    new: bool = False  # join as a new host, although the folder has one: it is a copy of the folder of another machine
    machine: str = ""  # as in `node/__main__.py`


def main() -> int:
    options = parse_options(sys.argv[1:], JoinOptions)
    folder = Path(options.data)
    existed = folder.exists()
    try:
        record = _join(folder, options, sys.stdin.readline())
    except (Refused, OSError) as why:
        if not existed:
            _remove(folder)
        text = str(why) if isinstance(why, Refused) else f"The server at {options.server} cannot be reached: {why.strerror or why}."
        print(escape_controls(text), file=sys.stderr)
        return 1
    print(msgspec.json.encode(record).decode())
    return 0


def _join(folder: Path, options: JoinOptions, token: str) -> Joined:
    if any((folder / name).exists() for name in DATABASES):
        raise Refused(f"{folder} is the data folder of a server. Choose another folder with --data.")
    validate_folder(folder)
    parsed = Token(token)
    lock_folder(folder)
    machine = given_or_found(options.machine)
    if not options.new or not (folder / KEY).exists():
        return join(folder, options.server, parsed, options.name, WallClock().now_s, machine)
    _require_unused(folder)
    fresh = folder / FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        record = join(fresh, options.server, parsed, options.name, WallClock().now_s, machine)
        _replace_host(folder, fresh)
        return record
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_unused(folder: Path) -> None:
    """Raise Refused if an agent or tasks of this folder are alive on this machine: then it is no copy."""
    for name, what in (("agent.lock", "an agent"), ("spawner.lock", "tasks")):
        path = folder / "node" / name
        held = node_folder.try_lock(path) if path.exists() else None
        if held is not None:
            os.close(held)
        elif path.exists():
            raise Refused(f"{folder} is in use: {what} of its host run on this machine. End `corral join` and the tasks first.")


def _replace_host(folder: Path, fresh: Path) -> None:
    """Replace the host of a folder by the one in `fresh`. Its record goes first and comes last: it says that a host has joined."""
    (folder / RECORD).unlink(missing_ok=True)
    for name in ("node", "outputs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (KEY, AUTHORITY, CERTIFICATE, "node", RECORD):
        (fresh / name).rename(folder / name)


def _remove(folder: Path) -> None:
    """Remove a folder that this program has created, if it has no key: a key may already belong to a host."""
    with suppress(OSError):
        if not (folder / "host.key").exists():
            (folder / "lock").unlink()
            os.rmdir(folder)


if __name__ == "__main__":
    sys.exit(main())
