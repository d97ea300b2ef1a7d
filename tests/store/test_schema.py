"""What must never happen is refused by the schema itself, whatever the code above it believes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from corral.model.instance import Instance, InstanceState
from corral.model.placement import Placement
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Conflict, Store
from store.rows import OWN, claim, hello

GPU, OTHER = "GPU-h-0", "GPU-h-1"
OTHER_OWNER = "i"


@pytest.fixture
def store() -> Iterator[Store]:
    """A host with four GPUs, the first of which is held by the task `a`; `b` waits."""
    store = Store(None)
    store.hosts.put(hello(), 1.0)
    launched = Instance(OTHER_OWNER, "r", "", "t", InstanceState.RUNNING, 0, 1024, 1024, 1.0, host_id="h")
    store.instances.put_row(launched)
    for name in ("a", "b"):
        store.tasks.add(claim(name), (1.0,))
    task = store.tasks.get("a")
    assert task is not None
    store.tasks.place(task, Placement(OWN, (GPU,)), share_gpus(task.runs, (GPU,)), 2.0)
    yield store
    store.close()


LEASE = "INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, ?, ?)"
REFUSED = {
    "a second exclusive lease": (LEASE, (GPU, "run-b", "exclusive", OWN)),
    "a shared lease beside an exclusive one": (LEASE, (GPU, "run-b", "shared", OWN)),
    "a shared lease on a whole GPU": (LEASE, (OTHER, "run-b", "shared", OWN)),
    "a lease in the name of another owner": (LEASE, (OTHER, "run-b", "exclusive", OTHER_OWNER)),
    "a lease on a GPU that is not there": (LEASE, ("GPU-9", "run-b", "exclusive", OWN)),
    "a lease for a run that is not there": (LEASE, (OTHER, "run-x", "exclusive", OWN)),
    "a mode that nobody knows": ("UPDATE gpu SET mode = 'half' WHERE id = ?", (OTHER,)),
    "a leased GPU changing its mode": ("UPDATE gpu SET mode = 'shared' WHERE id = ?", (GPU,)),
    "a leased GPU changing its owner": (f"UPDATE gpu SET owner = '{OTHER_OWNER}' WHERE id = ?", (GPU,)),
    "a leased GPU going away": ("DELETE FROM gpu WHERE id = ?", (GPU,)),
    "a host going away from under its GPUs": ("DELETE FROM host WHERE id = 'h'", ()),
    "a run going away from under its lease": ("DELETE FROM run WHERE id = 'run-a'", ()),
    "a task going away from under its lease": ("DELETE FROM task WHERE id = 'a'", ()),
    "a task in a state that nobody knows": ("UPDATE task SET state = 'LOST' WHERE id = 'a'", ()),
    "a wish that nobody knows": ("UPDATE task SET desired = 'PENDING' WHERE id = 'a'", ()),
    "a placed task without an instance": ("UPDATE task SET instance_id = NULL WHERE id = 'a'", ()),
    "a waiting task on an instance": (f"UPDATE task SET instance_id = '{OWN}' WHERE id = 'b'", ()),
    "a GPU that belongs to no instance": ("UPDATE gpu SET owner = 'x' WHERE id = ?", (OTHER,)),
    "a running instance without a host": (f"UPDATE instance SET host_id = NULL WHERE id = '{OWN}'", ()),
    "a second own instance of a host": (f"UPDATE instance SET region = '' WHERE id = '{OTHER_OWNER}'", ()),
    "an instance that owns GPUs going away": (f"DELETE FROM instance WHERE id = '{OWN}'", ()),
    "an instance in a state that nobody knows": (f"UPDATE instance SET state = 'lost' WHERE id = '{OWN}'", ()),
    "a claim of a kind that nobody knows": ("UPDATE claim SET kind = 'job'", ()),
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
    store.execute(f"UPDATE gpu SET owner = '{OTHER_OWNER}', mode = 'shared' WHERE id = ?", (OTHER,))
    for run_id in ("run-a", "run-b"):
        store.execute(LEASE, (OTHER, run_id, "shared", OTHER_OWNER))
    with pytest.raises(sqlite3.IntegrityError):
        store.execute("UPDATE gpu SET mode = 'exclusive' WHERE id = ?", (OTHER,))


def test_a_task_decided_on_an_older_version_is_not_written(store: Store) -> None:
    stale = store.tasks.get("b")
    assert stale is not None
    store.tasks.place(stale, Placement(OWN, (OTHER,)), share_gpus(stale.runs, (OTHER,)), 3.0)
    with pytest.raises(Conflict):
        store.tasks.place(stale, Placement(OWN, ("GPU-h-2",)), share_gpus(stale.runs, ("GPU-h-2",)), 3.0)


def test_primary_keys_come_first(store: Store) -> None:
    """SQLite 3.40 takes a table without row ids whose key does not stand first for damaged, and we would not start again."""
    tables = store.connection.execute("SELECT name FROM pragma_table_list WHERE wr AND schema = 'main'").fetchall()
    assert tables
    for (table,) in tables:
        columns = store.connection.execute(f"SELECT pk FROM pragma_table_info('{table}') ORDER BY cid").fetchall()
        keys = [place for (place,) in columns]
        assert keys == [*range(1, max(keys) + 1), *[0] * keys.count(0)], table
