"""ECS tasks through boto3 and the aws command, against a real server and real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import CANARY, container, eventually, wait_stopped


@pytest.fixture
def ecs(client):
    return client("ecs")


@pytest.fixture
def logs(client):
    return client("logs")


def register(ecs, family, *containers, **more):
    return ecs.register_task_definition(family=family, containerDefinitions=list(containers), **more)["taskDefinition"]


def held_until(path: Path) -> list[str]:
    """A command that runs until the file exists."""
    return ["sh", "-c", f"until [ -e {path} ]; do sleep 0.02; done"]


def messages(logs, stream, group="/tests"):
    page = logs.get_log_events(logGroupName=group, logStreamName=stream, startFromHead=True)
    return [event["message"] for event in page["events"]]


def test_a_gpu_task_end_to_end(ecs, logs):
    register(ecs, "hello", container(["sh", "-c", "echo gpus=$CUDA_VISIBLE_DEVICES; echo out; echo err >&2; exit 3"], 1, "demo"))
    task = ecs.run_task(taskDefinition="hello")["tasks"][0]
    assert task["lastStatus"] == "PENDING" and task["desiredStatus"] == "RUNNING"
    [gpu] = task["containers"][0]["gpuIds"]
    assert gpu.startswith("GPU-")

    waiter = ecs.get_waiter("tasks_stopped")
    waiter.config.delay = 0.1
    waiter.wait(tasks=[task["taskArn"]])
    [done] = ecs.describe_tasks(tasks=[task["taskArn"]])["tasks"]
    assert done["stopCode"] == "EssentialContainerExited"
    assert done["stoppedReason"] == "Essential container in task exited"
    assert done["containers"][0]["exitCode"] == 3
    assert done["containers"][0]["gpuIds"] == [gpu]
    assert done["createdAt"] <= done["startedAt"] <= done["stoppedAt"]
    # A caller that sees the task stopped can read all its output.
    assert messages(logs, f"demo/main/{task['taskArn'].rpartition('/')[2]}") == [f"gpus={gpu}", "out", "err"]


def test_waiter_tasks_running(ecs, tmp_path):
    register(ecs, "lives", container(held_until(tmp_path / "go")))
    task = ecs.run_task(taskDefinition="lives")["tasks"][0]
    waiter = ecs.get_waiter("tasks_running")
    waiter.config.delay = 0.1
    waiter.wait(tasks=[task["taskArn"]])
    stopped = ecs.stop_task(task=task["taskArn"], reason="enough")["task"]
    assert stopped["desiredStatus"] == "STOPPED"
    [done] = wait_stopped(ecs, [task["taskArn"]])
    assert (done["stopCode"], done["stoppedReason"], done["containers"][0]["exitCode"]) == ("UserInitiated", "enough", 143)


def test_three_tasks_on_two_gpus(ecs, tmp_path):
    """With launchType=EC2 the third task fails, and runs after another stops. Without a launch type it waits and then starts."""
    register(ecs, "holds-gpu", container(held_until(tmp_path / "go"), 1))
    first = ecs.run_task(taskDefinition="holds-gpu", launchType="EC2", count=3)
    assert len(first["tasks"]) == 2
    assert [failure["reason"] for failure in first["failures"]] == ["RESOURCE:GPU"]
    assert len({task["containers"][0]["gpuIds"][0] for task in first["tasks"]}) == 2

    waiting = ecs.run_task(taskDefinition="holds-gpu")["tasks"][0]
    assert waiting["lastStatus"] == "PROVISIONING" and waiting["capacityProviderName"] == "host"
    [waiting] = ecs.describe_tasks(tasks=[waiting["taskArn"]])["tasks"]
    reason = waiting["containers"][0]["reason"]
    assert reason.startswith("holds-gpu holds 2 of 2 GPUs; needs 1 GPU; ") and "held by" in reason

    freed = first["tasks"][0]
    ecs.stop_task(task=freed["taskArn"])
    started = eventually(
        lambda: next((t for t in ecs.describe_tasks(tasks=[waiting["taskArn"]])["tasks"] if t["lastStatus"] == "RUNNING"), None),
        "the waiting task starts by itself",
    )
    assert started["containers"][0]["gpuIds"] == freed["containers"][0]["gpuIds"]
    assert ecs.run_task(taskDefinition="holds-gpu", launchType="EC2")["failures"][0]["reason"] == "RESOURCE:GPU"
    ecs.stop_task(task=waiting["taskArn"])
    wait_stopped(ecs, [waiting["taskArn"]])
    again = ecs.run_task(taskDefinition="holds-gpu", launchType="EC2")
    assert len(again["tasks"]) == 1 and not again["failures"]
    (tmp_path / "go").touch()
    wait_stopped(ecs, [first["tasks"][1]["taskArn"], again["tasks"][0]["taskArn"]])


def test_refusals_name_the_resource(ecs):
    register(ecs, "too-much-memory", container(["true"], memory=10_000_000))
    register(ecs, "too-much-cpu", container(["true"], cpu=10_000_000))
    for family, word in (("too-much-memory", "RESOURCE:MEMORY"), ("too-much-cpu", "RESOURCE:CPU")):
        [failure] = ecs.run_task(taskDefinition=family, launchType="EC2")["failures"]
        assert failure["reason"] == word and "only" in failure["detail"]


def test_typed_errors(ecs):
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.run_task(cluster="nope", taskDefinition="x")
    with pytest.raises(ecs.exceptions.ClientException, match="TaskDefinition not found"):
        ecs.run_task(taskDefinition="no-such-family")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="not found"):
        ecs.stop_task(task="0" * 32)
    with pytest.raises(ecs.exceptions.ClientException, match="At least one of 'memory'"):
        register(ecs, "no-memory", {"name": "a", "image": "x"})
    register(ecs, "typed", container(["true"]))
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="Count"):
        ecs.run_task(taskDefinition="typed", count=11)
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="not a container"):
        ecs.run_task(taskDefinition="typed", overrides={"containerOverrides": [{"name": "other", "command": ["x"]}]})
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="No Container Instances"):
        ecs.create_cluster(clusterName="empty")
        ecs.run_task(cluster="empty", taskDefinition="typed")
    with pytest.raises(ecs.exceptions.ClientError, match="CreateService"):
        ecs.create_service(serviceName="s", taskDefinition="typed")
    [failure] = ecs.describe_tasks(tasks=["0" * 32])["failures"]
    assert failure["reason"] == "MISSING"


def test_overrides_and_client_token(ecs, logs):
    register(ecs, "over", container(["sh", "-c", "echo default"], environment=[{"name": "A", "value": "1"}], log_prefix="over"))
    request = {
        "taskDefinition": "over",
        "clientToken": "token-1",
        "overrides": {
            "containerOverrides": [
                {"name": "main", "command": ["sh", "-c", "echo $A $B"], "environment": [{"name": "B", "value": "2"}]}
            ]
        },
    }
    first, second = ecs.run_task(**request), ecs.run_task(**request)
    assert [task["taskArn"] for task in first["tasks"]] == [task["taskArn"] for task in second["tasks"]]
    with pytest.raises(ecs.exceptions.ConflictException):
        ecs.run_task(**request | {"count": 2})
    wait_stopped(ecs, [first["tasks"][0]["taskArn"]])
    assert messages(logs, f"over/main/{first['tasks'][0]['taskArn'].rpartition('/')[2]}") == ["1 2"]


def test_task_definitions_have_families_and_revisions(ecs):
    assert register(ecs, "fam", container(["true"]))["revision"] == 1
    second = register(ecs, "fam", container(["true"], cpu=5), cpu="1 vCPU", memory="2 GB")
    assert second["revision"] == 2 and second["cpu"] == "1024" and second["memory"] == "2048"
    shown = ecs.describe_task_definition(taskDefinition="fam")["taskDefinition"]
    assert shown["taskDefinitionArn"].endswith("task-definition/fam:2") and shown["containerDefinitions"][0]["cpu"] == 5
    assert shown["status"] == "ACTIVE" and shown["registeredAt"].tzinfo is not None
    assert ecs.deregister_task_definition(taskDefinition="fam:2")["taskDefinition"]["status"] == "INACTIVE"
    assert ecs.describe_task_definition(taskDefinition="fam")["taskDefinition"]["revision"] == 1
    with pytest.raises(ecs.exceptions.ClientException, match="inactive"):
        ecs.run_task(taskDefinition="fam:2")
    pages = ecs.get_paginator("list_task_definitions").paginate(familyPrefix="fam", PaginationConfig={"PageSize": 1})
    assert [arn.rpartition("/")[2] for arn in pages.build_full_result()["taskDefinitionArns"]] == ["fam:1"]


def test_lists_with_pages(ecs):
    register(ecs, "listed", container(["true"]))
    arns = [task["taskArn"] for _ in range(3) for task in ecs.run_task(taskDefinition="listed", count=10, startedBy="me")["tasks"]]
    wait_stopped(ecs, arns)
    pages = ecs.get_paginator("list_tasks").paginate(startedBy="me", desiredStatus="STOPPED", PaginationConfig={"PageSize": 7})
    assert sorted(pages.build_full_result()["taskArns"]) == sorted(arns)


def test_several_containers(ecs):
    """The task runs as long as its essential container. The other containers end with it."""
    register(ecs, "pair", container(["true"], name="quick", essential=False), container(["sh", "-c", "exit 5"], name="first"),
             container(["sleep", "1000"], name="second", stopTimeout=2))  # fmt: skip
    [task] = wait_stopped(ecs, [ecs.run_task(taskDefinition="pair")["tasks"][0]["taskArn"]])
    codes = {shown["name"]: shown.get("exitCode") for shown in task["containers"]}
    assert codes["first"] == 5 and codes["second"] in (137, 143) and task["stopCode"] == "EssentialContainerExited"


def test_a_command_that_does_not_exist(ecs):
    register(ecs, "absent", container(["/no/such/program"]))
    [task] = wait_stopped(ecs, [ecs.run_task(taskDefinition="absent")["tasks"][0]["taskArn"]])
    assert task["stopCode"] == "TaskFailedToStart" and "CannotStartContainerError" in task["stoppedReason"]
    assert "startedAt" not in task and "exitCode" not in task["containers"][0]


def test_a_missing_log_group_stops_the_task_and_says_how_to_create_it(ecs, logs):
    definition = container(["echo", "hi"])
    definition["logConfiguration"] = {"logDriver": "awslogs", "options": {"awslogs-group": "/not/there"}}
    register(ecs, "no-group", definition)
    [task] = wait_stopped(ecs, [ecs.run_task(taskDefinition="no-group")["tasks"][0]["taskArn"]])
    assert task["stopCode"] == "TaskFailedToStart"
    assert "The specified log group does not exist" in task["stoppedReason"]
    assert "aws logs create-log-group --log-group-name /not/there" in task["stoppedReason"]
    logs.create_log_group(logGroupName="/not/there")
    [task] = wait_stopped(ecs, [ecs.run_task(taskDefinition="no-group")["tasks"][0]["taskArn"]])
    [only] = logs.describe_log_streams(logGroupName="/not/there")["logStreams"]
    assert only["logStreamName"] == task["containers"][0]["runtimeId"]  # without a prefix: the container's id
    assert messages(logs, only["logStreamName"], "/not/there") == ["hi"]


def test_the_container_instance_shows_its_gpus(ecs, tmp_path):
    [arn] = ecs.list_container_instances()["containerInstanceArns"]
    [instance] = ecs.describe_container_instances(containerInstances=[arn])["containerInstances"]
    assert instance["agentConnected"] and instance["status"] == "ACTIVE"
    registered = {resource["name"]: resource for resource in instance["registeredResources"]}
    assert len(registered["GPU"]["stringSetValue"]) == 2
    register(ecs, "pinned", container(held_until(tmp_path / "go"), 1))
    task = ecs.run_task(taskDefinition="pinned")["tasks"][0]
    [instance] = ecs.describe_container_instances(containerInstances=[arn])["containerInstances"]
    remaining = {resource["name"]: resource for resource in instance["remainingResources"]}
    held = set(task["containers"][0]["gpuIds"])
    assert set(remaining["GPU"]["stringSetValue"]) == set(registered["GPU"]["stringSetValue"]) - held
    assert sorted(gpu["sharingMode"] for gpu in instance["gpuDevices"]) == ["DEDICATED", "IDLE"]
    (tmp_path / "go").touch()
    wait_stopped(ecs, [task["taskArn"]])


def test_regions_are_separate_and_share_the_machine(client):
    east, west = client("ecs"), client("ecs", "us-west-2")
    register(west, "western", container(["true"], 1))
    with pytest.raises(east.exceptions.ClientException):
        east.run_task(taskDefinition="western")
    task = west.run_task(taskDefinition="western")["tasks"][0]
    assert ":us-west-2:" in task["taskArn"]
    wait_stopped(west, [task["taskArn"]])
    assert east.describe_tasks(tasks=[task["taskArn"].rpartition("/")[2]])["failures"]


def test_clusters(ecs):
    made = ecs.create_cluster(clusterName="mine", tags=[{"key": "a", "value": "b"}])["cluster"]
    assert made["status"] == "ACTIVE" and made["tags"] == [{"key": "a", "value": "b"}]
    names = {arn.rpartition("/")[2] for arn in ecs.get_paginator("list_clusters").paginate().build_full_result()["clusterArns"]}
    assert {"mine", "default"} <= names
    [default] = ecs.describe_clusters()["clusters"]
    assert default["defaultCapacityProviderStrategy"] == [{"capacityProvider": "host", "weight": 1, "base": 0}]
    assert ecs.delete_cluster(cluster="mine")["cluster"]["status"] == "INACTIVE"
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.list_tasks(cluster="mine")


def test_the_aws_command_agrees(aws, ecs, tmp_path):
    document = tmp_path / "task.json"
    document.write_text(
        '{"family": "by-cli", "containerDefinitions": [{"name": "main", "image": "corral/host", "memory": 16,'
        ' "command": ["sh", "-c", "exit 7"], "resourceRequirements": [{"type": "GPU", "value": "1"}]}]}'
    )
    aws("ecs", "register-task-definition", "--cli-input-json", f"file://{document}")
    task = aws("ecs", "run-task", "--task-definition", "by-cli")["tasks"][0]
    assert task["containers"][0]["gpuIds"]
    wait_stopped(ecs, [task["taskArn"]])
    [said] = aws("ecs", "describe-tasks", "--tasks", task["taskArn"])["tasks"]
    assert said["containers"][0]["exitCode"] == 7
    assert aws("sts", "get-caller-identity")["Account"] == "123456789012"


def test_the_environment_of_a_task(ecs, logs, corral):
    register(ecs, "sees", container(["env"], log_prefix="env"))
    task = ecs.run_task(taskDefinition="sees")["tasks"][0]
    wait_stopped(ecs, [task["taskArn"]])
    seen = dict(line.partition("=")[::2] for line in messages(logs, f"env/main/{task['taskArn'].rpartition('/')[2]}"))
    assert seen["AWS_ENDPOINT_URL"] == corral.url and seen["AWS_REGION"] == "us-east-1"
    assert seen["AWS_EXECUTION_ENV"] == "AWS_ECS_EC2"
    assert seen["CUDA_VISIBLE_DEVICES"] == "" and seen["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not CANARY.keys() & seen.keys() and "AWS_SECRET_ACCESS_KEY" not in seen
