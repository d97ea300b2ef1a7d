"""Compute environments that follow their waiting jobs: scale-out, scale-in, limits, updates, interruptions, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.core.core import Core, Outcome
from corral.fleet import spot_interruptions
from corral.model.instance import InstanceState
from corral.model.job import JobState
from corral.model.settings import ScalingTimes, Settings
from corral.services.ecs import host_reports
from store.rows import hello
from virtual_clock.environment_world import DELAY_S, EnvironmentWorld
from virtual_clock.group_world import GPUS_1, GPUS_4, REGION, refused


def test_a_job_starts_in_the_transaction_of_its_submission() -> None:
    world = EnvironmentWorld()
    world.managed()
    before_s = world.clock.now_s()
    job = world.submit()
    assert world.state(job) is JobState.STARTING
    assert world.clock.now_s() - before_s < 0.1
    assert (world.types(), world.vcpus()) == ([GPUS_1], 4)
    [group] = world.groups_of().values()
    assert group.startswith("Batch-ce-g5.xlarge-")
    assert world.states(group) == ["InService"]
    [instance] = world.call("DescribeInstances", "ec2", InstanceIds=[world.instance_of(job)])["Reservations"][0]["Instances"]
    assert {"Key": "AWSBatchServiceTag", "Value": "batch"} in instance["Tags"]
    cluster = world.shown_environment()["ecsClusterArn"].rpartition("/")[2]
    assert len(world.call("ListContainerInstances", "ecs", cluster=cluster)["containerInstanceArns"]) == 1


def test_idle_instances_end_after_the_delay() -> None:
    world = EnvironmentWorld()
    world.managed()
    first, second = world.submit(), world.submit()
    world.wait(300)
    assert len(world.types()) == 2, "instances with jobs stay"
    world.finish(first)
    world.wait(DELAY_S / 2)
    world.finish(second)
    world.wait(DELAY_S / 2 + 1)
    assert len(world.types()) == 1
    third = world.submit()
    assert len(world.types()) == 1, "the idle instance takes the job"
    world.wait(300)
    assert world.state(third) is JobState.STARTING
    world.finish(third)
    world.wait(DELAY_S + 1)
    assert (world.types(), world.vcpus(), world.status()[0]) == ([], 0, "VALID")
    assert world.store.next_due_s() is None or world.store.next_due_s() > world.clock.now_s() + DELAY_S  # type: ignore[operator]


def test_a_terminated_instance_is_described_as_inactive() -> None:
    """The type of an instance, and so the price of a job, is known after the instance was terminated."""
    world = EnvironmentWorld()
    world.managed()
    job = world.submit()
    cluster = world.shown_environment()["ecsClusterArn"].rpartition("/")[2]
    arns = world.call("ListContainerInstances", "ecs", cluster=cluster)["containerInstanceArns"]
    instance = world.instance_of(job)
    world.finish(job)
    world.wait(DELAY_S + 1)
    assert world.types() == [] and not world.call("ListContainerInstances", "ecs", cluster=cluster)["containerInstanceArns"]
    found = world.call("DescribeContainerInstances", "ecs", cluster=cluster, containerInstances=arns)
    [shown] = found["containerInstances"]
    assert (shown["containerInstanceArn"], shown["ec2InstanceId"], shown["status"]) == (*arns, instance, "INACTIVE")
    assert {"name": "ecs.instance-type", "value": GPUS_1} in shown["attributes"] and found["failures"] == []
    world.call("CreateCluster", "ecs", clusterName="other")
    ids = [arn.rpartition("/")[2] for arn in arns]
    [failure] = world.call("DescribeContainerInstances", "ecs", cluster="other", containerInstances=ids)["failures"]
    assert failure["reason"] == "MISSING"
    error = refused(lambda: world.call("DescribeContainerInstances", "ecs", cluster="other", containerInstances=arns))
    assert f"Identifier is for cluster {cluster}. Your cluster is other" in error.message


def test_the_delay_of_the_settings_and_of_the_scaling_policy() -> None:
    world = EnvironmentWorld(settings=Settings(scaling=ScalingTimes(environment_in_s=5.0)))
    world.managed()
    world.managed(name="slow", queue="slow", scalingPolicy={"minScaleDownDelayMinutes": 20})
    for queue in ("q", "slow"):
        world.finish(world.submit(queue=queue))
    world.wait(6)
    assert (world.vcpus(), world.vcpus("slow")) == (0, 4)
    world.wait(1200)
    assert world.vcpus("slow") == 0


def test_equal_jobs_share_an_instance() -> None:
    world = EnvironmentWorld()
    world.managed("c5.xlarge", most=64)
    world.define("small", vcpus=1, memory=1024)
    jobs = [world.submit(definition="small") for _ in range(6)]
    assert world.types() == ["c5.xlarge", "c5.xlarge"]
    assert {world.state(job) for job in jobs} == {JobState.STARTING}


def test_an_array_grows_the_environment_up_to_its_maximum() -> None:
    world = EnvironmentWorld()
    world.managed(most=12)
    parent = world.submit(arrayProperties={"size": 8})
    world.settle()
    assert (world.types(), world.vcpus()) == ([GPUS_1] * 3, 12)
    active = world.active()
    assert len(active) == 3
    for _ in range(8):
        world.finish(*world.active())
    assert world.state(parent) is JobState.SUCCEEDED
    assert world.vcpus() == 12, "no further instance was launched"
    world.wait(DELAY_S + 1)
    assert world.vcpus() == 0


def test_the_minimum_and_the_desired_size() -> None:
    world = EnvironmentWorld()
    world.managed(least=4, desiredvCpus=12)
    assert world.vcpus() == 12
    world.wait(DELAY_S + 1)
    assert world.vcpus() == 4
    world.update(computeResources={"minvCpus": 8})
    assert world.vcpus() == 8
    world.update(computeResources={"minvCpus": 0})
    world.wait(DELAY_S + 1)
    assert world.vcpus() == 0


def test_an_environment_never_wants_more_gpus_than_the_machine_has() -> None:
    world = EnvironmentWorld(gpus=2)
    world.managed()
    for _ in range(5):
        world.submit()
    [group] = world.groups_of().values()
    assert world.shown(group)["DesiredCapacity"] == 2
    assert len(world.active()) == 2


def test_launches_that_wait_for_gpus_are_cancelled_when_no_job_needs_them() -> None:
    world = EnvironmentWorld(gpus=1)
    world.managed()
    world.managed(name="other", queue="other")
    first, waiting = world.submit(), world.submit(queue="other")
    assert world.instances_of(InstanceState.PENDING), "the launch of the other environment waits"
    world.call("CancelJob", "batch", jobId=waiting, reason="not needed")
    world.settle()
    assert not world.instances_of(InstanceState.PENDING)
    assert (world.vcpus(), world.vcpus("other")) == (4, 0)
    assert world.state(first) is JobState.STARTING


def test_a_disabled_environment_gives_up_its_place_in_line() -> None:
    """Launches wait for a GPU: for a job, for the size that a user has asked for, and for the minimum size."""
    world = EnvironmentWorld(gpus=1)
    world.managed()
    world.submit()
    for name, least in (("job", 0), ("asked", 0), ("least", 4)):
        world.managed(name=name, queue=name, least=least)
    world.submit(queue="job")
    world.update("asked", computeResources={"desiredvCpus": 4})
    assert len(world.instances_of(InstanceState.PENDING)) == 3
    for name in ("job", "asked", "least"):
        world.update(name, state="DISABLED")
        assert world.vcpus(name) == 0
    assert not world.instances_of(InstanceState.PENDING)
    world.update("least", state="ENABLED")
    assert (world.vcpus("least"), len(world.instances_of(InstanceState.PENDING))) == (4, 1)


def test_idle_instances_of_the_wrong_type_make_room() -> None:
    world = EnvironmentWorld(gpus=4)
    world.managed(GPUS_1, GPUS_4)
    world.finish(world.submit())
    assert world.types() == [GPUS_1]
    large = world.submit(gpus=4)
    assert (world.state(large), world.types()) == (JobState.STARTING, [GPUS_4])


def test_the_next_environment_of_a_queue_serves_what_the_first_has_no_room_for() -> None:
    world = EnvironmentWorld()
    for name in ("first", "second"):
        world.managed(name=name, queue="", most=8)
    world.queue("q", "first", "second")
    jobs = [world.submit() for _ in range(2)]
    assert (world.vcpus("first"), world.vcpus("second")) == (8, 0)
    jobs.append(world.submit())
    assert (world.vcpus("first"), world.vcpus("second")) == (8, 4)
    assert {world.state(job) for job in jobs} == {JobState.STARTING}


def test_a_disabled_environment_keeps_its_jobs_and_launches_nothing() -> None:
    world = EnvironmentWorld()
    world.managed()
    running = world.submit()
    world.update(state="DISABLED")
    waiting = world.submit()
    assert (world.state(running), world.state(waiting), world.vcpus()) == (JobState.STARTING, JobState.RUNNABLE, 4)
    world.update(state="ENABLED")
    assert world.state(waiting) is JobState.STARTING


def test_types_that_this_machine_cannot_hold() -> None:
    world = EnvironmentWorld(gpus=1)
    world.create(computeResources=world.resources(GPUS_4))
    status, reason = world.status()
    assert status == "INVALID" and "p3.8xlarge needs 4 GPUs, and this machine has 1 GPU" in reason
    assert "VALID" in refused(lambda: world.queue("q", "ce")).message
    world.run(lambda tx: host_reports.hello(tx, hello("h", 4)))
    world.settle()
    assert world.status() == ("VALID", "ComputeEnvironment Healthy")


def test_a_job_that_fits_on_no_type() -> None:
    world = EnvironmentWorld()
    world.managed()
    job = world.submit(gpus=2)
    world.wait(3600)
    status, reason = world.status()
    assert status == "VALID" and "no instance type is large enough: they need 2 GPUs" in reason
    assert (world.state(job), world.types()) == (JobState.RUNNABLE, [])
    small = world.submit()
    assert (world.state(small), world.status()[0]) == (JobState.STARTING, "VALID")


def test_a_multi_node_job_gets_all_its_instances() -> None:
    world = EnvironmentWorld()
    world.managed()
    container = {
        "image": "corral/host", "command": ["true"],
        "resourceRequirements": [{"type": each, "value": value} for each, value in (("VCPU", "1"), ("MEMORY", "64"), ("GPU", "1"))],
    }  # fmt: skip
    nodes = {"numNodes": 3, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    world.call("RegisterJobDefinition", "batch", jobDefinitionName="nodes", type="multinode", nodeProperties=nodes)
    job = world.submit(definition="nodes")
    assert (world.state(job), world.types()) == (JobState.STARTING, [GPUS_1] * 3)


def test_a_group_that_a_user_deletes_is_created_again() -> None:
    world = EnvironmentWorld()
    world.managed()
    job = world.submit()
    [deleted] = world.groups_of().values()
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName=deleted, ForceDelete=True)
    world.settle()
    waiting = world.submit()
    world.finish(job, code=137)
    [group] = world.groups_of().values()
    assert (world.state(waiting), group != deleted, world.shown(deleted)) == (JobState.STARTING, True, None)
    assert world.status() == ("VALID", "ComputeEnvironment Healthy")


# Infrastructure updates


def test_an_update_replaces_the_instances_after_their_jobs() -> None:
    world = EnvironmentWorld()
    world.managed(GPUS_1, allocationStrategy="BEST_FIT_PROGRESSIVE", least=4)
    running = world.submit()
    old = world.instance_of(running)
    world.update(computeResources={"instanceTypes": ["g4dn.xlarge"]})
    assert (world.status()[0], world.types()) == ("UPDATING", ["g4dn.xlarge", GPUS_1])
    new = world.submit()
    assert world.instance_of(new) != old
    assert world.state(running) is JobState.STARTING
    world.finish(running)
    world.settle()
    assert (world.status()[0], world.types()) == ("VALID", ["g4dn.xlarge"])
    assert [each.name for each in world.store.groups.listed(REGION)] == list(world.groups_of().values())


@pytest.mark.parametrize(("policy", "ends_s"), [({"terminateJobsOnUpdate": True}, 0), ({"jobExecutionTimeoutMinutes": 10}, 600)])
def test_an_update_ends_jobs_that_run_too_long(policy: dict[str, Any], ends_s: int) -> None:
    world = EnvironmentWorld()
    world.managed(GPUS_1, allocationStrategy="BEST_FIT_PROGRESSIVE")
    running = world.submit()
    world.update(updatePolicy=policy, computeResources={"instanceTypes": ["g4dn.xlarge"]})
    if ends_s:
        world.wait(ends_s - 1)
        assert world.status()[0] == "UPDATING"
        world.wait(2)
    world.finish(running, code=137)
    assert (world.state(running), world.status()[0]) == (JobState.FAILED, "VALID")
    assert world.job(running).status_reason.startswith("Host EC2 (instance i-")


# Deletion


def test_deletion_ends_everything() -> None:
    world = EnvironmentWorld()
    world.managed(least=24)
    assert len(world.types()) == 6
    assert "DISABLED" in refused(world.delete).message
    world.update(state="DISABLED")
    assert "found existing JobQueue relationship" in refused(world.delete).message
    world.call("UpdateJobQueue", "batch", jobQueue="q", state="DISABLED")
    world.call("DeleteJobQueue", "batch", jobQueue="q")
    world.settle()
    cluster = world.shown_environment()["ecsClusterArn"]
    world.delete()
    assert (world.described("ce"), world.types(), world.store.groups.listed(REGION)) == ([], [], [])
    assert world.call("DescribeClusters", "ecs", clusters=[cluster])["clusters"][0]["status"] == "INACTIVE"
    assert not world.call("DescribeLaunchTemplates", "ec2")["LaunchTemplates"]
    world.create(computeResources=world.resources())  # the name is free again
    assert world.status()[0] == "VALID"


# Spot interruptions


def test_an_interrupted_instance_ends_after_its_notice() -> None:
    world = EnvironmentWorld()
    world.managed(kind="SPOT")
    retry = {
        "attempts": 2,
        "evaluateOnExit": [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}],
    }
    job = world.submit(retryStrategy=retry)
    instance = world.instance_of(job)
    world.run(lambda tx: spot_interruptions.interrupt(tx, instance))
    found = world.store.instances.by_ec2_id(instance)
    notice = world.run(lambda tx: spot_interruptions.notice_of(tx, found)) if found is not None else None
    assert notice == {"action": "terminate", "time": "2026-01-01T00:02:00Z"}
    other = world.submit()
    assert world.instance_of(other) != instance, "an interrupted instance gets no new jobs"
    world.wait(119)
    assert world.state(job) is JobState.STARTING
    world.wait(2)
    [ended] = [each for each in world.store.instances.all() if f"i-{each.id[:17]}" == instance]
    assert ended.state is InstanceState.SHUTTING_DOWN
    world.finish(job, code=137)
    assert world.state(job) is JobState.STARTING, "the job is retried on another instance"
    assert world.job(job).attempts[0].status_reason == f"Host EC2 (instance {instance}) terminated."
    assert world.instance_of(job) != instance
    assert len(world.types()) == 2, "the group launched no instance that no job needs"


def test_only_running_spot_instances_can_be_interrupted() -> None:
    world = EnvironmentWorld()
    world.managed()
    instance = world.instance_of(world.submit())
    for given, text in ((instance, "on-demand"), ("i-00000000000000000", "does not exist"), ("x", "does not exist")):
        assert text in refused(lambda given=given: world.run(lambda tx: spot_interruptions.interrupt(tx, given))).message  # type: ignore[misc]


def test_a_rebooted_instance_is_not_a_terminated_host() -> None:
    world = EnvironmentWorld()
    world.managed()
    job = world.submit()
    world.call("RebootInstances", "ec2", InstanceIds=[world.instance_of(job)])
    world.finish(job, code=137)
    assert world.state(job) is JobState.FAILED
    assert not world.job(job).status_reason.startswith("Host EC2")


# Restarts


class RestartingWorld(EnvironmentWorld):
    """A world whose server is killed and started again after each transaction."""

    restarts = 0

    def transact(self, commands: Any) -> Outcome:
        outcome = super().transact(commands)
        self.restart()
        self.restarts += 1
        return outcome


def test_restarts_after_each_transaction(tmp_path: Path) -> None:
    world = RestartingWorld(path=tmp_path / "state.db")
    world.managed(kind="SPOT")
    jobs = [world.submit() for _ in range(6)]
    assert {world.state(job) for job in jobs} == {JobState.STARTING}
    interrupted = world.instance_of(jobs[0])
    world.run(lambda tx: spot_interruptions.interrupt(tx, interrupted))
    world.wait(121)
    world.finish(*jobs)
    assert len(world.types()) == 5
    world.wait(DELAY_S + 1)
    assert (world.types(), world.vcpus()) == ([], 0)
    world.update(state="DISABLED")
    world.call("UpdateJobQueue", "batch", jobQueue="q", state="DISABLED")
    world.call("DeleteJobQueue", "batch", jobQueue="q")
    world.settle()
    world.delete()
    assert (world.described("ce"), world.restarts > 30) == ([], True)


class CountingCore(Core[Any]):
    """A core that counts how many instances one transaction launches or ends."""

    most = 0

    def transact(self, commands: Any) -> Outcome:
        before = self._alive()
        outcome = super().transact(commands)
        CountingCore.most = max(CountingCore.most, len(self._alive() ^ before))
        return outcome

    def _alive(self) -> set[str]:
        return {each.id for each in self.store.instances.slices()}


class CountingWorld(EnvironmentWorld):
    core_type = CountingCore


def test_each_transaction_launches_and_ends_few_instances() -> None:
    CountingCore.most = 0
    world = CountingWorld()
    world.managed("c5.xlarge")
    world.update(computeResources={"minvCpus": 100})
    assert len(world.types()) == 25
    world.update(computeResources={"minvCpus": 0})
    world.wait(DELAY_S + 5)
    assert (world.types(), CountingCore.most) == ([], 4)
