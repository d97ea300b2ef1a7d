"""Reasons why jobs wait, snapshots of queues, and time limits for waiting jobs."""

from __future__ import annotations

from corral.model.job import JobState
from corral.reconcile.job_limits import CHECK_S
from corral.services.batch import waiting_reasons
from corral.services.batch.queue_snapshot import get_job_queue_snapshot
from corral.services.ecs import host_reports
from store.rows import hello
from virtual_clock.environment_world import EnvironmentWorld
from virtual_clock.group_world import GPUS_4
from virtual_clock.job_world import JobWorld
from virtual_clock.test_job_dispatch import fleet

MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
REQUIREMENT = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"


def why(world: JobWorld, job_id: str) -> str:
    return str(world.run(lambda tx: waiting_reasons.reason(tx, tx.store.jobs.get(job_id))))


def test_a_reason_says_what_is_needed_free_and_held_and_the_place_in_line() -> None:
    world = JobWorld(gpus=2)
    world.queue()
    running = world.submit(gpus=2, timeout={"attemptDurationSeconds": 3600})
    assert why(world, running) == ""
    first, second = world.submit(), world.submit()
    task = world.job(running).task_id
    text = why(world, first)
    assert text.startswith(f"Environment here: batch-gpus-2 holds 2 of 2 GPUs; needs 1 GPU; held by task {task}"), text
    assert text.endswith("; first in line") and text.count("first in line") == 1
    assert "first in line" not in why(world, second)
    assert why(world, second).endswith(f"1 job with the same needs before it, first job {first}")
    large = world.submit(gpus=4)
    assert why(world, large).startswith(
        f"{REQUIREMENT} - Environment here: the largest host has only 2 GPUs; needs 4 GPUs"
    ) and "the largest host has only 2 GPUs" in why(world, large)


def test_a_reason_names_the_time_limit_that_ends_first() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    running = world.submit(timeout={"attemptDurationSeconds": 3600})
    job = world.job(running)
    world.run(lambda tx: tx.store.jobs.change(job, job.but(started_at_s=1_767_225_600.0)) and None)
    assert f"job {running} ends at the latest at 2026-01-01T01:00:00Z" in why(world, world.submit())


def test_reasons_of_closed_environments_and_missing_resources() -> None:
    world = JobWorld(gpus=1)
    world.environment("off")
    world.queue("q", "off")
    world.queue("open")
    world.environment("off", state="DISABLED")
    assert why(world, world.submit()).startswith(
        "ACTION_REQUIRED - No compute environment of the job queue q takes jobs: off is DISABLED; first in line"
    )
    world.resource("licence", 1)
    name = world.define("licensed", resources={"licence": 1})
    running, waiting = world.submit(definition=name, queue="open"), world.submit(definition=name, queue="open")
    expected = f"Needs 1 of the consumable resource licence: 0 of 1 are available; held by job {running}; first in line"
    assert why(world, waiting) == expected


def test_reasons_of_a_fargate_environment() -> None:
    world = JobWorld(gpus=0)
    world.environment("serverless", kind="FARGATE", most=4)
    world.queue("q", "serverless")
    for vcpus, memory in ((4, 8192), (8, 16384)):
        world.define(
            f"f{vcpus}", vcpus=vcpus, memory=memory, platforms=("FARGATE",), executionRoleArn="arn:aws:iam::123456789012:role/x"
        )
    world.submit(definition="f4")
    waiting, huge = world.submit(definition="f4"), world.submit(definition="f8")
    assert why(world, waiting).startswith("Environment serverless: needs 4 vCPUs, and 4 of at most 4 vCPUs (maxvCpus) are in use")
    assert why(world, huge).startswith(f"{MAX_RESOURCE} - Environment serverless: needs 8 vCPUs, and maxvCpus is 4")


def front(world: JobWorld) -> list[str]:
    shown = world.batch_call(get_job_queue_snapshot, jobQueue="q")["frontOfQueue"]["jobs"]
    return [each["jobArn"].rpartition("/")[2] for each in shown]


def test_a_snapshot_has_the_first_jobs_in_order() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    running = world.submit()
    small, large, last = world.submit(), world.submit(gpus=1, definition="one"), world.submit()
    assert front(world) == [small, large, last]
    world.clock.advance(60)
    world.finish(running)
    [shown, _] = world.batch_call(get_job_queue_snapshot, jobQueue="q")["frontOfQueue"]["jobs"]
    assert shown["jobArn"].endswith(large) and shown["earliestTimeAtPosition"] >= 1_767_225_660_000  # the job moved up
    array = world.submit(arrayProperties={"size": 200})
    assert front(world)[2:5] == [f"{array}:{at}" for at in range(3)] and len(front(world)) == 100


def test_a_snapshot_of_a_fair_share_queue_follows_the_use_of_shares() -> None:
    world = JobWorld(gpus=1)
    world.queue(policy=world.policy())
    world.submit(shareIdentifier="a")
    first, other = world.submit(shareIdentifier="a"), world.submit(shareIdentifier="b")
    assert front(world) == [other, first]


def test_a_snapshot_has_the_order_in_which_shares_take_turns() -> None:
    world = JobWorld(gpus=2)
    world.queue(policy=world.policy(a=0.5, b=1.0))
    blockers = [world.submit(shareIdentifier=share) for share in "ab"]
    arrays = [world.submit(shareIdentifier=share, arrayProperties={"size": 6}, definition=name)
              for share, name in (("a", "one"), ("b", world.define("other", gpus=1, vcpus=2)))]  # fmt: skip
    expected = front(world)
    assert len(expected) == 12
    for number in range(6):  # more machines: jobs start one after the other, and none ends
        world.run(lambda tx, name=f"more{number}": host_reports.hello(tx, hello(name, 1, cpu_units=4096, memory_mib=4096)))
        world.settle()
    started = [job_id for job_id in world.active() if job_id not in blockers]
    assert sorted(started) == sorted(expected[:6]) and len({job_id.partition(":")[0] for job_id in started}) == len(arrays)


def limited(world: JobWorld, *environments: str, seconds: int = 600) -> None:
    action = {"reason": REQUIREMENT, "state": "RUNNABLE", "maxTimeSeconds": seconds, "action": "CANCEL"}
    world.queue("q", *environments, jobStateTimeLimitActions=[action])


def test_a_job_that_can_never_start_is_cancelled_after_its_time_limit() -> None:
    world = JobWorld(gpus=2)
    limited(world)
    huge, also, busy = world.submit(gpus=4), world.submit(gpus=4), world.submit(gpus=2)
    waiting = world.submit(gpus=2)
    world.wait(599)
    assert world.state(huge) is JobState.RUNNABLE
    world.wait(2)
    assert world.state(huge) is JobState.FAILED and REQUIREMENT in world.job(huge).status_reason
    assert world.state(also) is JobState.RUNNABLE  # it is the first of its line only now
    world.wait(602)
    assert world.state(also) is JobState.FAILED
    assert (world.state(busy), world.state(waiting)) == (JobState.STARTING, JobState.RUNNABLE)  # another reason: no limit


def test_the_time_starts_again_when_the_reason_has_changed() -> None:
    world = JobWorld(gpus=2)
    limited(world)
    huge = world.submit(gpus=4)
    world.wait(400)
    world.environment("here", state="DISABLED")
    world.settle()
    world.wait(100)
    world.environment("here")
    world.settle()
    world.wait(500)
    assert world.state(huge) is JobState.RUNNABLE
    world.wait(101)
    assert world.state(huge) is JobState.FAILED


def test_the_time_starts_when_the_reason_changes_without_an_event_in_the_queue() -> None:
    world = JobWorld(gpus=2)
    fleet(world, "other", 1)
    world.queue("p", "other")
    limited(world, "other")
    running, waiting = world.submit(queue="p"), world.submit()
    world.wait(1000)
    assert world.state(waiting) is JobState.RUNNABLE, "the instance is busy: this reason has no time limit"
    [instance] = [f"i-{each.id[:17]}" for each in world.store.instances.slices()]
    world.call("TerminateInstances", "ec2", InstanceIds=[instance])
    world.finish(running, code=137)
    world.wait(600 + CHECK_S)
    assert world.state(waiting) is JobState.FAILED


def test_a_job_that_needs_more_than_the_maximum_of_its_environment() -> None:
    world = EnvironmentWorld()
    world.managed(GPUS_4, most=8)
    job = world.submit(gpus=4)
    found = why(world, job)
    assert found.startswith(MAX_RESOURCE) and "have more vCPUs than the compute environment ce may have: maxvCpus is 8" in found
