"""Databases and data folders of every frozen version are migrated to the present schema, with their rows."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from corral.core.database import APPLICATION_ID
from corral.store import Store
from store.freeze import FROZEN
from store.frozen_folder import STORES, read, unpack

# What responses of earlier versions had and AWS's do not have
REMOVED = {
    *(f"lambda:ListFunctions.Functions[0].{name}" for name in ("State", "LastUpdateStatus")),
    "cloudformation:DescribeChangeSet.Parameters",  # it was empty
    *(f"iam:ListInstanceProfiles.InstanceProfiles[0].Roles[0].{name}" for name in ("MaxSessionDuration", "RoleLastUsed", "Tags")),
}
SCHEMAS, FOLDERS = sorted(FROZEN.glob("*.sql")), sorted(FROZEN.glob("folder-*.tar.xz"))


def columns(connection: sqlite3.Connection) -> dict[str, Any]:
    """The parts of a schema that the code relies on: tables with columns and foreign keys, and the text of indexes."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    return {
        "tables": {name: sorted(column[1:] for column in connection.execute(f"PRAGMA table_info({name})")) for name in tables},
        "keys": {name: sorted(key[2:] for key in connection.execute(f"PRAGMA foreign_key_list({name})")) for name in tables},
        "indexes": {name: " ".join(sql.split()) for name, sql in indexes},
    }


def thaw(frozen: Path, path: Path) -> None:
    """Create a file as the frozen version left it."""
    connection = sqlite3.connect(path)
    connection.executescript(frozen.read_text())
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={frozen.stem.rpartition('-')[2]}")
    connection.commit()
    connection.close()


def test_the_present_schema_is_frozen() -> None:
    """A changed schema needs a migration, and a frozen copy of its version: `python -m store.freeze` in tests/."""
    for name, kind in STORES.items():
        frozen = (FROZEN / f"{name}-{kind.schema_version()}.sql").read_text()
        assert f"'{kind.digest()}'" in frozen, f"the schema of {kind.__name__} has changed: add a migration to its MIGRATIONS"


@pytest.mark.parametrize("frozen", SCHEMAS, ids=lambda path: path.stem)
def test_a_released_file_gets_the_present_schema(tmp_path: Path, frozen: Path) -> None:
    kind = STORES[frozen.stem.rpartition("-")[0]]
    thaw(frozen, tmp_path / "old.db")
    migrated, fresh = kind(tmp_path / "old.db"), kind(None)
    assert columns(migrated.connection) == columns(fresh.connection)
    assert migrated.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert migrated.execute("PRAGMA foreign_key_check").fetchall() == []
    migrated.close()


def test_the_rows_of_a_released_state_survive(tmp_path: Path) -> None:
    thaw(FROZEN / "state-1.sql", tmp_path / "old.db")
    store = Store(tmp_path / "old.db")
    placed = store.tasks.get("placed")
    assert placed is not None and placed.runs[0].gpu_ids == ("GPU-h-0",)
    assert store.hosts.holders("h") == {"GPU-h-0": ["placed"]}
    assert [claim.id for claim in store.fleet.pool("hosts:default").heads()] == ["waiting"]
    assert store.definitions.add("r", "train", {"family": "train"}, "root") == 2
    store.close()


def test_what_tasks_hold_is_counted_after_a_migration(tmp_path: Path) -> None:
    thaw(FROZEN / "state-14.sql", tmp_path / "old.db")
    connection = sqlite3.connect(tmp_path / "old.db")
    [(own,)] = connection.execute("SELECT instance_id FROM gpu WHERE id = 'GPU-h-1'").fetchall()
    [(run,)] = connection.execute("SELECT id FROM run WHERE task_id = 'placed'").fetchall()
    for gpu_id, memory_mib in (("GPU-h-1", 4_000), ("GPU-h-2", 16_000), ("GPU-h-3", 16_000)):
        connection.execute("UPDATE gpu SET mode = 'shared' WHERE id = ?", (gpu_id,))
        connection.execute("INSERT INTO lease VALUES (?, ?, 'shared', ?, ?)", (gpu_id, run, own, memory_mib))
    connection.execute("UPDATE gpu SET memory_mib = 9000 WHERE id = 'GPU-h-2'")  # the host has reported other numbers since then
    connection.execute("UPDATE gpu SET memory_mib = 0 WHERE id = 'GPU-h-3'")
    connection.commit()
    connection.close()
    store = Store(tmp_path / "old.db")
    assert store.owner_uses.held("root") == 3.25 and store.owner_uses.holders() == ["root"]
    assert store.owner_uses.use("root").at_s == 2.0, "the time of its placement"
    with pytest.raises(sqlite3.IntegrityError):
        store.execute("UPDATE lease SET memory_mib = 5000")
    store.close()


def test_objects_of_the_first_version_count_as_written_by_root(tmp_path: Path) -> None:
    store = Store(unpack(FROZEN / "folder-0.1.0.tar.xz", tmp_path / "data") / "state.db")
    assert len(store.execute("SELECT 1 FROM object_version").fetchall()) > 2
    assert store.execute("SELECT writers FROM object_version UNION SELECT writer FROM content_part").fetchall() == [(None,)]
    store.close()


@pytest.mark.parametrize("frozen", FOLDERS, ids=lambda path: path.stem)
def test_services_say_the_same_about_a_frozen_folder(tmp_path: Path, frozen: Path) -> None:
    said = json.loads(frozen.with_name(frozen.name.replace(".tar.xz", ".json")).read_text())
    found = read(unpack(frozen, tmp_path / "data"), said["at_s"])
    for request, response in said["responses"].items():
        assert_contains(found[request], response, request)


def assert_contains(found: Any, expected: Any, where: str) -> None:
    """A later version may add members to a response, but may not change any, nor remove any but those in REMOVED."""
    if isinstance(expected, dict):
        expected = {name: value for name, value in expected.items() if f"{where}.{name}" not in REMOVED}
        assert expected.keys() <= found.keys(), where
        for name, value in expected.items():
            assert_contains(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, value in enumerate(expected):
            assert_contains(found[at], value, f"{where}[{at}]")
    elif where.startswith("s3:List") and isinstance(expected, float):
        assert found == int(expected), where  # S3's times are whole seconds
    else:
        assert found == expected, where
