"""A waiting Batch job starts as soon as it may: after changes of queues, of other jobs, of instances, and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.model.instance import InstanceState
from corral.model.job import JobState
from corral.services.batch import job_definitions
from corral.services.batch.line_claims import LOOK_AGAIN_S
from corral.services.ecs import host_reports
from store.rows import hello
from virtual_clock.environment_world import DELAY_S, EnvironmentWorld
from virtual_clock.group_world import GPUS_1, GPUS_4
from virtual_clock.job_world import MEMORY_MIB, JobWorld
from virtual_clock.test_job_dispatch import environment_of, fleet, launch_in

RUNNABLE, STARTING = JobState.RUNNABLE, JobState.STARTING


def test_a_job_that_starts_in_another_environment_frees_the_slot_that_it_has_reserved() -> None:
    world = JobWorld(gpus=2)
    fleet(world, "other", 1)
    world.queue("q", "here", "other")
    world.queue("first", "here")
    world.queue("second", "other")
    first, second = world.submit(queue="first"), world.submit(queue="second")
    waiting = world.submit(definition=world.define("waiting", gpus=1, vcpus=2))  # reserves CPU of the host
    large = world.submit(definition=world.define("large", vcpus=63), queue="first")
    assert [world.state(each) for each in (first, second, waiting, large)] == [STARTING, STARTING, RUNNABLE, RUNNABLE]
    world.finish(second)
    assert environment_of(world, waiting) == "other"
    assert world.state(large) is STARTING


def test_a_queue_that_gets_a_higher_priority_is_served_at_once() -> None:
    world = JobWorld(gpus=4)
    world.queue()
    world.queue("other")
    world.submit(gpus=2)
    large, small = world.submit(gpus=4), world.submit(queue="other")
    assert (world.state(large), world.state(small)) == (RUNNABLE, RUNNABLE), "the large job has reserved the free GPUs"
    world.call("UpdateJobQueue", "batch", jobQueue="other", priority=10)
    world.settle()
    assert (world.state(large), world.state(small)) == (RUNNABLE, STARTING)


def test_a_job_with_a_higher_scheduling_priority_is_served_at_once() -> None:
    world = JobWorld(gpus=4)
    world.queue(policy=world.policy())
    share = {"shareIdentifier": "A"}
    world.submit(gpus=2, **share)
    large, small = world.submit(gpus=4, **share), world.submit(**share)
    urgent = world.submit(**share, schedulingPriorityOverride=10)
    assert [world.state(each) for each in (large, small, urgent)] == [RUNNABLE, RUNNABLE, STARTING]


def test_the_queues_keep_their_order_after_a_restart(tmp_path: Path) -> None:
    world = JobWorld(gpus=1, path=tmp_path / "state.db")
    world.queue("low")
    world.queue("high", priority=10)
    running, low = world.submit(queue="low"), world.submit(queue="low")
    world.clock.advance(10)
    world.restart()
    high = world.submit(queue="high", definition=world.define("high", gpus=1, vcpus=2))
    world.finish(running)
    assert (world.state(low), world.state(high)) == (RUNNABLE, STARTING)


def test_a_compute_reservation_follows_the_instances_of_an_unmanaged_environment() -> None:
    world = JobWorld(gpus=8)
    fleet(world, "unmanaged", 1)
    world.queue("q", "unmanaged", policy=world.policy(reservation=50))
    first, second = world.submit(shareIdentifier="A"), world.submit(shareIdentifier="A")
    assert (world.state(first), world.state(second)) == (STARTING, RUNNABLE)
    launch_in(world, "unmanaged", 3)
    world.wait(LOOK_AGAIN_S)
    assert world.state(second) is STARTING


def test_a_fargate_job_that_this_machine_cannot_hold_keeps_no_other_job_waiting() -> None:
    world = JobWorld(gpus=0)
    world.run(lambda tx: host_reports.hello(tx, hello("h", 0, cpu_units=3 * 1024, memory_mib=MEMORY_MIB)))
    world.environment("serverless", kind="FARGATE", most=4)
    world.queue("q", "serverless")
    role = {"executionRoleArn": "arn:aws:iam::123456789012:role/x", "networkConfiguration": {"assignPublicIp": "ENABLED"}}
    for vcpus, memory in ((1, 2048), (4, 8192)):
        world.define(f"f{vcpus}", vcpus=vcpus, memory=memory, platforms=("FARGATE",), **role)
    jobs = [world.submit(definition=each) for each in ("f1", "f4", "f1")]
    assert [world.state(each) for each in jobs] == [STARTING, RUNNABLE, STARTING]


# Instances of environments


def test_an_environment_grows_for_jobs_whose_images_ask_for_gpus() -> None:
    """The first job gets all four GPUs of its instance, so the second one needs another instance."""
    world = EnvironmentWorld(gpus=8)
    world.managed(GPUS_4)
    name = world.define("image", environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    array = world.submit(definition=name, arrayProperties={"size": 2})
    assert [world.state(f"{array}:{index}") for index in range(2)] == [STARTING, STARTING]
    assert world.types() == [GPUS_4, GPUS_4]


def test_a_later_environment_cancels_the_launch_for_a_job_that_starts_in_an_earlier_one() -> None:
    world = EnvironmentWorld(gpus=1)
    for name in ("first", "second"):
        world.managed(name=name, queue="")
    world.queue("q", "first", "second")
    jobs = [world.submit() for _ in range(2)]
    assert world.instances_of(InstanceState.PENDING), "the launch of the second environment waits for a GPU"
    world.finish(jobs[0])
    assert environment_of(world, jobs[1]) == "first"
    assert (world.instances_of(InstanceState.PENDING), world.vcpus("second")) == ([], 0)


def node_kinds(world: JobWorld, *kinds: dict[str, Any]) -> str:
    """Register a definition of a multi-node job with one node of each kind."""
    ranges = []
    for at, needs in enumerate(kinds):
        given = [{"type": name, "value": str(value)} for name, value in needs.items()]
        container = {"image": "corral/host", "command": ["true"], "resourceRequirements": given}
        ranges.append({"targetNodes": f"{at}:{at}", "container": container})
    nodes = {"numNodes": len(kinds), "mainNode": 0, "nodeRangeProperties": ranges}
    world.batch_call(job_definitions.register_job_definition, jobDefinitionName="kinds", type="multinode", nodeProperties=nodes)
    return "kinds"


def test_the_kinds_of_nodes_of_a_job_can_need_different_instance_types() -> None:
    world = EnvironmentWorld(gpus=8)
    world.managed(GPUS_1, "r5.4xlarge")
    main, worker = {"VCPU": 8, "MEMORY": 65536}, {"VCPU": 1, "MEMORY": 64, "GPU": 1}
    job = world.submit(definition=node_kinds(world, main, worker))
    assert (world.state(job), world.types()) == (STARTING, [GPUS_1, "r5.4xlarge"])


def test_a_node_without_gpus_needs_no_instance_with_gpus() -> None:
    world = EnvironmentWorld(gpus=8)
    world.managed(GPUS_1)
    main, worker = {"VCPU": 1, "MEMORY": 64}, {"VCPU": 1, "MEMORY": 64, "GPU": 1}
    job = world.submit(definition=node_kinds(world, main, worker, worker))
    assert (world.state(job), world.types()) == (STARTING, [GPUS_1, GPUS_1])


def test_a_job_that_is_too_large_for_the_environment_does_not_end_idle_instances_early() -> None:
    world = EnvironmentWorld(gpus=8)
    world.managed(GPUS_1, GPUS_4, most=8)
    large = world.submit(gpus=4)
    world.finish(world.submit())
    world.wait(DELAY_S / 2)
    assert (world.types(), world.state(large)) == ([GPUS_1], RUNNABLE)


def test_an_environment_uses_the_gpus_of_all_hosts() -> None:
    world = EnvironmentWorld(gpus=1, machines=2)
    world.managed()
    jobs = [world.submit() for _ in range(2)]
    assert {world.state(each) for each in jobs} == {STARTING}


def test_environments_that_hold_instances_for_multi_node_jobs_do_not_wait_for_each_other() -> None:
    """Each environment gets one of two GPUs, and needs both. The one whose launch is younger gives its instance up."""
    world = EnvironmentWorld(gpus=2)
    for name in ("a", "b"):
        world.managed(name=name, queue=name)
    worker = {"VCPU": 1, "MEMORY": 64, "GPU": 1}
    name = node_kinds(world, worker, worker)
    running = [world.submit(queue=each) for each in "ab"]
    jobs = [world.submit(definition=name, queue=each) for each in "ab"]
    world.finish(*running)
    assert [world.state(each) for each in jobs] == [RUNNABLE, RUNNABLE]
    world.wait(DELAY_S + 1)
    [first] = [each for each in jobs if world.state(each) is STARTING]
    world.finish(first)
    world.wait(2 * DELAY_S)
    assert world.state(next(each for each in jobs if each != first)) is STARTING
