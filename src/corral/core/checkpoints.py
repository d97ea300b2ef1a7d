"""Checkpoints: copy the pages of the WAL file into the database in a thread, so that commits do not wait.

SQLite copies them itself in the commit that makes the WAL file longer than CHECKPOINT_PAGES. Such a commit takes 40 to 60 ms. A
lower limit makes these pauses shorter, but it costs: a page that changes often is copied after each time, and with 1,000 pages
SQLite writes up to 30% more. Therefore a thread copies the pages earlier, on its own connection, while the lane continues to write.
The lane copies what it has written meanwhile between two transactions. Then SQLite writes the WAL file from its beginning again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

CHECKPOINT_PAGES = 4000  # the limit for commits. They reach it if the thread is late, or if readers kept it from copying.
THREAD_PAGES = 2500  # the thread starts at about this length
# SQLite does not tell Python how much of the WAL file is in use, except after a checkpoint. So the number of changed rows is used,
# and after each checkpoint, it is corrected. It is corrected the first time by the length of the file, all of which is in use then.
CHANGES_FIRST, CHANGES_MIN, CHANGES_MAX = 500, 100, 10_000
PAGE_BYTES = 4096


class Checkpoints:
    """The checkpoints of one database. `between_transactions` must be called before each transaction of its writer."""

    def __init__(self, uri: str, wal: Path, writer: sqlite3.Connection) -> None:
        self._uri, self._wal, self._writer = uri, wal, writer
        self._is_first = True
        self._since = writer.total_changes  # when the last checkpoint ended
        self._changes = CHANGES_FIRST  # the thread starts after this number of changes
        self._thread: Thread | None = None

    def between_transactions(self) -> None:
        """Start the thread if it is time, or copy the pages that the thread has left."""
        if self._thread is None:
            changes = self._writer.total_changes - self._since
            if changes >= self._changes and not self._is_early(changes):
                thread = Thread(target=self._copy, args=(changes,), name="checkpoint", daemon=True)
                with suppress(RuntimeError):  # the limit of threads is reached, so a commit copies the pages
                    thread.start()
                    self._thread = thread
        elif not self._thread.is_alive():
            self._thread, self._since = None, self._writer.total_changes
            _copy_pages(self._writer)

    def wait(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _is_early(self, changes: int) -> bool:
        """Return whether the first checkpoint would copy fewer pages than the others. Set the number of changes for it then."""
        if not self._is_first:
            return False
        self._is_first = False
        with suppress(OSError):
            self._correct(changes, self._wal.stat().st_size // PAGE_BYTES)
        return changes < self._changes

    def _correct(self, changes: int, pages: int) -> None:
        if pages:
            self._changes = min(max(CHANGES_MIN, changes * THREAD_PAGES // pages), CHANGES_MAX)

    def _copy(self, changes: int) -> None:
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._uri, uri=True, isolation_level=None)) as connection:
            self._correct(changes, _copy_pages(connection))
            _copy_pages(connection)  # what was written meanwhile, so that little is left for the lane


def _copy_pages(connection: sqlite3.Connection) -> int:
    """Copy pages, except those that a reader prevents. Return the length of the WAL file in pages, or 0 if nothing was copied."""
    try:
        is_busy, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error:  # the disk is full, for example. The pages stay in the WAL file.
        return 0
    return 0 if is_busy else int(pages)
