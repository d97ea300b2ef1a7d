"""One SQLite file with one writer: opening it safely, transactions, savepoints, and readers beside them."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self

from corral.errors import Refused
from corral.journal import Journal

Migration = str  # a script that brings the schema before it to the next one; it may rebuild tables
APPLICATION_ID = 0x636F7272  # "corr": tells our files from other SQLite files
STATEMENTS_MAX = 512
CHECKED_MAX_BYTES = 64 * 1024 * 1024  # a larger file is not read through at every start


# Waiting is a row: what is due, and when. A key names a reconciler and what it should look at.
DUE_SCHEMA = """
CREATE TABLE due (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX due_at ON due (at);
"""

# What one store causes in another. The sender writes a row of `outbox` in the transaction of the cause and removes it when the
# receiver has committed the effect. The receiver notes it in `inbox` in the transaction of the effect, so a second delivery does
# nothing. `origin` is drawn anew each time a store is opened: a file that was restored from a copy counts its ids again, and the
# same id then means another hand-over.
HANDOVER_SCHEMA = """
CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    origin  TEXT NOT NULL,
    lane    TEXT NOT NULL,                      -- the receiver
    kind    TEXT NOT NULL,                      -- which of its functions
    key     TEXT,                               -- null, or what it is about: a later one about the same replaces it
    payload BLOB NOT NULL                       -- JSON: a list of arguments
);
CREATE INDEX outbox_key ON outbox (lane, kind, key) WHERE key IS NOT NULL;
CREATE TABLE inbox (origin TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (origin, id)) WITHOUT ROWID;
"""


class Handover(NamedTuple):
    """A row of `outbox`."""

    id: int
    origin: str
    lane: str
    kind: str
    key: str | None
    payload: bytes


class CommitFailed(Exception):
    """The whole transaction is gone (disk full, I/O error): none of its writes happened."""


def hold_folder(data: Path) -> int:
    """Lock the data folder for this process; a second one is refused and told who holds it."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "another process"
        os.close(fd)
        raise Refused(
            f"the data folder {data} is in use by {holder}. Stop it with `corral down --data {data}`, "
            "or choose another folder with --data."
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"corral, process {os.getpid()}".encode(), 0)
    return fd


def look_before_touching(path: Path, schema_version: int, *, checked: bool = False) -> None:
    """Refuse a foreign, newer or damaged file, and leave every byte of it as it was.

    One that was `checked` a moment ago is not read through again.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    check = "schema_version" if checked or path.stat().st_size > CHECKED_MAX_BYTES else "quick_check(1)"
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    # What was not yet copied back from the log counts. Without one, nothing but the file is looked at or made.
    mode = "mode=ro" if log.exists() else "immutable=1"
    had_index = index.exists()
    try:
        with closing(sqlite3.connect(f"file:{_quoted(path)}?{mode}", uri=True)) as probe:
            application = probe.execute("PRAGMA application_id").fetchone()[0]
            version = probe.execute("PRAGMA user_version").fetchone()[0]
            damage = probe.execute(f"PRAGMA {check}").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise _unreadable(path, error) from error
    finally:
        if not had_index:
            index.unlink(missing_ok=True)  # the reader's own
    if application != APPLICATION_ID:
        raise Refused(f"{path} was not made by Corral; it was left as it is. Choose another folder with --data.")
    if version > schema_version:
        raise Refused(
            f"{path} was written by a newer Corral (schema {version}, this one knows {schema_version}); "
            "it was left as it is. Use that newer version, or another folder with --data."
        )
    if check.startswith("quick") and damage != "ok":
        raise Refused(f"{path} is damaged ({damage}); it was left as it is. Restore it from a copy, or move it away to start anew.")


def _unreadable(path: Path | None, error: Exception) -> Refused:
    return Refused(f"{path} is not a readable database ({error}); it was left as it is. Move it away to start anew.")


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Database:
    """A connection that writes, and a way to open others that only read.

    A subclass is composed of parts, which share its connection, its transactions and its journal: `_compose` lists them.
    """

    reads_only = False

    def __init__(self, path: Path | None, schema: str, migrations: Sequence[Migration], *, checked: bool = False) -> None:
        """`path` None is a database in memory. The schema's version is 1 plus the number of migrations."""
        self.path = path
        self.journal = Journal()
        self._earliest_due: tuple[float | None] | None = None  # when something is due next, if anything is; None: look
        version = 1 + len(migrations)
        fresh = path is None or not path.exists() or path.stat().st_size == 0
        if path is not None:
            look_before_touching(path, version, checked=checked)
        # isolation_level None: we say BEGIN and COMMIT ourselves. The core's thread is made after this object.
        self.connection = sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_MAX
        )
        if path is not None and fresh:
            os.chmod(path, 0o600)
        self.execute = self.connection.execute
        self.executemany = self.connection.executemany
        try:
            self._configure(self.connection)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self.connection.close()
            raise _unreadable(path, error) from error  # what only a writer finds out
        self._bring_up_to(version, schema, migrations, fresh=fresh)
        self._compose()

    def _compose(self) -> None:
        """Attach the parts of this store: called once for the writer and once for each reader."""

    def _configure(self, connection: sqlite3.Connection) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000", "temp_store=MEMORY",
                       "wal_autocheckpoint=4000", "cache_size=-32768"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}")

    def _bring_up_to(self, version: int, schema: str, migrations: Sequence[Migration], *, fresh: bool) -> None:
        found = 0 if fresh else self.execute("PRAGMA user_version").fetchone()[0]
        if found == version:
            return
        self.execute("PRAGMA foreign_keys=OFF")  # a table that is rebuilt is dropped, and must not take others' rows with it
        self.execute("BEGIN IMMEDIATE")
        for script in [schema + DUE_SCHEMA + HANDOVER_SCHEMA] if found == 0 else migrations[found - 1 :]:
            for statement in _statements(script):
                self.execute(statement)
        if broken := self.execute("PRAGMA foreign_key_check").fetchone():
            raise sqlite3.IntegrityError(f"after the migration a row of {broken[0]} refers to nothing in {broken[2]}")
        self.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self.execute(f"PRAGMA user_version={version}")
        self.execute("COMMIT")
        self.execute("PRAGMA foreign_keys=ON")

    # One transaction at a time; the core calls these.

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")
        self._changes_before = self.connection.total_changes

    def commit(self) -> None:
        try:
            self.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise CommitFailed(str(error)) from error
        self.journal.commit()

    def rollback(self) -> None:
        self._earliest_due = None
        if self.connection.in_transaction:
            self.execute("ROLLBACK")
        self.journal.rollback()

    def savepoint(self) -> None:
        """As long as nothing is written, the beginning of the transaction will do: what a savepoint guards costs a copy."""
        self._has_savepoint = self.connection.total_changes != self._changes_before
        if self._has_savepoint:
            self.execute("SAVEPOINT command")
        self.journal.savepoint()

    def release(self) -> None:
        if self._has_savepoint:
            self.execute("RELEASE command")

    def rollback_to_savepoint(self) -> None:
        self._earliest_due = None
        if not self.connection.in_transaction:  # SQLite gave up the whole transaction by itself
            raise CommitFailed("the database gave up the transaction: disk full or I/O error")
        if self._has_savepoint:
            self.execute("ROLLBACK TO command")
            self.execute("RELEASE command")
        elif self.connection.total_changes != self._changes_before:
            self.execute("ROLLBACK")
            Database.begin(self)
        self.journal.rollback_to_savepoint()

    # What is due

    def set_due(self, key: str, at_s: float) -> None:
        """Look at `key` at that time; an earlier date already set stays."""
        self.execute("INSERT INTO due VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET at = min(at, excluded.at)", (key, at_s))
        if self._earliest_due is not None:
            (earliest_s,) = self._earliest_due
            self._earliest_due = (at_s if earliest_s is None else min(at_s, earliest_s),)

    def take_due(self, now_s: float, limit: int) -> list[str]:
        earliest_s = self.next_due_s()
        if earliest_s is None or earliest_s > now_s:
            return []
        rows = self.execute("SELECT key FROM due WHERE at <= ? ORDER BY at, key LIMIT ?", (now_s, limit)).fetchall()
        self.executemany("DELETE FROM due WHERE key = ?", rows)
        self._earliest_due = None
        return [key for (key,) in rows]

    def next_due_s(self) -> float | None:
        """Asked before, in and after every transaction: most of them change nothing of it."""
        if self._earliest_due is None:
            (at,) = self.execute("SELECT min(at) FROM due").fetchone()
            self._earliest_due = (None if at is None else float(at),)
        return self._earliest_due[0]

    # Hand-overs to other stores, and from them

    def undelivered(self) -> list[Handover]:
        """Oldest first."""
        return [Handover(*row) for row in self.execute("SELECT id, origin, lane, kind, key, payload FROM outbox ORDER BY id")]

    def write_handover(self, handover: Handover) -> list[int]:
        """Returns the ids of those that it replaces."""
        replaced: list[int] = []
        if handover.key is not None:
            sql = "DELETE FROM outbox WHERE lane = ? AND kind = ? AND key = ? RETURNING id"
            replaced = [row[0] for row in self.execute(sql, (handover.lane, handover.kind, handover.key)).fetchall()]
        self.execute("INSERT INTO outbox (id, origin, lane, kind, key, payload) VALUES (?, ?, ?, ?, ?, ?)", handover)
        return replaced

    def drop_handovers(self, ids: Iterable[int]) -> None:
        self.executemany("DELETE FROM outbox WHERE id = ?", [(each,) for each in ids])

    def note_received(self, handover: Handover) -> bool:
        """False: it was received before."""
        return self.execute("INSERT OR IGNORE INTO inbox VALUES (?, ?)", (handover.origin, handover.id)).rowcount == 1

    def forget_received(self, finished: Iterable[Handover]) -> None:
        """Their sender has removed them, and will not send them again."""
        self.executemany("DELETE FROM inbox WHERE origin = ? AND id = ?", [(each.origin, each.id) for each in finished])

    def keep_received(self, undelivered: Iterable[Handover]) -> None:
        """Forget all others: their senders have removed them."""
        kept = {(each.origin, each.id) for each in undelivered}
        gone = [row for row in self.execute("SELECT origin, id FROM inbox").fetchall() if row not in kept]
        self.executemany("DELETE FROM inbox WHERE origin = ? AND id = ?", gone)

    def reader(self) -> Self:
        """The same store on a read-only connection of its own: it sees what was committed, from any thread."""
        if self.path is None:
            raise ValueError("a database in memory has no readers beside its writer")
        reader = copy(self)
        reader.reads_only = True
        reader.journal = Journal()
        reader.connection = sqlite3.connect(
            f"file:{_quoted(self.path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        reader.execute = reader.connection.execute
        reader.executemany = reader.connection.executemany
        reader.execute("PRAGMA busy_timeout=5000")
        reader.execute("PRAGMA query_only=ON")
        reader._compose()
        return reader

    def begin_reading(self) -> None:
        """One snapshot for all that follows, until `end_reading`."""
        self.execute("BEGIN")

    def end_reading(self) -> None:
        self.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


def _statements(script: str) -> list[str]:
    """Split a script of plain statements, so that it runs inside our transaction (executescript would commit it)."""
    found, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    assert not rest.strip() or rest.lstrip().startswith("--"), f"unfinished statement: {rest!r}"
    return found


Row = tuple[Any, ...]
