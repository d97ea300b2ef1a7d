"""Fargate: tasks in any cluster run on the hosts' own pool, with the sizes of Fargate."""

from __future__ import annotations

import pytest

from harness import container, eventually, wait_stopped

NETWORK = {"awsvpcConfiguration": {"subnets": ["subnet-1"], "securityGroups": ["sg-1"]}}


@pytest.fixture
def ecs(client):
    return client("ecs")


def register(ecs, family, command, **more):
    made = container(command, log_prefix=family)
    del made["memory"]
    sizes = {"cpu": "256", "memory": "512", "networkMode": "awsvpc", "requiresCompatibilities": ["FARGATE"]}
    return ecs.register_task_definition(family=family, containerDefinitions=[made], **{**sizes, **more})


def stopped(ecs, cluster, task):
    def look():
        [now] = ecs.describe_tasks(cluster=cluster, tasks=[task["taskArn"]])["tasks"]
        return now if now["lastStatus"] == "STOPPED" else None

    return eventually(look, "the task has stopped")


def test_a_new_cluster_runs_fargate_tasks(ecs, client, aws):
    ecs.create_cluster(clusterName="serverless")
    register(ecs, "web", ["sh", "-c", "echo $AWS_EXECUTION_ENV"], ephemeralStorage={"sizeInGiB": 30})
    given = {"cluster": "serverless", "taskDefinition": "web", "networkConfiguration": NETWORK}
    [task] = ecs.run_task(launchType="FARGATE", **given)["tasks"]
    assert (task["launchType"], task["platformVersion"], task["platformFamily"]) == ("FARGATE", "1.4.0", "Linux")
    assert (task["cpu"], task["memory"], task["ephemeralStorage"]) == ("256", "512", {"sizeInGiB": 30})
    assert "containerInstanceArn" not in task and "capacityProviderName" not in task
    assert task["attachments"] == []  # no network interface is made, so none is shown
    done = stopped(ecs, "serverless", task)
    assert done["containers"][0]["exitCode"] == 0
    events = client("logs").get_log_events(logGroupName="/tests", logStreamName=f"web/main/{task['taskArn'].rpartition('/')[2]}")
    assert [event["message"] for event in events["events"]] == ["AWS_ECS_FARGATE"]
    assert ecs.list_tasks(cluster="serverless", launchType="FARGATE", desiredStatus="STOPPED")["taskArns"] == [task["taskArn"]]
    assert ecs.list_tasks(cluster="serverless", launchType="EC2", desiredStatus="STOPPED")["taskArns"] == []
    words = ("--cluster", "serverless", "--task-definition", "web", "--launch-type", "FARGATE", "--platform-version", "LATEST")
    [again] = aws("ecs", "run-task", *words, "--network-configuration", "awsvpcConfiguration={subnets=[subnet-1]}")["tasks"]
    stopped(ecs, "serverless", again)


def test_through_its_capacity_providers(ecs):
    ecs.create_cluster(clusterName="mixed")
    register(ecs, "worker", ["true"])
    strategy = [{"capacityProvider": "FARGATE_SPOT", "weight": 4}, {"capacityProvider": "FARGATE", "weight": 1, "base": 1}]
    given = {"cluster": "mixed", "taskDefinition": "worker", "networkConfiguration": NETWORK}
    tasks = ecs.run_task(capacityProviderStrategy=strategy, count=6, **given)["tasks"]
    names = [task["capacityProviderName"] for task in tasks]
    assert (names.count("FARGATE"), names.count("FARGATE_SPOT")) == (2, 4)
    assert {task["launchType"] for task in tasks} == {"FARGATE"}
    for task in tasks:
        stopped(ecs, "mixed", task)


def test_a_fargate_task_has_no_container_instance(ecs, tmp_path):
    """It counts on no instance and for no distinctInstance constraint. It uses capacity, and waits for it."""
    [instance] = ecs.list_container_instances()["containerInstanceArns"]
    until = ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"]
    register(ecs, "hidden", until)
    [task] = ecs.run_task(taskDefinition="hidden", launchType="FARGATE", networkConfiguration=NETWORK)["tasks"]
    [shown] = ecs.describe_container_instances(containerInstances=[instance])["containerInstances"]
    assert (shown["runningTasksCount"], shown["pendingTasksCount"]) == (0, 0)
    assert ecs.list_tasks(containerInstance=instance)["taskArns"] == []
    assert ecs.list_container_instances(filter="task:group == family:hidden")["containerInstanceArns"] == []
    left = {item["name"]: item.get("integerValue") for item in shown["remainingResources"]}
    everything = {"name": "main", "image": "corral/host", "command": until, "cpu": left["CPU"], "memory": 6}
    ecs.register_task_definition(family="everything", containerDefinitions=[everything])
    [holder] = ecs.run_task(taskDefinition="everything")["tasks"]
    [waiting] = ecs.run_task(taskDefinition="hidden", launchType="FARGATE", networkConfiguration=NETWORK)["tasks"]
    assert waiting["lastStatus"] == "PROVISIONING" and "CPU units" in waiting["containers"][0]["reason"]
    (tmp_path / "go").touch()
    wait_stopped(ecs, [each["taskArn"] for each in (task, holder, waiting)])


def test_refusals(ecs):
    register(ecs, "good", ["true"])
    made = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 16}
    plain = {"family": "plain", "containerDefinitions": [made]}
    gpu = {**made, "resourceRequirements": [{"type": "GPU", "value": "1"}]}
    awsvpc = {"networkMode": "awsvpc"}
    ecs.register_task_definition(**plain)
    ecs.register_task_definition(**{**plain, "family": "unsized", **awsvpc})
    sized = {"cpu": "256", "memory": "512", **awsvpc}
    ecs.register_task_definition(**{**plain, "family": "gpus", "containerDefinitions": [gpu], **sized})
    ecs.register_task_definition(**{**plain, "family": "odd", **sized, "memory": "4096"})

    def run(family, **more):
        ecs.run_task(**{"taskDefinition": family, "launchType": "FARGATE", "networkConfiguration": NETWORK, **more})

    wrong = ecs.exceptions.InvalidParameterException
    unsupported = "Task definition does not support launch_type FARGATE"
    with pytest.raises(wrong, match=f"{unsupported}.*network mode"):
        ecs.run_task(taskDefinition="plain", launchType="FARGATE")
    with pytest.raises(wrong, match=f"{unsupported}.*'cpu' be defined at the task level"):
        run("unsized")
    with pytest.raises(wrong, match=f"{unsupported}.*GPU"):
        run("gpus")
    with pytest.raises(wrong, match=f"{unsupported}.*No Fargate configuration exists for given values"):
        run("odd")
    with pytest.raises(ecs.exceptions.ClientException, match="No Fargate configuration exists for given values"):
        run("good", overrides={"cpu": "300"})
    with pytest.raises(wrong, match="Network Configuration must be provided when networkMode 'awsvpc' is specified"):
        ecs.run_task(taskDefinition="good", launchType="FARGATE")
    with pytest.raises(wrong, match="Placement constraints are not supported with FARGATE launch type"):
        run("good", placementConstraints=[{"type": "distinctInstance"}])
    with pytest.raises(wrong, match="Placement strategies are not supported with FARGATE launch type"):
        run("good", placementStrategy=[{"type": "random"}])
    with pytest.raises(ecs.exceptions.PlatformUnknownException):
        run("good", platformVersion="9.9.9")
