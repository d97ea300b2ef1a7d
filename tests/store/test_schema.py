"""What must never happen is refused by the schema itself, whatever the code above it believes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from corral.model.placement import Placement
from corral.services.ecs.starting import share_gpus
from corral.store import Conflict, Store
from store.rows import claim, hello

GPU, OTHER = "GPU-h-0", "GPU-h-1"


@pytest.fixture
def store() -> Iterator[Store]:
    """A host with four GPUs, the first of which is held by the task `a`; `b` waits."""
    store = Store(None)
    store.put_host(hello(), 1.0)
    for name in ("a", "b"):
        store.add_task(claim(name))
    task = store.task("a")
    assert task is not None
    store.place_task(task, Placement("h", (GPU,)), share_gpus(task.runs, (GPU,)), 2.0)
    yield store
    store.close()


LEASE = "INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, ?, ?)"
REFUSED = {
    "a second exclusive lease": (LEASE, (GPU, "run-b", "exclusive", "host:h")),
    "a shared lease beside an exclusive one": (LEASE, (GPU, "run-b", "shared", "host:h")),
    "a shared lease on a whole GPU": (LEASE, (OTHER, "run-b", "shared", "host:h")),
    "a lease in the name of another owner": (LEASE, (OTHER, "run-b", "exclusive", "instance:i")),
    "a lease on a GPU that is not there": (LEASE, ("GPU-9", "run-b", "exclusive", "host:h")),
    "a lease for a run that is not there": (LEASE, (OTHER, "run-x", "exclusive", "host:h")),
    "a mode that nobody knows": ("UPDATE gpu SET mode = 'half' WHERE id = ?", (OTHER,)),
    "a leased GPU changing its mode": ("UPDATE gpu SET mode = 'shared' WHERE id = ?", (GPU,)),
    "a leased GPU changing its owner": ("UPDATE gpu SET owner = 'instance:i' WHERE id = ?", (GPU,)),
    "a leased GPU going away": ("DELETE FROM gpu WHERE id = ?", (GPU,)),
    "a host going away from under its GPUs": ("DELETE FROM host WHERE id = 'h'", ()),
    "a run going away from under its lease": ("DELETE FROM run WHERE id = 'run-a'", ()),
    "a task going away from under its lease": ("DELETE FROM task WHERE id = 'a'", ()),
    "a task in a state that nobody knows": ("UPDATE task SET state = 'LOST' WHERE id = 'a'", ()),
    "a wish that nobody knows": ("UPDATE task SET desired = 'PENDING' WHERE id = 'a'", ()),
    "a placed task without a host": ("UPDATE task SET host_id = NULL WHERE id = 'a'", ()),
    "a placed task on a host that is not there": ("UPDATE task SET host_id = 'x' WHERE id = 'a'", ()),
    "a waiting task on a host": ("UPDATE task SET host_id = 'h' WHERE id = 'b'", ()),
    "a stopped task without its time": ("UPDATE task SET state = 'STOPPED' WHERE id = 'a'", ()),
    "a live task with the time of its end": ("UPDATE task SET stopped_at = 3 WHERE id = 'a'", ()),
    "a run in a state that nobody knows": ("UPDATE run SET state = 'LOST' WHERE id = 'run-a'", ()),
    "a run of no task": ("UPDATE run SET task_id = 'x' WHERE id = 'run-a'", ()),
    "a host half connected": ("UPDATE host SET connected = 2 WHERE id = 'h'", ()),
    "a cluster in a state that nobody knows": ("INSERT INTO cluster VALUES ('r', 'c', 'GONE', '{}')", ()),
    "a definition before the first": ("INSERT INTO task_definition VALUES ('r', 'f', 0, 'ACTIVE', '{}')", ()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_schema_refuses(store: Store, what: str) -> None:
    sql, values = REFUSED[what]
    before = list(store.connection.iterdump())
    with pytest.raises(sqlite3.IntegrityError):
        store.execute(sql, values)
    assert list(store.connection.iterdump()) == before


def test_what_is_not_leased_may_change_hands(store: Store) -> None:
    store.execute("UPDATE gpu SET owner = 'instance:i', mode = 'shared' WHERE id = ?", (OTHER,))
    for run_id in ("run-a", "run-b"):
        store.execute(LEASE, (OTHER, run_id, "shared", "instance:i"))
    with pytest.raises(sqlite3.IntegrityError):
        store.execute("UPDATE gpu SET mode = 'exclusive' WHERE id = ?", (OTHER,))


def test_a_task_decided_on_an_older_version_is_not_written(store: Store) -> None:
    stale = store.task("b")
    assert stale is not None
    store.place_task(stale, Placement("h", (OTHER,)), share_gpus(stale.runs, (OTHER,)), 3.0)
    with pytest.raises(Conflict):
        store.place_task(stale, Placement("h", ("GPU-h-2",)), share_gpus(stale.runs, ("GPU-h-2",)), 3.0)


def test_primary_keys_come_first(store: Store) -> None:
    """SQLite 3.40 takes a table without row ids whose key does not stand first for damaged, and we would not start again."""
    tables = store.connection.execute("SELECT name FROM pragma_table_list WHERE wr AND schema = 'main'").fetchall()
    assert tables
    for (table,) in tables:
        columns = store.connection.execute(f"SELECT pk FROM pragma_table_info('{table}') ORDER BY cid").fetchall()
        keys = [place for (place,) in columns]
        assert keys == [*range(1, max(keys) + 1), *[0] * keys.count(0)], table
