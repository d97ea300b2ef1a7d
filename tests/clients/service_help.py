"""Helpers for tests of ECS services."""

from __future__ import annotations

from eventually import eventually
from harness import container


def clean_ecs(corral, client):
    """The client of a fixture. At the end of the test, its services are deleted and its tasks stopped."""
    ecs = client("ecs")
    yield ecs
    for page in ecs.get_paginator("list_services").paginate():
        for arn in page["serviceArns"]:
            ecs.delete_service(service=arn, force=True)
            eventually(lambda arn=arn: described(ecs, arn)["status"] == "INACTIVE", f"{arn} is deleted")
    corral.stop_tasks()


def family(ecs, name, command=("sleep", "600"), **more):
    definition = ecs.register_task_definition(family=name, containerDefinitions=[container(list(command), **more)])
    return definition["taskDefinition"]["taskDefinitionArn"]


def described(ecs, name):
    [service] = ecs.describe_services(services=[name])["services"]
    return service


def tasks_of(ecs, name, status="RUNNING"):
    arns = ecs.list_tasks(serviceName=name, desiredStatus=status)["taskArns"]
    return ecs.describe_tasks(tasks=arns)["tasks"] if arns else []


def stable(ecs, name):
    ecs.get_waiter("services_stable").wait(services=[name], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    return described(ecs, name)


def messages(ecs, name):
    return [event["message"] for event in described(ecs, name)["events"]]
