"""Snapshots of several databases at one instant, while other processes write them: for backups and checks.

Hand-overs between the stores take effect exactly once only if all stores are of the same instant: a store that is older than
another one could lack an effect whose cause is done, or cause an effect a second time. No order of copying prevents both.
So the snapshots are taken together, and taken again if any of the databases was written meanwhile; this takes 50 µs, and a commit
takes longer. A backup is therefore what a crash at that instant would have left.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from corral.database import quoted_path
from corral.errors import Refused

TRIES = 20_000  # a second and more
STEP_PAGES = 2_000
READ_BYTES = 1024 * 1024
PROBLEMS_MAX = 20  # reported for each database

Progress = Callable[[int, int], None]  # done, total


class Snapshots:
    """Read-only connections to databases; all see the same instant, until `close`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """The databases may be in use. Files that SQLite creates for a reader are removed by `close` if no process uses them."""
        self._before = {path: [end for end in ("-wal", "-shm") if os.path.exists(f"{path}{end}")] for path in paths}
        self.connections: list[sqlite3.Connection] = []
        probes: list[sqlite3.Connection] = []
        try:
            for path in paths:
                self.connections.append(open_reader(path))
                probes.append(open_reader(path))
                try:
                    probes[-1].execute("SELECT 1 FROM sqlite_schema").fetchone()
                except sqlite3.DatabaseError as error:
                    raise Refused(f"{path} is not a readable database ({error}). `corral restore` restores a backup.") from None
            for _ in range(TRIES):
                before = [_version(probe) for probe in probes]
                for connection in self.connections:
                    connection.execute("BEGIN")
                    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # the snapshot begins with the first read
                if before == [_version(probe) for probe in probes]:
                    return
                for connection in self.connections:
                    connection.execute("COMMIT")
            raise Refused("the databases are written all the time, so that no snapshot of all of them was possible: try again.")
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
        """Delete the empty log and its index that a reader has created. The caller holds the folder's lock: nothing uses them."""
        for path, before in self._before.items():
            if not before and os.path.exists(f"{path}-wal") and not os.path.getsize(f"{path}-wal"):
                os.unlink(f"{path}-wal")
                os.unlink(f"{path}-shm")


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """`immutable`: no process writes it, and SQLite creates no other files."""
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
    """The problems that SQLite finds in a database: damaged pages and indexes, and rows that refer to missing rows."""
    try:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({PROBLEMS_MAX})") if row[0] != "ok"]
        broken = connection.execute("PRAGMA foreign_key_check").fetchmany(PROBLEMS_MAX - len(found)) if not found else []
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return found + [f"a row of {table} refers to a missing row of {parent}" for table, _, parent, _ in broken]
