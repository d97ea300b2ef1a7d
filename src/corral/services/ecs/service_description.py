"""Describes an ECS service as DescribeServices, CreateService and UpdateService return it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from corral.core.transactions import Tx
from corral.decide.tasks.service_plan import failures_in_a_row
from corral.model.ecs_service import COMPLETED, STARTED_BY, Deployment, EcsService, ServiceRollout, ServiceTask, TaskCount, TaskSet
from corral.model.task import TaskState
from corral.services.ecs.lookup import arn
from corral.services.ecs.rollouts import current_rollout
from corral.store import Store

STOPPED_READ = 50  # how many of the newest stopped tasks are read to count failures in a row
LINKED_ROLE = "aws-service-role/ecs.amazonaws.com/AWSServiceRoleForECS"
CONFIGURATION_DEFAULTS = {
    "deploymentCircuitBreaker": {"enable": False, "rollback": False},
    "strategy": "ROLLING",
    "bakeTimeInMinutes": 0,
}
LISTS = ("loadBalancers", "serviceRegistries", "placementConstraints", "placementStrategy")
HIDDEN = (
    "clientToken",
    "role",
    "serviceConnectConfiguration",
    "vpcLatticeConfigurations",
    "gatewayConnectors",
    "monitoring",
    "tags",
)


def service_arn(account: str, region: str, cluster: str, name: str) -> str:
    return arn(account, region, f"service/{cluster}/{name}")


def deployment_arn(account: str, service: EcsService, rollout_id: str) -> str:
    return arn(account, service.region, f"service-deployment/{service.cluster}/{service.name}/{rollout_id}")


def revision_arn(account: str, service: EcsService, revision: str) -> str:
    return arn(account, service.region, f"service-revision/{service.cluster}/{service.name}/{revision}")


def service_description(tx: Tx[Store], service: EcsService, *, tags: bool = True) -> dict[str, Any]:
    account, details, primary = tx.settings.account, service.details, service.primary
    tasks = tx.store.ecs_services.tasks(service)
    running = sum(task.state == TaskState.RUNNING.value for task in tasks)
    rollout, counts = current_rollout(tx, service), _counts(tasks)
    description = {
        **{member: [] for member in LISTS},
        **{name: value for name, value in details.items() if name not in HIDDEN},
        **primary.settings,
        **_platform(service),
        "deploymentConfiguration": shown_configuration(service),
        "serviceArn": service_arn(account, service.region, service.cluster, service.name),
        "serviceName": service.name,
        "clusterArn": arn(account, service.region, f"cluster/{service.cluster}"),
        "status": service.status,
        "desiredCount": service.desired,
        "runningCount": running,
        "pendingCount": len(tasks) - running,
        "taskDefinition": primary.definition_arn or None,
        "schedulingStrategy": service.strategy,
        "deployments": [] if service.is_external else _deployments(tx, service, rollout, counts),
        "currentServiceDeployment": deployment_arn(account, service, rollout.id) if rollout is not None else None,
        "currentServiceRevisions": [
            {
                "arn": revision_arn(account, service, each.revision),
                "requestedTaskCount": service.desired if each is primary else 0,
                "runningTaskCount": counts[each.id, True],
                "pendingTaskCount": counts[each.id, False],
            }
            for each in (() if service.is_external else service.deployments)
        ],
        "taskSets": [task_set_description(tx, service, each) for each in service.task_sets],
        "events": tx.store.ecs_services.events(service),
        "createdAt": service.created_at_s,
        "roleArn": _role_arn(account, details, primary),
        "enableECSManagedTags": details.get("enableECSManagedTags", False),
        "propagateTags": details.get("propagateTags", "NONE"),
        "enableExecuteCommand": details.get("enableExecuteCommand", False),
        "resourceManagementType": "CUSTOMER",
    }
    if tags:
        description["tags"] = details.get("tags", [])
    return description


def _platform(service: EcsService) -> dict[str, str]:
    """The platform version of a Fargate service as its request has it. Its deployments have the version that LATEST means."""
    if "platformVersion" not in service.primary.settings:
        return {}
    return {"platformVersion": service.details.get("platformVersion") or "LATEST"}


def shown_configuration(service: EcsService, configuration: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the deployment configuration of the service, or that of one of its rollouts, with all members that ECS shows."""
    given: dict[str, Any] = configuration or service.details["deploymentConfiguration"]
    return given if service.is_external else {**CONFIGURATION_DEFAULTS, **given}


def _role_arn(account: str, details: dict[str, Any], primary: Deployment) -> str | None:
    """The role with which ECS calls load balancers and manages network interfaces; by default its service-linked role."""
    if role := details.get("role"):
        return role if role.startswith("arn:") else f"arn:aws:iam::{account}:role/{role}"
    is_needed = "networkConfiguration" in primary.settings or details.get("loadBalancers") or details.get("serviceRegistries")
    return f"arn:aws:iam::{account}:role/{LINKED_ROLE}" if is_needed else None


def _counts(tasks: list[ServiceTask]) -> Counter[tuple[str, bool]]:
    """Count the tasks by their deployment and by whether they run."""
    return Counter((task.deployment, task.state == TaskState.RUNNING.value) for task in tasks)


def _deployments(
    tx: Tx[Store], service: EcsService, rollout: ServiceRollout | None, counts: Counter[tuple[str, bool]]
) -> list[dict[str, Any]]:  # fmt: skip
    failed = {service.primary.id: failures_in_a_row(tx.store.ecs_services.newest_stopped(service, STOPPED_READ))}
    if rollout is not None:
        failed = {f"{STARTED_BY}{rollout.target}": rollout.failures, **failed}
    return [
        _deployment(service, deployment, counts[deployment.id, True], counts[deployment.id, False], failed.get(deployment.id, 0))
        for deployment in service.deployments
        if service.status == "ACTIVE" or counts[deployment.id, True] or counts[deployment.id, False]
    ]


def _deployment(service: EcsService, deployment: Deployment, running: int, pending: int, failed: int) -> dict[str, Any]:
    is_primary = deployment is service.primary
    done = deployment.rollout == COMPLETED
    return {
        **deployment.settings,
        "id": deployment.id,
        "status": "PRIMARY" if is_primary else "ACTIVE",
        "taskDefinition": deployment.definition_arn,
        "desiredCount": service.desired if is_primary else 0,
        "pendingCount": pending,
        "runningCount": running,
        "failedTasks": failed,
        "createdAt": deployment.created_at_s,
        "updatedAt": deployment.updated_at_s,
        "rolloutState": deployment.rollout,
        "rolloutStateReason": deployment.reason or f"ECS deployment {deployment.id} {'completed' if done else 'in progress'}.",
    }


def task_set_description(tx: Tx[Store], service: EcsService, each: TaskSet) -> dict[str, Any]:
    account, deployment = tx.settings.account, service.deployment(each.id)
    count = tx.store.tasks.deployment_counts.of(service).get(each.id, TaskCount())
    return {
        **deployment.settings,
        "id": each.id,
        "taskSetArn": arn(account, service.region, f"task-set/{service.cluster}/{service.name}/{each.id}"),
        "serviceArn": service_arn(account, service.region, service.cluster, service.name),
        "clusterArn": arn(account, service.region, f"cluster/{service.cluster}"),
        "externalId": each.details.get("externalId"),
        "status": each.status,
        "taskDefinition": deployment.definition_arn,
        "computedDesiredCount": each.desired(service.desired),
        "runningCount": count.running,
        "pendingCount": count.total - count.running,
        "createdAt": each.created_at_s,
        "updatedAt": each.updated_at_s,
        "loadBalancers": each.details.get("loadBalancers", []),
        "serviceRegistries": each.details.get("serviceRegistries", []),
        "scale": {"value": each.scale, "unit": "PERCENT"},
        "stabilityStatus": "STEADY_STATE" if each.is_steady else "STABILIZING",
        "stabilityStatusAt": each.stability_at_s,
        "tags": each.details["tags"],
    }
