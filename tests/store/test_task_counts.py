"""Counts and lists for the status, which every `corral top` requests once a second: each uses an index."""

from __future__ import annotations

from corral.model.placement import Placement
from corral.model.run import RunState
from corral.model.task import TaskState
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Store
from store.rows import OWN, claim, hello


def store_with_tasks() -> Store:
    """A store with five placed tasks, two waiting ones and a stopped one."""
    store = Store(None)
    store.hosts.put(hello(gpus=8), 1.0)
    for at in range(8):
        store.tasks.add(claim(f"t{at}", since_s=float(at)), (float(at),))
    for at in range(5):
        task = store.tasks.get(f"t{at}")
        assert task is not None
        store.tasks.place(task, Placement(OWN, (f"GPU-h-{at}",)), share_gpus(task.runs, (f"GPU-h-{at}",)), 10.0)
    waiting = store.tasks.get("t7")
    assert waiting is not None
    runs = tuple(run.but(state=RunState.STOPPED) for run in waiting.runs)
    ended = waiting.but(state=TaskState.STOPPED, desired=TaskState.STOPPED, stopped_at_s=11.0, runs=runs)
    store.tasks.change(waiting, ended, 11.0)
    return store


def test_counts_by_state() -> None:
    assert Store(None).tasks.listing.counts() == {}
    store = store_with_tasks()
    assert store.tasks.listing.counts() == {"PENDING": 5, "PROVISIONING": 2, "STOPPED": 1}
    assert store.tasks.listing.oldest_placed(3) == ["t0", "t1", "t2"]


def test_no_statement_scans_the_table() -> None:
    store = store_with_tasks()
    seen: list[str] = []
    store.connection.set_trace_callback(seen.append)
    store.tasks.listing.counts()
    store.tasks.listing.oldest_placed(20)
    store.connection.set_trace_callback(None)
    for statement in seen:
        plan = [row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {statement}")]
        scans = [step for step in plan if step.startswith(("SCAN task", "SEARCH task"))]
        assert scans and all("INDEX task_" in step for step in scans), plan
        assert not any("TEMP B-TREE FOR ORDER BY" in step for step in plan) or "count" in statement, plan


def test_stopped_tasks_cost_nothing_where_placed_ones_are_read() -> None:
    store = store_with_tasks()
    seen: list[str] = []
    store.connection.set_trace_callback(seen.append)
    assert [task.id for task in store.tasks.placed()] == ["t0", "t1", "t2", "t3", "t4"]
    assert store.tasks.instances() == [OWN]
    store.connection.set_trace_callback(None)
    for statement in [each for each in seen if "FROM task WHERE state" in each]:
        plan = [row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert "INDEX task_of_instance" in plan[0], plan
