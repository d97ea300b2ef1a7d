"""The program with which a host joins a server. `corral join` starts it, with the token on standard input.

Start it with python -m corral.node.join --data DIR --server ADDRESS:PORT --name NAME.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.node.joined_host import Token, join
from corral.node.server_access import Joined
from corral.process.control_characters import escape_controls
from corral.process.data_folder import DATABASES, lock_folder, validate_folder
from corral.process.options import parse_options


class JoinOptions(Struct, frozen=True, rename="kebab"):
    data: str
    server: str
    name: str


def main() -> int:
    options = parse_options(sys.argv[1:], JoinOptions)
    folder = Path(options.data)
    existed = folder.exists()
    try:
        record = _join(folder, options, sys.stdin.readline())
    except (Refused, OSError) as why:
        if not existed:
            _remove(folder)
        text = str(why) if isinstance(why, Refused) else f"The server at {options.server} cannot be reached: {why}."
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
    return join(folder, options.server, parsed, options.name, WallClock().now_s)


def _remove(folder: Path) -> None:
    """Remove a folder that this program has created, if it has no key: a key may already belong to a host."""
    with suppress(OSError):
        if not (folder / "host.key").exists():
            (folder / "lock").unlink()
            os.rmdir(folder)


if __name__ == "__main__":
    sys.exit(main())
