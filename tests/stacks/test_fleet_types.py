"""The types of the fleet in stacks: groups, instances, launch templates, clusters, task definitions and services."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.model.instance import TypeMapping
from corral.model.settings import Settings
from stacks.fleet_world import CLUSTER_DATA, SIGNAL, TAGS, FleetWorld, report_tasks, type_named
from virtual_clock.busy_world import BusyWorld
from virtual_clock.group_world import CALLER, GPUS_1, GPUS_4, GPUS_8, REGION

GROUP, CONFIGURATION = "AWS::AutoScaling::AutoScalingGroup", "AWS::AutoScaling::LaunchConfiguration"
INSTANCE, TEMPLATE = "AWS::EC2::Instance", "AWS::EC2::LaunchTemplate"
CLUSTER, DEFINITION, SERVICE = "AWS::ECS::Cluster", "AWS::ECS::TaskDefinition", "AWS::ECS::Service"
REPLACING = {"AutoScalingReplacingUpdate": {"WillReplace": "true"}}


@pytest.fixture
def world() -> FleetWorld:
    return FleetWorld()


def launch(world: FleetWorld, name: str, type_: str = GPUS_1, **more: Any) -> str:
    return world.create(CONFIGURATION, LaunchConfigurationName=name, ImageId="ami-1", InstanceType=type_, **more)


def sizes(desired: int, most: int = 4, **more: Any) -> dict[str, Any]:
    """Properties of a group, with numbers as text as in many templates."""
    zones = {"AvailabilityZones": [f"{REGION}a"]}
    return {"MinSize": str(desired), "MaxSize": str(most), "DesiredCapacity": str(desired), **zones, **more}


def group_of(world: FleetWorld, name: str, desired: int, configuration: str = "one", **more: Any) -> str:
    return world.create(GROUP, AutoScalingGroupName=name, LaunchConfigurationName=configuration, **sizes(desired, **more))


# CreationPolicy


def test_instances_that_join_their_cluster_count_as_signalled(world: FleetWorld) -> None:
    launch(world, "one", UserData=CLUSTER_DATA)
    group = group_of(world, "g", 2)
    step = world.step(group, creation_policy={"ResourceSignal": {"Count": "2"}})
    waits = world.settled(GROUP, step)
    assert waits is not None and waits.keys == (f"group:{REGION}/g",)
    assert "waits for the cluster c" in waits.reason, "the instances run, but their cluster does not exist"
    world.create(CLUSTER, ClusterName="c")
    assert world.settled(GROUP, step) is None
    signals = type_named(GROUP).signals
    assert signals is not None
    assert world.run(lambda tx: signals(tx, CALLER, step)) == dict.fromkeys(world.ids(), "SUCCESS")
    assert sorted(step.notes) == sorted(f"Instance {each} joined cluster c: it counts as signalled." for each in world.ids())


def test_an_instance_without_a_cluster_needs_no_signal(world: FleetWorld) -> None:
    launch(world, "one")
    step = world.step(group_of(world, "g", 1), creation_policy=SIGNAL)
    assert world.settled(GROUP, step) is None
    assert "its user data names no cluster: it counts as signalled." in step.notes[0]
    assert world.settled(GROUP, world.step("g")) is None, "without a CreationPolicy a group is complete at once"


def test_received_signals_count(world: FleetWorld) -> None:
    launch(world, "one", UserData=CLUSTER_DATA)
    step = world.step(group_of(world, "g", 1), creation_policy=SIGNAL, received={"i-1": "SUCCESS"})
    assert world.settled(GROUP, step) is None


def test_a_launch_that_can_never_succeed_fails_the_step_with_its_reason() -> None:
    world = FleetWorld(gpus=4)
    launch(world, "one", GPUS_8)
    with pytest.raises(ApiError, match=r"cannot launch an instance: p3.16xlarge needs 8 GPUs.*p3.16xlarge = \{gpus = 4\}"):
        world.settled(GROUP, world.step(group_of(world, "g", 1), creation_policy=SIGNAL))


# Replacing updates


def small() -> FleetWorld:
    """A machine with four GPUs on which each instance has two."""
    return FleetWorld(gpus=4, settings=Settings(instance_types={GPUS_8: TypeMapping(gpus=2)}))


@pytest.mark.parametrize("changed", ["LaunchConfigurationName", "MinSize"])
def test_the_update_policy_decides_whether_a_group_is_replaced(changed: str) -> None:
    old = {"LaunchConfigurationName": "a", "MinSize": "1"}
    new = {**old, changed: "2"}
    replaces = type_named(GROUP).replaces
    assert replaces is not None
    assert replaces(old, new) == []
    assert replaces(old, {**new, "_update_policy": REPLACING}) == [each for each in [changed] if each != "MinSize"]


def test_a_group_without_room_for_both_is_drained_first_and_then_deleted() -> None:
    world = small()
    launch(world, "one", GPUS_4.replace("8", "2"))  # one GPU each
    launch(world, "two", GPUS_8)
    group_of(world, "old", 3)
    step = world.step(group_of(world, "new", 2, "two"), replaced_id="old", creation_policy={"ResourceSignal": {"Count": 2}})
    world.until_settled(GROUP, step)
    assert world.states("new") == ["InService"] * 2 and world.ids("old") == []
    drained = [note for note in step.notes if "The old group old is drained first." in note]
    assert len(drained) == 1 and "no room" in drained[0]
    world.delete(GROUP, "old")
    assert world.gone(GROUP, world.step("old", "DELETE")) is None and world.shown("old") is None


def test_a_group_with_room_for_both_is_not_drained(world: FleetWorld) -> None:
    launch(world, "one")
    launch(world, "two", GPUS_4)
    group_of(world, "old", 2)
    step = world.step(group_of(world, "new", 1, "two"), replaced_id="old", creation_policy=SIGNAL)
    world.until_settled(GROUP, step)
    assert world.states("old") == ["InService"] * 2 and "drained" not in "".join(step.notes)


def test_a_rollback_restores_a_drained_group() -> None:
    world = small()
    launch(world, "one", GPUS_8)
    launch(world, "two", GPUS_8, UserData=CLUSTER_DATA)  # its cluster does not exist, so the group never signals
    group_of(world, "old", 2)
    step = world.step(group_of(world, "new", 1, "two"), replaced_id="old", creation_policy=SIGNAL)
    for _ in range(3):
        assert world.settled(GROUP, step) is not None
    assert world.ids("old") == []
    restore = type_named(GROUP).restore
    assert restore is not None
    world.run(lambda tx: restore(tx, CALLER, "old", {}))
    world.delete(GROUP, "new")
    assert world.gone(GROUP, world.step("new", "DELETE")) is None
    world.settle()
    shown = world.shown("old")
    assert (shown["MinSize"], shown["DesiredCapacity"]) == (2, 2) and world.states("old") == ["InService"] * 2
    world.run(lambda tx: restore(tx, CALLER, "old", {}))  # a group that was not drained stays as it is
    assert world.shown("old")["DesiredCapacity"] == 2


# Rolling updates


def rolling(world: FleetWorld, desired: int, most: int, type_: str = GPUS_1, user_data: str = "", **policy: Any) -> Any:
    """Update a group to another launch configuration. Return its step, and the instances before the update."""
    for name in ("one", "two"):
        launch(world, name, type_, **({"UserData": user_data} if user_data else {}))
    group_of(world, "g", desired, most=most)
    before = world.ids()
    old, new = sizes(desired, most, LaunchConfigurationName="one"), sizes(desired, most, LaunchConfigurationName="two")
    world.update(GROUP, "g", old, new)
    assert world.ids() == before, "an update changes no instance by itself"
    return world.step("g", "UPDATE", update_policy={"AutoScalingRollingUpdate": policy}, properties=new, old_properties=old), before


def test_a_rolling_update_replaces_the_instances_in_batches(world: FleetWorld) -> None:
    step, before = rolling(world, 3, 4, MaxBatchSize="2", MinInstancesInService="1", SuspendProcesses=["AlarmNotification"])
    fewest = []
    for _ in range(20):
        if world.settled(GROUP, step) is None:
            break
        fewest.append(world.states().count("InService"))
        assert [each["ProcessName"] for each in world.shown()["SuspendedProcesses"]] == ["AlarmNotification"]
    assert not set(before) & set(world.ids()) and world.states() == ["InService"] * 3
    assert min(fewest) >= 1
    shown = world.shown()
    assert (shown["MinSize"], shown["DesiredCapacity"], shown["SuspendedProcesses"]) == (3, 3, [])
    assert step.notes[0].startswith(
        "Rolling update initiated. Terminating 3 obsolete instance(s) in batches of 2, while keeping at"
    )
    assert sum("Terminating instance(s) [i-" in note for note in step.notes) == 2
    assert world.settled(GROUP, world.step("g", "UPDATE", update_policy=step.update_policy)) is None, "no instance is obsolete"


class WorkerWorld(FleetWorld, BusyWorld):
    """A stack with a group whose instances run workers."""


def test_a_rolling_update_waits_for_workers_that_hold_messages() -> None:
    world = WorkerWorld()
    world.define(gpus=1)
    world.create(CLUSTER, ClusterName="c")
    world.serve("c", schedulingStrategy="DAEMON")
    step, [before] = rolling(world, 1, 1, user_data=CLUSTER_DATA, MinInstancesInService="0")
    report_tasks(world)
    url = world.call("CreateQueue", "sqs", QueueName="work", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    [worker] = world.workers()
    world.send(url, 2)
    [message] = world.receive(worker, url)
    for _ in range(5):
        world.settled(GROUP, step)
    assert world.lifecycle()[before] == "Terminating:Wait" and world.state_of(worker) == ("RUNNING", "RUNNING")
    assert f"Waiting for task {worker}, which holds 1 message of work." in str(world.activities())
    assert world.receive(worker, url) == []
    world.as_task(worker, "DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    report_tasks(world)
    world.until_settled(GROUP, step)
    assert before not in world.lifecycle() and list(world.lifecycle().values()) == ["InService"]


def test_a_group_grows_if_the_policy_keeps_all_instances_in_service(world: FleetWorld) -> None:
    step, before = rolling(world, 1, 2, MinInstancesInService=1, WaitOnResourceSignals=True, PauseTime="PT10M")
    for _ in range(20):
        assert "InService" in world.states()
        if world.settled(GROUP, step) is None:
            break
    assert "Temporarily setting autoscaling group MinSize and DesiredCapacity to 2." in step.notes
    assert len(world.ids()) == 1 and world.ids() != before and world.shown()["MinSize"] == 1


def test_old_instances_end_first_if_there_is_no_room_for_more() -> None:
    world = FleetWorld(gpus=8)
    step, before = rolling(world, 1, 2, GPUS_8, MinInstancesInService=1)
    world.until_settled(GROUP, step)
    assert any(note.startswith("This machine has no room for 1 more instance(s)") for note in step.notes)
    assert world.states() == ["InService"] and world.ids() != before


def test_a_rolling_update_pauses_between_batches(world: FleetWorld) -> None:
    step, before = rolling(world, 2, 2, PauseTime="PT2M")
    began_s = world.clock.now_s()
    world.until_settled(GROUP, step)
    assert world.clock.now_s() - began_s >= 240 and not set(before) & set(world.ids())


@pytest.mark.parametrize(("percent", "fails"), [(100, True), (50, False)])
def test_missing_signals_fail_a_rolling_update(world: FleetWorld, percent: int, fails: bool) -> None:
    launch(world, "one")
    launch(world, "two", UserData=CLUSTER_DATA)  # its cluster does not exist
    group_of(world, "g", 2)
    before, new = world.ids(), sizes(2, LaunchConfigurationName="two")
    world.update(GROUP, "g", sizes(2, LaunchConfigurationName="one"), new)
    policy = {"WaitOnResourceSignals": True, "PauseTime": "PT1M", "MinSuccessfulInstancesPercent": percent}
    step = world.step("g", "UPDATE", update_policy={"AutoScalingRollingUpdate": policy}, properties=new)
    for _ in range(4):
        world.settled(GROUP, step)
    fresh = [each for each in world.ids() if each not in before]
    assert len(fresh) == 1, "the next batch begins after the signal of the first"
    if not fails:
        world.wait(61)
        world.settled(GROUP, step)
        world.settled(GROUP, step)
        (second,) = (each for each in world.ids() if each not in {*before, *fresh})
        step.received = {second: "SUCCESS"}
        world.until_settled(GROUP, step)
        return
    world.wait(61)
    with pytest.raises(ApiError, match=r"Received 0 SUCCESS signal\(s\) out of 2. Unable to satisfy 100%"):
        world.settled(GROUP, step)
    old = sizes(2, LaunchConfigurationName="one")
    world.update(GROUP, "g", new, old)  # the rollback
    world.until_settled(GROUP, world.step("g", "UPDATE", update_policy=step.update_policy, properties=old, is_rollback=True))
    assert {each["LaunchConfigurationName"] for each in world.shown()["Instances"]} == {"one"}
    assert "_rolling" not in world.store.groups.get(REGION, "g").settings  # type: ignore[union-attr]


def test_unchanged_sizes_can_be_ignored(world: FleetWorld) -> None:
    launch(world, "one")
    group_of(world, "g", 1)
    world.desire(3)
    old = sizes(1, LaunchConfigurationName="one")
    policy = {"AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": "true"}}
    world.update(GROUP, "g", old, {**old, "Cooldown": "10", "MaxSize": "5", "_update_policy": policy})
    shown = world.shown()
    assert (shown["DesiredCapacity"], shown["MaxSize"], shown["DefaultCooldown"]) == (3, 5, 10)
    world.update(GROUP, "g", old, old)
    assert world.shown()["DesiredCapacity"] == 1


# Groups and launches


def test_an_update_detaches_target_groups_that_a_user_has_not_detached_already(world: FleetWorld) -> None:
    launch(world, "one")
    old = {"AutoScalingGroupName": "g", "LaunchConfigurationName": "one", **sizes(0, TargetGroupARNs=["arn:a", "arn:b", "arn:c"])}
    group = world.create(GROUP, **old)
    world.call("DetachLoadBalancerTargetGroups", AutoScalingGroupName="g", TargetGroupARNs=["arn:a"])
    world.update(GROUP, group, old, {**old, "TargetGroupARNs": ["arn:c"]})
    assert world.shown()["TargetGroupARNs"] == ["arn:c"]


def test_a_deleted_group_ends_its_instances_first(world: FleetWorld) -> None:
    launch(world, "one")
    group_of(world, "g", 2, NewInstancesProtectedFromScaleIn=True)
    world.call("SuspendProcesses", AutoScalingGroupName="g", ScalingProcesses=["Terminate"])
    world.run(lambda tx: type_named(GROUP).delete(tx, CALLER, "g", {}))
    world.settle()
    assert world.gone(GROUP, world.step("g", "DELETE")) is None and world.running() == 0 and world.shown() is None
    world.delete(GROUP, "g")
    world.delete(CONFIGURATION, "one")
    world.delete(CONFIGURATION, "one")


def test_instances_have_the_tags_of_the_stack_and_read_its_metadata(world: FleetWorld) -> None:
    init = {"AWS::CloudFormation::Init": {"config": {"files": {"/etc/ecs/ecs.config": {"content": "ECS_CLUSTER=from-init\n"}}}}}
    data = b64encode(b"#!/bin/bash\n/opt/aws/bin/cfn-init -s s -r It\n").decode()
    launch(world, "one", UserData=data, _metadata=init)
    template = world.create(
        TEMPLATE,
        LaunchTemplateName="tpl",
        LaunchTemplateData={"ImageId": "ami-1", "InstanceType": GPUS_1, "UserData": data},
        _metadata=init,
    )
    assert "_init" not in str(world.call("DescribeLaunchTemplateVersions", "ec2", LaunchTemplateId=template))
    group_of(world, "a", 1)
    version = {"LaunchTemplateId": template, "Version": world.attributes(TEMPLATE, template)["LatestVersionNumber"]}
    world.create(GROUP, AutoScalingGroupName="b", LaunchTemplate=version, **sizes(1))
    alone = world.create(INSTANCE, ImageId="ami-1", InstanceType=GPUS_1, UserData=data, _metadata=init)
    for instance_id in (*world.ids("a"), *world.ids("b"), alone):
        instance = world.store.instances.by_ec2_id(instance_id)
        assert instance is not None and instance.joins == "from-init"
        tags = {tag["Key"]: tag["Value"] for tag in instance.details["Tags"]}
        assert tags.items() >= TAGS.items()
    world.update(TEMPLATE, template, {}, {"LaunchTemplateData": {"ImageId": "ami-2"}, "_metadata": init})
    found = world.attributes(TEMPLATE, template)
    assert (found["LatestVersionNumber"], found["DefaultVersionNumber"]) == ("2", "1")


def test_a_new_type_of_an_instance_stops_and_starts_it(world: FleetWorld) -> None:
    old = {"ImageId": "ami-1", "InstanceType": GPUS_1, "Monitoring": "false"}
    new = {**old, "InstanceType": GPUS_4, "UserData": CLUSTER_DATA, "Monitoring": True, "DisableApiTermination": "true"}
    identity = world.create(INSTANCE, **old)
    world.update(INSTANCE, identity, old, new)
    step = world.step(identity, "UPDATE", properties=new, old_properties=old)
    world.until_settled(INSTANCE, step)
    instance = world.store.instances.by_ec2_id(identity)
    assert instance is not None
    assert (instance.type, instance.gpus, instance.joins, instance.state.value) == (GPUS_4, 4, "c", "running")
    with pytest.raises(ApiError, match="may not be terminated"):
        world.delete(INSTANCE, identity)
    world.update(INSTANCE, identity, new, old)
    world.until_settled(INSTANCE, world.step(identity, "UPDATE", properties=old, old_properties=new))
    world.delete(INSTANCE, identity)
    assert world.gone(INSTANCE, world.step(identity, "DELETE")) is None and world.running() == 0


# ECS


def test_a_task_definition_keeps_the_keys_of_maps(world: FleetWorld) -> None:
    container = {
        "Name": "a",
        "Image": "busybox",
        "Memory": "128",
        "Privileged": "true",
        "DockerLabels": {"MyLabel": 1},
        "Environment": [{"Name": "Threads", "Value": 4}],
        "LogConfiguration": {"LogDriver": "awslogs", "Options": {"awslogs-group": "g", "Mode": "non-blocking"}},
    }
    efs = {"FilesystemId": "fs-12345678", "AuthorizationConfig": {"IAM": "DISABLED"}}
    volumes = [{"Name": "v", "EFSVolumeConfiguration": efs}]
    identity = world.create(DEFINITION, Family="f", ContainerDefinitions=[container], Volumes=volumes, Cpu=256)
    found = world.call("DescribeTaskDefinition", "ecs", taskDefinition=identity, include=["TAGS"])
    made = found["taskDefinition"]["containerDefinitions"][0]
    assert made["dockerLabels"] == {"MyLabel": "1"} and made["environment"] == [{"name": "Threads", "value": "4"}]
    assert made["logConfiguration"]["options"] == {"awslogs-group": "g", "Mode": "non-blocking"}
    assert (made["memory"], made["privileged"], found["taskDefinition"]["cpu"]) == (128, True, "256")
    assert found["taskDefinition"]["volumes"][0]["efsVolumeConfiguration"]["fileSystemId"] == "fs-12345678"
    assert {"key": "aws:cloudformation:stack-name", "value": "s"} in found["tags"]
    assert identity.endswith(":task-definition/f:1")
    world.delete(DEFINITION, identity)
    assert world.call("DescribeTaskDefinition", "ecs", taskDefinition=identity)["taskDefinition"]["status"] == "INACTIVE"
    world.delete(DEFINITION, identity.replace("/f:1", "/f:2"))  # a revision that no longer exists


def test_a_service_is_settled_when_it_is_steady_and_gone_when_its_tasks_have_ended(world: FleetWorld) -> None:
    world.create(CLUSTER, ClusterName="c")
    container = {"Name": "a", "Image": "busybox", "Memory": 128}
    definition = world.create(DEFINITION, Family="f", ContainerDefinitions=[container])
    properties = {"ServiceName": "web", "Cluster": "c", "TaskDefinition": definition}
    service = world.create(SERVICE, **properties)
    assert world.attributes(SERVICE, service) == {"Name": "web", "ServiceArn": service}
    step = world.step(service)
    waits = world.settled(SERVICE, step)
    assert waits is not None and waits.keys == (f"service:{REGION}/c/web",) and "unable to place a task" in waits.reason
    world.clock.advance(3 * 3600 + 1)
    with pytest.raises(ApiError, match="did not become stable within 3 hours"):
        world.settled(SERVICE, step)
    world.update(SERVICE, service, properties, {**properties, "DesiredCount": "0", "Tags": [{"Key": "a", "Value": "b"}]})
    assert world.settled(SERVICE, world.step(service, "UPDATE")) is None
    with pytest.raises(ApiError) as refused:
        world.delete(CLUSTER, "c")
    assert refused.value.code == "ClusterContainsServicesException"
    world.delete(SERVICE, service)
    assert world.gone(SERVICE, world.step(service, "DELETE")) is None
    world.delete(CLUSTER, "c")
    world.delete(CLUSTER, "c")


def test_the_deployments_of_a_service(world: FleetWorld) -> None:
    container = {"Name": "a", "Image": "corral/host", "Memory": 6, "Command": ["true"]}
    breaker = {"DeploymentCircuitBreaker": {"Enable": "true", "Rollback": "false"}}
    first, second, third = (world.create(DEFINITION, Family="f", ContainerDefinitions=[container]) for _ in range(3))
    old = {"ServiceName": "web", "TaskDefinition": first, "DesiredCount": 2, "DeploymentConfiguration": breaker}
    service = world.create(SERVICE, **old)
    step = world.step(service)
    waits = world.settled(SERVICE, step)
    assert waits is not None and "not all 2 tasks of the deployment run yet" in waits.reason
    report_tasks(world)
    world.wait(10)
    assert world.settled(SERVICE, step) is None
    new = {**old, "TaskDefinition": second}
    world.update(SERVICE, service, old, new)
    for _ in range(4):
        waits = world.settled(SERVICE, world.step(service, "UPDATE"))
        report_tasks(world)
        world.wait(10)
    assert waits is None
    world.update(SERVICE, service, new, {**new, "TaskDefinition": third})
    for _ in range(2):
        assert world.settled(SERVICE, step) is not None
        report_tasks(world, exit_code=1)
    with pytest.raises(ApiError, match="ECS Deployment Circuit Breaker was triggered"):
        world.settled(SERVICE, world.step(service, "UPDATE"))
    world.delete(SERVICE, service)
    waits = world.gone(SERVICE, world.step(service, "DELETE"))
    assert waits is not None and "its tasks are stopping" in waits.reason
    report_tasks(world)
    assert world.gone(SERVICE, world.step(service, "DELETE")) is None


def test_a_deployment_that_is_rolled_back_fails_its_step(world: FleetWorld) -> None:
    container = {"Name": "a", "Image": "corral/host", "Memory": 6, "Command": ["true"]}
    breaker = {"DeploymentCircuitBreaker": {"Enable": "true", "Rollback": "true"}}
    first, second = (world.create(DEFINITION, Family="f", ContainerDefinitions=[container]) for _ in range(2))
    old = {"ServiceName": "web", "TaskDefinition": first, "DesiredCount": 2, "DeploymentConfiguration": breaker}
    service = world.create(SERVICE, **old)
    report_tasks(world)
    world.wait(10)
    new = {**old, "TaskDefinition": second}
    step = world.step(service, "UPDATE")
    world.update(SERVICE, service, old, new)
    while world.call("DescribeServices", "ecs", services=["web"])["services"][0]["taskDefinition"] == second:
        assert world.settled(SERVICE, step) is not None
        report_tasks(world, exit_code=1)
        world.wait(1)
    with pytest.raises(ApiError, match="ECS Deployment Circuit Breaker was triggered"):
        world.settled(SERVICE, step)
    world.wait(60)
    report_tasks(world)
    rolled_back = world.step(service, "UPDATE")
    world.update(SERVICE, service, new, old)
    world.wait(120)
    assert world.settled(SERVICE, rolled_back) is None


def test_a_cluster_with_container_instances_refuses_its_deletion(world: FleetWorld) -> None:
    world.create(CLUSTER, ClusterName="c")
    instance = world.create(INSTANCE, ImageId="ami-1", InstanceType=GPUS_1, UserData=CLUSTER_DATA)
    with pytest.raises(ApiError) as refused:
        world.delete(CLUSTER, "c")
    assert refused.value.code == "ClusterContainsContainerInstancesException"
    with pytest.raises(ApiError, match="already exists"):
        world.create(CLUSTER, ClusterName="c")
    world.delete(INSTANCE, instance)
    world.delete(CLUSTER, "c")
