"""The resource types of AWS Batch in CloudFormation templates, such as AWS::Batch::JobQueue.

The physical id of a resource is its ARN.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.services.batch.environments import find_environment
from corral.services.batch.job_definitions import split_definition
from corral.services.batch.names import (
    DISABLED,
    ENABLED,
    ENVIRONMENT,
    INVALID,
    POLICY,
    QUEUE,
    RESOURCE,
    SERVICE,
    VALID,
    arn,
    queue_key,
    short,
)
from corral.services.batch.resource_tags import set_reserved_tags
from corral.store import Store
from corral.template_types.api_calls import call, request_of
from corral.template_types.api_types import changed, tag_values
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting
from corral.template_types.schemas import changed_paths, facts

NotStabilized = api_error("NotStabilized")
STABILIZES_S = 3 * 3600.0  # the longest time that a stack waits until an environment is VALID
# Member of computeResources → the empty value with which UpdateComputeEnvironment removes the member.
EMPTY: dict[str, Any] = {
    "Ec2KeyPair": "",
    "ImageId": "",
    "PlacementGroup": "",
    "LaunchTemplate": {"LaunchTemplateId": ""},
    "Ec2Configuration": [],
    "Tags": {},
}


def _call(tx: Tx[Store], caller: Caller, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    return call(tx, caller, SERVICE, operation, params)


def _set_tags(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    before, after = tag_values(old.get("Tags")), tag_values(new.get("Tags"))
    if removed := [key for key in before if key not in after]:
        _call(tx, caller, "UntagResource", {"resourceArn": identity, "tagKeys": removed})
    if added := {key: value for key, value in after.items() if before.get(key) != value}:
        _call(tx, caller, "TagResource", {"resourceArn": identity, "tags": added})


def _create(tx: Tx[Store], caller: Caller, operation: str, kind: str, name: str, properties: Properties) -> str:
    """Create a resource with an operation that takes the properties of the template. Return the ARN of the resource.

    `kind` is the kind of the resource in its ARN. `name` is the property that contains the name of the resource.
    """
    given = {each: value for each, value in properties.items() if each != "Tags" or value}  # Batch refuses an empty map of tags
    _call(tx, caller, operation, request_of(SERVICE, operation, given))
    identity = arn(caller.account, caller.region, f"{kind}/{properties[name]}")
    set_reserved_tags(tx, caller, identity, dict(properties.get("_tags", {})))
    return identity


def _exists(tx: Tx[Store], caller: Caller, kind: str, identity: str) -> bool:
    return tx.store.stored.get(SERVICE, kind, caller.region, short(kind, caller.region, identity)) is not None


# Compute environments


def _create_environment(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return _create(tx, caller, "CreateComputeEnvironment", ENVIRONMENT, "ComputeEnvironmentName", properties)


def _update_environment(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Update an environment in place.

    Send only the changed members of computeResources, because UpdateComputeEnvironment does not accept all members.
    """
    names = changed(old, new, without=("ComputeResources", "ReplaceComputeEnvironment", "Tags"))
    given = {name: new[name] for name in names if name in new}
    if "State" in old and "State" not in new:
        given["State"] = ENABLED
    before, after = old.get("ComputeResources", {}), new.get("ComputeResources", {})
    resources = {name: after.get(name, EMPTY.get(name)) for name in changed(before, after)}
    resources = {name: value for name, value in resources.items() if value is not None}
    if resources:
        given["ComputeResources"] = resources
    if new.get("ComputeResources", {}).get("UpdateToLatestImageVersion") and resources:
        given["ComputeResources"]["UpdateToLatestImageVersion"] = True
    if given:
        request = request_of(SERVICE, "UpdateComputeEnvironment", given)
        _call(tx, caller, "UpdateComputeEnvironment", {**request, "computeEnvironment": identity})


def _replaces_environment(old: Properties, new: Properties) -> list[str]:
    """Return the changed properties that force a replacement. There are none if ReplaceComputeEnvironment is false."""
    if not new.get("ReplaceComputeEnvironment", True):
        return []
    return changed_paths(facts("AWS::Batch::ComputeEnvironment").conditional, old, new)


def _environment_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Return None if the environment is VALID. Otherwise, return what the stack waits for.

    Raise NotStabilized if the environment was deleted, is INVALID, or is not VALID after STABILIZES_S.
    """
    environment = find_environment(tx, caller.region, step.physical_id)
    if environment is None:
        raise NotStabilized(f"The compute environment {step.physical_id} was deleted.")
    if environment.status == VALID:
        return None
    why = f"(compute environment {environment.name}) its status is {environment.status}: {environment.status_reason}"
    until_s = step.started_s + STABILIZES_S
    if environment.status == INVALID or tx.now_s >= until_s:
        raise NotStabilized(f"The compute environment did not become {VALID}. {why}")
    return Waiting((environment.key,), why, until_s)


def _delete_environment(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if find_environment(tx, caller.region, identity) is not None:
        _call(tx, caller, "UpdateComputeEnvironment", {"computeEnvironment": identity, "state": DISABLED})
        _call(tx, caller, "DeleteComputeEnvironment", {"computeEnvironment": identity})


def _environment_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    environment = find_environment(tx, caller.region, step.physical_id)
    if environment is None:
        return None
    return Waiting((environment.key,), f"(compute environment {environment.name}) its instances are terminating.")


# Job queues


def _create_queue(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return _create(tx, caller, "CreateJobQueue", QUEUE, "JobQueueName", properties)


def _update_queue(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    names = changed(old, new, without=("Tags",))
    defaults = {"State": ENABLED, "JobStateTimeLimitActions": [], "SchedulingPolicyArn": ""}
    if given := {name: new[name] if name in new else defaults[name] for name in names if name in new or name in defaults}:
        _call(tx, caller, "UpdateJobQueue", {**request_of(SERVICE, "UpdateJobQueue", given), "jobQueue": identity})
    _set_tags(tx, caller, identity, old, new)


def _delete_queue(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if _exists(tx, caller, QUEUE, identity):
        _call(tx, caller, "UpdateJobQueue", {"jobQueue": identity, "state": DISABLED})
        _call(tx, caller, "DeleteJobQueue", {"jobQueue": identity})


def _queue_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    if not _exists(tx, caller, QUEUE, step.physical_id):
        return None
    name = short(QUEUE, caller.region, step.physical_id)
    return Waiting((queue_key(caller.region, name),), f"(job queue {name}) its jobs are terminating.")


# Job definitions


def _register(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    """Register a revision. Return its ARN, which ends with the number of the revision."""
    given = {each: value for each, value in properties.items() if each != "Tags" or value}
    reply = _call(tx, caller, "RegisterJobDefinition", request_of(SERVICE, "RegisterJobDefinition", given))
    set_reserved_tags(tx, caller, reply["jobDefinitionArn"], dict(properties.get("_tags", {})))
    return str(reply["jobDefinitionArn"])


def _definition_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """If an update changes the definition, register the next revision. The stack then deregisters the old revision, as after a
    replacement.

    A rollback registers nothing, because the old revision still exists.
    """
    old = step.old_properties or {}
    if step.action == "UPDATE" and not step.is_rollback and changed(old, step.properties, without=("ResourceRetentionPolicy",)):
        step.physical_id = _register(tx, caller, step.properties)
    return None


def _deregister(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Deregister a revision. With SkipDeregisterOnUpdate, a revision stays active if a later revision is active."""
    name, revision = split_definition(caller.region, identity)
    active = {"jobDefinitionName": name, "status": "ACTIVE"}
    found = _call(tx, caller, "DescribeJobDefinitions", {"jobDefinitions": [identity]})["jobDefinitions"]
    if not found or found[0]["status"] != "ACTIVE":
        return
    if properties.get("ResourceRetentionPolicy", {}).get("SkipDeregisterOnUpdate"):
        others = _call(tx, caller, "DescribeJobDefinitions", active)["jobDefinitions"]
        if any(each["revision"] > (revision or 0) for each in others):
            return
    _call(tx, caller, "DeregisterJobDefinition", {"jobDefinition": identity})


def _nothing(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Do nothing. `_definition_settled` registers the next revision, because an update function cannot change the physical id."""


# Scheduling policies and consumable resources


def _create_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return _create(tx, caller, "CreateSchedulingPolicy", POLICY, "Name", properties)


def _update_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    if changed(old, new, without=("Tags",)):
        request = request_of(SERVICE, "UpdateSchedulingPolicy", {"FairsharePolicy": {}, **new})
        _call(tx, caller, "UpdateSchedulingPolicy", {**request, "arn": identity})
    _set_tags(tx, caller, identity, old, new)


def _delete_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if _exists(tx, caller, POLICY, identity):
        _call(tx, caller, "DeleteSchedulingPolicy", {"arn": identity})


def _create_resource(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return _create(tx, caller, "CreateConsumableResource", RESOURCE, "ConsumableResourceName", properties)


def _update_resource(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    if old.get("TotalQuantity") != new.get("TotalQuantity"):
        request = {"consumableResource": identity, "operation": "SET", "quantity": new["TotalQuantity"]}
        _call(tx, caller, "UpdateConsumableResource", request)
    _set_tags(tx, caller, identity, old, new)


def _delete_resource(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if _exists(tx, caller, RESOURCE, identity):
        _call(tx, caller, "DeleteConsumableResource", {"consumableResource": identity})


def _resource_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    found = _call(tx, caller, "DescribeConsumableResource", {"consumableResource": identity})
    members = ("AvailableQuantity", "ConsumableResourceArn", "CreatedAt", "InUseQuantity")
    return {member: found[member[0].lower() + member[1:]] for member in members}


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::Batch::ComputeEnvironment",
        _create_environment,
        lambda tx, caller, identity: {"ComputeEnvironmentArn": identity},
        _update_environment,
        _delete_environment,
        "ComputeEnvironmentName",
        settled=_environment_settled,
        gone=_environment_gone,
        replaces=_replaces_environment,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::Batch::JobQueue",
        _create_queue,
        lambda tx, caller, identity: {"JobQueueArn": identity},
        _update_queue,
        _delete_queue,
        "JobQueueName",
        gone=_queue_gone,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::Batch::JobDefinition",
        _register,
        lambda tx, caller, identity: {"JobDefinitionArn": identity},
        _nothing,
        _deregister,
        "JobDefinitionName",
        settled=_definition_settled,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::Batch::SchedulingPolicy",
        _create_policy,
        lambda tx, caller, identity: {"Arn": identity},
        _update_policy,
        _delete_policy,
        "Name",
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::Batch::ConsumableResource",
        _create_resource,
        _resource_attributes,
        _update_resource,
        _delete_resource,
        "ConsumableResourceName",
        checks_permissions=True,
    ),
)
