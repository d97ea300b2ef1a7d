"""Requests of ECS that are refused with AWS's code and text: identifiers, services on Fargate, load balancers."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from each import check_each
from harness import container

ACCOUNT = "123456789012"
TASK = "0" * 32
ARN = f"arn:aws:ecs:us-east-1:{ACCOUNT}:"
OTHER_CLUSTER = "Invalid identifier: Identifier is for cluster other. Your cluster is default"
SEPARATORS = "Invalid identifier: Unexpected number of separators"
FARGATE = {"launchType": "FARGATE", "networkConfiguration": {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}}


@pytest.fixture(scope="module")
def ecs(corral):
    ecs = corral.client("ecs")
    ecs.create_cluster(clusterName="other")
    given = container(["sleep", "600"], portMappings=[{"containerPort": 80}])
    ecs.register_task_definition(family="web", containerDefinitions=[given])
    small = {"cpu": "256", "memory": "512", "requiresCompatibilities": ["FARGATE"], "networkMode": "awsvpc"}
    ecs.register_task_definition(family="fargate", containerDefinitions=[given], **small)
    ecs.register_task_definition(family="large", containerDefinitions=[given], ephemeralStorage={"sizeInGiB": 30}, **small)
    return ecs


def refused(ecs, case):
    operation, params, code, text = case
    with pytest.raises(ClientError) as raised:
        getattr(ecs, operation)(**params)
    error = raised.value.response["Error"]
    assert (error["Code"], error["Message"]) == (code, text)


def test_identifiers_that_name_nothing_here_are_refused(ecs):
    wrong = "InvalidParameterException"
    length, arn = "taskId length should be one of [32,36]", f"{ARN}task/other/{TASK}"
    foreign = f"arn:aws:ecs:eu-west-1:{ACCOUNT}:task/default/{TASK}"
    cases = [
        ("describe_tasks", {"tasks": ["None"]}, wrong, length),
        ("stop_task", {"task": "None"}, wrong, length),
        ("execute_command", {"task": "None", "command": "true", "interactive": True}, wrong, length),
        ("get_task_protection", {"cluster": "default", "tasks": [arn]}, wrong, OTHER_CLUSTER),
        ("describe_tasks", {"tasks": [arn]}, wrong, OTHER_CLUSTER),
        ("describe_tasks", {"tasks": ["a/b/c"]}, wrong, SEPARATORS),
        ("describe_tasks", {"tasks": [foreign]}, wrong,
         f"Invalid identifier: {foreign} is not the ARN of a task of this account in us-east-1."),
        ("describe_container_instances", {"containerInstances": ["None"]}, wrong, "instanceId length should be one of [32,36]"),
        ("describe_clusters", {"clusters": [f"{ARN}cluster/{ARN}cluster/a"]}, wrong, SEPARATORS),
        ("list_tasks", {"cluster": "a b"}, wrong, r"Cluster must match ^[a-zA-Z0-9\-_]{1,255}$, but was a b"),
        ("describe_services", {"services": []}, wrong, "Services cannot be empty."),
        ("run_task", {"taskDefinition": "web", "group": "service:web"}, wrong, "Invalid namespace for group."),
        ("create_service", {"serviceName": "a b", "taskDefinition": "web", "desiredCount": 0}, wrong,
         "Invalid service name: use up to 255 letters, digits, hyphens and underscores."),
    ]  # fmt: skip
    check_each(cases, lambda case: refused(ecs, case))
    ecs.create_cluster(clusterName="gone")
    ecs.delete_cluster(cluster="gone")
    refused(ecs, ("list_tasks", {"cluster": "gone"}, "ClusterNotFoundException", "The referenced cluster was inactive."))


def test_the_arn_of_a_service_in_another_cluster_never_means_a_service_with_the_same_name(ecs):
    ecs.create_service(serviceName="same", taskDefinition="web", desiredCount=0)
    arn = f"{ARN}service/other/same"
    calls = [("describe_services", {"services": [arn]}), ("update_service", {"service": arn}), ("delete_service", {"service": arn})]
    calls += [("list_tasks", {"serviceName": arn}), ("list_service_deployments", {"service": arn})]
    check_each(calls, lambda call: refused(ecs, (*call, "InvalidParameterException", OTHER_CLUSTER)))
    assert ecs.describe_services(services=[f"{ARN}service/default/same"])["services"][0]["status"] == "ACTIVE"


def test_a_service_that_can_never_start_is_refused_at_once(ecs):
    wrong, old = "InvalidParameterException", {**FARGATE, "platformVersion": "1.3.0"}
    unfit = "Task definition does not support launch_type FARGATE. Fargate only supports network mode ‘awsvpc’."
    incompatible = "PlatformTaskDefinitionIncompatibilityException", "One or more of the requested capabilities are not supported."
    target = {"targetGroupArn": "a", "containerName": "main", "containerPort": 81}
    cases = [
        ({"taskDefinition": "web", "launchType": "FARGATE"}, wrong, unfit),
        ({"taskDefinition": "large", **old}, *incompatible),
        ({"taskDefinition": "fargate", **FARGATE, "platformVersion": "9.9.9"}, "PlatformUnknownException",
         "The specified platform version does not exist: 9.9.9."),
        ({"taskDefinition": "web", "loadBalancers": [{**target, "containerName": "none"}]}, wrong,
         "The container none does not exist in the task definition."),
        ({"taskDefinition": "web", "loadBalancers": [target]}, wrong,
         "The container main did not have a container port 81 defined."),
    ]  # fmt: skip
    ecs.create_service(serviceName="sets", desiredCount=0, deploymentController={"type": "EXTERNAL"})
    ecs.create_service(serviceName="old", desiredCount=0, taskDefinition="fargate", **old)
    for params, code, text in cases:
        refused(ecs, ("create_service", {"serviceName": "new", "desiredCount": 0, **params}, code, text))
        refused(ecs, ("create_task_set", {"service": "sets", "cluster": "default", **params}, code, text))
    refused(ecs, ("run_task", {"taskDefinition": "large", **old}, *incompatible))
    refused(ecs, ("update_service", {"service": "old", "taskDefinition": "large"}, *incompatible))
    unknown = {"service": "old", "platformVersion": "9.9.9"}
    refused(ecs, ("update_service", unknown, cases[2][1], cases[2][2]))


def test_a_fargate_service_is_shown_as_on_aws(ecs):
    made = ecs.create_service(serviceName="shown", desiredCount=0, taskDefinition="fargate", **FARGATE)["service"]
    assert (made["platformVersion"], made["platformFamily"], made["availabilityZoneRebalancing"]) == ("LATEST", "Linux", "ENABLED")
    assert (made["deployments"][0]["platformVersion"], made["deployments"][0]["platformFamily"]) == ("1.4.0", "Linux")
    assert made["roleArn"] == f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/ecs.amazonaws.com/AWSServiceRoleForECS"
    shown = {"deploymentCircuitBreaker": {"enable": False, "rollback": False}, "strategy": "ROLLING", "bakeTimeInMinutes": 0}
    assert made["deploymentConfiguration"] == {"maximumPercent": 200, "minimumHealthyPercent": 100, **shown}
    [revision] = ecs.describe_service_revisions(serviceRevisionArns=[made["currentServiceRevisions"][0]["arn"]])["serviceRevisions"]
    assert (revision["platformVersion"], revision["platformFamily"], revision["launchType"]) == ("1.4.0", "Linux", "FARGATE")
    tight = {
        "availabilityZoneRebalancing": "ENABLED",
        "deploymentConfiguration": {"maximumPercent": 100, "minimumHealthyPercent": 0},
    }
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="availabilityZoneRebalancing needs"):
        ecs.update_service(service="shown", **tight)
