"""Finds the ARNs of the resources that a request to ECS concerns.

`access/permissions.py` uses this module to list the permissions that the request needs. Most handlers use only the last part of
an ARN in a request, and ignore its region and account. So this module builds the ARN of the resource that the handler will find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.model.instance import DEFAULT_CLUSTER
from corral.services.ecs import lookup
from corral.services.ecs.lookup import short, split_definition

Params = Mapping[str, Any]
CLUSTERS = frozenset(
    {
        "DeleteCluster",
        "ListAttributes",
        "ListContainerInstances",
        "PutClusterCapacityProviders",
        "UpdateCluster",
        "UpdateClusterSettings",
    }
)
TASKS = frozenset({"DescribeTasks", "ExecuteCommand", "GetTaskProtection", "StopTask", "UpdateTaskProtection"})
INSTANCES = frozenset(
    {"DeregisterContainerInstance", "DescribeContainerInstances", "UpdateContainerAgent", "UpdateContainerInstancesState"}
)
ATTRIBUTES = frozenset({"DeleteAttributes", "PutAttributes"})
DEFINITIONS = frozenset({"DeleteTaskDefinitions", "DeregisterTaskDefinition"})
SERVICES = frozenset(
    {"CreateService", "DeleteService", "DescribeServices", "ListServiceDeployments", "UpdateService", "UpdateServicePrimaryTaskSet"}
)
TASK_SETS = frozenset({"CreateTaskSet", "DeleteTaskSet", "DescribeTaskSets", "UpdateTaskSet"})
DEPLOYMENTS = frozenset({"ContinueServiceDeployment", "DescribeServiceDeployments", "StopServiceDeployment"})
PROVIDERS = frozenset({"DeleteCapacityProvider", "DescribeCapacityProviders", "UpdateCapacityProvider"})
TAGS = frozenset({"TagResource", "UntagResource", "ListTagsForResource"})


def arns_of(caller: Caller, operation: str, params: Params) -> list[str]:
    """Return the ARNs of the resources that a request names. Return NO_RESOURCE for an operation that has no resource on AWS."""

    def arn(resource: str) -> str:
        return lookup.arn(caller.account, caller.region, resource)

    cluster = cluster_of(params)
    if operation in CLUSTERS:
        return [arn(f"cluster/{cluster}")]
    if operation == "RegisterTaskDefinition":
        return [arn(f"task-definition/{params.get('family', '')}:*")]
    if operation == "CreateCluster":
        return [arn(f"cluster/{params.get('clusterName') or DEFAULT_CLUSTER}")]
    if operation == "DescribeClusters":
        return [arn(f"cluster/{short(each)}") for each in params.get("clusters") or [cluster]]
    if operation in TASKS:
        return [arn(f"task/{cluster}/{short(each)}") for each in _named(params, "tasks", "task")]
    if operation in INSTANCES:
        return [
            arn(f"container-instance/{cluster}/{short(each)}") for each in _named(params, "containerInstances", "containerInstance")
        ]
    if operation in ATTRIBUTES:
        targets = dict.fromkeys(short(each.get("targetId") or "") for each in params.get("attributes") or ())
        return [arn(f"container-instance/{cluster}/{each}") for each in targets]
    if operation in DEFINITIONS:
        return [arn(f"task-definition/{_revision(each)}") for each in _named(params, "taskDefinitions", "taskDefinition")]
    if operation in SERVICES:
        given = params.get("serviceName") if operation == "CreateService" else None
        return [arn(f"service/{cluster}/{short(each)}") for each in ([given] if given else _named(params, "services", "service"))]
    if operation in TASK_SETS:
        service = short(params.get("service") or "")
        given = params.get("taskSets") or [params.get("taskSet") or "*"]
        return [arn(f"task-set/{cluster}/{service}/ecs-svc/{short(each)}") for each in given]
    if operation in DEPLOYMENTS:
        return [arn(_resource(each)) for each in _named(params, "serviceDeploymentArns", "serviceDeploymentArn")]
    if operation == "DescribeServiceRevisions":
        return [arn(_resource(each)) for each in _named(params, "serviceRevisionArns", "")]
    if operation in PROVIDERS:
        given = params.get("capacityProvider") or params.get("name") or "*"
        return [arn(f"capacity-provider/{short(each)}") for each in params.get("capacityProviders") or [given]]
    if operation in TAGS:
        return [params.get("resourceArn", UNKNOWN_RESOURCE)]
    return [NO_RESOURCE]


def cluster_of(params: Params) -> str:
    """Return the name of the cluster in a request."""
    return short(params.get("cluster") or "") or DEFAULT_CLUSTER


def cluster_in(resource_arn: str, params: Params) -> str:
    """Return the name of the cluster in an ARN, or else of the cluster in the request."""
    kind, *names = resource_arn.rpartition(":")[2].split("/")
    return names[0] if len(names) > 1 or (names and kind == "cluster") else cluster_of(params)


def _named(params: Params, several: str, one: str) -> list[str]:
    """Return the resources that a request names in the member `several` or `one`. Return ["*"] if it names none."""
    return params.get(several) or [params.get(one) or "*"]


def _revision(given: str) -> str:
    """Return FAMILY:REVISION. The number of the revision has no leading zeros."""
    try:
        family, revision = split_definition(given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given)
    return family if revision is None else f"{family}:{revision}"


def _resource(given: str) -> str:
    """Return the last part of the ARN of a service deployment or service revision. The handler ignores the account in this ARN."""
    return given.split(":", 5)[-1]
