"""Application Auto Scaling resource types of CloudFormation templates."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.applicationautoscaling.errors import ObjectNotFoundException, ValidationException
from corral.services.applicationautoscaling.names import SERVICE, check_place, find_target
from corral.services.applicationautoscaling.targets import SUSPENSIONS
from corral.store import Store
from corral.template_types.api_calls import call, request_of
from corral.template_types.api_types import AlreadyExists, tag_values
from corral.template_types.resource_types import Properties, TemplateType

IDENTITY = ("ResourceId", "ScalableDimension", "ServiceNamespace")  # the parts of the physical id of a target, in this order
NO_TARGET = f"Either ScalingTargetId or all three of [{', '.join(IDENTITY)}] must be specified"


def _call(tx: Tx[Store], caller: Caller, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    return call(tx, caller, SERVICE, operation, params)


def _place(identity: str) -> dict[str, str]:
    """Return the members that name a target, from its physical id."""
    return dict(zip(IDENTITY, identity.split("|")))


# Scalable targets


def _register(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    check_place(properties)
    if find_target(tx, caller.region, properties["ResourceId"]) is not None:
        raise AlreadyExists(f"The scalable target {properties['ResourceId']} already exists.")
    identity = "|".join(str(properties[member]) for member in IDENTITY)
    _update_target(tx, caller, identity, {}, properties)
    return identity


def _update_target(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    given = {name: value for name, value in new.items() if name not in ("Tags", "ScheduledActions", "SuspendedState")}
    suspended = dict.fromkeys(SUSPENSIONS, False) | new.get("SuspendedState", {})
    request = request_of(SERVICE, "RegisterScalableTarget", given)
    arn = _call(tx, caller, "RegisterScalableTarget", {**request, "SuspendedState": suspended})["ScalableTargetARN"]
    _set_tags(tx, caller, arn, old, new)
    _set_actions(tx, caller, identity, old, new)


def _set_tags(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    before, after = tag_values(old.get("Tags")), tag_values(new.get("Tags"))
    if removed := [key for key in before if key not in after]:
        _call(tx, caller, "UntagResource", {"ResourceARN": arn, "TagKeys": removed})
    if added := {key: value for key, value in after.items() if before.get(key) != value}:
        _call(tx, caller, "TagResource", {"ResourceARN": arn, "Tags": added})


def _set_actions(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    before = {each["ScheduledActionName"]: each for each in old.get("ScheduledActions", ())}
    after = {each["ScheduledActionName"]: each for each in new.get("ScheduledActions", ())}
    for name in before:
        if name not in after:
            with suppress(ObjectNotFoundException):  # an action that runs once has deleted itself
                _call(tx, caller, "DeleteScheduledAction", {**_place(identity), "ScheduledActionName": name})
    for name, action in after.items():
        if before.get(name) != action:
            _call(tx, caller, "PutScheduledAction", {**_place(identity), **action})


def _deregister(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    with suppress(ObjectNotFoundException):
        _call(tx, caller, "DeregisterScalableTarget", _place(identity))


# Scaling policies


def _target_of(properties: Properties) -> dict[str, str]:
    """Return the three members that name the target of a policy. A template has these members, or the physical id of the target."""
    if target := properties.get("ScalingTargetId"):
        found = _place(str(target))
        if len(found) == len(IDENTITY):
            return found
        raise ValidationException(
            f"The ScalingTargetId {target} is not valid: use Ref of an AWS::ApplicationAutoScaling::ScalableTarget."
        )
    if not all(member in properties for member in IDENTITY):
        raise ValidationException(NO_TARGET)
    return {member: properties[member] for member in IDENTITY}


def _create_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    place = _target_of(properties)
    named = {**place, "PolicyNames": [properties["PolicyName"]]}
    if _call(tx, caller, "DescribeScalingPolicies", named)["ScalingPolicies"]:
        raise AlreadyExists(f"The scaling policy {properties['PolicyName']} of {place['ResourceId']} already exists.")
    return _put_policy(tx, caller, properties)


def _put_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    given = {name: value for name, value in properties.items() if name != "ScalingTargetId"}
    request = request_of(SERVICE, "PutScalingPolicy", given)
    return str(_call(tx, caller, "PutScalingPolicy", {**request, **_target_of(properties)})["PolicyARN"])


def _update_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _put_policy(tx, caller, new)


def _delete_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    with suppress(ObjectNotFoundException):  # the deletion of the target has deleted the policy
        _call(tx, caller, "DeleteScalingPolicy", {**_target_of(properties), "PolicyName": properties["PolicyName"]})


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::ApplicationAutoScaling::ScalableTarget",
        _register,
        lambda tx, caller, identity: {"Id": identity},
        _update_target,
        _deregister,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        _create_policy,
        lambda tx, caller, identity: {"Arn": identity},
        _update_policy,
        _delete_policy,
        checks_permissions=True,
    ),
)
