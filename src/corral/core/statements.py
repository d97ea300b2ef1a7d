"""The statements of a store's writing connection. Rows and savepoints that can wait are delayed until the next statement.

So one statement inserts the rows of several commands, for example the tasks of several RunTask requests, and a command that only
inserts such rows needs no savepoint.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

ROWS_AT_ONCE = 8  # rows that one statement inserts

Execute = Callable[..., sqlite3.Cursor]
LaterRow = tuple[str, Sequence[Any]]  # an INSERT statement without its values, and the values
SAVEPOINT: LaterRow = ("SAVEPOINT command", ())


class Statements:
    """Executes statements in order. One savepoint can be set at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._later: list[LaterRow] = []  # the rows that are not inserted yet. SAVEPOINT is between them if it is not set yet.
        self._has_savepoint = False
        self._noted: list[set[str]] = []  # while statements are noted: one set, of the texts since the last commit
        self.execute = self._in_order(connection.execute)
        self.executemany = self._in_order(connection.executemany)

    def _in_order(self, run: Execute) -> Execute:
        later, catch_up, noted = self._later, self._catch_up, self._noted

        def execute(sql: str, values: Any = ()) -> sqlite3.Cursor:
            if later:
                catch_up()
            if noted:
                noted[0].add(sql)
            return run(sql, values)

        return execute

    def insert_later(self, into: str, row: Sequence[Any]) -> None:
        """Insert a row before the next statement. `into` is an INSERT statement without its values.

        Rows of one table are inserted together. If rows refer to rows of another table, add those of the other table first.
        """
        self._later.append((into, row))
        if self._noted:
            self._noted[0].add(into)
        if not self._connection.in_transaction:
            self._catch_up()

    def _catch_up(self) -> None:
        """Insert the rows, and set the savepoint.

        If this fails, the rows stay, and the next statement fails, too. So the transaction cannot be committed without them.
        """
        later = self._later
        if SAVEPOINT in later:
            if later[0] is not SAVEPOINT:
                at = later.index(SAVEPOINT)
                self._insert(later[:at])
                del later[:at]
            self._execute("SAVEPOINT command")
            self._has_savepoint = True
            del later[0]
        if later:
            self._insert(later)
            later.clear()

    def _insert(self, rows: Sequence[LaterRow]) -> None:
        if len(rows) == 1 or (len(rows) == 2 and rows[0][0] != rows[1][0]):
            for into, row in rows:
                self._execute(_insertion(into, len(row), 1), row)
            return
        by_table: dict[str, list[Sequence[Any]]] = {}
        for into, row in rows:
            by_table.setdefault(into, []).append(row)
        for into, found in by_table.items():
            for at in range(0, len(found), ROWS_AT_ONCE):
                part = found[at : at + ROWS_AT_ONCE]
                self._execute(_insertion(into, len(part[0]), len(part)), [value for row in part for value in row])

    def note(self, *, is_on: bool) -> None:
        """Note the texts of all statements from now on, or end this. Call it in the thread of the lane."""
        self._noted[:] = [set()] if is_on else []

    def take_noted(self) -> set[str]:
        """Return the texts of the statements since the last call. Some may have been undone."""
        if not self._noted:
            return set()
        taken, self._noted[0] = self._noted[0], set()
        return taken

    def savepoint(self, *, is_needed: bool) -> None:
        """Set a savepoint before the next statement. It is not needed if the transaction has executed no statement that writes."""
        self._has_savepoint = False
        if is_needed or self._later:
            self._later.append(SAVEPOINT)

    def release(self) -> None:
        if self._has_savepoint:
            self._execute("RELEASE command")
            self._has_savepoint = False
        elif SAVEPOINT in self._later:
            self._later.remove(SAVEPOINT)

    def undo(self) -> bool:
        """Undo everything since `savepoint` was called. Return False if the whole transaction must be rolled back instead."""
        if SAVEPOINT in self._later:  # there was no statement
            del self._later[self._later.index(SAVEPOINT) :]
            return True
        self._later.clear()
        if not self._has_savepoint:
            return False
        self._execute("ROLLBACK TO command")
        self._execute("RELEASE command")
        self._has_savepoint = False
        return True

    def forget_later(self) -> None:
        """Forget the rows that are not inserted yet, and the savepoint, because the transaction or an attempt is undone."""
        self._later.clear()


@cache  # few tables use `insert_later`
def _insertion(into: str, columns: int, rows: int) -> str:
    return f"{into} VALUES " + ", ".join([f"({', '.join('?' * columns)})"] * rows)
