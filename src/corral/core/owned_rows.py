"""Rows with an owner: all rows of the tables that have a column `owner`. The schema says which tables these are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

Execute = Callable[..., sqlite3.Cursor]
Key = tuple[Any, ...]


class OwnedTable(Struct, frozen=True):
    name: str
    keys: tuple[str, ...]  # the columns of the primary key

    def rows_after(self, execute: Execute, after: Sequence[Any] | None, limit: int) -> list[tuple[Key, str]]:
        """Return the keys and the owners of the next rows, sorted by key."""
        keys = ", ".join(self.keys)
        sql = f"SELECT {keys}, owner FROM {self.name}"
        if after is not None:
            sql += f" WHERE ({keys}) > ({', '.join('?' * len(self.keys))})"
        rows = execute(f"{sql} ORDER BY {keys} LIMIT ?", (*(after or ()), limit)).fetchall()
        return [(tuple(row[:-1]), row[-1]) for row in rows]

    def set_owner(self, execute: Execute, key: Key, owner: str) -> None:
        where = " AND ".join(f"{column} = ?" for column in self.keys)
        execute(f"UPDATE {self.name} SET owner = ? WHERE {where}", (owner, *key))


def owned_tables(execute: Execute) -> dict[str, OwnedTable]:
    """Return the tables that have a column `owner`, by name."""
    found = {}
    for (name,) in execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        columns = execute(f"PRAGMA table_info({name})").fetchall()
        if any(column[1] == "owner" for column in columns):
            keys = [column[1] for column in sorted(columns, key=lambda column: int(column[5])) if column[5]]
            found[name] = OwnedTable(name, tuple(keys) or ("rowid",))
    return found
