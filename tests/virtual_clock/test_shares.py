"""The line of several users: priority, then decayed use, then age. Limits of users and groups."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.shares import Startable, limits_changed, update_line, waiting_gpus
from corral.model.job import JobState
from corral.model.limits import Limits
from corral.model.run import Observed
from corral.model.task import Demand
from corral.operations.services import SERVICES
from corral.reconcile.priorities import CHANGES_MAX
from corral.services.batch.job_description import describe_jobs
from corral.services.batch.queue_snapshot import get_job_queue_snapshot
from corral.services.ecs import host_reports
from virtual_clock.environment_world import EnvironmentWorld
from virtual_clock.group_world import GPUS_1, GPUS_4
from virtual_clock.job_world import JobWorld
from virtual_clock.provider_world import FLEET, ProviderWorld
from virtual_clock.shares_world import HOUR_S, SharesWorld, caller_of

WEEKS = 4
WEEK_H = 7 * 24


def test_the_user_who_has_used_less_is_first() -> None:
    world = SharesWorld(2, ann=[], bob=[])
    first = world.submit("ann", count=2, hours=10)
    waiting = sorted(world.submit("ann", count=3))  # they are equally old
    world.clock.advance(5 * HOUR_S)
    [younger] = world.submit("bob")
    assert world.waits(younger)
    said = world.reason(waiting[0])
    assert "behind bob: ann holds 2 GPUs and used 9.9 GPU-hours lately, bob 0 and 0.0" in said and "place 2 in line" in said
    assert "behind bob" not in world.reason(younger)
    world.end(first[0])
    assert not world.waits(younger) and world.waits(waiting[0]), "bob has used nothing"
    world.end(younger)
    assert not world.waits(waiting[0])


def test_priority_is_before_shares_and_age_is_after_them() -> None:
    world = SharesWorld(1, ann=[], bob=[])
    [running] = world.submit("ann", hours=5)
    world.clock.advance(HOUR_S)
    [urgent] = world.submit("ann", tags=[{"key": "corral:priority", "value": "5"}])
    [usual] = world.submit("bob")
    world.end(running)
    assert not world.waits(urgent) and world.waits(usual)


def test_what_is_held_counts_at_once() -> None:
    """One user cannot take all GPUs that become free at the same time."""
    world = SharesWorld(8, ann=[], bob=[], cy=[])
    [blocker] = world.submit("cy", gpus=8)
    world.submit("ann", count=8)
    world.submit("bob", count=8)
    world.end(blocker)
    assert world.running("ann") == world.running("bob") == 4


def test_a_weight_divides_the_level_at_once() -> None:
    world = SharesWorld(6, ann=[], bob=["lab"], cy=[])
    [blocker] = world.submit("cy", gpus=4)
    [other] = world.submit("cy", gpus=2)
    world.limit("group/lab", weight=2.0)
    world.submit("ann", count=8)
    world.submit("bob", count=8)
    world.end(blocker)
    world.end(other)
    assert (world.running("ann"), world.running("bob")) == (2, 4)


def share_for_weeks(world: SharesWorld, appetites: dict[str, tuple[int, float]], weeks: float, rng: Random) -> dict[str, float]:
    """Each user always has tasks that wait: of so many GPUs, for about so many hours.

    Return the longest time in which no task of a user started, in hours.
    """
    owner_of: dict[str, str] = {}
    waiting = dict[str, None]()
    last_s = dict.fromkeys(appetites, world.clock.now_s())
    longest_h = dict.fromkeys(appetites, 0.0)

    def submit(user: str) -> None:
        gpus, hours = appetites[user]
        [task_id] = world.submit(user, gpus=gpus, hours=hours * rng.uniform(0.7, 1.3))
        owner_of[task_id] = user
        waiting[task_id] = None

    for user in appetites:
        for _ in range(8 // appetites[user][0] + 1):
            submit(user)
    until_s = world.clock.now_s() + weeks * WEEK_H * HOUR_S
    while (now_s := world.clock.now_s()) < until_s:
        submit(owner_of[world.next_end()])
        for task_id in [each for each in waiting if not world.waits(each)]:
            del waiting[task_id]
            user = owner_of[task_id]
            longest_h[user], last_s[user] = max(longest_h[user], (now_s - last_s[user]) / HOUR_S), now_s
    return longest_h


SEED = int(os.environ.get("CORRAL_SIM_SEED", "1"))
# No task is larger than 5 % of the decayed use of its user, about 385 GPU-hours: what one task adds cannot be divided.
APPETITES = {"ann": (1, 14.0), "bob": (2, 7.0), "cy": (1, 5.0), "dora": (4, 3.5)}


@pytest.mark.parametrize("weights", [{}, {"bob": 2.0, "dora": 3.0}], ids=["equal weights", "weights"])
def test_users_with_different_appetites_share_the_machine_over_four_weeks(weights: dict[str, float]) -> None:
    world = SharesWorld(8, ann=[], bob=[], cy=[], dora=[])
    for user, weight in weights.items():
        world.limit(f"user/{user}", weight=weight)
    longest_h = share_for_weeks(world, APPETITES, WEEKS, Random(SEED))
    levels = {user: world.used(user) / weights.get(user, 1.0) for user in APPETITES}
    mean = sum(levels.values()) / len(levels)
    assert all(abs(each / mean - 1) < 0.05 for each in levels.values()), levels
    assert max(longest_h.values()) < WEEK_H / 2, longest_h
    for user in APPETITES:
        assert world.store.owner_uses.held(f"user/{user}") == world.running(user)


def test_levels_survive_a_restart(tmp_path: Path) -> None:
    world = SharesWorld(2, tmp_path / "state.db", ann=[], bob=[])
    [first, _] = world.submit("ann", count=2, hours=10)
    [older] = world.submit("ann")
    world.clock.advance(HOUR_S)
    [younger] = world.submit("bob")
    world.restart()
    world.host_reports_until(1e12)
    world.end(first)
    assert world.waits(older) and not world.waits(younger)


def test_a_reservation_passes_to_the_user_whose_level_is_lower_later() -> None:
    """Nothing ends, but with time, the user who holds much is behind the one who holds little."""
    world = SharesWorld(8, ann=[], bob=[])
    [past] = world.submit("bob", gpus=8, hours=100)
    world.clock.advance(100 * HOUR_S)
    world.end(past)
    world.submit("ann", gpus=2, hours=500)
    [large] = world.submit("ann", gpus=8)
    [small] = world.submit("bob", gpus=1)
    assert world.waits(large) and world.waits(small), "the GPUs are reserved for ann, who has used less"
    world.wait(60 * HOUR_S)
    assert world.waits(small)
    world.wait(20 * HOUR_S)
    assert world.waits(large) and not world.waits(small)


# Limits


def test_gpus_at_once() -> None:
    world = SharesWorld(8, ann=[], bob=[])
    world.limit("user/ann", gpus=2)
    first = world.submit("ann", count=4)
    assert world.running("ann") == 2
    said = world.reason(min(first[2:]))
    assert said == "user:ann may hold 2 GPUs at once, and holds 2: `corral limits` shows the limits"
    [of_bob] = world.submit("bob", gpus=4)
    assert not world.waits(of_bob), "claims that wait for a limit keep no other waiting"
    world.end(first[0])
    assert world.running("ann") == 2 and not world.waits(min(first[2:]))
    world.limit("user/ann", gpus=3)
    assert world.running("ann") == 3, "a change acts at once"
    world.limit("user/ann", gpus=1)
    world.submit("ann")
    assert world.running("ann") == 3, "what runs keeps its GPUs"
    world.limit("user/ann", "gpus")
    assert world.running("ann") == 4


def test_a_claim_that_waits_for_a_limit_reserves_nothing() -> None:
    world = SharesWorld(8, ann=[], bob=[])
    world.submit("bob", gpus=4, hours=9)
    world.limit("user/ann", gpus=5)
    world.submit("ann", gpus=1, hours=9)
    [waiting] = world.submit("ann", gpus=4)
    assert world.waits(waiting)
    world.limit("user/ann", gpus=4)
    [of_bob] = world.submit("bob", gpus=2)
    assert not world.waits(of_bob)


def test_small_tasks_do_not_keep_a_large_task_of_the_same_user_waiting() -> None:
    world = SharesWorld(8, ann=[])
    world.limit("user/ann", gpus=4)
    [first] = world.submit("ann", gpus=2)
    [large] = world.submit("ann", gpus=4)
    [small] = world.submit("ann", gpus=1)
    assert world.waits(large) and world.waits(small)
    assert "an older task of ann waits for a limit" in world.reason(small)
    world.end(first)
    assert not world.waits(large) and world.waits(small)


def test_a_group_counts_its_members_together() -> None:
    world = SharesWorld(8, ann=["lab"], bob=["lab"], cy=[])
    world.limit("group/lab", gpus=3)
    first = world.submit("ann", count=2)
    [of_bob, waiting] = world.submit("bob", count=2)
    assert not world.waits(of_bob) and world.waits(waiting)
    assert world.reason(waiting).startswith("group:lab may hold 3 GPUs at once, and holds 3")
    world.submit("cy", gpus=4)
    world.end(first[0])
    assert not world.waits(waiting)


def test_a_change_of_a_group_acts_at_once() -> None:
    world = SharesWorld(8, ann=[], bob=["lab"])
    world.limit("user/ann", gpus=4)
    world.limit("group/lab", gpus=1)
    world.submit("bob", hours=9)
    waiting = world.submit("bob", count=2)
    world.call("RemoveUserFromGroup", "iam", GroupName="lab", UserName="bob")
    world.settle()
    assert not any(world.waits(each) for each in waiting)
    world.call("AddUserToGroup", "iam", GroupName="lab", UserName="ann")
    world.settle()
    world.submit("ann", count=2)
    assert world.running("ann") == 1


def test_small_tasks_of_other_members_do_not_keep_a_large_task_waiting() -> None:
    world = SharesWorld(8, ann=["lab"], bob=["lab"], cy=[])
    world.limit("group/lab", gpus=4)
    [running] = world.submit("bob", gpus=1, hours=5)
    world.clock.advance(HOUR_S)
    [large] = world.submit("ann", gpus=4)
    [small] = world.submit("bob")
    assert world.waits(large) and world.waits(small), "ann has used less, so bob waits behind her"
    assert "waits for a limit" in world.reason(small)
    [free] = world.submit("cy", gpus=2)
    assert not world.waits(free)
    [urgent] = world.submit("bob", tags=[{"key": "corral:priority", "value": "1"}])
    assert not world.waits(urgent), "a higher priority comes before ann"
    world.end(urgent)
    world.end(running)
    assert not world.waits(large) and world.waits(small)
    world.end(large)
    assert not world.waits(small)


def test_an_urgent_task_comes_before_one_of_the_same_user_that_waits_for_a_limit() -> None:
    world = SharesWorld(8, ann=[])
    world.limit("user/ann", gpus=4)
    world.submit("ann", gpus=2)
    [large] = world.submit("ann", gpus=4)
    [urgent] = world.submit("ann", tags=[{"key": "corral:priority", "value": "1"}])
    assert world.waits(large) and not world.waits(urgent)


def test_a_lower_limit_of_the_priority_acts_on_what_waits() -> None:
    world = SharesWorld(1, ann=["lab"], bob=[])
    [running] = world.submit("bob", hours=5)
    urgent = sorted(world.submit("ann", count=CHANGES_MAX + 1, tags=[{"key": "corral:priority", "value": "5"}]))
    tags = [{"key": "corral:priority", "value": "7"}, {"key": "corral:after", "value": running}]
    [later] = world.submit("ann", tags=tags)
    [usual] = world.submit("bob", tags=[{"key": "corral:priority", "value": "1"}])
    world.limit("group/lab", priority=0)
    tags_of = [{tag["key"]: tag["value"] for tag in world.task(each).details["tags"]} for each in urgent]
    assert {each["corral:priority"] for each in tags_of} == {"0"}
    line = [claim.id for claim in world.store.fleet.pool("hosts:default").in_order()]
    assert line == [usual, *urgent], "tasks of equal priority keep their order"
    world.end(running)
    assert not world.waits(usual) and world.waits(later)
    ranks = {claim.id: claim.rank[0] for claim in world.store.fleet.pool("hosts:default").in_order()}
    assert ranks[later] == 0, "it began to wait for capacity after the change"


def test_memory_at_once() -> None:
    world = SharesWorld(8, ann=[])
    world.limit("user/ann", memoryMiB=13)
    first = world.submit("ann", count=3)
    assert world.waits(first[2]) and "user:ann may reserve 13 MiB of memory at once, and reserves 12" in world.reason(first[2])
    world.end(first[1])
    assert not world.waits(first[2])


def test_gpu_hours_in_a_week() -> None:
    world = SharesWorld(8, ann=[])
    world.limit("user/ann", gpuHoursPerWeek=10)
    first = world.submit("ann", gpus=2, hours=6)
    world.next_end()
    [later] = world.submit("ann", hours=1)
    assert world.waits(later)
    assert world.reason(later).startswith("user:ann may use 10 GPU-hours in seven days, and has used 12.0")
    assert not world.waits(first[0])
    world.wait(7 * 24 * HOUR_S - 7 * HOUR_S)
    assert world.waits(later)
    world.wait(3 * HOUR_S)
    assert not world.waits(later), "two of the twelve hours are older than a week"


def test_a_rollback_leaves_levels_and_allowances_as_they_were() -> None:
    world = SharesWorld(4, ann=[], bob=[])
    world.limit("user/ann", gpus=3)
    running = world.submit("ann", count=3, hours=9)
    world.submit("bob", hours=9)
    world.submit("ann", count=2)
    world.clock.advance(HOUR_S)
    world.submit("bob", count=2)

    def present() -> Any:
        fleet = world.store.fleet
        return dict(fleet.levels), dict(fleet.allowances), list(fleet.pool("hosts:default").in_order())

    def fail(tx: Any) -> None:
        runs = [Observed(run.attempt_id, 1, 1.0, 2.0, 0) for run in world.task(running[0]).runs]
        host_reports.report(tx, "h", runs)
        update_line(tx, "hosts:default")
        levels, allowances, _ = present()
        assert levels != before[0] and allowances != before[1]
        raise ApiError("no")

    before = present()
    with pytest.raises(ApiError):
        world.run(fail)
    assert present() == before
    world.end(running[0])
    assert world.running("bob") == 2, "bob has used less"


def test_gpus_that_are_waited_for() -> None:
    world = SharesWorld(2, ann=["lab"], bob=["lab"])
    world.limit("group/lab", waitingGpus=3)
    world.submit("ann", count=4)
    with pytest.raises(ApiError, match=r"group:lab may wait for 3 GPUs. With this request, it would wait for 4"):
        world.submit("bob", gpus=2)
    [waiting] = world.submit("bob")
    assert world.waits(waiting)
    with pytest.raises(ApiError):
        world.submit("ann")
    assert waiting_gpus(Tx(world.store, 0.0, world.core._ids, world.settings), ["user/ann", "user/bob"]) == 3


def test_instances_wait_for_a_limit_of_their_owner() -> None:
    """The owner of an instance holds its GPUs, and its tasks hold none."""
    world = SharesWorld(8, ann=[], bob=[])
    world.limit("user/ann", gpus=2)
    world.configuration()
    given = {"AutoScalingGroupName": "g", "LaunchConfigurationName": "lc", "MinSize": 0, "MaxSize": 9, "DesiredCapacity": 3}
    create = SERVICES["autoscaling"].operations["CreateAutoScalingGroup"]
    world.run(lambda tx: create(tx, {**given, "AvailabilityZones": ["us-east-1a"]}, caller_of("ann")))
    world.settle()
    assert world.store.owner_uses.held("user/ann") == 2
    assert sorted(world.states()) == ["InService", "InService", "Pending"]
    [of_bob] = world.submit("bob", gpus=4)
    assert not world.waits(of_bob)
    world.limit("user/ann", "gpus")
    world.settle()
    assert world.states() == ["InService"] * 3


# Batch


def change_limit(subject: str, limits: Limits) -> Any:
    def change(tx: Tx[Any]) -> None:
        tx.store.limits.put(subject, limits)
        limits_changed(tx)

    return change


def submit_job(world: JobWorld, user: str, queue: str, gpus: int = 1, **more: Any) -> str:
    if gpus != 1 and world.store.job_definitions.get("us-east-1", f"gpus-{gpus}", None) is None:
        world.define(f"gpus-{gpus}", gpus=gpus)
    given = {"jobName": "j", "jobQueue": queue, "jobDefinition": "one" if gpus == 1 else f"gpus-{gpus}", **more}
    made = world.run(lambda tx: SERVICES["batch"].operations["SubmitJob"](tx, given, caller_of(user)))
    world.settle()
    return str(made["jobId"])


def test_jobs_on_the_instances_of_others_count_for_the_owner_of_the_jobs() -> None:
    world = EnvironmentWorld(4)
    world.managed(GPUS_4)
    of_ann, of_bob = submit_job(world, "ann", "q", gpus=2), submit_job(world, "bob", "q")
    assert [world.state(each) for each in (of_ann, of_bob)] == [JobState.STARTING] * 2
    uses = world.store.owner_uses
    assert {owner: uses.held(owner) for owner in uses.owners()} == {"root": 1, "user/ann": 2, "user/bob": 1}
    world.wait(HOUR_S)
    world.finish(of_ann)
    assert {owner: uses.held(owner) for owner in uses.owners()} == {"root": 3, "user/ann": 0, "user/bob": 1}
    used_h = uses.gpu_s(["user/ann"], 0.0, world.clock.now_s()) / HOUR_S
    assert used_h == pytest.approx(2, rel=0.01)
    world.check_derived()


def test_jobs_on_the_instances_of_others_wait_for_limits() -> None:
    world = EnvironmentWorld(8)
    world.run(lambda tx: tx.store.limits.put("user/ann", Limits(gpus=2)))
    world.managed(GPUS_1)
    jobs = [submit_job(world, "ann", "q") for _ in range(4)]
    assert [world.state(job) for job in jobs] == [JobState.STARTING] * 2 + [JobState.RUNNABLE] * 2
    assert world.types() == [GPUS_1] * 2, "no instance is launched for jobs that may not start"
    [described] = world.batch_call(describe_jobs, jobs=[jobs[2]])["jobs"]
    assert "user:ann may hold 2 GPUs at once, and holds 2" in described["statusReason"]
    of_bob = submit_job(world, "bob", "q")
    assert world.state(of_bob) is JobState.STARTING and len(world.types()) == 3
    world.finish(jobs[0])
    assert [world.state(job) for job in jobs[2:]] == [JobState.STARTING, JobState.RUNNABLE]
    assert len(world.types()) == 3
    world.run(change_limit("user/ann", Limits(gpus=3)))
    world.settle()
    assert world.state(jobs[3]) is JobState.STARTING and len(world.types()) == 4, "a change acts at once"
    world.check_derived()


def test_tasks_on_the_instances_of_a_capacity_provider_wait_for_limits() -> None:
    world = ProviderWorld(8)
    world.run(lambda tx: tx.store.limits.put("user/ann", Limits(gpus=2)))
    given = {"cluster": FLEET, "taskDefinition": "one", "count": 4}
    run = world.run(lambda tx: SERVICES["ecs"].operations["RunTask"](tx, given, caller_of("ann")))
    tasks = [each["taskArn"].rpartition("/")[2] for each in run["tasks"]]
    world.settle()
    world.report()
    assert len(world.waiting(tasks)) == 2 and world.shape() == (2, 2)
    assert world.reason(min(world.waiting(tasks))).startswith("user:ann may hold 2 GPUs at once, and holds 2")
    world.run(change_limit("user/ann", Limits(gpus=3)))
    world.settle()
    world.report()
    assert len(world.waiting(tasks)) == 1 and world.shape() == (3, 3)
    world.run(change_limit("user/ann", Limits()))
    world.settle()
    world.report()
    assert world.waiting(tasks) == [] and world.shape() == (4, 4)


def test_no_instances_are_launched_beyond_what_a_group_may_hold() -> None:
    world = SharesWorld(1, ann=["lab"], bob=["lab"])
    world.limit("group/lab", gpus=3)

    def take(tx: Tx[Any]) -> list[int]:
        startable = Startable(tx)
        return [startable.take(f"user/{name}", Demand(gpus), 5) for name, gpus in (("ann", 2), ("bob", 1), ("ann", 1), ("bob", 0))]

    assert world.run(take) == [1, 1, 0, 5]


def test_the_level_of_an_owner_is_before_the_priority_of_a_job_queue() -> None:
    world = JobWorld(2)
    world.queue("high", priority=9)
    world.queue("low", priority=1)
    running = [submit_job(world, "ann", "high") for _ in range(2)]
    world.wait(HOUR_S)
    of_ann, of_bob = submit_job(world, "ann", "high"), submit_job(world, "bob", "low")
    world.finish(running[0])
    assert world.state(of_bob) is JobState.STARTING and world.state(of_ann) is JobState.RUNNABLE
    own = submit_job(world, "ann", "low")
    world.finish(running[1])
    assert world.state(of_ann) is JobState.STARTING and world.state(own) is JobState.RUNNABLE


def test_the_snapshot_of_a_queue_has_the_order_in_which_owners_are_served() -> None:
    world = JobWorld(2)
    world.queue("q")
    running = [submit_job(world, "ann", "q") for _ in range(2)]
    world.wait(HOUR_S)
    of_ann = [submit_job(world, "ann", "q") for _ in range(2)]
    of_bob = [submit_job(world, "bob", "q") for _ in range(3)]
    shown = world.batch_call(get_job_queue_snapshot, jobQueue="q")["frontOfQueue"]["jobs"]
    order = [each["jobArn"].rpartition("/")[2] for each in shown]
    assert order == [of_bob[0], of_bob[1], of_ann[0], of_bob[2], of_ann[1]]
    world.finish(running[0])
    assert [world.state(each) for each in order] == [JobState.STARTING] + [JobState.RUNNABLE] * 4


def test_jobs_wait_for_limits() -> None:
    world = JobWorld(4)
    world.queue("q")
    world.run(lambda tx: tx.store.limits.put("user/ann", Limits(gpus=2, waiting_gpus=2)))
    jobs = [submit_job(world, "ann", "q") for _ in range(4)]
    assert [world.state(job) for job in jobs] == [JobState.STARTING] * 2 + [JobState.RUNNABLE] * 2
    [described] = world.batch_call(describe_jobs, jobs=[jobs[3]])["jobs"]
    assert "user:ann may hold 2 GPUs at once, and holds 2" in described["statusReason"]
    with pytest.raises(ApiError, match="user:ann may wait for 2 GPUs"):
        submit_job(world, "ann", "q")
    assert world.state(submit_job(world, "bob", "q", gpus=2)) is JobState.STARTING
    world.finish(jobs[0])
    assert world.state(jobs[2]) is JobState.STARTING
