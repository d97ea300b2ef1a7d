"""Queue options of tasks: holds, times, dependencies, arrays, priorities and requeues, each with its reasons and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.core.transactions import MARKS_MAX_PER_TRANSACTION
from corral.operations.services import SERVICES
from corral.services.ecs import host_reports
from corral.services.ecs.task_queue import forbid_requeue
from corral.services.ecs.waiting_changes import WaitingChange
from virtual_clock.group_world import CALLER, REGION, refused
from virtual_clock.task_queue_world import TaskQueueWorld

UNKNOWN = "0123456789abcdef" * 2


@pytest.fixture
def world(tmp_path: Path) -> TaskQueueWorld:
    return TaskQueueWorld(path=tmp_path / "state.db")


# Holds and times


def test_a_held_task_starts_when_the_tag_is_removed(world: TaskQueueWorld) -> None:
    task_id = world.launch_one(hold="true")
    assert world.state(task_id) == "PROVISIONING"
    assert world.reason(task_id) == f"held: `corral release {task_id[:8]}` releases it"
    assert world.call("DescribeClusters", "ecs", clusters=["default"])["clusters"][0]["pendingTasksCount"] == 1
    assert world.store.tasks.listing.counts() == {"PROVISIONING": 1}
    world.restart()
    running = world.launch_one(gpus=4)
    version = world.task(task_id).version
    world.untag(task_id, "hold")
    assert "; needs 1 GPU; " in world.reason(task_id)
    assert world.task(task_id).version > version, "a client that waits for a change reads the new reason"
    world.ends(running)
    assert world.state(task_id) == "PENDING"
    assert world.store.task_queue.snapshot() == ({task_id}, {})
    world.ends(task_id)
    assert world.store.task_queue.snapshot() == (set(), {})


@pytest.mark.parametrize("started_by", ["ecs-svc/1", "batch:1"])
def test_a_held_task_with_the_started_by_of_a_service_can_be_released(world: TaskQueueWorld, started_by: str) -> None:
    tags = [{"key": "corral:hold", "value": "true"}]
    made = world.call("RunTask", "ecs", taskDefinition="gpus-1", startedBy=started_by, tags=tags)
    task_id = made["tasks"][0]["taskArn"].rpartition("/")[2]
    assert world.state(task_id) == "PROVISIONING"
    world.untag(task_id, "hold")
    assert world.state(task_id) == "PENDING"


def test_a_hold_takes_a_waiting_task_out_of_the_line(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    first, second = world.launch_one(), world.launch_one()
    world.tag(first, hold="true")
    assert world.reason(first).startswith("held")
    world.ends(running)
    assert world.states_of([first, second]) == ["PROVISIONING", "PENDING"]
    world.untag(first, "hold")
    assert world.state(first) == "PENDING"


def test_a_hold_does_not_stop_a_running_task_but_holds_its_successor(world: TaskQueueWorld) -> None:
    plain, requeued = world.launch_one(), world.launch_one(requeue="1")
    for task_id in (plain, requeued):
        world.tag(task_id, hold="true")
        assert world.state(task_id) == "PENDING"
    assert not world.store.task_queue.concerns(plain)
    world.ends(requeued, code=1)
    world.wait(10)
    successor = world.successor(requeued)
    assert world.reason(successor) == f"held: `corral release {successor[:8]}` releases it"
    world.untag(successor, "hold")
    assert world.state(successor) == "PENDING"


def test_a_task_waits_for_its_time(world: TaskQueueWorld) -> None:
    at_s = int(world.clock.now_s()) + 100
    later = world.launch_one(not_before=str(at_s))
    assert world.reason(later) == "waits until 2026-01-01 00:01:40 UTC"
    world.wait(99)
    world.restart()
    assert world.state(later) == "PROVISIONING"
    world.wait(1.1)
    assert world.state(later) == "PENDING"
    assert world.state(world.launch_one(not_before=str(at_s))) == "PENDING", "the time has passed"


def test_many_tasks_of_one_time_start_in_several_transactions(world: TaskQueueWorld) -> None:
    at_s = int(world.clock.now_s()) + 100
    task_ids = [each for _ in range(10) for each in world.launch(10, gpus=0, not_before=str(at_s))]
    world.wait(101)
    assert set(world.states_of(task_ids)) == {"PENDING"}


def test_a_time_can_be_changed_while_the_task_waits(world: TaskQueueWorld) -> None:
    at_s = int(world.clock.now_s()) + 100
    task_id = world.launch_one(not_before=str(at_s), hold="true")
    assert world.reason(task_id).startswith("held") and "; waits until" in world.reason(task_id)
    world.tag(task_id, not_before=str(at_s + 50))
    world.untag(task_id, "hold")
    world.wait(120)
    assert world.state(task_id) == "PROVISIONING"
    world.untag(task_id, "not-before")
    assert world.state(task_id) == "PENDING"


# Changes of tasks that wait


def test_members_of_an_array_wait_in_the_order_of_their_indexes(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    members = world.launch(8, array="a 0 1 0", gpus=4)
    world.change(members[3], WaitingChange(time_limit_s=60))  # it keeps its place
    for member in members:
        world.ends(running)
        assert world.state(member) == "PENDING"
        running = member


def test_changed_gpus_and_time_limits_of_a_waiting_task(world: TaskQueueWorld) -> None:
    running, first, second = world.launch_one(gpus=4), world.launch_one(gpus=2), world.launch_one(gpus=2)
    world.change(first, WaitingChange(gpus="4", time_limit_s=60))
    world.restart()
    assert "place 1 " in world.reason(first) or "first in line" in world.reason(first), "it keeps its place"
    world.change(second, WaitingChange(gpus="0"))
    assert world.state(second) == "PENDING", "without GPUs, it starts at once"
    world.ends(running)
    task = world.task(first)
    assert [len(run.gpu_ids) for run in task.runs] == [4] and (task.time_limit_s, task.plain) == (60, False)
    assert world.shown(first)["overrides"]["containerOverrides"][0]["resourceRequirements"] == [{"type": "GPU", "value": "4"}]
    world.starts(first)
    world.wait(61)
    assert world.task(first).desired == "STOPPED"
    with pytest.raises(ApiError, match="has started cannot be changed"):
        world.tag(second, time_limit="5")


def test_a_change_that_run_would_refuse_is_refused(world: TaskQueueWorld) -> None:
    world.launch_one(gpus=4)
    fits, any_size = world.launch_one(refuse_unfit="true"), world.launch_one()
    for gpus, error in (("5", "needs 5 GPUs"), ("65", "Invalid GPU value"), ("x", "Invalid GPU value")):
        with pytest.raises(ApiError, match=error):
            world.change(fits, WaitingChange(gpus=gpus))
    with pytest.raises(ApiError, match="must be a whole number from -1000 to 1000"):
        world.change(fits, WaitingChange(gpus="2", priority=1001))
    assert world.task(fits).demand.gpus == 1, "the change was undone"
    world.change(any_size, WaitingChange(gpus="5"))
    assert world.task(any_size).demand.gpus == 5


# Dependencies


def test_a_task_starts_after_the_tasks_that_it_names(world: TaskQueueWorld) -> None:
    first, second = world.launch_one(name="train"), world.launch_one()
    last = world.launch_one(after=f"{first} {second}")
    assert world.reason(last).startswith("waits for run ") and f"run train ({first[:8]})" in world.reason(last)
    world.ends(second)
    assert world.reason(last) == f"waits for run train ({first[:8]})"
    world.restart()
    world.ends(first)
    assert world.state(last) == "PENDING"


def test_a_failure_stops_all_tasks_behind_it(world: TaskQueueWorld) -> None:
    first = world.launch_one(name="train")
    second = world.launch_one(after=first, name="test")
    third, any_way = world.launch_one(after=second), world.launch_one(after_any=f"{first} {second}")
    world.ends(first, code=3)
    shown = world.shown(second)
    assert (shown["lastStatus"], shown["stopCode"]) == ("STOPPED", "TaskFailedToStart")
    assert shown["stoppedReason"] == f"Dependency failed: run train ({first[:8]}) ended with exit code 3"
    assert world.state(third) == "STOPPED"
    assert f"run test ({second[:8]})" in world.shown(third)["stoppedReason"]
    assert world.state(any_way) == "PENDING"


def test_a_stopped_task_has_not_succeeded(world: TaskQueueWorld) -> None:
    first = world.launch_one()
    second = world.launch_one(after=first)
    world.starts(first)
    world.stop(first)
    assert world.state(second) == "PROVISIONING", "the program of the first task still runs"
    world.ends(first, code=0)
    assert "was stopped: Task stopped by user" in world.shown(second)["stoppedReason"]


def test_stopping_a_waiting_task_ends_it_and_stops_the_tasks_behind_it(world: TaskQueueWorld) -> None:
    first = world.launch_one()
    second = world.launch_one(after=first, requeue="5")
    third = world.launch_one(after=second)
    world.stop(second)
    world.settle()
    assert world.states_of([second, third]) == ["STOPPED", "STOPPED"]
    world.ends(first)
    assert world.store.task_queue.snapshot() == (set(), {})


def test_ended_tasks_are_known_at_the_launch(world: TaskQueueWorld) -> None:
    good, bad = world.launch_one(), world.launch_one()
    world.ends(good)
    world.ends(bad, code=1)
    assert world.state(world.launch_one(after=good, after_any=bad)) == "PENDING"
    error = refused(lambda: world.launch(after=f"{good} {bad}"))
    assert error.code == "InvalidParameterException"
    assert f"({bad[:8]}), which the tag corral:after names, ended with exit code 1" in error.message
    for options in ({"after": UNKNOWN}, {"after_any": UNKNOWN}, {"after": "array:none"}):
        assert "which Corral does not know" in refused(lambda options=options: world.launch(**options)).message


def test_tasks_that_ecs_has_forgotten_are_in_the_history(world: TaskQueueWorld) -> None:
    good, bad, first = world.launch_one(), world.launch_one(), world.launch_one(requeue="1")
    world.ends(good)
    world.ends(bad, first, code=1)
    world.wait(2)
    world.ends(world.successor(first))
    world.clock.advance(3700)
    world.run(lambda tx: tx.mark("sweep:"))
    assert world.store.tasks.get(good) is None
    assert world.state(world.launch_one(after=f"{good} {first}", after_any=bad)) == "PENDING"
    assert "ended with an exit code that is not 0" in refused(lambda: world.launch(after=bad)).message


def test_tags_that_name_each_other_as_successors_are_read_once(world: TaskQueueWorld) -> None:
    one, other = world.launch_one(), world.launch_one()
    world.tag(one, requeued_as=other)
    world.tag(other, requeued_as=one)
    world.ends(one, other)
    world.clock.advance(3700)
    world.run(lambda tx: tx.mark("sweep:"))
    assert world.store.tasks.get(one) is None
    assert world.state(world.launch_one(after=one)) == "PENDING"


def test_a_failure_stops_a_long_row_of_tasks_in_several_transactions(world: TaskQueueWorld) -> None:
    row = [world.launch_one()]
    for _ in range(30):
        row.append(world.launch_one(after=row[-1]))
    world.run(lambda tx: host_reports.report(tx, "h", world.reports(row[0], ended=True, code=1)))
    assert world.states_of(row).count("STOPPED") < 5
    world.settle()
    assert set(world.states_of(row)) == {"STOPPED"}


def test_many_tasks_behind_one_are_informed_in_several_transactions(world: TaskQueueWorld) -> None:
    for code, state in ((0, "PENDING"), (1, "STOPPED")):
        first = world.launch_one()
        behind = [each for _ in range(10) for each in world.launch(10, gpus=0, after=first)]
        world.ends(first, code=code)
        assert set(world.states_of(behind)) == {state}


def test_a_list_of_ids_continues_in_further_tags(world: TaskQueueWorld) -> None:
    first, second = world.launch(2)
    last = world.launch_one(**{"after": first, "after:2": second})
    world.ends(first)
    assert world.state(last) == "PROVISIONING"
    world.ends(second)
    assert world.state(last) == "PENDING"


# Arrays


def test_an_array_runs_a_limited_number_of_members(world: TaskQueueWorld) -> None:
    first = world.launch(3, array="a1 0 2 2")
    more = world.launch(2, array="a1 6 2 2")
    assert [world.tags(each)["array"] for each in (*first, *more)] == ["a1 0 1 2", "a1 2 1 2", "a1 4 1 2", "a1 6 1 2", "a1 8 1 2"]
    assert world.states_of([*first, *more]) == ["PENDING", "PENDING", "PROVISIONING", "PROVISIONING", "PROVISIONING"]
    assert world.reason(more[0]) == "the array runs at most 2 tasks at a time"
    assert world.environments[first[1]].items() >= {"CORRAL_INDEX": "2", "CORRAL_ARRAY_ID": "a1"}.items()
    world.ends(first[0])
    assert world.states_of([first[2], more[0]]) == ["PENDING", "PROVISIONING"], "the member with the smallest index is next"
    world.restart()
    world.stop(more[0])
    world.ends(first[1], code=1)
    assert world.states_of(more) == ["STOPPED", "PENDING"]
    assert world.environments[more[1]]["CORRAL_INDEX"] == "8"


def test_members_that_wait_for_capacity_count(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    members = world.launch(3, array="a1 0 1 2")
    assert "; needs 1 GPU; " in world.reason(members[0])
    assert world.reason(members[2]) == "the array runs at most 2 tasks at a time"
    world.ends(running)
    assert world.states_of(members) == ["PENDING", "PENDING", "PROVISIONING"]


def test_a_held_member_gives_its_place_to_the_next(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    members = world.launch(3, array="a1 0 1 1")
    world.tag(members[0], hold="true")
    assert "; needs 1 GPU; " in world.reason(members[1])
    world.ends(running)
    world.untag(members[0], "hold")
    assert world.reason(members[0]) == "the array runs at most 1 task at a time"
    world.ends(members[1])
    assert world.states_of(members) == ["PENDING", "STOPPED", "PROVISIONING"]


def test_tasks_wait_for_a_whole_array(world: TaskQueueWorld) -> None:
    members = world.launch(2, array="a1 0 1 0")
    after, after_any = world.launch_one(after="array:a1"), world.launch_one(after_any="array:a1")
    world.ends(members[0])
    assert world.reason(after) == "waits for array a1 (1 of 2 tasks have ended)"
    world.restart()
    world.ends(members[1], code=2)
    reason = f"Dependency failed: task 1 ({members[1][:8]}) of array a1 ended with exit code 2"
    assert world.shown(after)["stoppedReason"] == reason
    assert world.state(after_any) == "PENDING"
    assert "has 1 task that did not end with exit code 0" in refused(lambda: world.launch(after="array:a1")).message
    assert world.state(world.launch_one(after_any="array:a1")) == "PENDING"


def test_the_first_failure_of_a_member_stops_the_tasks_that_need_success(world: TaskQueueWorld) -> None:
    members = world.launch(2, array="a1 0 1 0")
    after, after_any = world.launch_one(after="array:a1"), world.launch_one(after_any="array:a1")
    world.ends(members[0], code=2)
    assert world.states_of([after, after_any]) == ["STOPPED", "PROVISIONING"]
    world.ends(members[1])
    assert world.state(after_any) == "PENDING"


def test_an_array_cannot_wait_for_itself(world: TaskQueueWorld) -> None:
    [member] = world.launch(array="a1 0 1 0")
    assert "gets no more tasks" in refused(lambda: world.launch(array="a1 1 1 0", after="array:a1")).message
    behind = world.launch_one(after="array:a1")
    assert "gets no more tasks" in refused(lambda: world.launch(array="a1 1 1 0", after=behind)).message
    world.ends(member)
    assert world.state(behind) == "PENDING"
    assert world.states_of(world.launch(array="a1 1 1 0")) == ["PENDING"]


def test_old_arrays_are_deleted(world: TaskQueueWorld) -> None:
    world.ends(*world.launch(2, array="a1 0 1 0"))
    world.wait(29 * 86_400)
    assert world.store.task_queue.array(f"{REGION}/a1") is not None
    world.wait(2 * 86_400)
    assert world.store.task_queue.array(f"{REGION}/a1") is None


def test_the_end_of_a_member_costs_the_same_in_a_large_array() -> None:
    """The number of statements does not grow with the array, and each statement uses an index."""
    counts = []
    for size in (20, 200):
        world = TaskQueueWorld()
        members = [each for first in range(0, size, 10) for each in world.launch(10, array=f"a1 {first} 1 2")]
        world.starts(*members[:2])
        statements: list[str] = []
        world.store.connection.set_trace_callback(statements.append)
        world.ends(members[0])
        world.store.connection.set_trace_callback(None)
        asked = [each for each in statements if "queued_task" in each or "task_array" in each]
        counts.append(len(asked))
        assert world.state(members[2]) == "PENDING"
        plan = "EXPLAIN QUERY PLAN SELECT 1 FROM queued_task WHERE array = 'k' AND state = 'ready' ORDER BY position LIMIT 1"
        [step] = world.store.execute(plan).fetchall()
        assert "queued_task_ready (array=?)" in step[3]
    assert counts[0] == counts[1]


# Priorities


def test_a_higher_priority_is_served_first(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    low, normal, high = world.launch_one(gpus=4, priority="-5"), world.launch_one(gpus=4), world.launch_one(gpus=4, priority="7")
    for expected in (high, normal):
        world.ends(running)
        assert [task.id for task in world.placed()] == [expected]
        running = expected
    world.restart()
    world.ends(normal)
    assert world.state(low) == "PENDING"


def test_the_priority_of_a_waiting_task_can_change(world: TaskQueueWorld) -> None:
    running = world.launch_one(gpus=4)
    first, second = world.launch_one(gpus=4), world.launch_one(gpus=4)
    world.tag(second, priority="1")
    world.ends(running)
    assert world.states_of([first, second]) == ["PROVISIONING", "PENDING"]
    world.untag(first, "priority")
    assert "but it must be a whole number from -1000 to 1000" in refused(lambda: world.tag(first, priority="x")).message
    assert "priority" not in world.tags(first)


def test_a_task_gets_the_slot_that_a_lower_priority_has_reserved(world: TaskQueueWorld) -> None:
    """Three GPUs are free, and a task of a low priority that needs four has reserved them."""
    world.launch_one()
    low = world.launch_one(gpus=4, priority="-1")
    assert world.state(world.launch_one(priority="-1")) == "PROVISIONING"
    assert world.state(world.launch_one()) == "PENDING"
    assert world.state(low) == "PROVISIONING"


def test_tags_of_the_launch_cannot_change_before_the_end(world: TaskQueueWorld) -> None:
    first = world.launch_one()
    second = world.launch_one(after=first)
    assert "The tag corral:after of a task cannot be changed" in refused(lambda: world.untag(second, "after")).message
    assert "corral:array" in refused(lambda: world.tag(first, array="a1 0 1 0")).message
    world.ends(first)
    world.ends(second)
    world.untag(second, "after")
    assert "after" not in world.tags(second)


# Requeues


def test_a_failed_task_is_replaced(world: TaskQueueWorld) -> None:
    first = world.launch_one(requeue="2", priority="3", name="train")
    behind = world.launch_one(after=first)
    world.ends(first, code=1)
    second = world.successor(first)
    assert world.reason(second) == "waits until 2026-01-01 00:00:01 UTC (requeue 1 after a failure)"
    assert world.reason(behind) == f"waits for run train ({second[:8]})"
    assert world.tags(second) == {"requeue": "1", "requeue-of": first, "priority": "3", "name": "train"}
    world.wait(1.1)
    assert world.state(second) == "PENDING"
    later = world.launch_one(after=first)
    assert f"({second[:8]})" in world.reason(later), "a task that names the failed task waits for its successor"
    world.restart()
    world.ends(second, code=1)
    third = world.successor(second)
    world.wait(1.1)
    assert world.state(third) == "PROVISIONING", "the delay doubles"
    world.wait(1)
    assert world.tags(third)["requeue"] == "0"
    world.ends(third)
    assert world.states_of([behind, later]) == ["PENDING", "PENDING"]
    assert "requeued-as" not in world.tags(third)
    assert world.state(world.launch_one(after=first, gpus=0)) == "PENDING"


def test_the_record_of_a_task_names_its_successor_of_a_later_transaction(world: TaskQueueWorld) -> None:
    first = world.launch_one(requeue="1")

    def end(tx: Any) -> None:
        host_reports.report(tx, "h", world.reports(first, ended=True, code=1))
        for number in range(MARKS_MAX_PER_TRANSACTION):
            tx._marks = {f"sweep:{number}": None, **tx._marks}  # so many keys that that of the task waits for the next transaction

    world.run(end)
    assert "requeued-as" not in world.tags(first)
    world.settle()
    recorded = world.store.tasks.history.get(first)
    assert recorded is not None
    assert {"key": "corral:requeued-as", "value": world.successor(first)} in recorded.record.tags


def test_the_last_failure_stops_the_tasks_behind(world: TaskQueueWorld) -> None:
    first = world.launch_one(requeue="1")
    behind = world.launch_one(after=first)
    world.ends(first, code=1)
    world.wait(2)
    second = world.successor(first)
    world.ends(second, code=4)
    assert world.shown(behind)["stoppedReason"].endswith(f"({second[:8]}) ended with exit code 4")
    assert "exit code 4" in refused(lambda: world.launch(after=first)).message


@pytest.mark.parametrize("began", [False, True])
def test_a_task_that_is_lost_with_its_host_is_replaced(world: TaskQueueWorld, began: bool) -> None:
    lost, other = world.launch_one(requeue="1"), world.launch_one()
    if began:
        world.starts(lost, other)
    world.reboot()
    assert world.states_of([lost, other]) == ["STOPPED", "STOPPED"]
    world.wait(2)
    assert world.state(world.successor(lost)) == "PENDING"
    assert "requeued-as" not in world.tags(other)


def test_a_user_and_the_time_limit_end_a_task_for_good(world: TaskQueueWorld) -> None:
    stopped, limited, signalled = (world.launch_one(requeue="5", **more) for more in ({}, {"time_limit": "10"}, {}))
    world.starts(stopped, limited, signalled)
    world.stop(stopped)
    world.wait(11)
    world.run(lambda tx: forbid_requeue(tx, tx.store.tasks.get(signalled)))
    for task_id in (stopped, limited, signalled):
        world.ends(task_id, code=130)
        assert "requeued-as" not in world.tags(task_id)
    assert world.store.task_queue.snapshot() == (set(), {})


def test_the_private_variables_of_a_task_are_kept_for_its_successor(world: TaskQueueWorld) -> None:
    file = {"value": "arn:aws:s3:::corral-run-environments/a.env", "type": "s3"}
    overrides = {"containerOverrides": [{"name": "c", "environmentFiles": [file]}]}
    first = world.launch_one(requeue="1", overrides=overrides)
    world.ends(first, code=1)
    world.wait(120)
    found = world.store.private_environments.get("a.env")
    assert found is not None and found[0] == 1
    assert world.shown(world.successor(first))["overrides"]["containerOverrides"][0]["environmentFiles"] == [file]
    world.ends(world.successor(first))
    world.wait(120)
    assert world.store.private_environments.get("a.env") is None


def test_the_number_of_requeues_can_change_while_the_task_runs(world: TaskQueueWorld) -> None:
    some, none = world.launch_one(), world.launch_one(requeue="3")
    world.tag(some, requeue="1")
    world.untag(none, "requeue")
    world.ends(some, none, code=1)
    assert "requeued-as" in world.tags(some) and "requeued-as" not in world.tags(none)


def test_a_member_of_an_array_keeps_its_index(world: TaskQueueWorld) -> None:
    first, second = world.launch(2, array="a1 5 1 1", requeue="1")
    world.ends(first, code=1)
    assert world.state(second) == "PENDING", "a task that waits for its requeue does not count"
    after = world.launch_one(after="array:a1")
    again = world.successor(first)
    world.wait(2)
    assert world.reason(again) == "the array runs at most 1 task at a time"
    world.ends(second)
    assert world.environments[again]["CORRAL_INDEX"] == "5"
    assert world.tags(again)["array"] == "a1 5 1 1"
    world.ends(again)
    assert world.state(after) == "PENDING"


# Requests


def test_a_launch_that_cannot_wait_refuses_options_that_wait(world: TaskQueueWorld) -> None:
    def launch(**more: Any) -> None:
        tags = [{"key": "corral:hold", "value": "true"}]
        world.call(more.pop("operation"), "ecs", taskDefinition="gpus-1", tags=tags, **more)

    assert "leave launchType out" in refused(lambda: launch(operation="RunTask", launchType="EC2")).message
    assert "use RunTask" in refused(lambda: launch(operation="StartTask", containerInstances=["h"])).message
    assert "but it must be `true` or `false`" in refused(lambda: world.launch(hold="yes")).message


def test_a_limit_of_an_array_cannot_change(world: TaskQueueWorld) -> None:
    world.launch(array="a1 0 1 2")
    assert "was created with the limit 2" in refused(lambda: world.launch(array="a1 1 1 3")).message


def test_a_task_without_queue_options_costs_no_statement(world: TaskQueueWorld) -> None:
    world.launch(2, array="a1 0 1 1")
    statements: list[str] = []
    params = {"taskDefinition": "gpus-1", "tags": [{"key": "project", "value": "x"}]}
    launch = Command(lambda tx: SERVICES["ecs"].operations["RunTask"](tx, params, CALLER), lambda answer: None)
    world.store.connection.set_trace_callback(statements.append)
    [(_, made)] = world.core.transact([launch]).answers
    world.store.connection.set_trace_callback(None)
    reports = world.reports(made["tasks"][0]["taskArn"].rpartition("/")[2], ended=True, code=0)
    world.store.connection.set_trace_callback(statements.append)
    world.core.transact([Command(lambda tx: host_reports.report(tx, "h", reports), lambda answer: None)])
    world.store.connection.set_trace_callback(None)
    tables = ("queued_task", "task_dependency", "task_array", "end_notice")
    assert len(statements) > 5 and not [each for each in statements if any(table in each for table in tables)]
