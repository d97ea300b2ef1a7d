"""Fargate: tasks in any cluster run on the hosts' own pool, with the sizes of Fargate."""

from __future__ import annotations

import json
import sys

import pytest

from harness import container, eventually, wait_stopped

# The requests with which Dagster's EcsRunLauncher, with its default settings, launches a run from the task in which it runs: it
# copies its own task definition under the name of the job, adds the secrets that have the tag `dagster`, and starts a task like its
# own. The program launches a run that fails and one that it stops, and prints what the launcher reads about them.
LAUNCHER = """
import json, os, time, urllib.request, uuid
import boto3
from botocore.exceptions import ClientError

ecs, logs, secrets_manager = boto3.client("ecs"), boto3.client("logs"), boto3.client("secretsmanager")

def metadata(page):
    with urllib.request.urlopen(os.environ["ECS_CONTAINER_METADATA_URI_V4"] + page) as answer:
        return json.load(answer)

def described(task):
    return ecs.describe_tasks(tasks=[task["taskArn"]], cluster=task["clusterArn"])["tasks"][0]

def register():
    # Register the task definition of the run, if its latest revision has another environment.
    environment = [{"name": "DAGSTER_RUN_JOB_NAME", "value": "etl"}]
    own = ecs.describe_task_definition(taskDefinition=me["taskDefinitionArn"])["taskDefinition"]
    [container] = [each for each in own["containerDefinitions"] if each["name"] == metadata("")["Name"]]
    given = {key: own[key] for key in ecs.meta.service_model.shape_for("RegisterTaskDefinitionRequest").members if key in own}
    run = {**container, "name": "run", "entryPoint": [], "command": [], "dependsOn": []}
    run["environment"] = [*run["environment"], *environment]
    pages = secrets_manager.get_paginator("list_secrets").paginate(Filters=[{"Key": "tag-key", "Values": ["dagster"]}])
    run["secrets"] = [{"name": each["Name"], "valueFrom": each["ARN"]} for page in pages for each in page["SecretList"]]
    try:
        found = ecs.describe_task_definition(taskDefinition=FAMILY)["taskDefinition"]["containerDefinitions"]
        if [(each["environment"], each["secrets"]) for each in found] == [(run["environment"], run["secrets"])]:
            return
    except ClientError:
        pass
    ecs.register_task_definition(**{**given, "family": FAMILY, "containerDefinitions": [run]})

def launch(run_id, command):
    register()
    network = {"subnets": [], "assignPublicIp": "DISABLED", "securityGroups": []}
    for each in me["attachments"]:
        if each["type"] == "ElasticNetworkInterface":
            network["subnets"] += [detail["value"] for detail in each["details"] if detail["name"] == "subnetId"]
    given = {
        "clientToken": str(uuid.uuid4()),
        "cluster": metadata("/task")["Cluster"],
        "launchType": me.get("launchType") or "FARGATE",
        "networkConfiguration": {"awsvpcConfiguration": network},
        "taskDefinition": FAMILY,
        "overrides": {"containerOverrides": [{"name": "run", "command": command, "cpu": 128}]},
        "tags": [{"key": "dagster/run_id", "value": run_id}, {"key": "dagster/job_name", "value": "etl"}],
    }
    return ecs.run_task(**given)["tasks"][0]

def ended(task):
    while described(task)["lastStatus"] != "STOPPED":
        time.sleep(0.02)
    return described(task)

FAMILY = "run_location_repository_etl"
me = ecs.describe_tasks(tasks=[metadata("/task")["TaskARN"]], cluster=metadata("/task")["Cluster"])["tasks"][0]
failed = ended(launch("run-1", ["sh", "-c", "echo $API_TOKEN $OTHER; exit 3"]))
definition = ecs.describe_task_definition(taskDefinition=failed["taskDefinitionArn"])["taskDefinition"]
options = definition["containerDefinitions"][0]["logConfiguration"]["options"]
stream = f"{options['awslogs-stream-prefix']}/run/{failed['taskArn'].rpartition('/')[2]}"
events = logs.get_log_events(logGroupName=options["awslogs-group"], logStreamName=stream, limit=10)["events"]
print(json.dumps([failed["taskArn"], failed["stopCode"], failed["stoppedReason"], failed["containers"][0]["exitCode"],
                  [each["message"] for each in events]]), flush=True)
task = launch("run-2", ["sleep", "600"])
while described(task)["lastStatus"] != "RUNNING":
    time.sleep(0.02)
ecs.stop_task(task=task["taskArn"], cluster=task["clusterArn"])
stopped = ended(task)
print(json.dumps([stopped["taskArn"], stopped["stopCode"], stopped["stoppedReason"], definition["revision"],
                  ecs.describe_task_definition(taskDefinition=FAMILY)["taskDefinition"]["revision"]]), flush=True)
"""
NETWORK = {"awsvpcConfiguration": {"subnets": ["subnet-1"], "securityGroups": ["sg-1"]}}


@pytest.fixture
def ecs(client):
    return client("ecs")


def register(ecs, family, command, **more):
    made = container(command, log_prefix=family)
    made.pop("memory", None)
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


def test_the_requests_of_dagster(ecs, client):
    iam = client("iam")
    trust = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
    iam.create_role(RoleName="dagster", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
    actions = ["ecs:DescribeTaskDefinition", "ecs:DescribeTasks", "ecs:RegisterTaskDefinition", "ecs:RunTask", "ecs:StopTask",
               "ecs:TagResource", "logs:GetLogEvents", "iam:PassRole", "corral:RunOnHost",
               "secretsmanager:GetSecretValue", "secretsmanager:ListSecrets"]  # fmt: skip
    allowed = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName="dagster", PolicyName="launcher", PolicyDocument=document)
    role = iam.get_role(RoleName="dagster")["Role"]["Arn"]
    secrets = client("secretsmanager")
    secrets.create_secret(Name="API_TOKEN", SecretString="no-input", Tags=[{"Key": "dagster", "Value": ""}])
    secrets.create_secret(Name="OTHER", SecretString="not listed", Tags=[{"Key": "other", "Value": "dagster"}])
    register(ecs, "daemon", [sys.executable, "-c", LAUNCHER], taskRoleArn=role, executionRoleArn=role)
    [daemon] = ecs.run_task(taskDefinition="daemon", launchType="FARGATE", networkConfiguration=NETWORK)["tasks"]
    done = stopped(ecs, "default", daemon)
    stream = f"daemon/main/{daemon['taskArn'].rpartition('/')[2]}"
    messages = [each["message"] for each in client("logs").get_log_events(logGroupName="/tests", logStreamName=stream)["events"]]
    assert done["containers"][0]["exitCode"] == 0, messages
    failed, ended = map(json.loads, messages)
    assert failed[1:] == ["EssentialContainerExited", "Essential container in task exited", 3, ["no-input"]]
    assert ended[1:] == ["UserInitiated", "Task stopped by user", 1, 1], "the second run uses the same revision"
    tags = ecs.list_tags_for_resource(resourceArn=failed[0])["tags"]
    assert tags == [{"key": "dagster/run_id", "value": "run-1"}, {"key": "dagster/job_name", "value": "etl"}]


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
