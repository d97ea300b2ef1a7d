"""Container instances: lists with filters, attributes, draining, and operations that only agents of ECS call."""

from __future__ import annotations

import os

import pytest

from corral.model.instance import ARCHITECTURE, ARCHITECTURES
from harness import container, wait_stopped


@pytest.fixture
def ecs(client):
    return client("ecs")


@pytest.fixture
def instance(ecs):
    [arn] = ecs.list_container_instances()["containerInstanceArns"]
    return arn


def described(ecs, instance, **more):
    [found] = ecs.describe_container_instances(containerInstances=[instance], **more)["containerInstances"]
    return found


def test_lists_with_a_filter_and_a_status(ecs, aws, instance):
    for given, found in (
        ({"filter": "attribute:ecs.os-type == linux"}, True),
        ({"filter": "attribute:ecs.os-type == windows"}, False),
        ({"filter": "attribute:corral.gpus-simulated == true and agentConnected == true"}, True),
        ({"filter": "attribute:ecs.availability-zone in [us-east-1a, us-east-1b]"}, True),
        ({"filter": "runningTasksCount == 0"}, True),
        ({"filter": "runningTasksCount > 0"}, False),
        ({"filter": "task:group == family:none"}, False),
        ({"filter": "registeredAt > 2020-01-01"}, True),
        ({"filter": "agentVersion >= 0.1.0"}, True),
        ({"status": "ACTIVE"}, True),
        ({"status": "DRAINING"}, False),
        ({"status": "REGISTERING"}, False),
    ):
        assert ecs.list_container_instances(**given)["containerInstanceArns"] == [instance] * found, given
    listed = aws("ecs", "list-container-instances", "--filter", "attribute:ecs.instance-type =~ corral.*")
    assert listed["containerInstanceArns"] == [instance]
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="at character 1"):
        ecs.list_container_instances(filter="nothing")
    pages = ecs.get_paginator("list_container_instances").paginate(PaginationConfig={"PageSize": 1})
    assert pages.build_full_result()["containerInstanceArns"] == [instance]


def test_describe(ecs, instance):
    plain = described(ecs, instance)
    assert plain["tags"] == [] and "healthStatus" not in plain
    assert plain["ec2InstanceId"].startswith("i-") and plain["capacityProviderName"] == "host"
    assert {"name": ARCHITECTURE, "value": ARCHITECTURES[os.uname().machine]} in plain["attributes"]
    shown = described(ecs, instance, include=["TAGS", "CONTAINER_INSTANCE_HEALTH"])
    assert shown["healthStatus"]["overallStatus"] == "OK"
    assert [check["type"] for check in shown["healthStatus"]["details"]] == ["AGENT_CONNECTIVITY", "ACCELERATED_COMPUTE"]
    answer = ecs.describe_container_instances(containerInstances=["f" * 32])
    assert [failure["reason"] for failure in answer["failures"]] == ["MISSING"]
    for instances in ([], [instance] * 101):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="from 1 to 100"):
            ecs.describe_container_instances(containerInstances=instances)


def test_attributes(ecs, client, aws, instance):
    short = instance.rpartition("/")[2]
    given = [{"name": "stack", "value": "prod", "targetId": instance}, {"name": "bare", "targetId": instance}]
    assert ecs.put_attributes(attributes=given)["attributes"] == given
    shown = {attribute["name"]: attribute.get("value") for attribute in described(ecs, instance)["attributes"]}
    assert shown["stack"] == "prod" and shown["bare"] is None and shown["ecs.os-type"] == "linux"
    assert ecs.list_container_instances(filter="attribute:bare exists")["containerInstanceArns"] == [instance]

    found = ecs.list_attributes(targetType="container-instance", attributeName="stack")["attributes"]
    assert found == [{"name": "stack", "value": "prod", "targetId": instance}]
    assert ecs.list_attributes(targetType="container-instance", attributeName="stack", attributeValue="x")["attributes"] == []
    pages = ecs.get_paginator("list_attributes").paginate(targetType="container-instance", PaginationConfig={"PageSize": 2})
    names = [attribute["name"] for attribute in pages.build_full_result()["attributes"]]
    assert {"stack", "bare", "ecs.instance-type", "ecs.availability-zone"} <= set(names) and len(set(names)) == len(names)

    # A host belongs to no region: its attributes are the same in all regions, except its availability zone.
    west = client("ecs", "us-west-2")
    [there] = west.list_container_instances(filter="attribute:stack == prod")["containerInstanceArns"]
    assert there.rpartition("/")[2] == short
    [zone] = west.list_attributes(targetType="container-instance", attributeName="ecs.availability-zone")["attributes"]
    assert zone["value"] == "us-west-2a"

    aws("ecs", "put-attributes", "--attributes", f"name=stack,value=test,targetId={short},targetType=container-instance")
    [changed] = ecs.list_attributes(targetType="container-instance", attributeName="stack")["attributes"]
    assert changed["value"] == "test"
    gone = [{"name": name, "targetId": short, "targetType": "container-instance"} for name in ("stack", "bare")]
    assert ecs.delete_attributes(attributes=gone)["attributes"] == gone
    assert ecs.list_attributes(targetType="container-instance", attributeName="stack")["attributes"] == []


def test_attributes_have_limits(ecs, instance):
    def put(*attributes, **more):
        ecs.put_attributes(attributes=[{"targetId": instance, **attribute} for attribute in attributes], **more)

    wrong = ecs.exceptions.InvalidParameterException
    for attribute, words in (
        ({"name": "x" * 129}, "Invalid attribute name"),
        ({"name": "a b"}, "Invalid attribute name"),
        ({"name": "ok", "value": "x" * 129}, "Invalid value"),
        ({"name": "ok", "value": " x"}, "Invalid value"),
        ({"name": "ok", "value": "a,b"}, "Invalid value"),
        ({"name": "ecs.os-type", "value": "x"}, "built in"),
        ({"name": "corral.host-name", "value": "x"}, "built in"),
        ({"name": "ok", "targetId": "0" * 32}, "target type"),
    ):
        with pytest.raises(wrong, match=words):
            put(attribute)
    with pytest.raises(wrong, match="from 1 to 10"):
        put(*({"name": f"n{at}"} for at in range(11)))
    with pytest.raises(wrong, match="targetId"):
        ecs.put_attributes(attributes=[{"name": "ok"}])
    with pytest.raises(wrong, match="attributeValue needs attributeName"):
        ecs.list_attributes(targetType="container-instance", attributeValue="x")
    with pytest.raises(ecs.exceptions.TargetNotFoundException):
        put({"name": "ok", "targetId": instance[:-4] + "0000"})
    with pytest.raises(ecs.exceptions.AttributeLimitExceededException, match="up to 10"):
        put(*({"name": f"n{at}"} for at in range(10)))
        put({"name": "eleventh"})
    names = [f"n{at}" for at in range(10)]
    put({"name": "corral.hold.GPU-0", "value": "a demo, at noon"})  # a hold does not count as an attribute
    ecs.delete_attributes(attributes=[{"name": name, "targetId": instance} for name in names])
    ecs.delete_attributes(attributes=[{"name": "corral.hold.GPU-0", "targetId": instance}])
    assert not ecs.list_attributes(targetType="container-instance", attributeName="eleventh")["attributes"]


def test_draining(ecs, aws, instance, tmp_path):
    until = ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"]
    ecs.register_task_definition(family="drains", containerDefinitions=[container(until, 1)])
    [running] = ecs.run_task(taskDefinition="drains")["tasks"]
    answer = ecs.update_container_instances_state(containerInstances=[instance, "0" * 32], status="DRAINING")
    assert [shown["status"] for shown in answer["containerInstances"]] == ["DRAINING"]
    assert [failure["reason"] for failure in answer["failures"]] == ["MISSING"]
    assert ecs.list_container_instances(status="DRAINING")["containerInstanceArns"] == [instance]
    assert ecs.run_task(taskDefinition="drains", launchType="EC2")["failures"][0]["reason"] == "DRAINING"
    [waiting] = ecs.run_task(taskDefinition="drains")["tasks"]
    assert "every host is draining" in waiting["containers"][0]["reason"]
    assert ecs.describe_tasks(tasks=[running["taskArn"]])["tasks"][0]["desiredStatus"] == "RUNNING"  # a running task stays
    aws("ecs", "update-container-instances-state", "--container-instances", instance, "--status", "ACTIVE")
    [placed] = ecs.describe_tasks(tasks=[waiting["taskArn"]])["tasks"]
    assert placed["lastStatus"] in ("PENDING", "RUNNING")
    (tmp_path / "go").touch()
    wait_stopped(ecs, [running["taskArn"], waiting["taskArn"]])
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="ACTIVE, DRAINING"):
        ecs.update_container_instances_state(containerInstances=[instance], status="DEREGISTERING")


def test_draining_survives_a_restart(own_corral):
    running = own_corral().start()
    ecs = running.client("ecs")
    [instance] = ecs.list_container_instances()["containerInstanceArns"]
    ecs.put_attributes(attributes=[{"name": "stack", "value": "prod", "targetId": instance}])
    ecs.update_container_instances_state(containerInstances=[instance], status="DRAINING")
    running.kill("corral.server", "corral.node")
    running.start()
    ecs = running.client("ecs")
    assert ecs.list_container_instances(status="DRAINING", filter="attribute:stack == prod")["containerInstanceArns"] == [instance]


@pytest.mark.parametrize(
    ("operation", "given", "words"),
    [
        ("register_container_instance", {}, "corral up"),
        ("update_container_agent", {"containerInstance": "x"}, "newer Corral"),
        ("discover_poll_endpoint", {}, "corral up"),
        ("submit_task_state_change", {}, "agents"),
        ("submit_container_state_change", {}, "agents"),
        ("submit_attachment_state_changes", {"attachments": []}, "agents"),
    ],
)
def test_operations_of_agents_are_refused(ecs, operation, given, words):
    with pytest.raises(ecs.exceptions.ClientException, match=words):
        getattr(ecs, operation)(**given)
