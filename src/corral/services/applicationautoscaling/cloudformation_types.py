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
from corral.template_types.api_types import AlreadyExists, Params, Tagging, api_type
from corral.template_types.resource_types import Properties, TemplateType

IDENTITY = ("ResourceId", "ScalableDimension", "ServiceNamespace")  # the parts of the physical id of a target, in this order
NO_TARGET = f"Either ScalingTargetId or all three of [{', '.join(IDENTITY)}] must be specified"


TAGGING = Tagging("TagResource", "UntagResource", lambda caller, arn: {"ResourceARN": arn}, shape=dict)


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
    TAGGING.change(tx, caller, SERVICE, arn, old, new)
    _set_actions(tx, caller, identity, old, new)


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


def _refuse_existing(tx: Tx[Store], caller: Caller, properties: Properties) -> bool:
    place = _target_of(properties)
    named = {**place, "PolicyNames": [properties["PolicyName"]]}
    if _call(tx, caller, "DescribeScalingPolicies", named)["ScalingPolicies"]:
        raise AlreadyExists(f"The scaling policy {properties['PolicyName']} of {place['ResourceId']} already exists.")
    return False


def _policy_request(caller: Caller, properties: Properties) -> Params:
    return {**request_of(SERVICE, "PutScalingPolicy", properties), **_target_of(properties)}


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::ApplicationAutoScaling::ScalableTarget",
        _register,
        lambda tx, caller, identity: {"Id": identity},
        _update_target,
        _deregister,
        checks_permissions=True,
    ),
    api_type(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        SERVICE,
        identity_in="PolicyARN",
        target=lambda identity, properties: {**_target_of(properties), "PolicyName": properties["PolicyName"]},
        create="PutScalingPolicy",
        request=_policy_request,
        exists=_refuse_existing,
        update="PutScalingPolicy",
        delete="DeleteScalingPolicy",
        missing=(ObjectNotFoundException.code,),  # the deletion of the target has deleted the policy
        attributes=lambda tx, caller, identity: {"Arn": identity},
    ),
)
