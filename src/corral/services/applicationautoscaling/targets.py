"""Scalable targets: register, describe, deregister and tag.

A scalable target is an ECS service and the limits of its desired count.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.policies import limited
from corral.decide.scaling.service_scaling import Cooldowns
from corral.model.ecs_service import DAEMON, EcsService
from corral.model.group import scaling_key
from corral.operations.stored_resources import Params
from corral.operations.tags import TagRules
from corral.services.applicationautoscaling import activities, errors
from corral.services.applicationautoscaling.names import (
    DIMENSION,
    NAMESPACE,
    PAGES,
    POLICY,
    SCHEDULE,
    SERVICE,
    TARGET,
    documents_of,
    find_target,
    is_listed,
    listed,
    put_target,
    resource_of,
    scaling_target,
    service_of,
    shown,
)
from corral.services.cloudwatch import target_tracking
from corral.store import Store
from corral.store.stored_resources import Document

SUSPENSIONS = ("DynamicScalingInSuspended", "DynamicScalingOutSuspended", "ScheduledScalingSuspended")
LINKED_ROLE = "aws-service-role/ecs.application-autoscaling.amazonaws.com/AWSServiceRoleForApplicationAutoScaling_ECSService"
CAPACITY_MAX = 5000  # the quota of AWS for the desired count of a service
TARGETS_MAX = 3000  # the quota of AWS for a region
COOLDOWNS, TAGS = "_cooldowns", "_tags"
TAG_RULES = TagRules(errors.ValidationException, errors={"count": errors.TooManyTagsException})

# Operations


def register_scalable_target(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Register a target or change it. If the desired count of the service is outside the limits, set it to the nearest limit."""
    resource = resource_of(params)
    service = _active_service(tx, caller, resource)
    before = find_target(tx, caller.region, resource)
    if before is None:
        if missing := [member for member in ("MinCapacity", "MaxCapacity") if member not in params]:
            raise errors.ValidationException(f"{' and '.join(missing)} must be specified when a scalable target is registered.")
        if len(tx.store.stored.listed(SERVICE, TARGET, caller.region, limit=TARGETS_MAX)) == TARGETS_MAX:
            raise errors.LimitExceededException(f"A region can have at most {TARGETS_MAX} scalable targets of ECS services.")
    target: Document = {
        **(before or _new_target(tx, caller, resource)),
        **{member: params[member] for member in ("MinCapacity", "MaxCapacity", "RoleARN") if member in params},
    }
    target["SuspendedState"] = {**target["SuspendedState"], **params.get("SuspendedState", {})}
    if "Tags" in params:
        target[TAGS] = _with_tags(target, params["Tags"])
    _check_limits(target["MinCapacity"], target["MaxCapacity"])
    put_target(tx, caller.region, target, caller.owner)
    bring_inside(tx, target, service)
    return {"ScalableTargetARN": target["ScalableTargetARN"]}


def _new_target(tx: Tx[Store], caller: Caller, resource: str) -> Document:
    return {
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource,
        "ScalableDimension": DIMENSION,
        "RoleARN": f"arn:aws:iam::{caller.account}:role/{LINKED_ROLE}",
        "CreationTime": tx.now_s,
        "SuspendedState": dict.fromkeys(SUSPENSIONS, False),
        "ScalableTargetARN": f"arn:aws:{SERVICE}:{caller.region}:{caller.account}:scalable-target/0ec5{tx.ids.hex32()}",
    }


def _check_limits(least: int, most: int) -> None:
    for member, value in (("MinCapacity", least), ("MaxCapacity", most)):
        if not 0 <= value <= CAPACITY_MAX:
            raise errors.ValidationException(f"{member} must be between 0 and {CAPACITY_MAX}: {value} is not valid.")
    if least > most:
        raise errors.ValidationException("Maximum capacity cannot be less than minimum capacity")


def _active_service(tx: Tx[Store], caller: Caller, resource: str) -> EcsService:
    service = service_of(tx, caller.region, resource)
    if service is None:
        raise errors.ValidationException(f"ECS service doesn't exist: {resource}")
    if service.strategy == DAEMON:
        raise errors.ValidationException(
            f"{resource} has the scheduling strategy DAEMON, which runs one task on each instance. Only services with the strategy "
            "REPLICA can be scaled."
        )
    return service


def describe_scalable_targets(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if not is_listed(params):
        return {"ScalableTargets": []}
    wanted = params.get("ResourceIds")
    found, more = PAGES.page(params, listed(tx, caller, TARGET, lambda each: not wanted or each["ResourceId"] in wanted))
    return {"ScalableTargets": [shown(target) for target in found], **more}


def deregister_scalable_target(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Delete a target with its policies and scheduled actions."""
    resource = resource_of(params)
    if not tx.store.stored.drop(SERVICE, TARGET, caller.region, resource):
        raise errors.not_found("scalable target found", resource, DIMENSION)
    for policy in list(documents_of(tx, caller.region, POLICY, resource)):
        target_tracking.delete_alarms(tx, caller.region, policy)
    for type_ in (POLICY, SCHEDULE):
        for key, _ in list(tx.store.stored.with_prefix(SERVICE, type_, caller.region, f"{resource}|")):
            tx.store.stored.drop(SERVICE, type_, caller.region, key)
    tx.mark(scaling_key(caller.region, scaling_target(resource)))
    return {}


def tag_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    target = _tagged(tx, caller, params["ResourceARN"])
    put_target(tx, caller.region, {**target, TAGS: _with_tags(target, params["Tags"])})
    return {}


def untag_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    target = _tagged(tx, caller, params["ResourceARN"])
    put_target(tx, caller.region, {**target, TAGS: TAG_RULES.remove(target.get(TAGS, {}), params["TagKeys"])})
    return {}


def list_tags_for_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"Tags": _tagged(tx, caller, params["ResourceARN"]).get(TAGS, {})}


def _with_tags(target: Document, tags: dict[str, str]) -> dict[str, str]:
    TAG_RULES.check(tags)
    return TAG_RULES.merge(target.get(TAGS, {}), tags)


def _tagged(tx: Tx[Store], caller: Caller, arn: str) -> Document:
    for _, target in tx.store.stored.with_prefix(SERVICE, TARGET, caller.region, ""):
        if target["ScalableTargetARN"] == arn:
            return target
    raise errors.ResourceNotFoundException(f"The scalable target {arn} does not exist.", ResourceName=arn)


# Limits and cooldowns


def bring_inside(tx: Tx[Store], target: Document, service: EcsService) -> None:
    """Set a desired count that is outside the limits of its target to the nearest limit."""
    wanted = limited(service.desired, target["MinCapacity"], target["MaxCapacity"])
    if wanted != service.desired:
        limit = "minimum" if wanted > service.desired else "maximum"
        activities.set_count(tx, service, target["ResourceId"], wanted, f"{limit} capacity was set to {wanted}")


def cooldowns_of(target: Document) -> Cooldowns:
    return msgspec.convert(target.get(COOLDOWNS, {}), Cooldowns)


def set_cooldowns(tx: Tx[Store], region: str, target: Document, cooldowns: Cooldowns) -> Document:
    changed = {**target, COOLDOWNS: msgspec.to_builtins(cooldowns)}
    put_target(tx, region, changed)
    return changed
