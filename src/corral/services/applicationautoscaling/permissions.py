"""The permissions that operations of Application Auto Scaling need, and the facts about scalable targets for policies."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import HOST_OPERATIONS, Params, Permission, on_resources, request_tags, with_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.operations.listings import Listed
from corral.services.applicationautoscaling.names import SERVICE, TARGET, find_target
from corral.services.applicationautoscaling.targets import TAGS
from corral.services.ecs import permissions as ecs
from corral.store import Store


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    return tx.store.stored.owner(SERVICE, TARGET, caller.region, element["ResourceId"])


LISTED = {
    "DescribeScalableTargets": Listed(("ScalableTargets",), _owner),
    "DescribeScalingActivities": Listed(("ScalingActivities",), _owner),
    "DescribeScalingPolicies": Listed(("ScalingPolicies",), _owner),
    "DescribeScheduledActions": Listed(("ScheduledActions",), _owner),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the scalable target, and to update the service that it scales. Describe operations have no resources.

    A target gets its ARN when it is registered. For a target without an ARN, a policy must allow the action on all targets.
    """
    keys = {"service-namespace": "ServiceNamespace", "scalable-dimension": "ScalableDimension"}
    context: Context = {f"{SERVICE}:{key}": (params[member],) for key, member in keys.items() if params.get(member)}
    if operation.startswith(("Describe", "Get")):
        return on_resources(f"{SERVICE}:{operation}", (), context)
    if params.get("ResourceARN"):
        arns = [params["ResourceARN"]]
    else:
        target = find_target(tx, caller.region, params.get("ResourceId", ""))
        any_target = f"arn:aws:{SERVICE}:{caller.region}:{caller.account}:scalable-target/*"
        arns = [target["ScalableTargetARN"] if target is not None else any_target]
    needed = on_resources(f"{SERVICE}:{operation}", arns, {**context, **request_tags(params)})
    if operation == "RegisterScalableTarget":
        needed += with_tags(f"{SERVICE}:TagResource", arns, params, context)
    return needed + _on_service(tx, caller, operation, params)


def _on_service(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the ECS service that AWS requires of a caller who lets a policy or a schedule change its size."""
    _, cluster, name = [*str(params.get("ResourceId", "")).split("/"), "", "", ""][:3]
    if operation not in HOST_OPERATIONS[SERVICE] or not name:
        return []
    given = {"cluster": cluster, "service": name}
    return [
        *ecs.needed_permissions(tx, caller, "DescribeServices", {"cluster": cluster, "services": [name]}),
        *ecs.needed_permissions(tx, caller, "UpdateService", given),
    ]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    stored = tx.store.stored
    for resource, target in stored.listed(SERVICE, TARGET, caller.region):
        if target["ScalableTargetARN"] == permission.resource:
            return ResourceFacts(stored.owner(SERVICE, TARGET, caller.region, resource), target.get(TAGS, {}))
    return ResourceFacts()


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Whether a request can scale a service whose tasks have access to the host."""
    _, cluster, name = [*str(params.get("ResourceId", "")).split("/"), "", "", ""][:3]
    return ecs.service_runs_on_host(tx, caller, cluster, name)
