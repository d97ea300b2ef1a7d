"""The life of Batch jobs: arrays, dependencies, retries, time limits, CancelJob and TerminateJob, and multi-node jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.model.instance import ec2_id
from corral.model.job import CHILD_FAILED, DEPENDENCY_FAILED, TIMED_OUT, ExitRule, JobState
from corral.model.task import StopCode
from corral.services.batch.errors import ClientException
from corral.services.batch.job_progress import submit, terminate
from corral.services.ecs.task_progress import begin_stop
from virtual_clock.group_world import refused
from virtual_clock.job_graph_world import JobGraphWorld


class CheckedWorld(JobGraphWorld):
    """A world that compares the counts of arrays with the rows of their children after every transaction."""

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        for job_id, size in self.store.execute("SELECT id, size FROM job WHERE kind = 'array'").fetchall():
            array = self.job(job_id)
            sql = "SELECT state, count(*) FROM job_child WHERE job = ? GROUP BY state"
            rows = Counter({JobState(state): count for state, count in self.store.execute(sql, (array.number,))})
            rows[JobState.FAILED if array.is_stopping or array.has_ended else JobState.SUBMITTED] += size - rows.total()
            assert +Counter(self.store.jobs.summary(array)) == +rows
        return outcome


@pytest.fixture
def world() -> Iterator[CheckedWorld]:
    made = CheckedWorld()
    yield made
    made.check_summaries()


def test_a_job_succeeds(world: CheckedWorld) -> None:
    job = world.add()
    assert world.state(job) == "RUNNABLE"
    world.launch()
    assert world.state(job) == "STARTING"
    world.starts(job)
    assert world.state(job) == "RUNNING"
    world.ends(job)
    shown = world.job(job)
    assert (shown.state, shown.status_reason) == (JobState.SUCCEEDED, "Essential container in task exited")
    assert [attempt.exit_code for attempt in shown.attempts] == [0]
    assert shown.attempts[0].log_stream == f"one/default/{shown.task_id}"


def test_a_task_that_ends_before_its_start_was_reported(world: CheckedWorld) -> None:
    job = world.add()
    world.launch()
    world.ends(job)
    assert world.state(job) == "SUCCEEDED" and world.job(job).started_at_s is not None


def test_a_task_that_cannot_start_is_an_attempt(world: CheckedWorld) -> None:
    job = world.add(attempts=2, rules=(ExitRule(retries=True, on_reason="CannotPull*"), ExitRule(retries=False, on_reason="*")))
    for _ in range(2):
        world.launch()
        world.ends(job, None, "CannotPullContainerError: no such image", starts=False)
    shown = world.job(job)
    assert shown.state is JobState.FAILED and shown.status_reason == "Task failed to start"
    assert [attempt.started_at_s for attempt in shown.attempts] == [None, None]


def test_retries(world: CheckedWorld) -> None:
    job = world.add(attempts=3)
    for code in (1, 2):
        world.launch()
        world.ends(job, code)
        assert world.state(job) == "RUNNABLE"
    world.launch()
    world.ends(job, 0)
    assert world.state(job) == "SUCCEEDED"
    assert [attempt.exit_code for attempt in world.job(job).attempts] == [1, 2, 0]
    assert len({attempt.task_id for attempt in world.job(job).attempts}) == 3


def test_a_lost_instance(world: CheckedWorld) -> None:
    job = world.add(
        attempts=2, rules=(ExitRule(retries=True, on_status_reason="Host EC2*"), ExitRule(retries=False, on_reason="*"))
    )
    for code, state in ((0, "RUNNABLE"), (1, "FAILED")):
        world.launch()
        world.starts(job)
        if code == 0:  # the program may exit with 0 when its instance is terminated
            world.run(lambda tx: begin_stop(tx, world.task_of(job), StopCode.TERMINATION, "the instance was terminated") and None)
        world.ends(job, code)
        assert world.state(job) == state
    first, second = world.job(job).attempts
    assert first.status_reason == f"Host EC2 (instance {ec2_id(first.instance_id)}) terminated."
    assert second.status_reason == "Essential container in task exited"


def test_a_refused_command_leaves_no_trace(world: CheckedWorld) -> None:
    gate = world.add()
    array, waits = world.add(size=3), world.add(size=3, needs=((gate, ""),))
    world.launch()
    before = [world.job(job_id) for job_id in (gate, array, f"{array}:1", waits, f"{waits}:2")]

    def handler(tx: Any) -> None:
        for job_id in (array, f"{waits}:2", gate):
            terminate(tx, tx.store.jobs.get(job_id), "why")
        submitted = tx.store.jobs.get(waits).but(id="new", depends_on=())
        submit(tx, submitted.but(spec=replace(submitted.spec, timeout_s=99)))
        raise ClientException("refused")

    refused(lambda: world.run(handler))
    world.settle()
    assert [world.job(job.id) for job in before] == before and world.store.jobs.get("new") is None
    world.ends(gate)
    world.settle()
    assert world.states_of(gate, f"{waits}:2") == ["SUCCEEDED", "RUNNABLE"]


def test_an_array_runs_its_children(world: CheckedWorld) -> None:
    array = world.add(size=5)
    world.settle()
    assert world.state(array) == "PENDING"
    world.launch()
    for index in range(5):
        world.ends(f"{array}:{index}", 0)
    assert world.state(array) == "SUCCEEDED"


def test_an_array_fails_after_its_last_child(world: CheckedWorld) -> None:
    array = world.add(size=3, attempts=2)
    world.settle()
    world.launch()
    world.ends(f"{array}:1", 1)
    assert world.state(f"{array}:1") == "RUNNABLE"  # each child has its own attempts
    world.launch()
    world.ends(f"{array}:1", 1)
    assert (world.state(f"{array}:1"), world.state(array)) == ("FAILED", "PENDING")
    world.ends(f"{array}:0")
    world.ends(f"{array}:2")
    assert (world.state(array), world.job(array).status_reason) == ("FAILED", CHILD_FAILED)


def test_children_are_added_in_several_transactions(world: CheckedWorld) -> None:
    array = world.add(size=350)
    parent = world.job(array)
    assert 0 < parent.expanded < 350
    assert world.state(f"{array}:349") == "SUBMITTED"
    assert world.store.jobs.get(f"{array}:350") is None
    world.settle()
    assert world.state(f"{array}:349") == "RUNNABLE"


def test_a_child_without_a_row_can_be_cancelled_and_depended_on(world: CheckedWorld) -> None:
    first = world.add()
    array = world.add(size=4, needs=((first, ""),))
    after = world.add(needs=((f"{array}:2", ""),))
    other = world.add(needs=((f"{array}:3", ""),))
    assert world.states_of(array, f"{array}:2", after) == ["PENDING", "SUBMITTED", "PENDING"]
    world.cancel(f"{array}:2")
    assert world.states_of(f"{array}:2", after, other) == ["FAILED", "FAILED", "PENDING"]
    assert world.job(after).status_reason == DEPENDENCY_FAILED
    world.launch()
    world.ends(first)
    world.settle()
    world.launch()
    for index in (0, 1, 3):
        world.ends(f"{array}:{index}")
    assert world.state(array) == "FAILED"
    assert world.state(other) == "RUNNABLE"


# Dependencies


def test_a_dependent_job_waits(world: CheckedWorld) -> None:
    first, second = world.add(), world.add()
    job = world.add(needs=((first, ""), (second, "")))
    world.launch()
    world.ends(first)
    assert world.state(job) == "PENDING"
    world.ends(second)
    assert world.state(job) == "RUNNABLE"
    assert world.state(world.add(needs=((first, ""),))) == "RUNNABLE"


def test_dependents_of_a_failed_job_fail_transitively(world: CheckedWorld) -> None:
    first = world.add()
    chain = [first]
    for _ in range(120):
        chain.append(world.add(needs=((chain[-1], ""),)))
    array = world.add(size=300, needs=((chain[-1], ""),))
    world.launch()
    world.ends(first, 1)
    assert world.state(chain[-1]) == "PENDING"  # the rest follows in later transactions
    world.settle()
    assert {world.job(each).status_reason for each in chain[1:]} == {DEPENDENCY_FAILED}
    assert world.states_of(array, f"{array}:299") == ["FAILED", "FAILED"]
    late = world.add(needs=((first, ""),))
    assert (world.state(late), world.job(late).status_reason) == ("FAILED", DEPENDENCY_FAILED)


def test_many_dependents_of_one_job(world: CheckedWorld) -> None:
    first = world.add()
    dependents = [world.add(needs=((first, ""),)) for _ in range(130)]
    world.launch()
    world.ends(first)
    assert world.state(dependents[-1]) == "PENDING"
    world.settle()
    assert set(world.states_of(*dependents)) == {"RUNNABLE"}
    assert world.store.execute("SELECT count(*) FROM job_dependency").fetchone() == (0,)


def test_n_to_n(world: CheckedWorld) -> None:
    first = world.add(size=3)
    second = world.add(size=3, needs=((first, "N_TO_N"),))
    world.settle()
    world.launch()
    world.ends(f"{first}:1")
    assert world.states_of(*(f"{second}:{index}" for index in range(3))) == ["PENDING", "RUNNABLE", "PENDING"]
    world.ends(f"{first}:0", 1)
    child = world.job(f"{second}:0")
    assert (child.state, child.status_reason) == (JobState.FAILED, DEPENDENCY_FAILED)
    third = world.add(size=3, needs=((first, "N_TO_N"), (second, "N_TO_N")))
    assert world.states_of(*(f"{third}:{index}" for index in range(3))) == ["FAILED", "PENDING", "PENDING"]
    world.cancel(first)  # its last child runs, and is not cancelled
    assert world.state(f"{first}:2") == "STARTING"
    world.terminate(first)
    world.stop_ordered()
    world.settle()
    assert world.states_of(first, f"{second}:2", f"{third}:2") == ["FAILED", "FAILED", "FAILED"]


def test_n_to_n_on_an_array_that_is_cancelled_before_it_has_children(world: CheckedWorld) -> None:
    gate = world.add()
    first = world.add(size=200, needs=((gate, ""),))
    second = world.add(size=200, needs=((first, "N_TO_N"),))
    world.settle()
    assert world.state(f"{second}:199") == "PENDING"
    world.cancel(first, "no longer needed")
    world.settle()
    assert world.states_of(first, second, f"{second}:199") == ["FAILED", "FAILED", "FAILED"]
    assert world.job(f"{first}:7").status_reason == "no longer needed"


def test_sequential(world: CheckedWorld) -> None:
    array = world.add(size=150, needs=(("", "SEQUENTIAL"),))
    world.settle()
    for index in range(3):
        assert world.state(f"{array}:{index + 1}") == "PENDING"
        world.launch()
        assert world.state(f"{array}:{index}") == "STARTING"
        world.ends(f"{array}:{index}")
    world.launch()
    world.ends(f"{array}:3", 1)
    assert world.state(f"{array}:149") == "PENDING"
    world.settle()
    assert world.states_of(f"{array}:149", array) == ["FAILED", "FAILED"]
    assert world.store.jobs.summary(world.job(array))[JobState.SUCCEEDED] == 3


# Time limits, CancelJob, TerminateJob


def test_a_time_limit_ends_the_job_without_a_retry(world: CheckedWorld) -> None:
    job = world.add(attempts=5, timeout_s=60)
    world.launch()
    world.starts(job)
    world.wait(59)
    assert world.task_of(job).desired.value == "RUNNING"
    world.wait(2)
    assert world.task_of(job).desired.value == "STOPPED" and world.state(job) == "RUNNING"
    world.stop_ordered()
    shown = world.job(job)
    assert (shown.state, shown.status_reason, len(shown.attempts)) == (JobState.FAILED, TIMED_OUT, 1)


def test_each_attempt_has_its_own_time_limit(world: CheckedWorld) -> None:
    job = world.add(attempts=2, timeout_s=60)
    world.launch()
    world.starts(job)
    world.wait(50)
    world.ends(job, 1)
    world.launch()
    world.starts(job)
    world.wait(50)
    assert world.task_of(job).desired.value == "RUNNING"
    world.wait(11)
    assert world.task_of(job).desired.value == "STOPPED"


def test_cancel_and_terminate(world: CheckedWorld) -> None:
    runs = world.add(attempts=3)
    world.launch()
    waits = world.add()
    world.cancel(waits, "why")
    assert (world.state(waits), world.job(waits).status_reason, world.job(waits).cancelled) == ("FAILED", "why", True)
    assert world.job(waits).attempts == ()
    world.cancel(runs)
    assert world.state(runs) == "STARTING" and not world.job(runs).cancelled
    world.terminate(runs, "enough")
    assert world.state(runs) == "STARTING"
    world.stop_ordered()
    shown = world.job(runs)
    assert (shown.state, shown.status_reason, shown.terminated) == (JobState.FAILED, "enough", True)
    assert [attempt.status_reason for attempt in shown.attempts] == ["enough"]
    world.terminate(runs, "again")
    assert world.job(runs).status_reason == "enough"


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, True)])
def test_a_cancelled_job_that_waits_for_other_jobs_ends_after_them(world: CheckedWorld, code: int, again: bool) -> None:
    gate, other = world.add(), world.add()
    waits = world.add(needs=((gate, ""), (other, "")))
    last = world.add(needs=((waits, ""),))
    nodes_wait = world.add(nodes=2, needs=((gate, ""),))
    world.launch()
    world.cancel(waits, "why")
    world.cancel(f"{nodes_wait}#1", "no nodes")
    if again:
        world.cancel(waits, "later")
    shown = world.job(waits)
    assert (shown.state, shown.status_reason, shown.cancelled) == (JobState.PENDING, "why", True)
    assert world.states_of(last, nodes_wait) == ["PENDING", "PENDING"]
    world.ends(other)
    assert world.state(waits) == "PENDING"
    world.ends(gate, code)
    world.settle()
    assert world.states_of(waits, last, nodes_wait) == ["FAILED"] * 3
    assert (world.job(waits).status_reason, world.job(nodes_wait).status_reason) == ("why", "no nodes")
    assert world.job(last).status_reason == DEPENDENCY_FAILED


def test_a_terminated_job_does_not_wait_for_other_jobs(world: CheckedWorld) -> None:
    gate = world.add()
    waits = world.add(needs=((gate, ""),))
    world.cancel(waits, "first")
    world.terminate(waits, "second")
    assert (world.state(waits), world.job(waits).status_reason, world.state(gate)) == ("FAILED", "second", "RUNNABLE")


def test_cancelled_children_end_after_the_children_that_they_wait_for(world: CheckedWorld) -> None:
    first = world.add(size=3, needs=(("", "SEQUENTIAL"),))
    second = world.add(size=3, needs=((first, "N_TO_N"),))
    world.settle()
    world.cancel(f"{second}:0", "one")
    world.cancel(f"{first}:1", "two")
    assert world.states_of(f"{second}:0", f"{first}:1") == ["PENDING", "PENDING"]
    world.launch()
    world.ends(f"{first}:0")
    world.settle()
    children = [*world.children(first), *world.children(second)]
    assert [child.state.value for child in children] == ["SUCCEEDED", *["FAILED"] * 5]
    reasons = [child.status_reason for child in children[1:]]
    assert reasons == ["two", DEPENDENCY_FAILED, "one", DEPENDENCY_FAILED, DEPENDENCY_FAILED]
    assert world.states_of(first, second) == ["FAILED", "FAILED"]


def test_a_job_that_does_not_exist_cannot_be_cancelled_and_terminated(world: CheckedWorld) -> None:
    array = world.add(size=2)
    for stop in (world.cancel, world.terminate):
        for absent in ("00000000-0000-0000-0000-000000000000", f"{array}:2", f"{array}#0"):
            with pytest.raises(ClientException, match=f"Job {absent} does not exist"):
                stop(absent)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_stop_an_array(world: CheckedWorld, how: str) -> None:
    array = world.add(size=900, attempts=3)
    world.launch()
    assert world.job(array).expanded < 900
    running = [child.id for child in world.children(array) if child.state is JobState.STARTING]
    getattr(world, how)(array, "stop it")
    world.settle()
    if how == "cancel":
        assert set(world.states_of(*running)) == {"STARTING"} and world.state(array) == "PENDING"
        world.ends(running[0], 1)
        assert world.state(running[0]) == "FAILED"  # a child of a cancelled array is not retried
        for child in running[1:]:
            world.ends(child)
    else:
        world.stop_ordered()
    world.settle()
    counts = world.store.jobs.summary(world.job(array))
    assert counts[JobState.SUCCEEDED] == (len(running) - 1 if how == "cancel" else 0)
    assert (world.state(array), world.job(array).status_reason) == ("FAILED", "stop it")
    assert world.job(f"{array}:899").status_reason == "stop it"


def test_an_ended_job_is_deleted_after_a_week(world: CheckedWorld) -> None:
    array = world.add(size=120)
    gate = world.add()
    kept = world.add(size=2)
    late = world.add(size=2, needs=((kept, "N_TO_N"), (gate, "")))
    world.cancel(array)
    world.cancel(kept)
    world.wait(6 * 86400)
    assert world.state(array) == "FAILED"
    world.wait(86400 + 7200)
    assert world.store.jobs.get(array) is None and world.state(gate) == "RUNNABLE"
    assert world.state(kept) == "FAILED"  # another array still depends on its children
    world.launch()
    world.ends(gate)
    world.settle()
    assert world.states_of(late, f"{late}:0") == ["FAILED", "FAILED"]
    world.wait(8 * 86400)
    assert world.store.execute("SELECT count(*) FROM job").fetchone() == (0,)
    assert world.store.execute("SELECT count(*) FROM job_spec").fetchone() == (0,)


# Multi-node jobs


def nodes(world: JobGraphWorld, job: str) -> list[str]:
    return [child.state.value for child in world.children(job)]


def test_the_main_node_decides(world: CheckedWorld) -> None:
    job = world.add(nodes=3)
    assert nodes(world, job) == ["RUNNABLE"] * 3
    world.launch()
    assert (world.state(job), nodes(world, job)) == ("STARTING", ["STARTING"] * 3)
    world.starts(f"{job}#1")
    assert world.state(job) == "STARTING"
    world.starts(f"{job}#0")
    assert world.state(job) == "RUNNING"
    world.ends(f"{job}#1", 1)  # as on AWS, the other nodes continue
    assert (world.state(job), nodes(world, job)) == ("RUNNING", ["RUNNING", "FAILED", "STARTING"])
    world.ends(f"{job}#0", 0)
    assert world.state(job) == "RUNNING"
    world.stop_ordered()
    assert (world.state(job), nodes(world, job)) == ("SUCCEEDED", ["SUCCEEDED", "FAILED", "FAILED"])


def test_a_node_that_cannot_start_fails_the_attempt(world: CheckedWorld) -> None:
    job = world.add(nodes=3, attempts=2)
    world.launch()
    world.starts(f"{job}#0")
    world.ends(f"{job}#2", None, "CannotStartContainerError", starts=False)
    world.stop_ordered()
    assert (world.state(job), nodes(world, job)) == ("RUNNABLE", ["RUNNABLE"] * 3)
    assert [attempt.status_reason for attempt in world.job(job).attempts] == ["Task failed to start"]
    world.launch()
    world.ends(f"{job}#0")
    world.stop_ordered()
    assert world.state(job) == "SUCCEEDED" and len(world.job(job).attempts) == 2


def test_terminate_and_time_limit_of_a_multi_node_job(world: CheckedWorld) -> None:
    limited, terminated = world.add(nodes=2, timeout_s=60, attempts=2), world.add(nodes=2, attempts=2)
    world.launch()
    for job in (limited, terminated):
        world.starts(f"{job}#0")
    world.terminate(f"{terminated}#1", "enough")  # a node stands for its job
    world.wait(61)
    world.stop_ordered()
    assert (world.state(limited), world.job(limited).status_reason) == ("FAILED", TIMED_OUT)
    assert (world.state(terminated), world.job(terminated).status_reason) == ("FAILED", "enough")


def test_cancel_a_waiting_multi_node_job(world: CheckedWorld) -> None:
    job = world.add(nodes=2)
    world.cancel(f"{job}#1")
    assert (world.state(job), nodes(world, job)) == ("FAILED", ["FAILED", "FAILED"])


# Lists


def test_lists(world: CheckedWorld) -> None:
    made = [world.add(name) for name in ("Test1", "test10", "other", "test1")]
    listed = world.store.jobs.listed

    def pages(queue: str = "work", **filters: Any) -> list[str]:
        found: list[str] = []
        cursor: tuple[float, ...] = ()
        while page := listed("us-east-1", queue, cursor, 1, **filters):
            found.append(page[0].id)
            cursor = page[0].cursor
        return found

    assert pages(state=JobState.RUNNABLE) == made[::-1]
    assert pages(name="TEST1") == [made[3], made[0]]
    assert pages(definition="one") == pages(definition="one", revision=1) == made[::-1]
    assert pages(definition="ONE") == pages(definition="one", revision=2) == []
    at_s = world.job(made[2]).created_at_s
    assert (pages(before_s=at_s), pages(after_s=at_s)) == ([made[1], made[0]], [made[3]])
    assert pages(before_s=0.0) == []
    world.queue("fair", policy=world.policy())
    shared, cancelled, _ = (world.add(queue="fair", shareIdentifier=share) for share in "aab")
    world.cancel(cancelled)
    assert pages("fair", share="a", state=JobState.RUNNABLE) == [shared]
    assert pages("fair", share="a") == [cancelled, shared]


@pytest.mark.parametrize("window", [1, 2, 3, 1000])
def test_jobs_whose_name_begins_with_a_text_are_listed_by_their_age(world: CheckedWorld, window: int) -> None:
    made = [world.add(name) for name in ("test1", "x", "Test3", "y", "TEST2", "other")]

    def pages(column: str, prefix: str) -> list[str]:
        ids: list[str] = []
        cursor: tuple[float, ...] = ()
        while True:
            found, cursor = world.store.jobs.matching("us-east-1", "work", column, prefix, cursor, 2, window=window)
            ids += [job.id for job in found]
            if not cursor:
                return ids

    assert pages("name", "tesT") == [made[4], made[2], made[0]]
    assert pages("name", "none") == pages("definition", "O") == []
    assert pages("name", "") == pages("definition", "on") == made[::-1]


def test_lists_of_children(world: CheckedWorld) -> None:
    gate = world.add()
    array = world.add(size=5, needs=((gate, ""),))
    world.cancel(f"{array}:1")
    children = world.store.jobs.listed_children
    page = children(world.job(array), JobState.SUBMITTED, (), 2)
    assert [child.index for child in page] == [0, 2]
    assert [child.index for child in children(world.job(array), JobState.SUBMITTED, page[-1].cursor, 9)] == [3, 4]
    assert [child.index for child in children(world.job(array), JobState.FAILED, (), 9)] == [1]
