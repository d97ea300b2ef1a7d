"""A data folder of any earlier version becomes what a new one is, with its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from corral.database import APPLICATION_ID, DUE_SCHEMA
from corral.store import Store
from corral.telemetry import LogStore

HERE = Path(__file__).parent


def columns(connection: sqlite3.Connection) -> dict[str, Any]:
    """Tables with their columns and foreign keys, and indexes with their text: what the code relies on."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    return {
        "tables": {name: sorted(column[1:] for column in connection.execute(f"PRAGMA table_info({name})")) for name in tables},
        "keys": {name: sorted(key[2:] for key in connection.execute(f"PRAGMA foreign_key_list({name})")) for name in tables},
        "indexes": {name: " ".join(sql.split()) for name, sql in indexes},
    }


def old(path: Path, schema: str, rows: Iterable[str]) -> None:
    """A file as an earlier version of Corral made it: the number in the schema's name."""
    connection = sqlite3.connect(path)
    connection.executescript((HERE / schema).read_text() + DUE_SCHEMA)
    for row in rows:
        connection.execute(row)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={Path(schema).stem[-1]}")
    connection.commit()
    connection.close()


STATE = (
    "INSERT INTO cluster VALUES ('r', 'mine', 'ACTIVE', '{}')",
    "INSERT INTO task_definition VALUES ('r', 'train', 1, 'ACTIVE', '{\"family\": \"train\"}')",
    "INSERT INTO host VALUES ('h', 'hosts', 'name', 'boot', 4096, 4096, 1, 1.0, 1.0)",
    "INSERT INTO gpu VALUES ('GPU-1', 'h', 0, 'H100', 80000, 1, 1, 'exclusive', 'host:h')",
    "INSERT INTO task VALUES ('t', 'r', 'mine', 'arn', 'train', 'hosts', 'RUNNING', 'RUNNING', 'h', 1, 0, 16, 3, 'g', NULL, "
    "1.0, 1.0, 1.0, NULL, NULL, NULL, NULL, '{}')",
    "INSERT INTO task VALUES ('w', 'r', 'mine', 'arn', 'train', 'hosts', 'PROVISIONING', 'RUNNING', NULL, 1, 0, 16, 1, 'g', NULL, "
    "2.0, NULL, NULL, NULL, NULL, NULL, NULL, '{}')",
    "INSERT INTO run VALUES ('run', 't', 0, 'main', 1, 1, 'RUNNING', '[\"GPU-1\"]', 7, NULL, NULL, 1.0, NULL)",
    "INSERT INTO run VALUES ('runw', 'w', 0, 'main', 1, 1, 'PENDING', '[]', NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO lease VALUES ('GPU-1', 'run', 'exclusive', 'host:h')",
)
LOGS = (
    "INSERT INTO log_group VALUES ('r', '/g', 1, '{}')",
    "INSERT INTO log_stream VALUES (1, 'r', '/g', 's', 1, 5, 5, 6, 1)",
    "INSERT INTO log_stream VALUES (3, 'r', '/g', 'gone', 1, 5, 5, 6, 1)",
    "DELETE FROM log_stream WHERE id = 3",
    "INSERT INTO log_event VALUES (1, 5, 0, 6, 'hello')",
    "INSERT INTO log_event VALUES (3, 5, 0, 6, 'of a stream that is being purged')",
    "INSERT INTO due VALUES ('purge:3', 1.0)",
)


OLD = [(Store, "schema_1.sql", STATE), (Store, "schema_2.sql", ()), (LogStore, "logs_1.sql", LOGS)]


@pytest.mark.parametrize(("kind", "schema", "rows"), OLD)
def test_an_old_file_becomes_as_a_new_one_is(tmp_path: Path, kind: type[Store | LogStore], schema: str, rows: tuple[str, ...]):
    old(tmp_path / "old.db", schema, rows)
    migrated, fresh = kind(tmp_path / "old.db"), kind(None)
    assert columns(migrated.connection) == columns(fresh.connection)
    assert migrated.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert migrated.execute("PRAGMA foreign_key_check").fetchall() == []
    migrated.close()


def test_the_rows_of_an_old_state_are_still_there(tmp_path: Path):
    old(tmp_path / "old.db", "schema_1.sql", STATE)
    store = Store(tmp_path / "old.db")
    task, waiting = store.task("t"), store.task("w")
    assert task is not None and waiting is not None
    assert (task.state, task.runs[0].gpu_ids) == ("RUNNING", ("GPU-1",))
    assert store.holders("h") == {"GPU-1": "t"}
    assert [claim.task_id for claim in store.fleet.pool("hosts").heads()] == ["w"]
    assert store.document("r", "train", 1) == {"family": "train"}
    assert store.add_definition("r", "train", {"family": "train"}) == 2
    store.close()


def test_the_rows_of_old_logs_are_still_there(tmp_path: Path):
    old(tmp_path / "old.db", "logs_1.sql", LOGS)
    store = LogStore(tmp_path / "old.db")
    stream = store.stream("r", "/g", "s")
    assert stream is not None and stream.events == 1
    group = store.group("r", "/g")
    assert group is not None and group.bytes == len("hello") + 26
    assert store.take_due(2.0, 10) == ["purge:"]
    assert not store.purge(100, 1000)
    assert store.execute("SELECT message FROM log_event").fetchall() == [("hello",)]
    assert store.add_stream(group.id, "new", 7)
    new = store.stream("r", "/g", "new")
    assert new is not None and new.id == 4  # ids are not given twice
    store.close()
