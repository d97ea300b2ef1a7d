"""The records of stopped tasks: written with the stop, found by name, id and state, deleted in bounded pieces."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from corral.core.database import CommitFailed
from corral.model.gpu_metrics import GpuSample
from corral.model.placement import Placement
from corral.model.run import RunState
from corral.model.task import StopCode, Task, TaskState
from corral.model.task_record import GpuUse
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Store
from corral.store.task_history import COUNTED_MAX, NAMES_MAX, HistoryFilter, StoredTask
from store.rows import OWN, claim, hello

ALL = HistoryFilter("r")
GPU = "GPU-h-0"


def store_with_host(path: Path | None = None) -> Store:
    store = Store(path)
    store.begin()
    store.hosts.put(hello("h", 4), 1.0)
    store.commit()
    return store


def start(store: Store, task_id: str, name: str = "train", at_s: float = 10.0, *, gpu: str | None = None, **details: Any) -> Task:
    """A task that runs since `at_s`. It was created five seconds before."""
    task = claim(task_id, 1 if gpu else 0, since_s=at_s - 5.0).but(family=name, definition_arn=f"arn:x/{name}:1", details=details)
    store.tasks.add(task, (0, at_s))
    gpus = (gpu,) if gpu else ()
    placed = store.tasks.place(task, Placement(OWN, gpus), share_gpus(task.runs, gpus), at_s)
    runs = tuple(run.but(state=RunState.RUNNING, pid=1, started_at_s=at_s) for run in placed.runs)
    store.tasks.change(placed, placed.but(state=TaskState.RUNNING, started_at_s=at_s, runs=runs), at_s)
    return found(store, task_id)


def stop(store: Store, task_id: str, at_s: float = 20.0, code: int | None = 0, why: StopCode = StopCode.ESSENTIAL_EXITED) -> None:
    task = found(store, task_id)
    runs = tuple(run.but(state=RunState.STOPPED, exit_code=code, stopped_at_s=at_s) for run in task.runs)
    ended = {"state": TaskState.STOPPED, "desired": TaskState.STOPPED, "stopping_at_s": at_s, "stopped_at_s": at_s}
    store.tasks.change(task, task.but(runs=runs, stop_code=why.value, stopped_reason="it ended", **ended), at_s)


def found(store: Store, task_id: str) -> Task:
    task = store.tasks.get(task_id)
    assert task is not None
    return task


def run(store: Store, task_id: str, name: str = "train", at_s: float = 10.0, code: int | None = 0, **details: Any) -> None:
    """A task that has run for ten seconds, in one committed transaction."""
    store.begin()
    start(store, task_id, name, at_s, **details)
    stop(store, task_id, at_s + 10.0, code)
    store.commit()


def ids(rows: list[StoredTask]) -> list[str]:
    return [row.id for row in rows]


def listed(store: Store, limit: int = 100, **wanted: Any) -> list[str]:
    return ids(store.tasks.history.listed(HistoryFilter("r", **wanted), limit))


def test_a_record_has_all_but_the_environment() -> None:
    store = store_with_host()
    tags = [{"key": "corral:name", "value": "lr0.1"}, {"key": "team", "value": "vision"}]
    override = {"name": "c", "command": ["x"], "environment": [{"name": "HF_TOKEN", "value": "secret"}], "environmentFiles": []}
    job = {"AWS_BATCH_JOB_ARRAY_INDEX": "7", "AWS_BATCH_JOB_ATTEMPT": "2", "AWS_BATCH_JOB_ID": "j"}
    run(store, "a" * 32, code=3, tags=tags, overrides={"containerOverrides": [override], "cpu": "1"}, jobEnvironment=job)
    [row] = store.tasks.history.listed(ALL, 10)
    record = row.record
    assert (row.id, row.region, row.cluster, row.name, row.failed) == ("a" * 32, "r", "default", "lr0.1", True)
    assert (record.definition, record.created_at_s, record.placed_at_s) == ("train:1", 5.0, 10.0)
    assert (record.started_at_s, record.stopped_at_s, record.stop_code) == (10.0, 20.0, "EssentialContainerExited")
    assert record.tags == tags and record.overrides == {"containerOverrides": [{"name": "c", "command": ["x"]}], "cpu": "1"}
    assert record.had_environment and (record.job_index, record.job_attempt) == ("7", "2")
    [container] = record.containers
    assert (container.name, container.exit_code, container.runtime_id) == ("c", 3, "run-" + "a" * 32)
    stored = store.execute("SELECT CAST(record AS TEXT) FROM task_history").fetchone()[0]
    assert "secret" not in stored and "HF_TOKEN" not in stored
    assert store.tasks.history.get("a" * 32) == row and store.tasks.history.get("a" * 31 + "b") is None


def test_a_task_that_never_started_is_recorded_as_it_stops() -> None:
    store = store_with_host()
    store.begin()
    store.tasks.add(claim("w", 9), (0, 1.0))
    stop(store, "w", code=None, why=StopCode.USER)
    assert listed(store) == [], "rows are written with the commit"
    store.commit()
    [row] = store.tasks.history.listed(ALL, 10)
    assert row.record.placed_at_s is None and row.record.started_at_s is None and row.record.containers[0].runtime_id is None
    assert not row.failed, "the user has stopped it"


@pytest.mark.parametrize(
    ("code", "why", "limit_s", "failed"),
    [
        (0, StopCode.ESSENTIAL_EXITED, None, False), (1, StopCode.ESSENTIAL_EXITED, None, True),
        (None, StopCode.FAILED_TO_START, None, True), (143, StopCode.USER, None, False), (143, StopCode.SERVICE, None, False),
        (143, StopCode.TERMINATION, None, True), (143, StopCode.USER, 10.0, True), (143, StopCode.USER, 11.0, False),
        (None, StopCode.ESSENTIAL_EXITED, None, True),
    ],
)  # fmt: skip
def test_failures(code: int | None, why: StopCode, limit_s: float | None, failed: bool) -> None:
    store = store_with_host()
    store.begin()
    task = start(store, "t")
    store.tasks.cache.put(task.but(time_limit_s=limit_s))
    stop(store, "t", 20.0, code, why)
    store.commit()
    assert [row.failed for row in store.tasks.history.listed(ALL, 10)] == [failed]


def test_rows_are_found_by_name_id_state_time_and_cluster() -> None:
    store = store_with_host()
    for at, (name, code) in enumerate([("a", 0), ("b", 1), ("a", 2), ("lr0.1", 0), ("lr0.2", 0)]):
        run(store, f"{at}{'f' * 31}", name, 100.0 * at, code)
    assert [each[0] for each in listed(store)] == ["4", "3", "2", "1", "0"], "newest first"
    assert [each[0] for each in listed(store, name="a")] == ["2", "0"]
    assert [each[0] for each in listed(store, name="lr*")] == ["4", "3"]
    assert [each[0] for each in listed(store, name="lr0.[12]", limit=1)] == ["4"]
    assert [each[0] for each in listed(store, failed=True)] == ["2", "1"]
    assert [each[0] for each in listed(store, failed=True, name="a")] == ["2"]
    assert [each[0] for each in listed(store, since_s=210.0)] == ["4", "3", "2"]
    assert [each[0] for each in listed(store, id="3")] == ["3"] == [each[0] for each in listed(store, id="3" + "f" * 20)]
    assert listed(store, id="3f0") == listed(store, id="3ffffffff0") == listed(store, cluster="other") == []
    assert store.tasks.history.listed(HistoryFilter("elsewhere"), 10) == []
    assert store.tasks.history.names("r") == ["a", "b", "lr0.1", "lr0.2"]
    assert store.tasks.history.names("r", "lr", 1) == ["lr0.1"] and store.tasks.history.names("r", "x") == []
    assert [each[0] for each in ids(store.tasks.history.latest(HistoryFilter("r", name="[al]*")))] == ["4", "3", "2"]
    assert [each[0] for each in ids(store.tasks.history.latest(HistoryFilter("r", name="a")))] == ["2"]
    assert store.tasks.history.count(HistoryFilter("r", name="a")) == 2


def test_names_of_other_regions_are_not_found() -> None:
    store = store_with_host()
    run(store, "mine", "train")
    store.executemany(
        "INSERT INTO task_history (id, region, cluster, name, failed, stopped_at, record) "
        "SELECT ?, 'elsewhere', cluster, ?, failed, stopped_at, record FROM task_history WHERE id = 'mine'",
        [(f"other{at}", f"other{at}") for at in range(NAMES_MAX)],
    )
    assert store.tasks.history.names("r") == ["train"] and store.tasks.history.names("r", "other") == []
    assert store.tasks.history.names("elsewhere", "t") == []
    assert listed(store, name="t*") == ["mine"], "names of other regions do not count towards the limit of a glob"
    assert ids(store.tasks.history.latest(HistoryFilter("r", name="t*"))) == ["mine"]
    assert listed(store, name="other1") == listed(store, name="other*") == listed(store, id="other1") == []


def test_pages_continue_where_the_last_one_ended() -> None:
    store = store_with_host()
    for at in range(7):
        run(store, f"t{at}", "even" if at % 2 == 0 else "odd")
    for wanted in ({}, {"name": "even"}, {"name": "*"}):
        seen, before = [], None
        while page := store.tasks.history.listed(HistoryFilter("r", before=before, **wanted), 2):
            seen += ids(page)
            before = page[-1].number
        assert seen == [f"t{at}" for at in range(6, -1, -1) if wanted.get("name") != "even" or at % 2 == 0]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({"id": "ab"}, "task_history_id"), ({"id": "a" * 32}, "task_history_id"), ({"name": "x"}, "task_history_name"),
        ({"failed": True}, "task_history_failed"), ({}, "SCAN task_history"),
    ],
)  # fmt: skip
def test_queries_use_their_index_and_do_not_sort_all_rows(wanted: dict[str, Any], index: str) -> None:
    store, plans = store_with_host(), list[str]()
    store.connection.set_trace_callback(plans.append)
    store.tasks.history.listed(HistoryFilter("r", **wanted), 10)
    store.connection.set_trace_callback(None)
    plan = " ".join(row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {plans[-1]}"))
    assert index in plan and ("TEMP B-TREE" in plan) == ("id" in wanted)


def test_the_number_of_runs_with_a_name_is_bounded() -> None:
    store = store_with_host()
    run(store, "first")
    store.executemany(
        "INSERT INTO task_history (id, region, cluster, name, failed, stopped_at, record) "
        "SELECT ?, region, cluster, name, failed, stopped_at, record FROM task_history WHERE id = 'first'",
        [(f"more{at}",) for at in range(COUNTED_MAX)],
    )
    assert store.tasks.history.count(HistoryFilter("r", name="train")) == COUNTED_MAX


# Deletion


def test_deletion_reads_only_the_oldest_rows() -> None:
    store, statements = store_with_host(), list[str]()
    run(store, "t")
    store.connection.set_trace_callback(statements.append)
    store.tasks.history.drop_oldest(0.0, 1.0, 100, 10)
    store.connection.set_trace_callback(None)
    plans = [row[3] for sql in statements for row in store.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert len(statements) == 2 and not [plan for plan in plans if plan == "SCAN task_history"], plans


def test_old_rows_are_deleted_in_bounded_pieces() -> None:
    store = store_with_host()
    for at in range(6):
        run(store, f"t{at}", at_s=100.0 * at)
    history = store.tasks.history
    assert [history.drop_oldest(1_000.0, 590.0, 100, 3) for _ in range(3)] == [3, 1, 0]
    assert listed(store) == ["t5", "t4"]
    assert history.drop_oldest(510.0, 1e6, 1, 10) == 1 and listed(store) == ["t5"], "and rows above the limit"
    assert history.drop_oldest(1e9, 1.0, 100, 10) == 1 and listed(store) == [] and history.drop_oldest(1e9, 1.0, 100, 10) == 0
    run(store, "later")
    assert listed(store) == ["later"]


def test_a_clock_that_goes_back_does_not_delete_newer_rows() -> None:
    store = store_with_host()
    for at, at_s in enumerate((1e9, 500.0, 100.0, 600.0)):
        run(store, f"t{at}", at_s=at_s)
    assert store.tasks.history.drop_oldest(700.0, 300.0, 100, 10) == 2, "also the row of the far future"
    assert listed(store) == ["t3", "t1"]


# Rollback and restart


def test_a_command_that_is_undone_leaves_no_record() -> None:
    store = store_with_host()
    store.begin()
    start(store, "kept")
    start(store, "undone")
    store.savepoint()
    stop(store, "kept")
    store.release()
    store.savepoint()
    stop(store, "undone")
    store.rollback_to_savepoint()
    store.commit()
    assert listed(store) == ["kept"] and found(store, "undone").state is TaskState.RUNNING
    store.begin()
    stop(store, "undone")
    store.commit()
    assert listed(store) == ["undone", "kept"]


def test_a_failed_commit_leaves_no_record_and_the_next_one_works() -> None:
    store = store_with_host()
    store.begin()
    start(store, "t", gpu=GPU)
    store.tasks.history.add_sample("t", GpuSample(GPU, 50.0, 100))
    store.tasks.history.save_gpu_use()
    store.commit()

    def refuse() -> None:
        raise CommitFailed("disk full")

    store.begin()
    stop(store, "t")
    store.tasks.set_details(found(store, "t"), {"tags": [{"key": "a", "value": "1"}]})
    store.undo_log.before_commit.append(refuse)  # runs after the records are written
    with pytest.raises(CommitFailed):
        store.commit()
    store.rollback()
    store.undo_log.before_commit.remove(refuse)
    assert listed(store) == [] and store.tasks.history.gpu_use("t") == GpuUse(1, 50.0, 50.0, 100)
    store.begin()
    stop(store, "t")
    store.commit()
    [row] = store.tasks.history.listed(ALL, 10)
    assert row.record.gpu_use == GpuUse(1, 50.0, 50.0, 100) and row.record.tags == []


def test_tags_that_are_set_with_the_stop_and_later_are_recorded() -> None:
    store = store_with_host()
    store.begin()
    start(store, "t")
    stop(store, "t")
    store.tasks.set_details(found(store, "t"), {"tags": [{"key": "corral:requeued-as", "value": "u"}]})
    store.commit()
    [row] = store.tasks.history.listed(ALL, 10)
    assert row.record.tags == [{"key": "corral:requeued-as", "value": "u"}]
    store.begin()
    store.tasks.set_details(found(store, "t"), {"tags": []})
    store.commit()
    [changed] = store.tasks.history.listed(ALL, 10)
    assert changed.record.tags == [] and changed.number == row.number


def test_records_and_saved_gpu_use_survive_a_crash(tmp_path: Path) -> None:
    store = store_with_host(tmp_path / "state.db")
    run(store, "before")
    store.begin()
    start(store, "running", gpu=GPU)
    store.commit()
    for percent, memory_mib in ((20.0, 500), (80.0, 900)):
        store.tasks.history.add_sample("running", GpuSample(GPU, percent, memory_mib))
    store.begin()
    store.tasks.history.save_gpu_use()
    store.commit()
    store.tasks.history.add_sample("running", GpuSample(GPU, 100.0, 9_999))  # not saved, so the crash loses it
    store.begin()
    stop(store, "running")
    store.close()  # the process dies before the commit
    again = Store(tmp_path / "state.db")
    assert listed(again) == ["before"] and found(again, "running").state is TaskState.RUNNING
    again.tasks.history.add_sample("running", GpuSample(GPU, 50.0, 100))
    again.begin()
    stop(again, "running")
    again.commit()
    [row, _] = again.tasks.history.listed(ALL, 10)
    assert row.record.gpu_use == GpuUse(3, 150.0, 80.0, 900) and row.record.gpu_use.utilization_mean == 50.0
    assert again.execute("SELECT count(*) FROM task_gpu_use").fetchone() == (0,)
    again.close()


def test_gpu_use_needs_a_task() -> None:
    store = store_with_host()
    store.tasks.history.add_sample("unknown", GpuSample(GPU, 1.0, 1))
    with pytest.raises(sqlite3.IntegrityError):
        store.tasks.history.save_gpu_use()


def test_a_reader_sees_committed_records(tmp_path: Path) -> None:
    store = store_with_host(tmp_path / "state.db")
    reader = store.reader()
    run(store, "t")
    reader.begin_reading()
    assert ids(reader.tasks.history.listed(ALL, 10)) == ["t"]
    reader.end_reading()
    store.close()
