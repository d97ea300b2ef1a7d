"""Task definitions: registration, error texts, listings and deletion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import container, eventually

FARGATE = {"requiresCompatibilities": ["FARGATE"], "networkMode": "awsvpc", "cpu": "256", "memory": "512"}


def plain(name: str = "main", **more: Any) -> dict[str, Any]:
    return container(["true"], **{"name": name, **more})


def register(ecs: Any, family: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = ecs.register_task_definition(family=family, containerDefinitions=list(containers) or [plain()], **more)
    return reply["taskDefinition"]


def test_every_setting_is_returned(client):
    ecs = client("ecs")
    said = {
        "taskRoleArn": "arn:aws:iam::123456789012:role/task",
        "executionRoleArn": "arn:aws:iam::123456789012:role/execution",
        "networkMode": "bridge",
        "volumes": [{"name": "data", "host": {"sourcePath": "/data"}}],
        "placementConstraints": [{"type": "memberOf", "expression": "attribute:ecs.os-type == linux"}],
        "requiresCompatibilities": ["EC2"],
        "cpu": "1 vCPU",
        "memory": "2 GB",
        "pidMode": "task",
        "ipcMode": "none",
        "inferenceAccelerators": [{"deviceName": "inf", "deviceType": "eia1.medium"}],
        "runtimePlatform": {"cpuArchitecture": "X86_64", "operatingSystemFamily": "LINUX"},
        "ephemeralStorage": {"sizeInGiB": 30},
        "enableFaultInjection": False,
    }
    full = plain(
        links=["other:alias"],
        portMappings=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081, "protocol": "udp"}],
        mountPoints=[{"sourceVolume": "data", "containerPath": "/in", "readOnly": True}],
        ulimits=[{"name": "nofile", "softLimit": 10, "hardLimit": 20}],
        healthCheck={"command": ["CMD-SHELL", "true"], "startPeriod": 10},
        dependsOn=[{"containerName": "other", "condition": "START"}],
        startTimeout=10,
        stopTimeout=10,
        linuxParameters={"initProcessEnabled": True, "capabilities": {"add": ["SYS_PTRACE"]}},
        dockerLabels={"a": "b"},
        secrets=[{"name": "S", "valueFrom": "arn:aws:ssm:us-east-1:123456789012:parameter/s"}],
        resourceRequirements=[{"type": "InferenceAccelerator", "value": "inf"}],
        systemControls=[{"namespace": "net.core.somaxconn", "value": "10"}],
    )
    register(ecs, "full", full, plain("other"), **said)
    shown = ecs.describe_task_definition(taskDefinition="full")["taskDefinition"]
    assert {key: shown[key] for key in said} == {**said, "cpu": "1024", "memory": "2048"}
    first = shown["containerDefinitions"][0]
    assert {key: first[key] for key in full if key not in ("portMappings", "healthCheck")} == {
        key: value for key, value in full.items() if key not in ("portMappings", "healthCheck")
    }
    assert first["portMappings"] == [
        {"containerPort": 80, "hostPort": 0, "protocol": "tcp"},
        {"containerPort": 81, "hostPort": 8081, "protocol": "udp"},
    ]
    assert first["healthCheck"] == {"command": ["CMD-SHELL", "true"], "interval": 30, "timeout": 5, "retries": 3, "startPeriod": 10}
    assert shown["compatibilities"] == ["EXTERNAL", "EC2"]


def test_compatibilities_list_the_launch_types_that_can_run_it(client):
    ecs = client("ecs")
    assert register(ecs, "compat", **FARGATE)["compatibilities"] == ["EC2", "FARGATE"]
    assert register(ecs, "compat", networkMode="awsvpc")["compatibilities"] == ["EC2"]
    assert register(ecs, "compat")["compatibilities"] == ["EXTERNAL", "EC2"]


@pytest.mark.parametrize("size", [("256", "512"), ("512", "4096"), ("1 vCPU", "2GB"), ("8192", "61440"), ("16384", "122880")])
def test_sizes_of_fargate(client, size):
    register(client("ecs"), "sizes", **{**FARGATE, "cpu": size[0], "memory": size[1]})


REFUSED: list[tuple[str, list[dict[str, Any]], dict[str, Any], str]] = [
    ("bad name!", [plain()], {}, "Family contains invalid characters"),
    ("f", [], {}, "Container list cannot be empty"),
    ("f", [plain(), plain()], {}, "Container names must be unique"),
    ("f", [plain(f"c{at}") for at in range(11)], {}, "at most 10 containers"),
    ("f", [plain("with space")], {}, "Container.name contains invalid characters"),
    ("f", [{"name": "main", "memory": 16}], {}, "Container.image should not be null or empty"),
    ("f", [plain(essential=False)], {}, "at least one essential container"),
    ("f", [{"name": "main", "image": "i"}], {}, "At least one of 'memory' or 'memoryReservation' must be specified"),
    ("f", [plain(memory=16, memoryReservation=32)], {}, "'memory' must not be less than 'memoryReservation'"),
    ("f", [plain(memory=5)], {}, "at least 6 MiB"),
    ("f", [plain(cpu=256)], {"cpu": "128"}, "The sum of all container 'cpu' values cannot be greater"),
    ("f", [plain(memory=600)], {"memory": "512"}, "The sum of all container 'memory' values cannot be greater"),
    ("f", [plain()], {"cpu": "64"}, "Invalid 'cpu' setting for task"),
    ("f", [plain()], {"networkMode": "vpc"}, "'networkMode' failed to satisfy constraint"),
    ("f", [plain()], {"requiresCompatibilities": ["LAMBDA"]}, "'requiresCompatibilities' failed to satisfy constraint"),
    (
        "f",
        [plain()],
        {"placementConstraints": [{"type": "distinctInstance"}]},
        "constraint.type 'distinctInstance' is not supported",
    ),
    ("f", [plain()], {"ephemeralStorage": {"sizeInGiB": 500}}, "between 21 and 200"),
    ("f", [plain()], {"volumes": [{"name": "a"}, {"name": "a"}]}, "Volume names must be unique"),
    ("f", [plain(mountPoints=[{"sourceVolume": "x", "containerPath": "/x"}])], {}, "Unknown volume 'x'."),
    ("f", [plain(volumesFrom=[{"sourceContainer": "x"}])], {}, "Unknown source container 'x'"),
    ("f", [plain(environment=[{"value": "x"}])], {}, "Environment variable names should not be null or empty"),
    ("f", [plain(hostname="h")], {"networkMode": "awsvpc"}, "hostname is not supported on container when networkMode=awsvpc"),
    ("f", [plain(portMappings=[{"hostPort": 80}])], {}, "Invalid 'containerPort' setting for container 'main'"),
    ("f", [plain(portMappings=[{"containerPort": 70000}])], {}, "Invalid 'containerPort' setting for container 'main'"),
    ("f", [plain(portMappings=[{"containerPort": 80}, {"containerPort": 80}])], {}, "Container port 80 is used in more than one"),
    (
        "f",
        [plain(portMappings=[{"containerPort": 80, "hostPort": 81}])],
        {"networkMode": "awsvpc"},
        "When networkMode=awsvpc, the host ports and container ports in port mappings must match.",
    ),
    ("f", [plain(portMappings=[{"containerPort": 80}])], {"networkMode": "none"}, "not supported when networkMode=none"),
    ("f", [plain(logConfiguration={"logDriver": "awslogs"})], {}, "Log driver awslogs requires options"),
    ("f", [plain(logConfiguration={"logDriver": "paper"})], {}, "1.member.logConfiguration.logDriver' failed"),
    ("f", [plain(healthCheck={"command": ["true"]})], {}, "The command must be NONE, or start with CMD or CMD-SHELL"),
    ("f", [plain(healthCheck={"command": ["CMD", "true"], "interval": 4})], {}, "Invalid 'healthCheck.interval' setting"),
    ("f", [plain(healthCheck={"command": ["CMD", "true"], "timeout": 61})], {}, "Invalid 'healthCheck.timeout' setting"),
    ("f", [plain(healthCheck={"command": ["CMD", "true"], "retries": 11})], {}, "Invalid 'healthCheck.retries' setting"),
    ("f", [plain(healthCheck={"command": ["CMD", "true"], "startPeriod": 301})], {}, "Invalid 'healthCheck.startPeriod' setting"),
    ("f", [plain(startTimeout=0)], {}, "Invalid 'startTimeout' setting"),
    ("f", [plain(stopTimeout=-1)], {}, "Invalid 'stopTimeout' setting"),
    ("f", [plain(restartPolicy={"enabled": True, "restartAttemptPeriod": 59})], {}, "'restartPolicy.restartAttemptPeriod'"),
    ("f", [plain(ulimits=[{"name": "files", "softLimit": 1, "hardLimit": 1}])], {}, "1.member.ulimits.1.member.name' failed"),
    ("f", [plain(ulimits=[{"name": "nofile", "softLimit": 2, "hardLimit": 1}])], {}, "above its hardLimit"),
    ("f", [plain(resourceRequirements=[{"type": "GPU", "value": "half"}])], {}, "Invalid GPU value"),
    ("f", [plain(resourceRequirements=[{"type": "InferenceAccelerator", "value": "x"}])], {}, "Unknown inference accelerator 'x'"),
    ("f", [container(["x" * 66_000])], {}, "Max allowed length is '65536' bytes"),
    ("f", [plain()], {"tags": [{"key": "aws:x", "value": ""}]}, "reserved"),
    ("f", [plain()], {"tags": [{"key": "a"}, {"key": "a"}]}, "Tag keys must be unique"),
    ("f", [plain()], {"tags": [{"key": f"k{at}"} for at in range(51)]}, "more than 50"),
]


def depending(condition: str, *, essential: bool = False, **other: Any) -> list[dict[str, Any]]:
    needs = [{"containerName": "other", "condition": condition}]
    return [plain(dependsOn=needs), plain("other", essential=essential, **other)]


REFUSED += [
    ("f", depending("READY"), {}, ".member.dependsOn.1.member.condition' failed to satisfy constraint"),
    ("f", depending("START")[:1], {}, "Cannot depend on container + 'other' because it does not exist"),
    ("f", depending("SUCCESS", essential=True), {}, "SUCCESS or COMPLETE condition cannot be an essential container"),
    ("f", depending("COMPLETE", essential=True), {}, "SUCCESS or COMPLETE condition cannot be an essential container"),
    ("f", depending("HEALTHY"), {}, "has no health check"),
    ("f", depending("HEALTHY", healthCheck={"command": ["NONE"]}), {}, "has no health check"),
    (
        "f",
        depending("START", dependsOn=[{"containerName": "main", "condition": "START"}]),
        {},
        "must not form a cycle: main, other",
    ),
    ("f", [plain(dependsOn=[{"containerName": "main", "condition": "START"}])], {}, "must not form a cycle: main"),
]


def fargate(**more: Any) -> dict[str, Any]:
    return {key: value for key, value in {**FARGATE, **more}.items() if value is not None}


REFUSED += [
    ("f", [plain()], fargate(networkMode="bridge"), "Fargate only supports network mode ‘awsvpc’."),
    ("f", [plain()], fargate(cpu=None), "Fargate requires that 'cpu' be defined at the task level."),
    ("f", [plain()], fargate(memory=None), "Fargate requires that 'memory' be defined at the task level."),
    (
        "f",
        [plain()],
        fargate(memory="8192"),
        "No Fargate configuration exists for given values: 256 CPU, 8192 memory. See the Amazon ECS documentation for the valid",
    ),
    ("f", [plain(privileged=True)], FARGATE, "Fargate compatible task definitions do not support privileged"),
    ("f", [container(["true"], gpus=1)], FARGATE, "do not support resourceRequirements of type GPU"),
    ("f", [plain(stopTimeout=121)], FARGATE, "stopTimeout above 120 seconds"),
    ("f", [plain(logConfiguration={"logDriver": "syslog"})], FARGATE, "do not support the log driver syslog"),
    (
        "f",
        [plain()],
        fargate(placementConstraints=[{"type": "memberOf", "expression": "attribute:rack == 1"}]),
        "do not support placement constraints",
    ),
    ("f", [plain()], fargate(volumes=[{"name": "v", "host": {"sourcePath": "/v"}}]), "do not support host.sourcePath"),
]


@pytest.mark.parametrize(("family", "containers", "more", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_refusals(client, family, containers, more, words):
    ecs = client("ecs")
    with pytest.raises((ecs.exceptions.ClientException, ecs.exceptions.InvalidParameterException)) as refused:
        ecs.register_task_definition(family=family, containerDefinitions=containers, **more)
    assert words in str(refused.value)


def test_a_chain_of_dependencies_is_accepted(client):
    healthy = {"healthCheck": {"command": ["CMD", "true"]}}
    first, last = plain("first", essential=False), plain("last", dependsOn=[{"containerName": "middle", "condition": "HEALTHY"}])
    middle = plain("middle", dependsOn=[{"containerName": "first", "condition": "SUCCESS"}], **healthy)
    assert register(client("ecs"), "chain", first, middle, last)["revision"] == 1


def test_listings_with_filters(client):
    ecs = client("ecs")
    for family in ("listed", "listed-too"):
        for _ in range(11):  # so that 10 comes after 9, not after 1
            register(ecs, family)
    ecs.deregister_task_definition(taskDefinition="listed:3")

    def revisions(**given: Any) -> list[int]:
        return [int(arn.rpartition(":")[2]) for arn in ecs.list_task_definitions(**given)["taskDefinitionArns"]]

    assert revisions(familyPrefix="listed") == [1, 2, *range(4, 12)]  # the whole name of a family, as on ECS
    assert revisions(familyPrefix="listed", sort="DESC") == [*range(11, 3, -1), 2, 1]
    assert revisions(familyPrefix="listed", status="INACTIVE") == [3]
    assert revisions(familyPrefix="list") == []
    paginator = ecs.get_paginator("list_task_definitions")
    for way in ("ASC", "DESC"):
        paged = paginator.paginate(sort=way, PaginationConfig={"PageSize": 4}).build_full_result()
        assert paged["taskDefinitionArns"] == ecs.list_task_definitions(sort=way)["taskDefinitionArns"]
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.list_task_definitions(nextToken="bm9uc2Vuc2U=")


def test_families_with_filters(client):
    ecs = client("ecs")
    for family in ("fam-active", "fam-inactive", "fam-mixed", "fam-mixed"):
        register(ecs, family)
    ecs.deregister_task_definition(taskDefinition="fam-inactive:1")
    ecs.deregister_task_definition(taskDefinition="fam-mixed:1")
    listed = {
        status: ecs.list_task_definition_families(familyPrefix="fam-", status=status)["families"]
        for status in ("ACTIVE", "INACTIVE", "ALL")
    }
    assert listed == {
        "ACTIVE": ["fam-active", "fam-mixed"],
        "INACTIVE": ["fam-inactive"],
        "ALL": ["fam-active", "fam-inactive", "fam-mixed"],
    }


def test_deletion_and_numbers_that_are_never_used_again(client):
    ecs = client("ecs")
    for _ in range(2):
        register(ecs, "doomed")
    ecs.deregister_task_definition(taskDefinition="doomed:2")
    reply = ecs.delete_task_definitions(taskDefinitions=["doomed:1", "doomed:2", "doomed:9"])
    [deleted] = reply["taskDefinitions"]
    assert (deleted["revision"], deleted["status"]) == (2, "DELETE_IN_PROGRESS") and deleted["deleteRequestedAt"]
    assert [failure["reason"].partition(".")[0] for failure in reply["failures"]] == [
        "The specified task definition is still in ACTIVE status",
        "The specified task definition does not exist",
    ]
    in_deletion = ecs.list_task_definitions(familyPrefix="doomed", status="DELETE_IN_PROGRESS")["taskDefinitionArns"]
    assert in_deletion == [deleted["taskDefinitionArn"]]
    with pytest.raises(ecs.exceptions.ClientException, match="inactive"):
        ecs.run_task(taskDefinition="doomed:2")
    assert ecs.deregister_task_definition(taskDefinition="doomed:2")["taskDefinition"]["status"] == "DELETE_IN_PROGRESS"

    def gone() -> bool:
        return not ecs.list_task_definitions(familyPrefix="doomed", status="DELETE_IN_PROGRESS")["taskDefinitionArns"]

    eventually(gone, "the revision is gone")
    with pytest.raises(ecs.exceptions.ClientException, match="Unable to describe task definition"):
        ecs.describe_task_definition(taskDefinition="doomed:2")
    assert register(ecs, "doomed")["revision"] == 3
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.delete_task_definitions(taskDefinitions=[f"doomed:{at}" for at in range(1, 12)])


def test_a_family_without_revisions_is_not_listed(client):
    ecs = client("ecs")
    register(ecs, "lonely")
    ecs.deregister_task_definition(taskDefinition="lonely:1")
    ecs.delete_task_definitions(taskDefinitions=["lonely:1"])
    assert ecs.list_task_definition_families(familyPrefix="lonely")["families"] == ["lonely"]
    eventually(lambda: not ecs.list_task_definition_families(familyPrefix="lonely")["families"], "the family is gone")


def test_tags_are_returned_on_request(client):
    ecs = client("ecs")
    register(ecs, "tagged", tags=[{"key": "team", "value": "vision"}])
    assert ecs.describe_task_definition(taskDefinition="tagged")["tags"] == []
    assert ecs.describe_task_definition(taskDefinition="tagged", include=["TAGS"])["tags"] == [{"key": "team", "value": "vision"}]


def test_with_the_aws_command(aws, tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"family": "cli", "containerDefinitions": [plain()], "tags": [{"key": "a", "value": "b"}]}))
    registered = aws("ecs", "register-task-definition", "--cli-input-json", f"file://{file}")
    arn = registered["taskDefinition"]["taskDefinitionArn"]
    assert registered["tags"] == [{"key": "a", "value": "b"}]
    listed = aws("ecs", "list-task-definitions", "--family-prefix", "cli", "--sort", "DESC", "--max-items", "1")
    assert listed["taskDefinitionArns"] == [arn]
    aws("ecs", "deregister-task-definition", "--task-definition", "cli:1")
    deleted = aws("ecs", "delete-task-definitions", "--task-definitions", "cli:1")
    assert deleted["taskDefinitions"][0]["status"] == "DELETE_IN_PROGRESS"
