"""The schema itself refuses states that must never happen."""

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


LEASE = "INSERT INTO lease (gpu_id, run_id, mode, instance_id) VALUES (?, ?, ?, ?)"
SHARED_LEASE = "INSERT INTO lease (gpu_id, run_id, mode, instance_id, memory_mib) VALUES (?, ?, 'shared', ?, ?)"
GPU_MIB = 16_000
REFUSED = {
    "a second exclusive lease": (LEASE, (GPU, "run-b", "exclusive", OWN)),
    "a shared lease next to an exclusive one": (SHARED_LEASE, (GPU, "run-b", OWN, 1)),
    "a shared lease on a whole GPU": (SHARED_LEASE, (OTHER, "run-b", OWN, 1)),
    "a lease that becomes another one": ("UPDATE lease SET run_id = 'run-b'", ()),
    "an exclusive lease of some memory": (
        "INSERT INTO lease (gpu_id, run_id, mode, instance_id, memory_mib) VALUES (?, 'run-b', 'exclusive', ?, 1)",
        (OTHER, OWN),
    ),
    "a lease in the name of another owner": (LEASE, (OTHER, "run-b", "exclusive", OTHER_OWNER)),
    "a lease on a GPU that does not exist": (LEASE, ("GPU-9", "run-b", "exclusive", OWN)),
    "a lease for a run that does not exist": (LEASE, (OTHER, "run-x", "exclusive", OWN)),
    "an unknown mode": ("UPDATE gpu SET mode = 'half' WHERE id = ?", (OTHER,)),
    "a leased GPU changing its mode": ("UPDATE gpu SET mode = 'shared' WHERE id = ?", (GPU,)),
    "a leased GPU changing its owner": (f"UPDATE gpu SET instance_id = '{OTHER_OWNER}' WHERE id = ?", (GPU,)),
    "deleting a leased GPU": ("DELETE FROM gpu WHERE id = ?", (GPU,)),
    "deleting a host that has GPUs": ("DELETE FROM host WHERE id = 'h'", ()),
    "deleting a run that has a lease": ("DELETE FROM run WHERE id = 'run-a'", ()),
    "deleting a task that has a lease": ("DELETE FROM task WHERE id = 'a'", ()),
    "a task in an unknown state": ("UPDATE task SET state = 'LOST' WHERE id = 'a'", ()),
    "an unknown desired state": ("UPDATE task SET desired = 'PENDING' WHERE id = 'a'", ()),
    "a placed task without an instance": ("UPDATE task SET instance_id = NULL WHERE id = 'a'", ()),
    "a waiting task on an instance": (f"UPDATE task SET instance_id = '{OWN}' WHERE id = 'b'", ()),
    "a GPU that belongs to no instance": ("UPDATE gpu SET instance_id = 'x' WHERE id = ?", (OTHER,)),
    "a running instance without a host": (f"UPDATE instance SET host_id = NULL WHERE id = '{OWN}'", ()),
    "a second own instance of a host": (f"UPDATE instance SET region = '' WHERE id = '{OTHER_OWNER}'", ()),
    "deleting an instance that owns GPUs": (f"DELETE FROM instance WHERE id = '{OWN}'", ()),
    "an instance in an unknown state": (f"UPDATE instance SET state = 'lost' WHERE id = '{OWN}'", ()),
    "a claim of an unknown kind": ("UPDATE claim SET kind = 'job'", ()),
    "a stopped task without its time": ("UPDATE task SET state = 'STOPPED' WHERE id = 'a'", ()),
    "a live task with the time of its end": ("UPDATE task SET stopped_at = 3 WHERE id = 'a'", ()),
    "a run in an unknown state": ("UPDATE run SET state = 'LOST' WHERE id = 'run-a'", ()),
    "a run of no task": ("UPDATE run SET task_id = 'x' WHERE id = 'run-a'", ()),
    "a host half connected": ("UPDATE host SET connected = 2 WHERE id = 'h'", ()),
    "a cluster in an unknown state": ("INSERT INTO cluster VALUES ('r', 'c', 'GONE', '{}', 'root')", ()),
    "a task without an owner": ("UPDATE task SET owner = '' WHERE id = 'a'", ()),
    "a claim without an owner": ("UPDATE claim SET owner = NULL", ()),
    "a definition before the first": ("INSERT INTO task_definition VALUES ('r', 'f', 0, 'ACTIVE', '{}', 'root')", ()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_schema_refuses(store: Store, what: str) -> None:
    sql, values = REFUSED[what]
    before = list(store.connection.iterdump())
    with pytest.raises(sqlite3.IntegrityError):
        store.execute(sql, values)
    assert list(store.connection.iterdump()) == before


def test_a_gpu_without_a_lease_may_change_its_owner(store: Store) -> None:
    store.execute(f"UPDATE gpu SET instance_id = '{OTHER_OWNER}', mode = 'shared' WHERE id = ?", (OTHER,))
    for run_id in ("run-a", "run-b"):
        store.execute(SHARED_LEASE, (OTHER, run_id, OTHER_OWNER, 1))
    with pytest.raises(sqlite3.IntegrityError):
        store.execute("UPDATE gpu SET mode = 'exclusive' WHERE id = ?", (OTHER,))


SHARED_REFUSED = {
    "an exclusive lease of a shared GPU": (LEASE, (OTHER, "run-c", "exclusive", OWN), "FOREIGN KEY"),
    "more memory than the GPU has left": (
        SHARED_LEASE,
        (OTHER, "run-c", OWN, GPU_MIB - 12_000 + 1),
        "more memory than the GPU has",
    ),
    "a shared lease without memory": (LEASE, (OTHER, "run-c", "shared", OWN), "CHECK"),
    "a shared lease that takes less than nothing": (SHARED_LEASE, (OTHER, "run-c", OWN, -1), "CHECK"),
    "a lease that grows": ("UPDATE lease SET memory_mib = 2 WHERE gpu_id = ?", (OTHER,), "cannot be changed"),
}


@pytest.mark.parametrize("what", SHARED_REFUSED)
def test_the_schema_protects_a_shared_gpu(store: Store, what: str) -> None:
    """The tasks `d` and `e` share a GPU. `c` waits."""
    store.tasks.add(claim("c"), (1.0,))
    for name in ("d", "e"):
        store.tasks.add(claim(name, gpu_memory_mib=6_000), (1.0,))
        task = store.tasks.get(name)
        assert task is not None
        store.tasks.place(task, Placement(OWN, (OTHER,)), share_gpus(task.runs, (OTHER,)), 2.0)
    sql, values, why = SHARED_REFUSED[what]
    with pytest.raises(sqlite3.IntegrityError, match=why):
        store.execute(sql, values)
    store.execute(SHARED_LEASE, (OTHER, "run-c", OWN, GPU_MIB - 12_000))


def test_a_task_decided_on_an_older_version_is_not_written(store: Store) -> None:
    stale = store.tasks.get("b")
    assert stale is not None
    store.tasks.place(stale, Placement(OWN, (OTHER,)), share_gpus(stale.runs, (OTHER,)), 3.0)
    with pytest.raises(Conflict):
        store.tasks.place(stale, Placement(OWN, ("GPU-h-2",)), share_gpus(stale.runs, ("GPU-h-2",)), 3.0)


def test_primary_keys_come_first(store: Store) -> None:
    """SQLite 3.40 reports a WITHOUT ROWID table as damaged if its primary key columns are not first; Corral would not start."""
    tables = store.connection.execute("SELECT name FROM pragma_table_list WHERE wr AND schema = 'main'").fetchall()
    assert tables
    for (table,) in tables:
        columns = store.connection.execute(f"SELECT pk FROM pragma_table_info('{table}') ORDER BY cid").fetchall()
        keys = [place for (place,) in columns]
        assert keys == [*range(1, max(keys) + 1), *[0] * keys.count(0)], table
