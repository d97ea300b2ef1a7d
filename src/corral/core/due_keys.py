"""The table `due`: the times at which reconcilers run. If more keys are overdue than a transaction can handle, their owners
take turns.

The overdue keys are also in memory, by owner, but the rows decide: a key in memory without an overdue row is ignored. So only the
rollback of a whole transaction has to forget what is in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from heapq import heappop, heappush

# The times at which reconcilers run: the key of a reconciler, and a time in seconds since the epoch.
DUE_SCHEMA = """
CREATE TABLE due (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX due_at ON due (at);
"""

FEW = 8  # if at most this many keys are overdue, they are taken at once, without a query for their owners
READ_MAX = 500  # the most overdue keys that one call reads from the table
START = (-1.0, "")  # before all rows


class DueKeys:
    def __init__(self, execute: Callable[..., sqlite3.Cursor], owner_of: Callable[[str], str]) -> None:
        """`owner_of` returns the owner of the thing that the reconciler of a key handles."""
        self._execute = execute
        self._owner_of = owner_of
        # A tuple with the earliest time, or with None if the table is empty. None instead of a tuple: the time is not cached.
        self._earliest: tuple[float | None] | None = None
        self._overdue: dict[str, list[tuple[float, str]]] = {}  # owner → a heap of times and keys; the first owner is the next
        self._read_to: tuple[float, str] = START  # the last row that was read into `_overdue`
        self._set_last: tuple[str, float] | None = None  # a key whose row has at most this time. None: no such row is known

    def set(self, key: str, at_s: float) -> None:
        """Run the reconciler of `key` at this time. If an earlier time is already set, keep the earlier time.

        Many changes in a row may set the same key, for example the terminations of one request.
        """
        if self._set_last is not None and self._set_last[0] == key and self._set_last[1] <= at_s:
            return
        self._execute("INSERT INTO due VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET at = min(at, excluded.at)", (key, at_s))
        self._set_last = key, at_s
        if self._earliest is not None:
            (earliest_s,) = self._earliest
            self._earliest = (at_s if earliest_s is None else min(at_s, earliest_s),)
        if (at_s, key) <= self._read_to:
            self._add(at_s, key)

    def hasten(self, kind: str, at_s: float) -> None:
        """Run the reconcilers of a kind that have a later time at this time."""
        self._execute("UPDATE due SET at = ? WHERE key >= ? AND key < ? AND at > ?", (at_s, f"{kind}:", f"{kind};", at_s))
        self.forget()

    def shift(self, by_s: float) -> None:
        """Move the times of all reconcilers, because the clock of this database was set."""
        self._execute("UPDATE due SET at = at + ?", (by_s,))
        self.forget()

    def take(self, now_s: float, limit: int, together: Collection[str]) -> list[str]:
        """Remove and return overdue keys: all of them if they are few, else one key of the owner whose turn it is.

        If the reconciler of this key is one of `together`, also return further keys of the same owner and the same reconciler.
        """
        if not self._overdue and ((earliest_s := self.next_s()) is None or earliest_s > now_s):
            return []
        self._earliest = self._set_last = None
        if now_s < self._read_to[0]:  # the clock was set back
            self.forget()
        sql = "SELECT at, key FROM due WHERE (at, key) > (?, ?) AND at <= ? ORDER BY at, key LIMIT ?"
        rows = self._execute(sql, (*self._read_to, now_s, READ_MAX)).fetchall()
        if not self._overdue and len(rows) <= min(FEW, limit):
            return [key for _, key in rows if self._remove(key, now_s)]
        for at_s, key in rows:
            self._add(at_s, key)
        self._read_to = rows[-1] if rows else self._read_to
        taken: list[str] = []
        while self._overdue and not taken:
            owner = next(iter(self._overdue))
            waiting = self._overdue.pop(owner)
            self._take_from(waiting, taken, now_s, limit, together)
            if waiting:
                self._overdue[owner] = waiting  # the last in turn
        if not self._overdue:
            self._read_to = START
        return taken

    def next_s(self) -> float | None:
        """Return the earliest time, or None if no reconciler has a time.

        This time is cached, because every transaction needs it three times, and few transactions change it.
        """
        if self._earliest is None:
            (at,) = self._execute("SELECT min(at) FROM due").fetchone()
            self._earliest = (None if at is None else float(at),)
        return self._earliest[0]

    def undone(self) -> None:
        """Called when a savepoint was rolled back: the earliest time may be another one."""
        self._earliest = self._set_last = None

    def forget(self) -> None:
        """Called when a transaction was rolled back: the rows of keys that it has taken exist again."""
        self._earliest = self._set_last = None
        self._overdue.clear()
        self._read_to = START

    def _add(self, at_s: float, key: str) -> None:
        heappush(self._overdue.setdefault(self._owner_of(key), []), (at_s, key))

    def _take_from(
        self, waiting: list[tuple[float, str]], taken: list[str], now_s: float, limit: int, together: Collection[str]
    ) -> None:
        while waiting and len(taken) < limit:
            kind = waiting[0][1].partition(":")[0]
            if taken and (kind not in together or not taken[0].startswith(f"{kind}:")):
                return
            key = heappop(waiting)[1]
            if self._remove(key, now_s):
                taken.append(key)

    def _remove(self, key: str, now_s: float) -> bool:
        return self._execute("DELETE FROM due WHERE key = ? AND at <= ?", (key, now_s)).rowcount > 0
