"""Rows that are inserted before the next statement, and savepoints that are set only before a statement."""

from __future__ import annotations

import sqlite3

import pytest

from corral.core.statements import ROWS_AT_ONCE, Statements


class World:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("CREATE TABLE thing (name TEXT PRIMARY KEY)")
        self.sql: list[str] = []
        self.statements = Statements(self.connection)
        self.statements.execute("BEGIN")
        self.connection.set_trace_callback(lambda sql: self.sql.append(sql.partition(" ")[0]))

    def add(self, *names: str) -> None:
        for name in names:
            self.statements.insert_later("INSERT INTO thing (name)", (name,))

    def names(self) -> list[str]:
        return [name for (name,) in self.statements.execute("SELECT name FROM thing ORDER BY name")]


def test_one_statement_inserts_the_rows_of_several_commands() -> None:
    world = World()
    for name in "abc":
        world.statements.savepoint(is_needed=False)
        world.add(name)
        world.statements.release()
    world.statements.execute("COMMIT")
    assert world.sql == ["INSERT", "COMMIT"] and world.names() == ["a", "b", "c"]
    world.add("after the transaction")  # is inserted at once
    assert world.connection.execute("SELECT count(*) FROM thing").fetchone() == (4,)


def test_many_rows_need_several_statements() -> None:
    world = World()
    names = [f"{number:03}" for number in range(2 * ROWS_AT_ONCE + 1)]
    world.add(*names)
    assert world.names() == names and world.sql == ["INSERT"] * 3 + ["SELECT"]


@pytest.mark.parametrize("reads", [False, True])
def test_a_failed_command_loses_only_its_own_rows(reads: bool) -> None:
    world = World()
    world.add("first")
    world.statements.savepoint(is_needed=False)
    world.add("failed")
    if reads:  # so the savepoint is set, and the rows are inserted
        assert world.names() == ["failed", "first"]
        world.add("failed, too")
    assert world.statements.undo()
    world.statements.savepoint(is_needed=True)
    world.add("last")
    world.statements.release()
    assert world.names() == ["first", "last"] and ("SAVEPOINT" in world.sql) == reads


def test_rows_that_cannot_be_inserted_prevent_the_commit_unless_their_command_is_undone() -> None:
    world = World()
    world.add("a")
    world.statements.savepoint(is_needed=False)
    world.add("a")
    with pytest.raises(sqlite3.IntegrityError):
        world.names()
    assert world.statements.undo() and world.names() == ["a"]
    world.add("b", "b")
    world.statements.savepoint(is_needed=True)
    with pytest.raises(sqlite3.IntegrityError):
        world.names()
    assert world.statements.undo()
    with pytest.raises(sqlite3.IntegrityError):
        world.statements.execute("COMMIT")
