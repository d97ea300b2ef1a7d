"""Tasks that are paused: by users, for claims with a higher priority, and because their turn is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.core.errors import ApiError
from corral.model.agent_protocol import PauseOrder
from corral.model.job import JobState
from corral.model.run import Observed, RunPause
from corral.services.batch import job_definitions
from corral.services.ecs import host_reports
from virtual_clock.job_world import JobWorld, definition
from virtual_clock.pause_world import GIB, PauseWorld
from virtual_clock.shares_world import HOUR_S

PREEMPTIBLE = [{"key": "corral:preemptible", "value": "true"}]
URGENT = [{"key": "corral:priority", "value": "10"}]


def turns(seconds: int) -> list[dict[str, str]]:
    return [{"key": "corral:turns", "value": str(seconds)}]


def test_the_gpus_of_a_paused_task_are_free_and_its_memory_is_used() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    free_mib = world.store.fleet.pool("hosts:default").slot(str(world.task(task_id).instance_id)).memory_mib
    assert world.pause(task_id)["phase"] == "pausing"
    assert world.leases(), "its GPU is leased until the host has moved its memory"
    world.answer(moved_bytes=GIB)
    found = world.corral("DescribeTaskPause", task=task_id)
    assert (found["phase"], found["cause"], found["hostMemoryMiB"], found["lastStatus"]) == ("paused", "user", 1024, "RUNNING")
    assert not world.leases()
    slot = world.store.fleet.pool("hosts:default").slot(str(world.task(task_id).instance_id))
    assert (len(slot.gpus), slot.memory_mib) == (1, free_mib - 1024)
    [other] = world.submit("ann")
    assert world.leases() == {world.task(task_id).runs[0].gpu_ids[0]: other}
    assert world.resume(task_id)["returns"]
    world.end(other)
    assert world.phase(task_id) == "resuming" and set(world.leases().values()) == {task_id}
    world.answer()
    assert world.phase(task_id) == "running"
    slot = world.store.fleet.pool("hosts:default").slot(str(world.task(task_id).instance_id))
    assert (len(slot.gpus), slot.memory_mib) == (0, free_mib)


def test_a_pause_that_fails_leaves_the_task_as_it_is() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    world.pause(task_id)
    world.answer(why_not="CUDA_ERROR_NOT_SUPPORTED")
    found = world.corral("DescribeTaskPause", task=task_id)
    assert (found["phase"], found["whyNot"]) == ("running", "CUDA_ERROR_NOT_SUPPORTED")
    assert set(world.leases().values()) == {task_id}


def test_a_return_that_fails_leaves_the_task_paused() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    world.pause(task_id)
    world.answer()
    world.resume(task_id)
    world.answer(why_not="CUDA_ERROR_OUT_OF_MEMORY")
    found = world.corral("DescribeTaskPause", task=task_id)
    assert (found["phase"], found["whyNot"], found["returns"]) == ("paused", "CUDA_ERROR_OUT_OF_MEMORY", False)
    assert not world.leases()
    world.resume(task_id)
    world.answer()
    assert world.phase(task_id) == "running"


def test_an_old_answer_changes_nothing() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    world.pause(task_id)
    [first] = world.answer()
    world.resume(task_id)
    world.report_pause(first.run_id, RunPause(first.number, True))
    assert world.phase(task_id) == "resuming"


@pytest.mark.parametrize("stage", ["pausing", "paused", "waiting", "resuming"])
def test_a_task_stops_at_every_stage(stage: str) -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann")
    world.pause(task_id)
    if stage != "pausing":
        world.answer(moved_bytes=GIB)
    if stage == "waiting":
        world.submit("ann")
    if stage in ("waiting", "resuming"):
        world.resume(task_id)
    world.call("StopTask", "ecs", task=task_id)
    world.end(task_id)
    assert world.task(task_id).state.value == "STOPPED" and task_id not in world.leases().values()
    slot = next(iter(world.store.fleet.pool("hosts:default").slots()))
    assert len(slot.gpus) == (0 if stage == "waiting" else 1)
    assert not world.store.tasks.with_pause


def test_a_time_limit_does_not_count_while_the_task_is_paused() -> None:
    world = PauseWorld(1, ann=[])
    [task_id] = world.submit("ann", hours=100, tags=[{"key": "corral:time-limit", "value": "3600"}])
    world.wait(1800)
    world.pause(task_id)
    world.answer()
    world.wait(5 * HOUR_S)
    assert world.task(task_id).desired.value == "RUNNING"
    world.resume(task_id)
    world.answer()
    world.wait(1700)
    assert world.task(task_id).desired.value == "RUNNING"
    world.wait(200)
    assert world.task(task_id).desired.value == "STOPPED"


def test_a_claim_with_a_higher_priority_takes_the_gpu_and_gives_it_back() -> None:
    world = PauseWorld(1, ann=[], bob=[])
    [lender] = world.submit("ann", tags=PREEMPTIBLE)
    [waiting] = world.submit("ann")
    [urgent] = world.submit("bob", tags=URGENT)
    world.settle()
    assert world.phase(lender) == "pausing"
    world.answer(moved_bytes=GIB)
    assert not world.waits(urgent) and world.waits(waiting)
    assert world.phase(lender) == "paused"
    world.end(urgent)
    assert world.phase(lender) == "resuming" and world.waits(waiting), "the task that was first is first again"
    world.answer()
    world.end(lender)
    assert not world.waits(waiting)


def test_younger_tasks_leave_the_gpus_of_a_task_that_returns() -> None:
    world = PauseWorld(4, ann=[])
    [large] = world.submit("ann", gpus=2, tags=PREEMPTIBLE)
    own = set(world.task(large).runs[0].gpu_ids)
    others = world.submit("ann", count=2)
    world.pause(large)
    world.answer()
    taking = world.submit("ann", count=2)
    assert {gpu_id for each in taking for gpu_id in world.task(each).runs[0].gpu_ids} == own
    world.resume(large)
    world.end(taking[0])
    [younger] = world.submit("ann")
    assert world.waits(younger), "the free GPU is one of those for which an older task waits"
    world.end(others[0])
    assert not world.waits(younger) and own.isdisjoint(world.task(younger).runs[0].gpu_ids)
    world.end(taking[1])
    assert world.phase(large) == "resuming"


def test_a_claim_with_the_same_priority_takes_nothing() -> None:
    world = PauseWorld(1, ann=[])
    [lender] = world.submit("ann", tags=PREEMPTIBLE + URGENT)
    [other] = world.submit("ann", tags=URGENT)
    world.wait(HOUR_S)
    assert world.phase(lender) == "running" and world.waits(other)


def test_the_fewest_tasks_make_room() -> None:
    world = PauseWorld(4, ann=[])
    small = world.submit("ann", count=2, tags=PREEMPTIBLE)
    [large] = world.submit("ann", gpus=2, tags=PREEMPTIBLE)
    [urgent] = world.submit("ann", gpus=2, tags=URGENT)
    world.settle()
    assert world.phase(large) == "pausing" and [world.phase(each) for each in small] == ["running", "running"]
    world.answer()
    assert not world.waits(urgent)


def test_a_protected_task_is_paused_last() -> None:
    world = PauseWorld(2, ann=[])
    [other] = world.submit("ann", tags=PREEMPTIBLE)
    world.wait(10)
    [protected] = world.submit("ann", tags=PREEMPTIBLE)
    world.call("UpdateTaskProtection", "ecs", cluster="default", tasks=[protected], protectionEnabled=True)
    world.submit("ann", tags=URGENT)
    world.settle()
    assert (world.phase(other), world.phase(protected)) == ("pausing", "running"), "although the protected one is younger"
    world.submit("ann", tags=URGENT)
    world.settle()
    assert world.phase(protected) == "pausing"


def test_a_refused_pause_is_not_tried_again_at_once() -> None:
    world = PauseWorld(1, ann=[])
    [lender] = world.submit("ann", tags=PREEMPTIBLE)
    [urgent] = world.submit("ann", tags=URGENT)
    world.settle()
    world.answer(why_not="an old driver")
    assert world.phase(lender) == "running" and not world.orders
    world.wait(40)
    assert world.phase(lender) == "pausing" and world.orders[0].number == 2
    world.answer()
    assert not world.waits(urgent)


def test_a_task_that_was_stopped_for_another_claim_keeps_its_place() -> None:
    world = PauseWorld(1, ann=[])
    [lender] = world.submit("ann", tags=[{"key": "corral:preemptible", "value": "kill"}])
    world.wait(60)
    [waiting] = world.submit("ann")
    [urgent] = world.submit("ann", tags=URGENT)
    world.settle()
    assert world.task(lender).desired.value == "STOPPED" and "higher priority" in str(world.task(lender).stopped_reason)
    world.end(lender)
    assert not world.waits(urgent)
    world.wait(60)
    again = str(world.task(lender).details["requeuedAs"])
    world.lengths_s[again] = HOUR_S
    world.end(urgent)
    assert not world.waits(again) and world.waits(waiting)


def test_tasks_take_turns() -> None:
    world = PauseWorld(1, ann=[])
    [first] = world.submit("ann", hours=100, tags=turns(300))
    world.wait(1000)
    assert world.phase(first) == "running", "no other task waits"
    [second] = world.submit("ann", hours=100, tags=turns(300))
    world.settle()
    assert world.phase(first) == "pausing", "its turn is over"
    world.answer()
    assert not world.waits(second)
    world.wait(200)
    assert world.phase(second) == "running"
    world.wait(150)
    assert world.phase(second) == "pausing"
    world.answer()
    assert world.phase(first) == "resuming"
    world.answer()
    world.end(second) if world.phase(second) == "running" else None
    assert world.phase(first) == "running"


def test_a_turn_is_longer_than_the_moves() -> None:
    world = PauseWorld(1, ann=[])
    [first] = world.submit("ann", hours=100, tags=turns(60))
    [second] = world.submit("ann", hours=100, tags=turns(60))
    world.wait(61)
    world.answer(took_s=30)
    world.wait(61)
    world.answer(took_s=30)
    assert world.phase(first) == "resuming"
    world.answer(took_s=20)
    world.wait(400)
    assert world.phase(first) == "running", "ten times 30 + 20 seconds"
    world.wait(110)
    assert world.phase(first) == "pausing"
    assert world.phase(second) == "paused"


def test_only_so_many_tasks_take_turns_on_one_gpu() -> None:
    world = PauseWorld(1, ann=[])
    running = world.submit("ann", hours=100, count=1, tags=turns(60))
    others = world.submit("ann", hours=100, count=4, tags=turns(60))
    for _ in range(12):
        world.wait(70)
        world.answer(took_s=0.1)
    started = [each for each in (*running, *others) if not world.waits(each)]
    assert len(started) == world.settings.turns_max == 4


def test_many_tasks_that_will_take_turns_cost_the_scheduler_nothing_and_delay_no_other_owner() -> None:
    world = PauseWorld(1, ann=[], bob=[])
    of_ann = world.submit("ann", hours=100, count=50, tags=turns(60))
    [of_bob] = world.submit("bob", hours=100, tags=turns(60))
    assert len(world.store.tasks.with_pause) == world.settings.turns_max, "the scheduler looks at no others"
    for _ in range(12):
        world.wait(70)
        world.answer(took_s=0.1)
    assert world.waits(of_bob), "as many tasks as may take turns were there before"
    world.end(of_ann[0])
    world.settle()
    for _ in range(12):
        world.wait(70)
        world.answer(took_s=0.1)
    assert not world.waits(of_bob)
    assert sum(not world.waits(each) for each in of_ann[1:]) == world.settings.turns_max - 1


def test_a_task_that_cannot_be_paused_says_why() -> None:
    world = PauseWorld(1, ann=[])
    [running] = world.submit("ann")
    [waiting] = world.submit("ann")
    with pytest.raises(ApiError, match="PROVISIONING; only a RUNNING task can be paused"):
        world.pause(waiting)
    world.call("StopTask", "ecs", task=running)
    with pytest.raises(ApiError, match="it is stopping"):
        world.pause(running)


@pytest.mark.parametrize("tag", [("corral:preemptible", "yes"), ("corral:turns", "5"), ("corral:turns", "5m")])
def test_a_wrong_tag_is_refused(tag: tuple[str, str]) -> None:
    world = PauseWorld(1, ann=[])
    with pytest.raises(ApiError, match=f"The tag {tag[0]} has the value '{tag[1]}'"):
        world.submit("ann", tags=[{"key": tag[0], "value": tag[1]}])


def test_a_reason_says_which_task_makes_room_and_when() -> None:
    world = PauseWorld(1, ann=[])
    [lender] = world.submit("ann", tags=PREEMPTIBLE)
    world.pause(lender)
    world.answer(took_s=2)
    world.resume(lender)
    world.answer(took_s=2)
    [urgent] = world.submit("ann", tags=URGENT)
    world.wait(10.5)
    assert "; gpus1 makes room in 30s" in world.reason(urgent), world.reason(urgent)
    world.wait(31)
    assert "; gpus1 is being paused for it" in world.reason(urgent)
    world.answer(why_not="an old driver")
    assert "; gpus1 makes room in 30s (the last pause failed: an old driver)" in world.reason(urgent)


def test_a_reason_says_when_a_turn_ends() -> None:
    world = PauseWorld(1, ann=[])
    world.submit("ann", hours=100, tags=turns(300))
    [second] = world.submit("ann", hours=100, tags=turns(300))
    world.wait(100)
    assert "; the turn of gpus1 ends in 3m20s" in world.reason(second), world.reason(second)


class BatchPauses(JobWorld):
    """`orders` has the orders to pause and to continue runs that the host has not answered yet."""

    def __init__(self, gpus: int) -> None:
        self.orders: list[PauseOrder] = []
        super().__init__(gpus)
        tags = {"corral:preemptible": "true"}
        self.batch_call(job_definitions.register_job_definition, **definition("lends", gpus=1), tags=tags)

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        for orders in outcome.orders.values():
            self.orders += [each for each in orders.once if isinstance(each, PauseOrder)]
        return outcome

    def answer(self) -> None:
        orders, self.orders = self.orders, []
        for order in orders:
            pause = RunPause(order.number, order.paused, "", GIB, 1.0)
            observed = Observed(order.run_id, 1, self.clock.now_s(), pause=pause)
            self.run(lambda tx, observed=observed: host_reports.report(tx, "h", [observed]))
        self.settle()

    def started(self, job_id: str) -> None:
        task = self.store.tasks.get(self.job(job_id).task_id)
        assert task is not None
        runs = [Observed(run.attempt_id, 1, self.clock.now_s()) for run in task.runs]
        self.run(lambda tx: host_reports.report(tx, "h", runs))
        self.settle()

    def phase(self, job_id: str) -> str:
        task = self.store.tasks.get(self.job(job_id).task_id)
        return task.pause.phase.value if task is not None and task.pause is not None else "none"


def test_a_job_makes_room_for_jobs_of_a_queue_with_a_higher_priority() -> None:
    world = BatchPauses(1)
    world.queue("low", priority=1)
    world.queue("high", priority=10)
    lender = world.submit("lender", "lends", "low", timeout={"attemptDurationSeconds": 3600})
    world.started(lender)
    other = world.submit("other", "one", "low")
    world.wait(60)
    assert world.phase(lender) == "running", "a job of the same queue takes nothing"
    urgent, next_urgent = world.submit("urgent", "one", "high"), world.submit("next", "one", "high")
    assert world.phase(lender) == "pausing"
    world.answer()
    assert world.phase(lender) == "paused" and urgent in world.active() and other not in world.active()
    world.wait(3 * HOUR_S)
    world.finish(urgent)
    assert next_urgent in world.active(), "the paused job returns after all jobs of the queue with the higher priority"
    world.finish(next_urgent)
    assert world.phase(lender) == "resuming" and other not in world.active()
    world.answer()
    assert (world.phase(lender), world.state(lender)) == ("running", JobState.RUNNING), "its time limit has not counted"
    task = world.store.tasks.get(world.job(lender).task_id)
    assert task is not None
    world.wait(3400)
    assert task.desired.value == "RUNNING"
    world.wait(300)
    ended = world.store.tasks.get(task.id)
    assert ended is not None and ended.desired.value == "STOPPED"
