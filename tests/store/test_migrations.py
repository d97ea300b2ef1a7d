"""Files of every released version are migrated to the present schema, with their rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from corral.core.database import APPLICATION_ID
from corral.store import Store
from store.freeze import RELEASED, STORES, version_of

FROZEN = sorted(RELEASED.glob("*.sql"))


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
    """Create a file as the released version left it."""
    connection = sqlite3.connect(path)
    connection.executescript(frozen.read_text())
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={frozen.stem.rpartition('-')[2]}")
    connection.commit()
    connection.close()


def test_every_store_has_a_frozen_copy_of_its_version() -> None:
    """A changed schema needs a migration and, at its release, a new copy: `python -m store.freeze` in tests/."""
    assert {f"{name}-{version_of(kind)}" for name, kind in STORES.items()} <= {path.stem for path in FROZEN}


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.stem)
def test_a_released_file_gets_the_present_schema(tmp_path: Path, frozen: Path) -> None:
    kind = STORES[frozen.stem.rpartition("-")[0]]
    thaw(frozen, tmp_path / "old.db")
    migrated, fresh = kind(tmp_path / "old.db"), kind(None)
    assert columns(migrated.connection) == columns(fresh.connection)
    assert migrated.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert migrated.execute("PRAGMA foreign_key_check").fetchall() == []
    migrated.close()


def test_the_rows_of_a_released_state_survive(tmp_path: Path) -> None:
    thaw(RELEASED / "state-1.sql", tmp_path / "old.db")
    store = Store(tmp_path / "old.db")
    placed = store.tasks.get("placed")
    assert placed is not None and placed.runs[0].gpu_ids == ("GPU-h-0",)
    assert store.hosts.holders("h") == {"GPU-h-0": ["placed"]}
    assert [claim.id for claim in store.fleet.pool("hosts").heads()] == ["waiting"]
    assert store.definitions.add("r", "train", {"family": "train"}) == 2
    store.close()
