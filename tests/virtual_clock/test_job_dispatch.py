"""Dispatch of Batch jobs: their order, backfill, several environments, multi-node jobs, consumable resources, and rollbacks."""

from __future__ import annotations

import random
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from corral.core.commands import Command
from corral.model.job import ENDED, JobState
from corral.model.run import Observed
from corral.services.batch import dispatch, job_definitions, job_progress, resource_requests
from corral.services.ecs import host_reports
from virtual_clock.job_world import JobWorld

RUNNABLE, STARTING, SUCCEEDED, FAILED = JobState.RUNNABLE, JobState.STARTING, JobState.SUCCEEDED, JobState.FAILED


def test_jobs_start_in_the_order_of_their_submission() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    jobs = [world.submit() for _ in range(4)]
    for at, job_id in enumerate(jobs):
        assert [world.state(each) for each in jobs[at:]] == [STARTING, *[RUNNABLE] * (3 - at)]
        world.finish(job_id)
    assert {world.state(each) for each in jobs} == {SUCCEEDED}
    assert not world.store.job_lines.queues() and not world.store.job_holdings.snapshot()["vcpus"]


def test_a_retried_job_keeps_its_place() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    first, second = world.submit(retryStrategy={"attempts": 2}), world.submit()
    world.finish(first, code=1)
    assert (world.state(first), world.state(second)) == (STARTING, RUNNABLE)


def test_a_queue_with_a_higher_priority_is_first() -> None:
    world = JobWorld(gpus=1)
    world.queue("low", priority=1)
    world.queue("high", priority=5)
    running = world.submit(queue="low")
    low, high = world.submit(queue="low"), world.submit(queue="high")
    world.finish(running)
    assert (world.state(low), world.state(high)) == (RUNNABLE, STARTING)


def test_small_jobs_use_other_slots_and_a_large_job_gets_its_slot() -> None:
    """The large job waits for one of two machines. Small jobs start on the other machine, and cannot delay the large job."""
    world = JobWorld(gpus=4, machines=2)
    world.queue()
    old = [world.submit(gpus=1) for _ in range(6)]  # machine one is full, machine two has two free GPUs
    large = world.submit(gpus=4)
    small = [world.submit(gpus=1) for _ in range(8)]
    assert world.state(large) is RUNNABLE
    waits = 0
    while world.state(large) is RUNNABLE:
        waits += 1
        assert waits <= 8, "small jobs starve the large job"
        running = [each for each in [*old, *small] if world.state(each) is STARTING]
        world.finish(running[0])
    assert any(world.state(each) in ENDED or world.state(each) is STARTING for each in small), "the large job blocks small jobs"
    assert world.state(large) is STARTING


def test_a_line_has_one_claim_and_no_memory_per_job() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    for _ in range(30):
        world.submit()
    [line] = world.store.job_lines.lines_of("us-east-1", "q")
    assert line.count == 29 and len(world.store.job_lines._claims) == 1
    assert world.store.fleet.pool("hosts:default").waiting() == 1


def test_scheduling_priorities_of_a_share() -> None:
    world = JobWorld(gpus=1)
    world.queue(policy=world.policy())
    running = world.submit(shareIdentifier="a")
    low = world.submit(shareIdentifier="a", schedulingPriorityOverride=1)
    high = world.submit(shareIdentifier="a", schedulingPriorityOverride=9)
    assert len(world.store.job_lines.lines_of("us-east-1", "q")) == 1  # one line for all priorities
    world.finish(running)
    assert (world.state(low), world.state(high)) == (RUNNABLE, STARTING)


def test_fair_shares_get_capacity_by_their_weights() -> None:
    """A share with weight 1/3 gets three times as many GPUs as a share with weight 1."""
    world = JobWorld(gpus=8)
    world.queue(policy=world.policy(A=1.0, B=1 / 3))
    first = world.submit(shareIdentifier="A", arrayProperties={"size": 60})  # A takes all GPUs at first
    second = world.submit(shareIdentifier="B", arrayProperties={"size": 120})
    started: Counter[str] = Counter()
    for _ in range(12):
        world.clock.advance(600)
        before = set(world.active())
        for job_id in list(before):
            world.finish(job_id)
        started.update("A" if each.startswith(first) else "B" for each in set(world.active()) - before)
    assert started["A"] + started["B"] == 96
    assert 2.4 <= started["B"] / started["A"] <= 4.0, (started, second)


def test_a_share_whose_jobs_end_gets_its_turn_at_once() -> None:
    """The level of a share falls when its jobs end. Its next job is first then, and must not wait for another event."""
    world = JobWorld(gpus=3)
    world.queue(policy=world.policy())
    world.submit(shareIdentifier="b")
    first, second = world.submit(shareIdentifier="a"), world.submit(shareIdentifier="a")
    third = world.submit(shareIdentifier="a")
    large = world.submit(shareIdentifier="b", gpus=3)
    now_s, tasks = world.clock.now_s(), [world.store.tasks.get(world.job(each).task_id) for each in (first, second)]
    runs = [Observed(run.attempt_id, 1, now_s, now_s, 0) for task in tasks if task is not None for run in task.runs]
    world.run(lambda tx: host_reports.report(tx, "h", runs))
    assert (world.state(third), world.state(large)) == (STARTING, RUNNABLE)


def test_a_compute_reservation_leaves_capacity_for_other_shares() -> None:
    world = JobWorld(gpus=8)
    world.queue(policy=world.policy(reservation=50))
    array = world.submit(shareIdentifier="A", arrayProperties={"size": 40}, definition=world.define("cpu", vcpus=8))
    assert len(world.active()) == 4  # half of 64 vCPUs
    other = world.submit(shareIdentifier="B", definition="cpu")
    assert world.state(other) is STARTING
    assert len(world.active()) == 6  # two shares: a quarter is reserved
    world.finish(f"{array}:0")
    assert len(world.active()) == 6


# Compute environments


def fleet(world: JobWorld, name: str, instances: int) -> None:
    """Launch instances with one GPU that join the cluster `name`, and add an environment for the cluster."""
    world.environment(name, cluster=name)
    launch_in(world, name, instances)


def launch_in(world: JobWorld, cluster: str, instances: int) -> None:
    data = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={cluster} >> /etc/ecs/ecs.config\n".encode()).decode()
    if instances:
        world.call(
            "RunInstances", "ec2", ImageId="ami-1", InstanceType="g5.xlarge", MinCount=instances, MaxCount=instances, UserData=data
        )
    world.settle()


def environment_of(world: JobWorld, job_id: str) -> str:
    return world.job(job_id).environment


def test_the_first_environment_with_room_wins() -> None:
    world = JobWorld(gpus=4)
    fleet(world, "one", 1)
    fleet(world, "two", 1)
    world.queue("q", "one", "two", "here")
    jobs = [world.submit() for _ in range(5)]
    assert [environment_of(world, each) for each in jobs] == ["one", "two", "here", "here", ""]
    world.finish(jobs[1])  # only `two` has room
    assert environment_of(world, jobs[4]) == "two"


@pytest.mark.parametrize("marks", [("one", "two"), ("two", "one")])
def test_the_order_of_marks_does_not_matter(marks: tuple[str, str]) -> None:
    """Both environments get room in one transaction: the jobs start in the first one, whichever pool is marked first."""
    world = JobWorld(gpus=4)
    fleet(world, "one", 2)
    fleet(world, "two", 2)
    for name in ("one", "two"):
        world.environment(name, cluster=name, state="DISABLED")
    world.queue("q", "one", "two")
    jobs = [world.submit() for _ in range(2)]
    assert {world.state(each) for each in jobs} == {RUNNABLE}

    def enable(tx: Any) -> None:
        for name in ("one", "two"):
            document = tx.store.stored.get("batch", "compute-environment", "us-east-1", name)
            tx.store.stored.change("batch", "compute-environment", "us-east-1", name, {**document, "state": "ENABLED"})
        for name in marks:
            tx.mark(f"pool:us-east-1/{name}")
        tx.mark("job-queue:us-east-1/q")
        for name in marks:
            tx.mark(f"pool:us-east-1/{name}")

    world.run(enable)
    world.settle()
    assert [environment_of(world, each) for each in jobs] == ["one", "one"]


def test_queues_can_prefer_different_environments() -> None:
    """Each job starts in the first environment of its queue, although the queues have opposite orders."""
    world = JobWorld(gpus=4)
    fleet(world, "one", 2)
    fleet(world, "two", 2)
    world.queue("p", "one", "two")
    world.queue("q", "two", "one")
    blockers = [world.submit(queue=queue) for queue in "pqpq"]
    waiting = [world.submit(queue=queue) for queue in "pq"]

    def end(tx: Any) -> None:  # in one transaction, both pools get room for two jobs
        for job_id in blockers:
            task = tx.store.tasks.get(tx.store.jobs.get(job_id).task_id)
            host_reports.report(tx, "h", [Observed(run.attempt_id, 1, tx.now_s, tx.now_s, 0) for run in task.runs])

    world.run(end)
    world.settle()
    assert [environment_of(world, each) for each in waiting] == ["one", "two"]


def test_an_environment_that_is_disabled_or_invalid_offers_nothing() -> None:
    world = JobWorld(gpus=2)
    world.environment("off", state="DISABLED")
    world.environment("bad")
    world.queue("q", "off", "bad")
    world.environment("bad", kind="FARGATE", status="INVALID", most=4, subnets=["subnet-00000000"])
    job_id = world.submit()
    assert world.state(job_id) is RUNNABLE and not world.store.fleet.pool("hosts:default").has_claims()
    world.environment("off")
    world.settle()
    assert (world.state(job_id), environment_of(world, job_id)) == (STARTING, "off")


def test_a_fargate_environment_has_a_maximum_of_vcpus() -> None:
    """The large job is first: later small jobs wait behind it, so that it starts as soon as four vCPUs are free."""
    world = JobWorld(gpus=0)
    world.environment("serverless", kind="FARGATE", most=4)
    world.queue("q", "serverless")
    role = {"executionRoleArn": "arn:aws:iam::123456789012:role/x", "networkConfiguration": {"assignPublicIp": "ENABLED"}}
    for vcpus, memory in ((1, 2048), (4, 8192), (8, 16384)):
        world.define(f"f{vcpus}", vcpus=vcpus, memory=memory, platforms=("FARGATE",), **role)
    small = [world.submit(definition="f1") for _ in range(3)]
    huge = world.submit(definition="f8")  # never fits, and keeps no other job waiting
    large = world.submit(definition="f4")
    last = world.submit(definition="f1")
    assert [world.state(each) for each in (*small, huge, large, last)] == [STARTING] * 3 + [RUNNABLE] * 3
    world.finish(*small)
    assert [world.state(each) for each in (huge, large, last)] == [RUNNABLE, STARTING, RUNNABLE]
    world.finish(large)
    assert world.state(last) is STARTING


# GPUs


def test_an_image_that_asks_for_gpus_waits_for_one_and_gets_all_free_ones() -> None:
    world = JobWorld(gpus=4)
    world.queue()
    name = world.define("image", environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    old = [world.submit(gpus=2) for _ in range(2)]
    job_id = world.submit(definition=name)
    assert world.state(job_id) is RUNNABLE
    world.finish(old[0])
    assert world.state(job_id) is STARTING and len(world.gpus_of(job_id)) == 2
    assert not set(world.gpus_of(job_id)) & set(world.gpus_of(old[1]))


def node_definition(world: JobWorld, name: str, nodes: int, gpus: int, **more: Any) -> str:
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    needs += [{"type": "GPU", "value": str(gpus)}] if gpus else []
    container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs, **more}
    ranges = [{"targetNodes": "0:", "container": container}]
    properties = {"numNodes": nodes, "mainNode": 0, "nodeRangeProperties": ranges}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName=name, type="multinode", nodeProperties=properties)
    return name


def test_a_multi_node_job_starts_all_nodes_or_none() -> None:
    """Seven GPUs are free, but two of three hosts have room for a node, and a job that spans hosts has one node on each."""
    world = JobWorld(gpus=4, machines=3)
    world.queue()
    name = node_definition(world, "mpi", nodes=3, gpus=2)
    old = [world.submit(gpus=3), world.submit(gpus=2)]
    job_id = world.submit(definition=name)
    assert world.state(job_id) is RUNNABLE and not world.tasks_of(job_id)
    world.finish(old[0])
    assert world.state(job_id) is STARTING
    assert len({task.instance_id for task in world.tasks_of(job_id)}) == 3
    assert len(set(world.gpus_of(job_id))) == 6 and not set(world.gpus_of(job_id)) & set(world.gpus_of(old[1]))


def test_small_jobs_do_not_starve_a_multi_node_job() -> None:
    world = JobWorld(gpus=2, machines=3)
    world.queue()
    name = node_definition(world, "mpi", nodes=2, gpus=2)
    old = [world.submit() for _ in range(6)]
    job_id = world.submit(definition=name)
    small = [world.submit() for _ in range(30)]
    for waits in range(12):
        if world.state(job_id) is STARTING:
            break
        running = [each for each in [*old, *small] if world.state(each) is STARTING]
        world.finish(running[waits % len(running)])
    assert world.state(job_id) is STARTING and len({task.instance_id for task in world.tasks_of(job_id)}) == 2
    assert any(world.state(each) in (STARTING, SUCCEEDED) for each in small)  # the third machine runs small jobs meanwhile


def test_the_nodes_of_an_image_that_asks_for_gpus_each_get_some() -> None:
    world = JobWorld(gpus=4)
    world.queue()
    name = node_definition(world, "mpi", 2, 0, environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    job_id = world.submit(definition=name)
    assert world.state(job_id) is STARTING and len(set(world.gpus_of(job_id))) == 4
    sql = "SELECT id FROM task WHERE started_by LIKE ?"
    tasks = [world.store.tasks.get(row[0]) for row in world.store.execute(sql, (f"batch:{job_id}#%",))]
    assert all(run.gpu_ids for task in tasks if task is not None for run in task.runs)


@pytest.mark.parametrize(
    "takes_free_gpus", [{"environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {"privileged": True}]
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_node_that_requires_gpus_gets_exactly_these(takes_free_gpus: dict[str, Any], first: int) -> None:
    world = JobWorld(gpus=4)
    world.queue()
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    base = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    requires = {**base, "resourceRequirements": [*needs, {"type": "GPU", "value": "1"}]}
    ranges = [
        {"targetNodes": str(first), "container": requires},
        {"targetNodes": str(1 - first), "container": {**base, **takes_free_gpus}},
    ]
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName="mix", type="multinode", nodeProperties=properties)
    job_id = world.submit(definition="mix")
    assert world.state(job_id) is STARTING, world.job(job_id).status_reason
    tasks = [world.store.tasks.get(world.job(f"{job_id}#{node}").task_id) for node in (first, 1 - first)]
    assert [sum(len(run.gpu_ids) for run in task.runs) for task in tasks if task is not None] == [1, 3]


@pytest.mark.parametrize("plain", [0, 1])
def test_a_node_that_asks_for_no_gpus_gets_none(plain: int) -> None:
    world = JobWorld(gpus=2)
    world.queue()
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    base = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    asks = {**base, "environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    ranges = [{"targetNodes": str(plain), "container": base}, {"targetNodes": str(1 - plain), "container": asks}]
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName="mix", type="multinode", nodeProperties=properties)
    other, job_id = world.submit(gpus=1), world.submit(definition="mix")
    assert world.state(job_id) is STARTING, world.job(job_id).status_reason  # one free GPU is enough
    tasks = [world.store.tasks.get(world.job(f"{job_id}#{node}").task_id) for node in (plain, 1 - plain)]
    assert [sum(len(run.gpu_ids) for run in task.runs) for task in tasks if task is not None] == [0, 1]
    assert not set(world.gpus_of(job_id)) & set(world.gpus_of(other))


# Consumable resources


@pytest.mark.parametrize("kind", ["REPLENISHABLE", "NON_REPLENISHABLE"])
def test_consumable_resources(kind: str) -> None:
    world = JobWorld(gpus=8)
    world.queue()
    world.resource("licence", 3, kind)
    name = world.define("licensed", gpus=1, resources={"licence": 2})
    first, second, other = world.submit(definition=name), world.submit(definition=name), world.submit()
    assert [world.state(each) for each in (first, second, other)] == [STARTING, RUNNABLE, STARTING]
    assert world.store.job_holdings.in_use("us-east-1", "licence") == 2
    world.finish(first)
    expected = STARTING if kind == "REPLENISHABLE" else RUNNABLE
    assert world.state(second) is expected
    if expected is RUNNABLE:
        world.batch_call(resource_requests.update_consumable_resource, consumableResource="licence", operation="ADD", quantity=1)
        world.settle()
        assert world.state(second) is STARTING


# Refusals, cancelled jobs, rollbacks


def test_a_refused_launch_fails_its_job_and_the_next_one_starts() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    name = world.define("bad", gpus=1, image="busybox", command=[])  # needs Docker, which this server does not use
    running, bad, good = world.submit(), world.submit(definition=name), world.submit()
    world.finish(running)
    assert world.state(bad) is FAILED and "could not be started" in world.job(bad).status_reason
    assert world.state(good) is STARTING


def test_a_cancelled_job_leaves_its_line_and_its_reservation() -> None:
    world = JobWorld(gpus=4)
    world.queue()
    running = world.submit(gpus=2)
    large, small = world.submit(gpus=4), world.submit(gpus=1)
    assert world.state(small) is RUNNABLE  # the free GPUs are reserved
    world.run(lambda tx: job_progress.cancel(tx, tx.store.jobs.get(large), "a test"))
    world.settle()
    assert (world.state(large), world.state(small), world.state(running)) == (FAILED, STARTING, STARTING)


def test_a_rolled_back_transaction_leaves_lines_and_sums_as_they_were() -> None:
    world = JobWorld(gpus=4)
    world.queue(policy=world.policy())
    world.resource("licence", 1)
    name = world.define("licensed", gpus=1, resources={"licence": 1})
    for share in ("a", "b"):
        world.submit(shareIdentifier=share)
    world.submit(shareIdentifier="a", definition=name)
    waiting = world.submit(shareIdentifier="b", definition=name)
    running = world.submit(gpus=4, shareIdentifier="c")
    before = world.store.job_lines.snapshot(), world.store.job_holdings.snapshot(), world.store.fleet.snapshot()

    def fail(tx: Any) -> None:
        for job_id in (waiting, running):
            job_progress.terminate(tx, tx.store.jobs.get(job_id), "a test")
        for job_id in world.active():
            dispatch.attempt_ended(tx, tx.store.jobs.get(job_id))
        raise RuntimeError("a fault")

    outcome = world.core.transact([Command(fail, lambda answer: None)])
    assert outcome.faults
    assert (world.store.job_lines.snapshot(), world.store.job_holdings.snapshot(), world.store.fleet.snapshot()) == before
    world.check_derived()
    world.finish(*world.active())
    assert (world.state(running), world.state(waiting)) == (STARTING, RUNNABLE)
    world.finish(running)
    assert world.state(waiting) is STARTING


def test_a_restart_keeps_lines_claims_and_holdings(tmp_path: Path) -> None:
    world = JobWorld(gpus=1, path=tmp_path / "state.db")
    world.queue(policy=world.policy())
    running, waiting = world.submit(shareIdentifier="a"), world.submit(shareIdentifier="a")
    before = world.store.job_lines.snapshot(), world.store.job_holdings.snapshot(), world.store.fleet.snapshot()
    world.restart()
    assert (world.store.job_lines.snapshot(), world.store.job_holdings.snapshot(), world.store.fleet.snapshot()) == before
    world.finish(running)
    assert world.state(waiting) is STARTING


def test_a_queue_with_a_higher_priority_is_first_after_a_restart(tmp_path: Path) -> None:
    """A job that begins to wait directly after a start must not keep the claims of the rows without their ranks."""
    world = JobWorld(gpus=1, path=tmp_path / "state.db")
    world.queue("low", priority=1)
    world.queue("high", priority=9)
    running = world.submit(queue="low")
    low = world.submit(queue="low")
    high = world.submit(queue="high")
    world.restart()
    world.submit(queue="low", gpus=1)
    world.finish(running)
    assert (world.state(low), world.state(high)) == (RUNNABLE, STARTING)


def test_jobs_wait_behind_older_tasks_and_before_younger_ones() -> None:
    world = JobWorld(gpus=1)
    world.queue()
    container = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
    container["resourceRequirements"] = [{"type": "GPU", "value": "1"}]
    world.call("RegisterTaskDefinition", "ecs", family="t", containerDefinitions=[container])
    running = world.submit()
    world.clock.advance(1)
    older = world.call("RunTask", "ecs", taskDefinition="t")["tasks"][0]["taskArn"].rpartition("/")[2]
    world.clock.advance(1)
    job_id = world.submit()
    world.clock.advance(1)
    younger = world.call("RunTask", "ecs", taskDefinition="t")["tasks"][0]["taskArn"].rpartition("/")[2]
    world.finish(running)

    def instance_of(task_id: str) -> str | None:
        task = world.store.tasks.get(task_id)
        return None if task is None else task.instance_id

    assert instance_of(older) is not None and world.state(job_id) is RUNNABLE
    end_task(world, older)
    assert world.state(job_id) is STARTING and instance_of(younger) is None
    world.finish(job_id)
    assert instance_of(younger) is not None


def end_task(world: JobWorld, task_id: str) -> None:
    task, now_s = world.store.tasks.get(task_id), world.clock.now_s()
    assert task is not None
    world.run(lambda tx: host_reports.report(tx, "h", [Observed(run.attempt_id, 1, now_s, now_s, 0) for run in task.runs]))
    world.settle()


@pytest.mark.parametrize("seed", range(3))
def test_random_jobs_never_share_a_gpu_and_all_end(seed: int) -> None:
    """Submit, end and cancel jobs at random: no GPU has two holders, and every job ends."""
    rng = random.Random(seed)
    world = JobWorld(gpus=4, machines=2)
    world.queue("q", policy=world.policy(a=1.0, b=0.5) if seed else "")
    world.queue("urgent", priority=9)
    world.resource("licence", 2)
    nodes = node_definition(world, "mpi", nodes=2, gpus=2)
    licensed = world.define("licensed", gpus=1, resources={"licence": 1})
    jobs: list[str] = []
    for _ in range(60):
        queue = rng.choice(("q", "q", "urgent"))
        more: dict[str, Any] = {"queue": queue}
        if seed and queue == "q":
            more["shareIdentifier"] = rng.choice("ab")
        kind = rng.randrange(6)
        if kind < 3:
            jobs.append(world.submit(gpus=rng.choice((1, 1, 2, 4)), **more))
        elif kind == 3:
            jobs.append(world.submit(definition=rng.choice((nodes, licensed)), **more))
        elif jobs and kind == 4 and rng.random() < 0.3:
            chosen = rng.choice(jobs)
            world.run(lambda tx, chosen=chosen: job_progress.cancel(tx, tx.store.jobs.get(chosen), "a test"))
        elif active := world.active():
            world.finish(rng.choice(active))
        world.clock.advance(rng.random() * 30)
        held = [gpu_id for each in world.active() for gpu_id in world.gpus_of(each)]
        assert len(held) == len(set(held))
    for _ in range(len(jobs) + 1):
        if active := world.active():
            world.finish(*active)
    assert [world.job(each) for each in jobs if world.state(each) not in ENDED] == []
    assert not world.store.job_lines.queues()
