"""Takes snapshots of several databases at the same instant, for backups and checks. Other processes may use the databases.

All snapshots must be from the same instant, because messages (hand-overs) are sent from one database to another. If the snapshot of
the receiver were older than the snapshot of the sender, a message could be lost. If it were newer, a message could be delivered
twice. So this module takes all snapshots within about 50 µs. If a process has written to a database in this time, the module takes
all snapshots again. The result is the same as the databases after a crash at that instant.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from corral.core.database import DAMAGE, quoted_path
from corral.core.errors import Refused

TRIES = 20_000  # all tries together take more than one second
STEP_PAGES = 2_000  # pages that are copied between two calls of `Progress`
PROBLEMS_MAX = 20  # the maximum number of reported problems per database

Progress = Callable[[int, int], None]  # called with the number of copied bytes and the total number of bytes


class Snapshots:
    """Read-only connections to several databases. Until `close`, all connections read the data of the same instant."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the databases and take the snapshots. Other processes may use the databases."""
        self._before = {path: [end for end in ("-wal", "-shm") if os.path.exists(f"{path}{end}")] for path in paths}
        self.connections: list[sqlite3.Connection] = []
        probes: list[sqlite3.Connection] = []
        try:
            for path in paths:
                self.connections.append(open_reader(path))
                probes.append(open_reader(path))
                try:
                    probes[-1].execute("SELECT 1 FROM sqlite_schema").fetchone()
                except DAMAGE as error:
                    raise Refused(f"{path} is not a readable database ({error}). `corral restore` restores a backup.") from None
            for _ in range(TRIES):
                before = [_version(probe) for probe in probes]
                for connection in self.connections:
                    connection.execute("BEGIN")
                    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # SQLite takes the snapshot at the first read
                if before == [_version(probe) for probe in probes]:
                    return
                for connection in self.connections:
                    connection.execute("COMMIT")
            raise Refused("no snapshot of all databases was possible, because they are written continuously: try again.")
        except BaseException:
            self.close()
            raise
        finally:
            for probe in probes:
                probe.close()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def remove_new_logs(self) -> None:
        """Delete each empty -wal file that these connections created, and its -shm file. The caller must have locked the folder."""
        for path, before in self._before.items():
            if not before and os.path.exists(f"{path}-wal") and not os.path.getsize(f"{path}-wal"):
                os.unlink(f"{path}-wal")
                os.unlink(f"{path}-shm")


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a database for reading. Pass `immutable` only if no process writes to it. Then SQLite creates no other files."""
    mode = "immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(f"file:{quoted_path(path)}?{mode}", uri=True, isolation_level=None)
    connection.execute("PRAGMA busy_timeout=5000")
    return connection


def _version(probe: sqlite3.Connection) -> int:
    return int(probe.execute("PRAGMA data_version").fetchone()[0])


def copy_database(source: sqlite3.Connection, target: Path, progress: Progress) -> str:
    """Write a snapshot to a new file and sync it. Return the SHA-256 of the file."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    (page_bytes,) = source.execute("PRAGMA page_size").fetchone()
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        source.backup(
            copy, pages=STEP_PAGES, progress=lambda _, left, total: progress((total - left) * page_bytes, total * page_bytes)
        )
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return file_digest(target)


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage_in(connection: sqlite3.Connection) -> list[str]:
    """Return the problems that SQLite finds in a database: damaged pages and indexes, and rows that refer to missing rows."""
    try:
        connection.text_factory = lambda text: text.decode(errors="replace")  # a problem may quote damaged bytes
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})") if row[0] != "ok"]
        broken = connection.execute("PRAGMA foreign_key_check").fetchmany(PROBLEMS_MAX - len(found)) if not found else []
    except DAMAGE as error:
        return [str(error)]
    finally:
        connection.text_factory = str
    return found + [f"a row of {table} refers to a missing row of {parent}" for table, _, parent, _ in broken]
