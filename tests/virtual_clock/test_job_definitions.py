"""Job definitions of AWS Batch, and the ECS task definitions that they register."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.services.batch import job_definitions
from virtual_clock.group_world import CALLER, REGION
from virtual_clock.job_world import JobWorld

SIZE = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]


@pytest.fixture
def world() -> JobWorld:
    return JobWorld()


def container(**more: Any) -> dict[str, Any]:
    return {"image": "busybox", "command": ["true"], "resourceRequirements": SIZE, **more}


def register(world: JobWorld, name: str = "d", **more: Any) -> dict[str, Any]:
    given = more if more.keys() & {"ecsProperties", "nodeProperties"} else {"containerProperties": container(), **more}
    made: dict[str, Any] = world.batch_call(
        job_definitions.register_job_definition, **{"jobDefinitionName": name, "type": "container", **given}
    )
    return made


def describe(world: JobWorld, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.batch_call(job_definitions.describe_job_definitions, **params)["jobDefinitions"]
    return found


def task_document(world: JobWorld, family: str, revision: int = 1) -> dict[str, Any]:
    return world.store.definitions.document(REGION, family, revision)


def refusal(world: JobWorld, **more: Any) -> str:
    with pytest.raises(ApiError) as error:
        register(world, **more)
    assert error.value.code == "ClientException"
    return error.value.message


def test_revisions_and_status(world: JobWorld) -> None:
    assert [register(world)["revision"] for _ in range(3)] == [1, 2, 3]
    assert register(world, "other")["jobDefinitionArn"] == f"arn:aws:batch:{REGION}:{CALLER.account}:job-definition/other:1"
    world.batch_call(job_definitions.deregister_job_definition, jobDefinition="d:2")
    assert [each["revision"] for each in describe(world, jobDefinitionName="d", status="ACTIVE")] == [3, 1]
    assert [each["revision"] for each in describe(world, jobDefinitionName="d", status="INACTIVE")] == [2]
    assert [each["revision"] for each in describe(world, jobDefinitions=["d:3", "d:9"])] == [3]
    assert {each["jobDefinitionName"] for each in describe(world)} == {"d", "other", "one"}
    page = world.batch_call(job_definitions.describe_job_definitions, jobDefinitionName="d", maxResults=2)
    rest = world.batch_call(job_definitions.describe_job_definitions, jobDefinitionName="d", nextToken=page["nextToken"])
    assert [each["revision"] for each in page["jobDefinitions"] + rest["jobDefinitions"]] == [3, 2, 1]
    assert "nextToken" not in rest


def test_definitions_are_described_as_given(world: JobWorld) -> None:
    """Terraform and other clients compare these members with their own. So nothing is added but what Batch itself adds."""
    lists = {member: [] for member in ("environment", "mountPoints", "volumes", "ulimits", "secrets")}
    own = {"containerOrchestrationType": "ECS", "parameters": {}, "tags": {}, "revision": 1, "status": "ACTIVE"}

    def shown(name: str, **given: Any) -> dict[str, Any]:
        made = register(world, name, **given)
        [found] = describe(world, jobDefinitions=[name])
        wanted = {"jobDefinitionName": name, "jobDefinitionArn": made["jobDefinitionArn"], **own}
        assert {member: found.pop(member) for member in wanted} == wanted
        assert found.pop("type") == given.get("type", "container")
        return found

    assert shown("least") == {"containerProperties": {**container(), **lists}}
    given = {
        "retryStrategy": {"attempts": 3},
        "timeout": {"attemptDurationSeconds": 60},
        "propagateTags": False,
        "platformCapabilities": ["EC2"],
        "schedulingPriority": 2,
    }
    linux = {"devices": [{"hostPath": "/dev/fuse"}], "tmpfs": [{"containerPath": "/t", "size": 8}]}
    variables = [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}, {"name": "NONE", "value": ""}]
    more = {"environment": variables, "linuxParameters": linux, "logConfiguration": {"logDriver": "awslogs"}}
    found = shown("most", containerProperties=container(**more), **given)
    assert found.pop("containerProperties") == {
        **container(),
        **lists,
        "environment": variables[:2],
        "linuxParameters": {
            "devices": [{"hostPath": "/dev/fuse", "permissions": []}],
            "tmpfs": [{"containerPath": "/t", "size": 8, "mountOptions": []}],
        },
        "logConfiguration": {"logDriver": "awslogs", "options": {}, "secretOptions": []},
    }
    assert found == given | {"retryStrategy": {"attempts": 3, "evaluateOnExit": []}}
    size = [{"type": "VCPU", "value": "0.25"}, {"type": "MEMORY", "value": "512"}]
    fargate = container(resourceRequirements=size, executionRoleArn="arn:aws:iam::123456789012:role/x")
    platform = {"fargatePlatformConfiguration": {"platformVersion": "LATEST"}}
    found = shown("fargate", containerProperties=fargate, platformCapabilities=["FARGATE"])
    assert found == {"containerProperties": {**fargate, **lists, **platform}, "platformCapabilities": ["FARGATE"]}
    log = {"logConfiguration": {"logDriver": "awslogs"}}
    task = {"containers": [container(name="a", **log), container(name="b", essential=False)]}
    found = shown("tasks", ecsProperties={"taskProperties": [task]})
    [task] = found["ecsProperties"]["taskProperties"]
    assert (task["volumes"], [each["essential"] for each in task["containers"]]) == ([], [True, False])
    assert task["containers"][0]["logConfiguration"] == {"logDriver": "awslogs", "secretOptions": []}
    assert set(task) == {"volumes", "containers"} and set(found) == {"ecsProperties"}


def test_the_task_definition_of_a_container(world: JobWorld) -> None:
    properties = container(
        command=["run", "Ref::input", "--out=Ref::out", "Ref::unknown"],
        resourceRequirements=[*SIZE, {"type": "GPU", "value": "2"}],
        jobRoleArn="arn:aws:iam::123456789012:role/job",
        environment=[{"name": "A", "value": "1"}],
        volumes=[{"name": "data", "host": {"sourcePath": "/data"}}],
        mountPoints=[{"sourceVolume": "data", "containerPath": "/data"}],
        ulimits=[{"name": "nofile", "softLimit": 10, "hardLimit": 20}],
        linuxParameters={"sharedMemorySize": 64},
        privileged=True,
        user="daemon",
    )
    register(world, containerProperties=properties, parameters={"input": "in.txt", "out": "x"})
    document = task_document(world, "batch-d")
    [made] = document["containerDefinitions"]
    assert made["name"] == "default" and made["command"] == ["run", "in.txt", "--out=x", "Ref::unknown"]
    assert made["cpu"] == 1024 and made["memory"] == 64
    assert made["resourceRequirements"] == [{"type": "GPU", "value": "2"}]
    assert document["taskRoleArn"] == "arn:aws:iam::123456789012:role/job"
    assert made["mountPoints"] == properties["mountPoints"] and made["ulimits"] == properties["ulimits"]
    assert made["logConfiguration"]["options"] == {
        "awslogs-group": "/aws/batch/job",
        "awslogs-region": REGION,
        "awslogs-stream-prefix": "d",
        "awslogs-create-group": "true",
    }
    [described] = describe(world, jobDefinitions=["d"])
    assert described["containerProperties"]["command"] == properties["command"]
    assert "_tasks" not in described


def test_older_sizes(world: JobWorld) -> None:
    register(world, containerProperties={"image": "busybox", "vcpus": 2, "memory": 4})
    [made] = task_document(world, "batch-d")["containerDefinitions"]
    assert (made["cpu"], made["memory"]) == (2048, 6)  # ECS needs 6 MiB


def test_several_containers(world: JobWorld) -> None:
    containers = [
        container(name="first", essential=False),
        container(name="main", dependsOn=[{"containerName": "first", "condition": "SUCCESS"}]),
    ]
    register(world, ecsProperties={"taskProperties": [{"containers": containers}]})
    first, main = task_document(world, "batch-d")["containerDefinitions"]
    assert not first["essential"] and main["dependsOn"] == containers[1]["dependsOn"]
    containers[0]["essential"] = True  # ECS's own rules apply
    text = refusal(world, ecsProperties={"taskProperties": [{"containers": containers}]})
    assert "SUCCESS or COMPLETE condition cannot be an essential container" in text


def test_fargate_with_a_fraction_of_a_vcpu(world: JobWorld) -> None:
    size = [{"type": "VCPU", "value": "0.25"}, {"type": "MEMORY", "value": "512"}]
    role = "arn:aws:iam::123456789012:role/x"
    properties = container(resourceRequirements=size, executionRoleArn=role, ephemeralStorage={"sizeInGiB": 30})
    register(world, containerProperties=properties, platformCapabilities=["FARGATE"])
    document = task_document(world, "batch-d")
    assert (document["cpu"], document["memory"], document["networkMode"]) == ("256", "512", "awsvpc")
    assert document["requiresCompatibilities"] == ["FARGATE"]
    assert "executionRoleArn is required" in refusal(
        world, containerProperties=container(resourceRequirements=size), platformCapabilities=["FARGATE"]
    )
    wrong = [{"type": "VCPU", "value": "0.25"}, {"type": "MEMORY", "value": "4096"}]
    given = container(resourceRequirements=wrong, executionRoleArn=role)
    assert "No Fargate configuration exists" in refusal(world, containerProperties=given, platformCapabilities=["FARGATE"])


def test_node_ranges(world: JobWorld) -> None:
    ranges = [
        {"targetNodes": "0:", "container": container()},
        {"targetNodes": "1:2", "container": container(command=["nested"])},
    ]
    register(world, type="multinode", nodeProperties={"numNodes": 4, "mainNode": 0, "nodeRangeProperties": ranges})
    assert task_document(world, "batch-d-node0")["containerDefinitions"][0]["command"] == ["true"]
    assert task_document(world, "batch-d-node1")["containerDefinitions"][0]["command"] == ["nested"]
    properties = {"numNodes": 4, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:2", "container": container()}]}
    assert "do not include node 3" in refusal(world, type="multinode", nodeProperties=properties)
    properties = {"numNodes": 2, "mainNode": 2, "nodeRangeProperties": ranges}
    assert "mainNode 2 is not valid" in refusal(world, type="multinode", nodeProperties=properties)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"eksProperties": {"podProperties": {}}}, "does not serve eksProperties"),
        ({"containerProperties": {"image": "x"}}, "The resource requirement VCPU is missing"),
        ({"containerProperties": container(image="")}, "image is required"),
        ({"containerProperties": container(vcpus=1)}, "Specify either vcpus or the resource requirement VCPU"),
        ({"containerProperties": container(environment=[{"name": "AWS_BATCH_X", "value": ""}])}, "reserves names"),
        ({"containerProperties": container(networkConfiguration={"assignPublicIp": "ENABLED"})}, "only applicable to jobs"),
        ({"containerProperties": container(mountPoints=[{"sourceVolume": "none"}])}, "Unknown volume 'none'"),
        ({"retryStrategy": {"attempts": 11}}, "attempts 11 is not valid"),
        ({"retryStrategy": {"evaluateOnExit": [{"onReason": "x*", "action": "RETRY"}]}}, "RetryAttempts must be provided"),
        ({"retryStrategy": {}}, "RetryAttempts must be provided with retry strategy"),
        ({"retryStrategy": {"attempts": 2, "evaluateOnExit": [{"onExitCode": "*1", "action": "EXIT"}]}}, "onExitCode '*1'"),
        ({"timeout": {"attemptDurationSeconds": 59}}, "at least 60 seconds"),
        ({"schedulingPriority": 10_000}, "from 0 to 9999"),
        ({"name": "a b"}, "is not supported pattern"),
        ({"type": "multinode"}, "needs nodeProperties"),
        ({"platformCapabilities": ["EC2", "FARGATE"]}, "give either EC2 or FARGATE"),
    ],
)  # fmt: skip
def test_refusals(world: JobWorld, more: dict[str, Any], text: str) -> None:
    before = world.store.execute("SELECT count(*) FROM task_definition").fetchone()
    assert text in refusal(world, **more)
    assert world.store.execute("SELECT count(*) FROM task_definition").fetchone() == before
