"""A SQLite database with one writing connection: checks and opens it, manages its transactions, and opens read-only connections.

Such a database is a store. It also has four tables that the core (`core/core.py`) uses: `due` and `watch` say when a
reconciler runs, and `outbox` and `inbox` have messages to and from other stores. The key of a reconciler, for example `pool:hosts`,
has the name of the reconciler and the name of the thing.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from corral.core.checkpoints import CHECKPOINT_PAGES, Checkpoints
from corral.core.due_keys import DUE_SCHEMA, DueKeys
from corral.core.errors import Refused
from corral.core.schema_origin import ORIGIN_SCHEMA, Origin, read_origin, require_schema, schema_digest, write_origin
from corral.core.statements import Statements
from corral.core.undo_log import UndoLog
from corral.version import full_version

Migration = str | Callable[[sqlite3.Connection], None]  # a SQL script, which may rebuild tables, or a function
APPLICATION_ID = 0x636F7272  # the bytes "corr"; they distinguish Corral's files from other SQLite files
STATEMENTS_MAX = 512  # compiled SQL statements that the connection caches
CHECKPOINT_WAIT_MS = 200  # when a database is closed, wait this long for readers of other processes
CHECKED_MAX_BYTES = 64 * 1024 * 1024  # larger files are not checked for damage at the start, because that takes too long

# The errors of a damaged database. The text of SQLite's error may quote damaged bytes, which Python cannot decode.
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)


# Schema → an empty database in memory with that schema. To copy this database takes a tenth of the time that the SQL of the schema
# takes.
_IN_MEMORY: dict[str, sqlite3.Connection] = {}

# The reconcilers that run when something changes. `changed` is the key of a change (`Tx.changed`), `key` is that of a reconciler.
WATCH_SCHEMA = """
CREATE TABLE watch (key TEXT NOT NULL, changed TEXT NOT NULL, PRIMARY KEY (key, changed)) WITHOUT ROWID;
"""

# Messages to other stores, called hand-overs (handovers.py). The sender writes a row of `outbox` in the same transaction as its
# other changes. The receiver applies the payload and writes the id of the row into `inbox` in one transaction. So a second delivery
# is a no-op. Then the sender deletes its row. `origin` is a new random id each time a store is opened. The receiver needs it,
# because after a restart or a restore, the sender can use the same ids again for other hand-overs.
HANDOVER_SCHEMA = """
CREATE TABLE outbox (
    id      INTEGER PRIMARY KEY,
    origin  TEXT NOT NULL,
    lane    TEXT NOT NULL,                      -- the receiving lane
    kind    TEXT NOT NULL,                      -- the receiver in that lane
    key     TEXT,                               -- a later row of the same lane, kind and key replaces this one
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


class NeedsWriter(Exception):
    """Raised in a read on a read-only connection that needs what only the lane has in memory. The read runs again in the lane."""


class CommitFailed(Exception):
    """The whole transaction was rolled back, because the disk is full or an I/O error occurred."""


def is_missing(path: Path) -> bool:
    """Return True if the file does not exist or is empty. In both cases, the next start creates the database."""
    return not path.exists() or path.stat().st_size == 0


def validate_file(path: Path, kind: type[Database], *, checked: bool = False) -> None:
    """Raise Refused if the file is damaged, was written by another program or a newer Corral, or has another schema than a store
    of this kind. Do not change the file.

    With `checked`, the file is not checked for damage, because it was checked before.
    """
    if is_missing(path):
        return
    check = "schema_version" if checked or path.stat().st_size > CHECKED_MAX_BYTES else "quick_check(1)"
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    # If a WAL file exists, SQLite must read it, too. Otherwise open the file as immutable, so that SQLite creates no other files.
    mode = "mode=ro" if log.exists() else "immutable=1"
    had_index = index.exists()
    try:
        with closing(sqlite3.connect(f"file:{quoted_path(path)}?{mode}", uri=True)) as probe:
            application = probe.execute("PRAGMA application_id").fetchone()[0]
            version = probe.execute("PRAGMA user_version").fetchone()[0]
            damage = probe.execute(f"PRAGMA {check}").fetchone()[0]
            origin = read_origin(probe)
    except DAMAGE as error:
        raise _unreadable(path, error) from error
    finally:
        if not had_index:
            index.unlink(missing_ok=True)  # SQLite has created it for the connection above
    if application != APPLICATION_ID:
        raise Refused(f"{path} was not written by Corral. It was not changed. Choose another folder with --data.")
    if check.startswith("quick") and damage != "ok":
        raise Refused(
            f"{path} is damaged ({damage}). It was not changed. Restore a backup (`corral restore`), "
            "or move the file away to start with an empty database."
        )
    kind.require_version(path, version, origin)


def _unreadable(path: Path | None, error: Exception) -> Refused:
    return Refused(f"{path} is not a readable database ({error}). It was not changed. Move it away to start anew.")


def quoted_path(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Database:
    """The writing connection of a store. `reader` opens read-only connections.

    A store is a subclass that consists of parts, one per group of tables. The method `_compose` of the subclass creates the parts.
    All parts share the connection, the transaction and the undo log.
    """

    reads_only = False
    # Each element converts the rows of one version to the next version: the first converts version 1 to version 2. A version is
    # frozen: its schema, and the form of the JSON and other values in its rows, never change (CONTRIBUTING.md).
    MIGRATIONS: tuple[Migration, ...] = ()

    @staticmethod
    def schema() -> str:
        """Return the SQL script of the store's own tables. Each kind of store has another one."""
        raise NotImplementedError

    @classmethod
    def schema_version(cls) -> int:
        return 1 + len(cls.MIGRATIONS)

    @classmethod
    def digest(cls) -> str:
        return schema_digest(cls._script())

    @classmethod
    def require_version(cls, what: str | Path, version: int, origin: Origin | None) -> None:
        """Raise OtherSchema if this version of Corral cannot read a database. It reads and migrates all earlier versions."""
        require_schema(what, version, origin, cls.schema_version(), cls.digest())

    @classmethod
    def _script(cls) -> str:
        return cls.schema() + DUE_SCHEMA + WATCH_SCHEMA + HANDOVER_SCHEMA + ORIGIN_SCHEMA

    def __init__(self, path: Path | None, *, checked: bool = False) -> None:
        """If `path` is None, the database is in memory."""
        self.path = path
        self.undo_log = UndoLog()
        self._readers: list[sqlite3.Connection] = []
        self._checkpoints: Checkpoints | None = None
        fresh = path is None or is_missing(path)
        if path is not None:
            validate_file(path, type(self), checked=checked)
            # Create the file here with mode 600, because other users could read a file that SQLite creates. SQLite's WAL file gets
            # the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        # With isolation_level None, this class executes BEGIN and COMMIT itself. check_same_thread is False, because the thread
        # that uses the connection starts later.
        self.connection = sqlite3.connect(
            path or ":memory:", isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_MAX
        )
        self._statements = Statements(self.connection)
        self.execute, self.executemany = self._statements.execute, self._statements.executemany
        self.insert_later = self._statements.insert_later
        self._due = DueKeys(self.execute, self._owner_of)
        # The rows of `watch`, in both directions: reconciler → what it watches, and the reverse.
        self._watched: dict[str, tuple[str, ...]] = {}
        self._watchers: dict[str, dict[str, None]] = {}
        try:
            self._configure(self.connection)
            self._migrate(fresh=fresh)
            self._note_use()
            for key, changed in self.execute("SELECT key, changed FROM watch ORDER BY key, changed").fetchall():
                self._set_watched(key, (*self._watched.get(key, ()), changed))
            self._compose()
            if path is not None:
                wal = path.with_name(f"{path.name}-wal")
                self._checkpoints = Checkpoints(f"file:{quoted_path(path)}?mode=rw", wal, self.connection)
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # only this type means damage
                raise
            self.connection.close()
            raise _unreadable(path, error) from error  # `validate_file` did not find this damage

    def _compose(self) -> None:
        """Create the parts of this store. Called once for the writer and once for each reader."""

    def _configure(self, connection: sqlite3.Connection) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000", "temp_store=MEMORY",
                       f"wal_autocheckpoint={CHECKPOINT_PAGES}", "cache_size=-32768"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}")

    def _migrate(self, *, fresh: bool) -> None:
        version, script = self.schema_version(), self._script()
        found = 0 if fresh else self.execute("PRAGMA user_version").fetchone()[0]
        if found == version:
            return
        if self.path is None and script in _IN_MEMORY:
            _IN_MEMORY[script].backup(self.connection)
            return
        # A migration may drop and rebuild a table. With foreign keys, this would delete the rows that refer to the table.
        self.execute("PRAGMA foreign_keys=OFF")
        self.execute("BEGIN IMMEDIATE")
        for part in [script] if found == 0 else self.MIGRATIONS[found - 1 :]:
            if isinstance(part, str):
                for statement in _statements(part):
                    self.execute(statement)
            else:
                part(self.connection)
        if broken := self.execute("PRAGMA foreign_key_check").fetchone():
            raise sqlite3.IntegrityError(f"after the migration, a row of {broken[0]} refers to a missing row of {broken[2]}")
        write_origin(self.connection, self._origin())
        self.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self.execute(f"PRAGMA user_version={version}")
        self.execute("COMMIT")
        if found:
            logging.getLogger("corral").info("%s: the schema was migrated from version %d to version %d", self.path, found, version)
        self.execute("PRAGMA foreign_keys=ON")
        if self.path is None:
            empty = _IN_MEMORY[script] = sqlite3.connect(":memory:", check_same_thread=False)
            self.connection.backup(empty)

    def _origin(self) -> Origin:
        return Origin(self.digest(), full_version() if self.path is not None else "")

    def _note_use(self) -> None:
        """Store the version of Corral that uses this file, for the message of a version that cannot use it."""
        if self.path is None or read_origin(self.connection) == self._origin():
            return
        self.execute("BEGIN IMMEDIATE")
        try:
            write_origin(self.connection, self._origin())
            self.execute("COMMIT")
        except sqlite3.OperationalError:  # the disk is full; Corral starts nevertheless, and answers reads
            if self.connection.in_transaction:
                self.execute("ROLLBACK")

    # Transactions. The core calls these methods, for one transaction at a time.

    def begin(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.between_transactions()
        self.execute("BEGIN IMMEDIATE")
        self._changes_before = self.connection.total_changes

    def commit(self) -> None:
        self.undo_log.prepare_commit()
        try:
            self.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise CommitFailed(str(error)) from error
        self.undo_log.commit()

    def has_written(self) -> bool:
        """Whether the last transaction has written rows. Rows that were rolled back to a savepoint may count, too."""
        return self.connection.total_changes != self._changes_before

    def note_statements(self, is_on: bool) -> None:
        """Note the texts of all statements from the next transaction on, or end this."""
        self._statements.note(is_on=is_on)

    def take_noted(self) -> set[str]:
        """Return the texts of the statements of the last transaction, if they are noted."""
        return self._statements.take_noted()

    def free_pages(self) -> None:
        """Free the pages of the database that are in memory. Call this between transactions."""
        self.execute("PRAGMA shrink_memory")

    def rollback(self) -> None:
        self._due.forget()
        self._statements.forget_later()
        if self.connection.in_transaction:
            self.execute("ROLLBACK")
        self.undo_log.rollback()

    def savepoint(self) -> None:
        """Set a savepoint.

        If the transaction has written nothing yet, do not set one, because a savepoint costs time. In this case,
        `rollback_to_savepoint` rolls back the whole transaction and begins a new one.
        """
        self._statements.savepoint(is_needed=self.connection.total_changes != self._changes_before)
        self.undo_log.savepoint()

    def release(self) -> None:
        self._statements.release()

    def rollback_to_savepoint(self) -> None:
        self._due.undone()
        if not self.connection.in_transaction:  # SQLite has rolled back the whole transaction
            raise CommitFailed("SQLite rolled back the transaction: disk full or I/O error")
        if not self._statements.undo() and self.connection.total_changes != self._changes_before:
            self.execute("ROLLBACK")
            Database.begin(self)
        self.undo_log.rollback_to_savepoint()

    def begin_attempt(self) -> tuple[int, int]:
        """Set a savepoint inside the savepoint of a command. Attempts can be nested. Return what `undo_attempt` needs."""
        self.execute("SAVEPOINT attempt")
        return self.undo_log.position()

    def end_attempt(self) -> None:
        self.execute("RELEASE attempt")

    def undo_attempt(self, position: tuple[int, int]) -> None:
        self._due.undone()
        if not self.connection.in_transaction:
            raise CommitFailed("SQLite rolled back the transaction: disk full or I/O error")
        self._statements.forget_later()  # `begin_attempt` has inserted the rows of the time before it
        self.execute("ROLLBACK TO attempt")
        self.execute("RELEASE attempt")
        self.undo_log.rollback_to(position)

    # Times of reconcilers

    def set_due(self, key: str, at_s: float) -> None:
        self._due.set(key, at_s)

    def hasten_due(self, kind: str, at_s: float) -> None:
        self._due.hasten(kind, at_s)

    def shift_due(self, by_s: float) -> None:
        self._due.shift(by_s)

    def take_due(self, now_s: float, limit: int, together: Collection[str]) -> list[str]:
        return self._due.take(now_s, limit, together)

    def next_due_s(self) -> float | None:
        return self._due.next_s()

    def _owner_of(self, key: str) -> str:
        """Return the owner of the thing that the reconciler of a key handles. Empty: no user owns it."""
        return ""

    # Reconcilers that watch keys

    def watch(self, key: str, changed: Iterable[str]) -> None:
        """Run the reconciler of `key` whenever one of the keys in `changed` changes. These keys replace those of earlier calls."""
        before, after = self._watched.get(key, ()), tuple(dict.fromkeys(changed))
        if before == after:
            return
        self.executemany("DELETE FROM watch WHERE key = ? AND changed = ?", [(key, each) for each in before if each not in after])
        self.executemany("INSERT INTO watch VALUES (?, ?)", [(key, each) for each in after if each not in before])
        self._set_watched(key, after)
        self.undo_log.on_rollback(partial(self._set_watched, key, before))

    def watchers(self, changed: str) -> Iterable[str]:
        """Return the keys of the reconcilers that watch a key."""
        return self._watchers.get(changed, ())

    def _set_watched(self, key: str, changed: tuple[str, ...]) -> None:
        for each in self._watched.pop(key, ()):
            watchers = self._watchers[each]
            del watchers[key]
            if not watchers:
                del self._watchers[each]
        if changed:
            self._watched[key] = changed
        for each in changed:
            self._watchers.setdefault(each, {})[key] = None

    # Hand-overs to and from other stores

    def undelivered(self) -> list[Handover]:
        """Return the rows of `outbox`. The oldest row is the first."""
        return [Handover(*row) for row in self.execute("SELECT id, origin, lane, kind, key, payload FROM outbox ORDER BY id")]

    def write_handover(self, handover: Handover) -> list[int]:
        """Write a row of `outbox`. Return the ids of the rows that it replaces."""
        replaced: list[int] = []
        if handover.key is not None:
            sql = "DELETE FROM outbox WHERE lane = ? AND kind = ? AND key = ? RETURNING id"
            replaced = [row[0] for row in self.execute(sql, (handover.lane, handover.kind, handover.key)).fetchall()]
        self.execute("INSERT INTO outbox (id, origin, lane, kind, key, payload) VALUES (?, ?, ?, ?, ?, ?)", handover)
        return replaced

    def drop_handovers(self, ids: Iterable[int]) -> None:
        self.executemany("DELETE FROM outbox WHERE id = ?", [(each,) for each in ids])

    def note_received(self, handover: Handover) -> bool:
        """Record that a hand-over was received. Return False if it was received before."""
        return self.execute("INSERT OR IGNORE INTO inbox VALUES (?, ?)", (handover.origin, handover.id)).rowcount == 1

    def forget_received(self, finished: Iterable[Handover]) -> None:
        """Delete the inbox rows of these hand-overs, because the sender has deleted its rows."""
        self.executemany("DELETE FROM inbox WHERE origin = ? AND id = ?", [(each.origin, each.id) for each in finished])

    def forget_received_except(self, undelivered: Iterable[Handover]) -> None:
        """Delete all inbox rows except those of `undelivered` hand-overs."""
        needed = {(each.origin, each.id) for each in undelivered}
        unneeded = [row for row in self.execute("SELECT origin, id FROM inbox").fetchall() if row not in needed]
        self.executemany("DELETE FROM inbox WHERE origin = ? AND id = ?", unneeded)

    def reader(self) -> Self:
        """Return the same store with a new read-only connection. It reads only committed rows. Any thread may use it."""
        if self.path is None:
            raise ValueError("a database in memory cannot have a second connection")
        reader = copy(self)
        reader.reads_only = True
        reader.undo_log = UndoLog()
        reader.connection = sqlite3.connect(
            f"file:{quoted_path(self.path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        self._readers.append(reader.connection)
        reader.execute = reader.connection.execute
        reader.executemany = reader.connection.executemany
        reader.execute("PRAGMA busy_timeout=5000")
        reader.execute("PRAGMA query_only=ON")
        reader._compose()
        return reader

    def publish(self) -> None:
        """After the commit, copy what readers need of the writer's memory."""
        self.undo_log.on_commit(self._publish)

    def _publish(self) -> None:
        """Copy what readers need. A store whose readers need nothing has no copy."""

    def begin_reading(self) -> None:
        """Start a read transaction. All reads until `end_reading` see the same snapshot."""
        self.execute("BEGIN")

    def end_reading(self) -> None:
        self.execute("COMMIT")

    def close(self) -> None:
        """Close the connection. The writing connection also closes its readers, and copies the content of the WAL file into the
        database.

        SQLite deletes the WAL file when the last connection is closed. While a backup has a connection, the WAL file remains,
        because the backup needs it.
        """
        if not self.reads_only and self._checkpoints is not None:
            self._checkpoints.wait()
            for reader in self._readers:
                reader.close()
            with suppress(sqlite3.OperationalError):  # if the disk is full, the next start reads the WAL file
                self.execute(f"PRAGMA busy_timeout={CHECKPOINT_WAIT_MS}")
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.connection.close()


def _statements(script: str) -> list[str]:
    """Split a script into statements, so that they can run inside a transaction.

    `executescript` would commit the transaction first.
    """
    found, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    assert not rest.strip() or rest.lstrip().startswith("--"), f"unfinished statement: {rest!r}"
    return found


Row = tuple[Any, ...]
