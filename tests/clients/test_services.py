"""ECS services with real clients and real tasks: replicas, daemons, replacements, updates and deletion."""

from __future__ import annotations

import sys

import pytest

from clients.service_help import clean_ecs, described, family, messages, stable, tasks_of
from eventually import eventually

WORKER = """
import pathlib, sys, time
import boto3

folder = pathlib.Path(sys.argv[1])
queue = boto3.resource("sqs").get_queue_by_name(QueueName="held")
while True:
    for message in queue.receive_messages(MaxNumberOfMessages=1, WaitTimeSeconds=5):
        with open(folder / "received", "a") as file:
            file.write(message.body + "\\n")
        while not (folder / "go").exists():
            time.sleep(0.01)
        (folder / "done").touch()
        message.delete()
"""


@pytest.fixture
def ecs(corral, client):
    yield from clean_ecs(corral, client)


def test_a_service_keeps_its_number_of_tasks_running(ecs):
    definition = family(ecs, "web", gpus=1)
    created = ecs.create_service(serviceName="web", taskDefinition="web", desiredCount=2, tags=[{"key": "team", "value": "a"}])
    assert created["service"]["status"] == "ACTIVE" and created["service"]["desiredCount"] == 2
    service = stable(ecs, "web")
    assert (service["runningCount"], service["pendingCount"], service["taskDefinition"]) == (2, 0, definition)
    [deployment] = service["deployments"]
    assert deployment["status"] == "PRIMARY" and deployment["rolloutState"] == "COMPLETED"
    tasks = tasks_of(ecs, "web")
    assert {task["group"] for task in tasks} == {"service:web"}
    assert {task["startedBy"] for task in tasks} == {deployment["id"]}
    assert len({gpu for task in tasks for gpu in task["containers"][0]["gpuIds"]}) == 2
    found = messages(ecs, "web")
    assert found[0] == "(service web) has reached a steady state."
    assert any(message.startswith("(service web) has started 2 tasks: (task ") for message in found)


def test_a_dead_task_is_replaced(ecs):
    family(ecs, "mortal")
    ecs.create_service(serviceName="mortal", taskDefinition="mortal", desiredCount=1)
    stable(ecs, "mortal")
    [before] = tasks_of(ecs, "mortal")
    ecs.stop_task(task=before["taskArn"])
    eventually(lambda: {task["taskArn"] for task in tasks_of(ecs, "mortal")} - {before["taskArn"]}, "a new task")
    stable(ecs, "mortal")


def test_tasks_that_fail_at_once_are_started_less_and_less_often(ecs):
    family(ecs, "broken", ["false"])
    ecs.create_service(serviceName="broken", taskDefinition="broken", desiredCount=1)
    text = "(service broken) is unable to consistently start tasks successfully."
    eventually(lambda: any(message.startswith(text) for message in messages(ecs, "broken")), "the event about failures")
    [deployment] = described(ecs, "broken")["deployments"]
    assert deployment["failedTasks"] >= 2
    assert messages(ecs, "broken").count("(service broken) has reached a steady state.") <= 1
    assert len(tasks_of(ecs, "broken", "STOPPED")) < 10


def test_scaling_out_waits_for_gpus_and_says_why(ecs):
    family(ecs, "wide", gpus=1)
    ecs.create_service(serviceName="wide", taskDefinition="wide", desiredCount=1)
    stable(ecs, "wide")
    ecs.update_service(service="wide", desiredCount=3)
    waits = eventually(lambda: [each for each in tasks_of(ecs, "wide") if each["lastStatus"] == "PROVISIONING"], "a waiting task")
    assert "needs 1 GPU" in waits[0]["containers"][0]["reason"]
    service = eventually(lambda: (found := described(ecs, "wide"))["runningCount"] == 2 and found, "two running tasks")
    assert service["pendingCount"] == 1
    assert any("was unable to place a task because no container instance" in message for message in messages(ecs, "wide"))
    ecs.update_service(service="wide", desiredCount=1)
    assert stable(ecs, "wide")["runningCount"] == 1
    assert len(tasks_of(ecs, "wide")) == 1


def test_a_new_definition_replaces_the_tasks(ecs):
    family(ecs, "rolls")
    ecs.create_service(serviceName="rolls", taskDefinition="rolls", desiredCount=2)
    stable(ecs, "rolls")
    before = {task["taskArn"] for task in tasks_of(ecs, "rolls")}
    second = family(ecs, "rolls", ["sleep", "601"])
    answer = ecs.update_service(service="rolls", taskDefinition="rolls")
    assert [each["status"] for each in answer["service"]["deployments"]] == ["PRIMARY", "ACTIVE"]
    stable(ecs, "rolls")
    after = eventually(
        lambda: len(found := tasks_of(ecs, "rolls")) == 2 and {each["taskDefinitionArn"] for each in found} == {second} and found,
        "two tasks of the new definition",
    )
    assert not {task["taskArn"] for task in after} & before
    ecs.update_service(service="rolls", forceNewDeployment=True)
    stable(ecs, "rolls")
    eventually(lambda: not {each["taskArn"] for each in tasks_of(ecs, "rolls")} & {each["taskArn"] for each in after}, "new tasks")


def test_a_daemon_runs_on_the_host_and_leaves_it_when_it_drains(ecs):
    family(ecs, "watcher")
    created = ecs.create_service(serviceName="watcher", taskDefinition="watcher", schedulingStrategy="DAEMON", launchType="EC2")
    assert created["service"]["deploymentConfiguration"]["maximumPercent"] == 100
    service = stable(ecs, "watcher")
    assert (service["desiredCount"], service["runningCount"]) == (1, 1)
    [instance] = ecs.list_container_instances()["containerInstanceArns"]
    [task] = tasks_of(ecs, "watcher")
    assert task["containerInstanceArn"] == instance
    ecs.update_container_instances_state(containerInstances=[instance], status="DRAINING")
    try:
        eventually(lambda: not tasks_of(ecs, "watcher"), "the daemon left")
    finally:
        ecs.update_container_instances_state(containerInstances=[instance], status="ACTIVE")
    eventually(lambda: described(ecs, "watcher")["runningCount"] == 1, "the daemon returned")


def test_a_daemon_follows_the_attributes_of_an_instance(ecs):
    family(ecs, "labelled")
    ecs.create_service(
        serviceName="labelled", taskDefinition="labelled", schedulingStrategy="DAEMON", launchType="EC2",
        placementConstraints=[{"type": "memberOf", "expression": "attribute:role == gpu"}],
    )  # fmt: skip
    assert stable(ecs, "labelled")["desiredCount"] == 0
    [instance] = ecs.list_container_instances()["containerInstanceArns"]
    attribute = {"name": "role", "value": "gpu", "targetId": instance}
    ecs.put_attributes(attributes=[attribute])
    eventually(lambda: described(ecs, "labelled")["runningCount"] == 1, "the daemon arrived")
    ecs.delete_attributes(attributes=[{"name": "role", "targetId": instance}])
    eventually(lambda: not tasks_of(ecs, "labelled"), "the daemon left")


def test_a_service_survives_kill_9(own_corral):
    running = own_corral("sim:2").start()
    ecs = running.client("ecs")
    family(ecs, "durable", gpus=1)
    ecs.create_service(serviceName="durable", taskDefinition="durable", desiredCount=2)
    stable(ecs, "durable")
    [first, _] = tasks_of(ecs, "durable")
    running.kill("corral.server", "corral.node")
    running.start()
    ecs = running.client("ecs")
    ecs.stop_task(task=first["taskArn"])
    eventually(
        lambda: (
            len(found := tasks_of(ecs, "durable")) == 2
            and all(each["lastStatus"] == "RUNNING" and each["taskArn"] != first["taskArn"] for each in found)
        ),
        "two other tasks run",
    )


def test_protected_tasks_outlive_a_smaller_count(ecs):
    family(ecs, "guarded")
    ecs.create_service(serviceName="guarded", taskDefinition="guarded", desiredCount=2)
    stable(ecs, "guarded")
    kept, _ = tasks_of(ecs, "guarded")
    ecs.update_task_protection(cluster="default", tasks=[kept["taskArn"]], protectionEnabled=True)
    ecs.update_service(service="guarded", desiredCount=0)
    eventually(lambda: [each["taskArn"] for each in tasks_of(ecs, "guarded")] == [kept["taskArn"]], "one task is left")
    ecs.update_task_protection(cluster="default", tasks=[kept["taskArn"]], protectionEnabled=False)
    eventually(lambda: not tasks_of(ecs, "guarded"), "the last task stopped")


def test_a_worker_with_a_message_outlives_a_smaller_count(ecs, client, tmp_path):
    """The worker is a plain boto3 loop. It finishes its message, and the service takes no second one away from other consumers."""
    sqs = client("sqs")
    url = sqs.create_queue(QueueName="held", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    for body in ("first", "second"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    (tmp_path / "worker.py").write_text(WORKER)
    family(ecs, "holder", [sys.executable, str(tmp_path / "worker.py"), str(tmp_path)])
    ecs.create_service(serviceName="holder", taskDefinition="holder", desiredCount=1)
    eventually(lambda: (tmp_path / "received").exists(), "the worker has a message")
    [task] = tasks_of(ecs, "holder")
    ecs.update_service(service="holder", desiredCount=0)
    waits = f"(service holder) is waiting to stop task {task['taskArn'][-32:]}, which holds 1 message of held."
    assert waits in messages(ecs, "holder") and len(tasks_of(ecs, "holder")) == 1
    (tmp_path / "go").touch()
    eventually(lambda: not tasks_of(ecs, "holder"), "the worker stopped")
    assert (tmp_path / "received").read_text() == "first\n" and (tmp_path / "done").exists()
    assert [each["Body"] for each in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]] == ["second"]
    sqs.delete_queue(QueueUrl=url)


def test_deletion(ecs, aws):
    family(ecs, "short")
    ecs.create_service(serviceName="short", taskDefinition="short", desiredCount=1)
    stable(ecs, "short")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="scaled above 0"):
        ecs.delete_service(service="short")
    assert aws("ecs", "delete-service", "--service", "short", "--force")["service"]["status"] == "DRAINING"
    with pytest.raises(ecs.exceptions.ServiceNotActiveException):
        ecs.update_service(service="short", desiredCount=1)
    ecs.get_waiter("services_inactive").wait(services=["short"], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    assert "short" not in str(ecs.list_services()["serviceArns"])
    again = ecs.create_service(serviceName="short", taskDefinition="short", desiredCount=0)
    assert again["service"]["status"] == "ACTIVE" and stable(ecs, "short")["runningCount"] == 0


def test_refusals_say_what_to_do(ecs):
    family(ecs, "strict")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="desired count"):
        ecs.create_service(serviceName="strict", taskDefinition="strict", schedulingStrategy="DAEMON", desiredCount=1)
    for refused in (
        {"capacityProviderStrategy": [{"capacityProvider": "host", "weight": 1}]},
        {"placementStrategy": [{"type": "random"}]},
    ):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="DAEMON scheduling strategy does not support"):
            ecs.create_service(serviceName="strict", taskDefinition="strict", schedulingStrategy="DAEMON", **refused)
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="a service can have 5000 tasks"):
        ecs.create_service(serviceName="strict", taskDefinition="strict", desiredCount=1_000_000)
    daemon = {"serviceName": "strict-daemon", "taskDefinition": "strict", "schedulingStrategy": "DAEMON"}
    for percentages, why in (
        ({"maximumPercent": 150}, "does not support values above 100 for maximumPercent"),
        ({"maximumPercent": 50}, "maximumPercent must be at least 100"),
        ({"minimumHealthyPercent": 150}, "minimumHealthyPercent must be at most 100"),
    ):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match=why):
            ecs.create_service(**daemon, deploymentConfiguration=percentages)
    ecs.create_service(**daemon)
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="minimumHealthyPercent must be at most 100"):
        ecs.update_service(service="strict-daemon", deploymentConfiguration={"minimumHealthyPercent": 150})
    ecs.delete_service(service="strict-daemon", force=True)
    ecs.get_waiter("services_inactive").wait(services=["strict-daemon"], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="needs a desiredCount"):
        ecs.create_service(serviceName="strict", taskDefinition="strict")
    with pytest.raises(ecs.exceptions.ClientException, match="TaskDefinition not found"):
        ecs.create_service(serviceName="strict", taskDefinition="missing", desiredCount=1)
    with pytest.raises(ecs.exceptions.UnsupportedFeatureException, match="CODE_DEPLOY"):
        ecs.create_service(
            serviceName="strict", taskDefinition="strict", desiredCount=1, deploymentController={"type": "CODE_DEPLOY"}
        )
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="larger than minimumHealthyPercent"):
        ecs.create_service(
            serviceName="strict", taskDefinition="strict", desiredCount=1,
            deploymentConfiguration={"maximumPercent": 100, "minimumHealthyPercent": 100},
        )  # fmt: skip
    ecs.create_service(serviceName="strict", taskDefinition="strict", desiredCount=0, clientToken="once")
    ecs.create_service(serviceName="strict", taskDefinition="strict", desiredCount=0, clientToken="once")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="not idempotent"):
        ecs.create_service(serviceName="strict", taskDefinition="strict", desiredCount=0)
    assert [failure["reason"] for failure in ecs.describe_services(services=["none"])["failures"]] == ["MISSING"]
    with pytest.raises(ecs.exceptions.ServiceNotFoundException):
        ecs.list_tasks(serviceName="none")


def test_tags_counts_and_pages(ecs, aws):
    family(ecs, "paged")
    for number in range(3):
        ecs.create_service(
            serviceName=f"paged-{number}", taskDefinition="paged", desiredCount=0, propagateTags="SERVICE",
            tags=[{"key": "number", "value": str(number)}],
        )  # fmt: skip
    pages = list(ecs.get_paginator("list_services").paginate(PaginationConfig={"PageSize": 2}))
    assert [len(page["serviceArns"]) for page in pages] == [2, 1]
    arn = pages[0]["serviceArns"][0]
    ecs.tag_resource(resourceArn=arn, tags=[{"key": "more", "value": "yes"}])
    assert {tag["key"] for tag in ecs.list_tags_for_resource(resourceArn=arn)["tags"]} == {"number", "more"}
    ecs.update_service(service="paged-0", desiredCount=1)
    stable(ecs, "paged-0")
    arns = ecs.list_tasks(serviceName="paged-0")["taskArns"]
    [task] = ecs.describe_tasks(tasks=arns, include=["TAGS"])["tasks"]
    assert {tag["key"] for tag in task["tags"]} == {"number", "more"}
    [cluster] = ecs.describe_clusters(include=["STATISTICS"])["clusters"]
    assert cluster["activeServicesCount"] == 3
    shown = aws("ecs", "describe-services", "--services", "paged-0", "--include", "TAGS")["services"][0]
    assert shown["runningCount"] == 1 and len(shown["tags"]) == 2


def test_a_cluster_with_services_cannot_be_deleted(ecs):
    ecs.create_cluster(clusterName="empty")
    family(ecs, "lonely")
    ecs.create_service(cluster="empty", serviceName="lonely", taskDefinition="lonely", desiredCount=1)
    try:
        [service] = ecs.describe_services(cluster="empty", services=["lonely"])["services"]
        assert (service["pendingCount"], service["runningCount"]) == (1, 0)
        with pytest.raises(ecs.exceptions.ClusterContainsServicesException):
            ecs.delete_cluster(cluster="empty")
    finally:
        ecs.delete_service(cluster="empty", service="lonely", force=True)
    ecs.delete_cluster(cluster="empty")


def test_services_are_listed_and_counted_by_launch_type(ecs):
    ecs.create_cluster(clusterName="kinds")
    family(ecs, "kind")
    ecs.register_task_definition(
        family="fargate-kind", requiresCompatibilities=["FARGATE"], networkMode="awsvpc", cpu="256", memory="512",
        containerDefinitions=[{"name": "main", "image": "corral/host", "command": ["sleep", "600"]}],
    )  # fmt: skip
    network = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
    ecs.create_service(cluster="kinds", serviceName="on-instances", taskDefinition="kind", desiredCount=0, launchType="EC2")
    ecs.create_service(
        cluster="kinds", serviceName="serverless", taskDefinition="fargate-kind", desiredCount=0, launchType="FARGATE",
        networkConfiguration=network,
    )  # fmt: skip
    for launch_type, name in (("EC2", "on-instances"), ("FARGATE", "serverless")):
        [found] = ecs.list_services(cluster="kinds", launchType=launch_type)["serviceArns"]
        assert found.endswith(f"/{name}")
    cluster = ecs.describe_clusters(clusters=["kinds"], include=["STATISTICS"])["clusters"][0]
    counts = {each["name"]: each["value"] for each in cluster["statistics"]}
    assert (counts["activeEC2ServiceCount"], counts["activeFargateServiceCount"]) == ("1", "1")


def test_a_capacity_provider_stays_in_its_cluster_while_a_service_uses_it(corral, ecs):
    family(ecs, "provided")
    ecs.create_capacity_provider(name="kept", autoScalingGroupProvider={"autoScalingGroupArn": corral.group("some-group")})
    ecs.create_cluster(clusterName="provided", capacityProviders=["kept"])
    ecs.create_service(
        cluster="provided", serviceName="idle", taskDefinition="provided", desiredCount=0,
        capacityProviderStrategy=[{"capacityProvider": "kept", "weight": 1}],
    )  # fmt: skip
    none = {"cluster": "provided", "capacityProviders": [], "defaultCapacityProviderStrategy": []}
    with pytest.raises(ecs.exceptions.ResourceInUseException):
        ecs.put_cluster_capacity_providers(**none)
    ecs.delete_service(cluster="provided", service="idle")
    assert ecs.put_cluster_capacity_providers(**none)["cluster"]["capacityProviders"] == []
