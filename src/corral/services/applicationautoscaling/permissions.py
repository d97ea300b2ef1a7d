"""The permissions that operations of Application Auto Scaling need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.services.applicationautoscaling.names import SERVICE, find_target
from corral.services.ecs.permissions import service_runs_on_host
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the scalable target. Describe operations have no resources.

    A target gets its ARN when it is registered. For a target without an ARN, a policy must allow the action on all targets.
    """
    keys = {"service-namespace": "ServiceNamespace", "scalable-dimension": "ScalableDimension"}
    context: Context = {f"{SERVICE}:{key}": (params[member],) for key, member in keys.items() if params.get(member)}
    if operation.startswith("Describe"):
        return on_resources(f"{SERVICE}:{operation}", (), context)
    if params.get("ResourceARN"):
        arns = [params["ResourceARN"]]
    else:
        target = find_target(tx, caller.region, params.get("ResourceId", ""))
        any_target = f"arn:aws:{SERVICE}:{caller.region}:{caller.account}:scalable-target/*"
        arns = [target["ScalableTargetARN"] if target is not None else any_target]
    return on_resources(f"{SERVICE}:{operation}", arns, {**context, **request_tags(params)})


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Whether a request can scale a service whose tasks have access to the host."""
    _, cluster, name = [*str(params.get("ResourceId", "")).split("/"), "", "", ""][:3]
    return service_runs_on_host(tx, caller.region, cluster, name)
