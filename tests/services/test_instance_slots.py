"""Instances on one host: each owns GPUs, its tasks use only these, and the host gets them back when the instance ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from answers.recorder import handled
from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import HostOptions
from corral.model.instance import Instance, InstanceState, ec2_id, host_instance_id, host_pool
from corral.model.principal import root_user
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.ec2.instances import describe_instance_status
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store
from store.rows import derived_fleet, hello

REGION = "us-east-1"
CALLER = Caller("123456789012", REGION, root_user("123456789012"))
P3 = InstanceRequest(
    owner="root",
    region=REGION,
    cluster="train",
    type="p3.8xlarge",
    gpus=4,
    cpu_units=32 * 1024,
    memory_mib=244 * 1024,
    group="fleet",
)
G5 = InstanceRequest(
    owner="root", region=REGION, cluster="serve", type="g5.xlarge", gpus=1, cpu_units=4 * 1024, memory_mib=16 * 1024, group="fleet"
)
OWN = host_instance_id("h")
GROUP = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:x:autoScalingGroupName"


class World:
    """A core with one simulated host of eight GPUs."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.store = Store(None)
        self.clock = VirtualClock(1_000.0)
        self.core = Core(
            self.store, settings=settings or Settings(), clock=self.clock, ids=RandomIds(), reconcilers=STATE
        )  # fmt: skip
        self.started: dict[str, tuple[str, list[str]]] = {}  # run → (task, GPUs), by the orders to the host
        self.told_to_stop: list[str] = []
        self.run(lambda tx: host_reports.hello(tx, hello("h", 8, options=tx.settings.host)))
        for cluster in ("train", "serve"):
            self.provider(f"{cluster}-fleet", "fleet")
            strategy = [{"capacityProvider": f"{cluster}-fleet", "weight": 1}]
            self.call(
                "CreateCluster", clusterName=cluster, capacityProviders=[f"{cluster}-fleet"],
                defaultCapacityProviderStrategy=strategy,
            )  # fmt: skip
        for gpus in (1, 2, 4):
            container = {
                "name": "main", "image": "corral/host", "command": ["work"], "memory": 128,
                "resourceRequirements": [{"type": "GPU", "value": str(gpus)}],
            }  # fmt: skip
            self.call("RegisterTaskDefinition", family=f"gpus-{gpus}", containerDefinitions=[container])

    def run(self, handler: Any) -> Any:
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults[0]
        assert set(outbox.orders) <= {"h"}, "an order for something that is not a host"
        for orders in outbox.orders.values():
            self.started |= {start.spec.run_id: (start.spec.task_id, start.spec.gpu_ids) for start in orders.start}
            self.told_to_stop += orders.stop
        answer = outbox.answers[0][1]
        if isinstance(answer, ApiError):
            raise answer
        assert self.store.fleet.snapshot() == derived_fleet(self.store).snapshot()
        return answer

    def call(self, operation: str, **params: Any) -> Any:
        return self.run(lambda tx: HANDLERS[operation](tx, params, CALLER))

    def provider(self, name: str, group: str) -> None:
        """A capacity provider whose group does not exist, so nothing scales."""
        settings = {
            "autoScalingGroupArn": f"{GROUP}/{group}",
            "managedScaling": {"status": "DISABLED"},
            "managedDraining": "DISABLED",
        }
        document = {"name": name, "status": "ACTIVE", "autoScalingGroupProvider": settings, "tags": []}
        self.run(lambda tx: tx.store.stored.add("ecs", "capacity-provider", REGION, name, document, tx.now_s))

    def launch(self, request: InstanceRequest) -> str:
        launched: Instance = self.run(lambda tx: instances.launch(tx, request))
        return launched.id

    def change(self, instance_id: str, change: Callable[[Tx[Store], Instance], object]) -> None:
        def handler(tx: Tx[Store]) -> None:
            instance = tx.store.instances.get(instance_id)
            assert instance is not None
            change(tx, instance)

        self.run(handler)

    def terminate(self, instance_id: str) -> None:
        self.change(instance_id, lambda tx, instance: instances.terminate(tx, instance, "a test ends it"))

    def run_task(self, cluster: str, gpus: int, **more: Any) -> str:
        reply = self.call("RunTask", cluster=cluster, taskDefinition=f"gpus-{gpus}", **more)
        assert not reply["failures"], reply["failures"]
        return str(reply["tasks"][0]["taskArn"]).rpartition("/")[2]

    def end(self, *task_ids: str) -> None:
        runs = [run_id for run_id, (task_id, _) in self.started.items() if task_id in task_ids]
        seen = [Observed(run_id, 1, self.clock.now_s(), self.clock.now_s(), 0) for run_id in runs]
        self.run(lambda tx: host_reports.report(tx, "h", seen))

    def shown(self, cluster: str, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("DescribeTasks", cluster=cluster, tasks=[task_id])["tasks"][0]
        return found

    def gpus(self, cluster: str, task_id: str) -> list[str]:
        return list(self.shown(cluster, task_id)["containers"][0].get("gpuIds") or [])

    def state(self, instance_id: str) -> InstanceState:
        found = self.store.instances.get(instance_id)
        assert found is not None
        return found.state

    def owned(self, instance_id: str) -> list[str]:
        return [gpu.gpu_id for gpu in self.store.instances.gpus(instance_id)]


def test_two_instances_of_different_types_share_one_host() -> None:
    world = World()
    large, small = world.launch(P3), world.launch(G5)
    assert [world.state(each) for each in (large, small)] == [InstanceState.RUNNING] * 2
    assert [len(world.owned(each)) for each in (large, small, OWN)] == [4, 1, 3]
    tasks = {
        ("train", world.run_task("train", 2)): large,
        ("train", world.run_task("train", 2, launchType="EC2")): large,
        ("serve", world.run_task("serve", 1)): small,
        ("default", world.run_task("default", 2)): OWN,
        ("default", world.run_task("default", 1)): OWN,
    }
    held = [gpu for cluster, task in tasks for gpu in world.gpus(cluster, task)]
    assert len(held) == len(set(held)) == 8, "no GPU is shared"
    for (cluster, task), instance_id in tasks.items():
        assert set(world.gpus(cluster, task)) <= set(world.owned(instance_id))
        arn = world.shown(cluster, task)["containerInstanceArn"]
        assert arn.endswith(f"container-instance/{cluster}/{instance_id}")
    assert {tuple(gpus) for _, gpus in world.started.values()} == {tuple(world.gpus(*key)) for key in tasks}

    with pytest.raises(AssertionError, match="RESOURCE:GPU"):
        world.run_task("train", 1, launchType="EC2")
    for instance_id in (large, small):
        world.terminate(instance_id)
        assert world.state(instance_id) is InstanceState.SHUTTING_DOWN
        assert world.owned(instance_id), "its tasks still hold its GPUs"
    assert len(world.told_to_stop) == 3
    world.end(*(task for _, task in tasks))
    assert [world.state(each) for each in (large, small)] == [InstanceState.TERMINATED] * 2
    assert len(world.owned(OWN)) == 8
    (slot,) = world.store.fleet.pool(host_pool("default")).slots()
    assert len(slot.gpus) == 8, "all are free again"
    assert world.store.execute("SELECT count(*) FROM lease").fetchone() == (0,)
    stopped = world.shown("train", next(task for cluster, task in tasks if cluster == "train"))
    assert (stopped["lastStatus"], stopped["stopCode"]) == ("STOPPED", "TerminationNotice")


def test_instances_and_tasks_wait_in_one_queue_and_the_reasons_name_them() -> None:
    world = World()
    holders = [world.run_task("default", 4) for _ in range(2)]
    waiting = world.launch(P3)
    assert world.state(waiting) is InstanceState.PENDING
    younger = world.run_task("default", 1)
    reason = world.shown("default", younger)["containers"][0]["reason"]
    assert f"behind instance {ec2_id(waiting)}" in reason
    world.end(holders[0])
    assert world.state(waiting) is InstanceState.RUNNING, "the older claim is served first"
    assert world.shown("default", younger)["lastStatus"] == "PROVISIONING"
    reason = world.shown("default", younger)["containers"][0]["reason"]
    assert f"held by task {holders[1]} and instance {ec2_id(waiting)}" in reason
    world.terminate(waiting)
    assert world.shown("default", younger)["lastStatus"] == "PENDING"


def test_a_task_waits_for_an_instance_to_join_its_cluster() -> None:
    world = World()
    task = world.run_task("train", 4)
    assert "the cluster has no container instances yet" in world.shown("train", task)["containers"][0]["reason"]
    instance_id = world.launch(P3)
    assert world.gpus("train", task) == world.owned(instance_id)


def test_an_instance_that_waits_can_be_terminated() -> None:
    world = World()
    holder = world.run_task("default", 4), world.run_task("default", 4)
    waiting, younger = world.launch(P3), world.launch(G5)
    world.terminate(waiting)
    assert world.state(waiting) is InstanceState.TERMINATED
    world.end(holder[0])
    assert world.state(younger) is InstanceState.RUNNING


def test_a_claim_that_can_never_be_placed_reserves_nothing() -> None:
    world = World()
    huge = InstanceRequest(owner="root", region=REGION, cluster="train", type="p2.16xlarge", gpus=16, cpu_units=1, memory_mib=1)
    waiting = world.launch(huge)
    assert world.state(waiting) is InstanceState.PENDING
    assert world.shown("default", world.run_task("default", 4))["lastStatus"] == "PENDING"


def test_terminating_again_changes_nothing() -> None:
    world = World()
    instance_id = world.launch(G5)
    world.terminate(instance_id)
    world.terminate(instance_id)
    assert world.state(instance_id) is InstanceState.TERMINATED
    world.clock.advance(3 * 3600.0)
    world.run(lambda tx: None)
    assert world.store.instances.get(instance_id) is None, "terminated instances are deleted after a while"


def test_a_cluster_with_instances_is_not_deleted() -> None:
    world = World()
    instance_id = world.launch(G5)
    assert world.call("DescribeClusters", clusters=["serve"])["clusters"][0]["registeredContainerInstancesCount"] == 1
    with pytest.raises(ApiError, match="Container Instances"):
        world.call("DeleteCluster", cluster="serve")
    world.terminate(instance_id)
    world.call("DeleteCluster", cluster="serve")


def test_the_host_joins_the_cluster_of_its_options() -> None:
    world = World(Settings(host=HostOptions(cluster="ml", instance_type="p3.8xlarge")))
    failing = lambda tx: [host_reports.hello(tx, hello("h", 8)), tx.store.instances.clusters_of_hosts(), 1 / 0]  # noqa: E731
    [fault] = world.core.transact([Command(failing, lambda answer: None)]).faults
    assert "ZeroDivisionError" in str(fault) and world.store.instances.clusters_of_hosts() == {"ml"}
    cluster = world.call("DescribeClusters", clusters=["ml", "default"])["clusters"]
    assert [each["registeredContainerInstancesCount"] for each in cluster] == [1, 0]
    assert [each["capacityProviders"] for each in cluster] == [["host"], []]
    member_of = {"type": "memberOf", "expression": "attribute:ecs.instance-type == p3.8xlarge"}
    task = world.run_task("ml", 1, placementConstraints=[member_of])
    assert world.gpus("ml", task)
    with pytest.raises(ApiError, match="No Container Instances"):
        world.run_task("default", 1)
    fargate = {"name": "main", "image": "corral/host", "command": ["work"]}
    world.call(
        "RegisterTaskDefinition", family="f", containerDefinitions=[fargate], cpu="256", memory="512", networkMode="awsvpc",
        requiresCompatibilities=["FARGATE"],
    )  # fmt: skip
    network = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
    reply = world.call("RunTask", taskDefinition="f", launchType="FARGATE", networkConfiguration=network)
    assert reply["tasks"][0]["lastStatus"] == "PENDING", "Fargate tasks use this machine's own slot, in any cluster"


# Stop, start, deregistration


def test_container_instances_and_tasks_show_the_architecture_of_their_host() -> None:
    world = World()
    for known, shown in (("", []), ("riscv64", []), ("aarch64", ["arm64"])):
        world.run(partial(host_reports.hello, message=replace(hello("h", 8), architecture=known)))
        listed = world.call("ListAttributes", targetType="container-instance", attributeName="ecs.cpu-architecture")
        assert [each["value"] for each in listed["attributes"]] == shown
    member_of = {"type": "memberOf", "expression": "attribute:ecs.cpu-architecture == arm64"}
    task = world.run_task("default", 1, placementConstraints=[member_of])
    assert world.shown("default", task)["attributes"] == [{"name": "ecs.cpu-architecture", "value": "arm64"}]


def test_a_stopped_instance_gives_its_gpus_back_and_joins_again_when_it_is_started() -> None:
    world = World()
    large = world.launch(P3)
    task = world.run_task("train", 2)
    world.change(large, lambda tx, instance: instances.stop(tx, instance, "a test stops it"))
    assert world.state(large) is InstanceState.STOPPING and len(world.owned(large)) == 4, "its task has not ended"
    world.end(task)
    assert world.state(large) is InstanceState.STOPPED and world.owned(large) == []
    assert world.call("ListContainerInstances", cluster="train")["containerInstanceArns"] == []
    others = [world.launch(P3), world.launch(P3)]
    world.change(large, lambda tx, instance: instances.start(tx, instance, "a test starts it"))
    assert world.state(large) is InstanceState.PENDING, "it waits for GPUs, like a launch"
    world.terminate(others[0])
    assert world.state(large) is InstanceState.RUNNING
    assert len(world.call("ListContainerInstances", cluster="train")["containerInstanceArns"]) == 2
    world.end(task)  # a report that arrives twice
    world.change(large, lambda tx, instance: instances.stop(tx, instance, "again"))
    world.terminate(large)
    assert world.state(large) is InstanceState.TERMINATED


def test_a_report_of_a_run_whose_instance_was_stopped_changes_nothing() -> None:
    world = World()
    large = world.launch(P3)
    task = world.run_task("train", 1)
    world.end(task)
    world.change(large, lambda tx, instance: instances.stop(tx, instance, "a test stops it"))
    assert world.state(large) is InstanceState.STOPPED
    world.end(task)
    assert world.shown("train", task)["lastStatus"] == "STOPPED"


def test_a_stopping_instance_can_be_terminated() -> None:
    world = World()
    large = world.launch(P3)
    task = world.run_task("train", 1)
    world.change(large, lambda tx, instance: instances.stop(tx, instance, "a test stops it"))
    world.terminate(large)
    assert world.state(large) is InstanceState.SHUTTING_DOWN
    world.end(task)
    assert world.state(large) is InstanceState.TERMINATED


def test_a_rebooted_instance_loses_its_tasks_and_stays() -> None:
    world = World()
    large = world.launch(P3)
    task = world.run_task("train", 1)
    world.change(large, lambda tx, instance: instances.reboot(tx, instance))
    assert world.shown("train", task)["desiredStatus"] == "STOPPED" and world.state(large) is InstanceState.RUNNING


def test_an_instance_joins_when_its_cluster_is_created() -> None:
    world = World()
    early = world.launch(replace(P3, cluster="later", attributes={"rack": "a"}))
    assert world.state(early) is InstanceState.RUNNING
    assert world.store.instances.get(early).cluster == ""
    world.call("CreateCluster", clusterName="later")
    assert world.store.instances.get(early).cluster == "later"
    member_of = {"type": "memberOf", "expression": "attribute:rack == a"}
    task = world.run_task("later", 4, launchType="EC2", placementConstraints=[member_of])
    assert sorted(world.gpus("later", task)) == sorted(world.owned(early))


def test_a_deregistered_instance_leaves_after_its_tasks_and_keeps_its_gpus() -> None:
    world = World()
    large = world.launch(P3)
    task = world.run_task("train", 1)
    with pytest.raises(ApiError, match="running tasks"):
        world.call("DeregisterContainerInstance", cluster="train", containerInstance=large)
    reply = world.call("DeregisterContainerInstance", cluster="train", containerInstance=large, force=True)
    assert reply["containerInstance"]["status"] == "INACTIVE"
    world.call("UpdateContainerInstancesState", cluster="train", containerInstances=[large], status="ACTIVE")
    world.end(task)
    assert world.call("ListContainerInstances", cluster="train")["containerInstanceArns"] == []
    assert world.state(large) is InstanceState.RUNNING and len(world.owned(large)) == 4
    world.call("CreateCluster", clusterName="train")
    assert world.store.instances.get(large).cluster == "", "it does not join by itself"
    with pytest.raises(ApiError, match="own instance cannot leave"):
        world.call("DeregisterContainerInstance", cluster="default", containerInstance=OWN)
    world.terminate(large)
    assert world.state(large) is InstanceState.TERMINATED


def test_a_launch_that_does_not_wait_says_why_there_is_no_room() -> None:
    world = World()
    world.launch(P3)
    placed = world.run(lambda tx: instances.place_now(tx, P3))
    assert placed.state is InstanceState.RUNNING
    refused = world.run(lambda tx: instances.place_now(tx, P3))
    assert refused.detail.startswith("needs 4 GPUs; 0 of 8 GPUs free on 1 host")
    assert world.run(lambda tx: instances.fits_ever(tx, P3)) is None, "it fits when the others end"
    huge = replace(P3, type="p2.16xlarge", gpus=16)
    assert "[instance-types] p2.16xlarge = {gpus = 8}" in world.run(lambda tx: instances.fits_ever(tx, huge))


def test_the_instances_of_a_silent_host_are_impaired() -> None:
    world = World()
    large = world.launch(replace(P3, details={"Placement": {"AvailabilityZone": f"{REGION}a"}}))

    def impaired() -> bool:
        return bool(world.run(lambda tx: instances.is_impaired(tx, tx.store.instances.get(large))))

    def reachability() -> dict[str, Any]:
        answer = handled("ec2", "DescribeInstanceStatus", lambda: world.run(lambda tx: describe_instance_status(tx, {}, CALLER)))
        [found] = answer["InstanceStatuses"][0]["InstanceStatus"]["Details"]
        return dict(found)

    seen_s = world.clock.now_s()
    assert not impaired() and reachability() == {"Name": "reachability", "Status": "passed"}
    world.clock.advance(3600.0)
    world.run(lambda tx: None)
    assert impaired()
    assert reachability() == {"Name": "reachability", "Status": "failed", "ImpairedSince": pytest.approx(seen_s)}
    world.run(lambda tx: host_reports.hello(tx, hello("h", 8)))
    assert not impaired()


def test_instances_are_found_by_the_ids_of_ec2() -> None:
    world = World()
    ids = [world.launch(G5) for _ in range(3)]
    found = [world.store.instances.by_ec2_id(ec2_id(each)) for each in ids]
    assert [each.id for each in found if each is not None] == ids
    for wrong in ("", "i-", ids[0], ec2_id(ids[0])[:-1], ec2_id(ids[0]) + "0", "i-" + "f" * 17):
        assert world.store.instances.by_ec2_id(wrong) is None


def test_tasks_are_spread_over_the_zones_of_instances() -> None:
    world = World()
    zones = ("us-east-1a", "us-east-1a", "us-east-1b")
    for zone in zones:
        world.launch(replace(G5, gpus=2, details={"Placement": {"AvailabilityZone": zone}, "ImageId": "ami-1"}))
    spread = [{"type": "spread", "field": "attribute:ecs.availability-zone"}]
    tasks = [world.run_task("serve", 1, launchType="EC2", placementStrategy=spread) for _ in range(4)]
    shown = sorted(world.shown("serve", task)["availabilityZone"] for task in tasks)
    assert shown == ["us-east-1a", "us-east-1a", "us-east-1b", "us-east-1b"]
    member_of = [{"type": "memberOf", "expression": "attribute:ecs.availability-zone == us-east-1b"}]
    with pytest.raises(AssertionError, match="GPU"):
        world.run_task("serve", 1, launchType="EC2", placementConstraints=member_of)
    named = {"cluster": "serve", "targetType": "container-instance", "attributeName": "ecs.ami-id"}
    assert [each["value"] for each in world.call("ListAttributes", **named)["attributes"]] == ["ami-1"] * 3


def test_tasks_of_a_capacity_provider_run_only_on_the_instances_of_its_group() -> None:
    world = World()
    other = world.launch(replace(G5, cluster="train", group="other"))
    waiting = world.run_task("train", 1)
    shown = world.shown("train", waiting)
    assert shown["lastStatus"] == "PROVISIONING"
    assert "none matches the Auto Scaling group fleet of the capacity provider" in shown["containers"][0]["reason"]

    own = world.launch(replace(G5, cluster="train"))
    assert world.shown("train", waiting)["containerInstanceArn"].endswith(own)
    second = world.run_task("train", 1)
    assert world.gpus("train", second) == [], "the GPU of another group is free, and the task does not get it"
    described = world.call("DescribeContainerInstances", cluster="train", containerInstances=[own, other])["containerInstances"]
    assert [each["capacityProviderName"] for each in described] == ["train-fleet", None]

    world.change(other, lambda tx, instance: instances.set_group(tx, instance, "fleet"))
    assert world.shown("train", second)["containerInstanceArn"].endswith(other), "the instance was attached to the group"


def test_two_capacity_providers_share_the_tasks_of_a_request_and_not_their_instances() -> None:
    world = World()
    world.provider("second", "other")
    world.call(
        "PutClusterCapacityProviders", cluster="train", capacityProviders=["train-fleet", "second"],
        defaultCapacityProviderStrategy=[],
    )  # fmt: skip
    groups = {world.launch(replace(G5, cluster="train", group=group)): group for group in ("fleet", "fleet", "other")}
    strategy = [{"capacityProvider": "train-fleet", "weight": 1}, {"capacityProvider": "second", "weight": 1}]
    reply = world.call("RunTask", cluster="train", taskDefinition="gpus-1", count=4, capacityProviderStrategy=strategy)
    placed = [
        (task["capacityProviderName"], groups.get((task["containerInstanceArn"] or "").rpartition("/")[2]))
        for task in reply["tasks"]
    ]
    assert sorted(placed, key=str) == [("second", "other"), ("second", None), ("train-fleet", "fleet"), ("train-fleet", "fleet")]


def test_younger_launches_do_not_overtake_a_launch_that_waits_for_gpus_of_other_instances() -> None:
    world = World()
    first = world.launch(replace(G5, gpus=3))
    large = world.launch(replace(P3, gpus=8))
    young = world.launch(replace(G5, gpus=1))
    assert [world.state(each) for each in (large, young)] == [InstanceState.PENDING] * 2
    waits = {
        each: world.run(lambda tx, each=each: instances.reason_of_wait(tx, tx.store.instances.get(each))) for each in (large, young)
    }
    assert waits[large] == "5 of 8 GPUs free on 1 host; needs 8 GPUs; first in line"
    assert f"reserved for instance {ec2_id(large)}, which is ahead in line" in waits[young]
    world.terminate(first)
    assert world.state(large) is InstanceState.RUNNING
    world.terminate(large)
    assert world.state(young) is InstanceState.RUNNING
