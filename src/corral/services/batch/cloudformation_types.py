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
    queue_key,
    short,
)
from corral.services.batch.resource_tags import set_reserved_tags
from corral.store import Store
from corral.template_types.api_calls import call, request_of
from corral.template_types.api_types import Params, Tagging, api_type, changed
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


TAGGING = Tagging(
    "TagResource",
    "UntagResource",
    lambda caller, identity: {"resourceArn": identity},
    tags="tags",
    keys="tagKeys",
    shape=dict,
    is_created=True,
)


def _call(tx: Tx[Store], caller: Caller, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    return call(tx, caller, SERVICE, operation, params)


def _exists(tx: Tx[Store], caller: Caller, kind: str, identity: str) -> bool:
    return tx.store.stored.get(SERVICE, kind, caller.region, short(kind, caller.region, identity)) is not None


def _batch_type(name: str, kind: str, target: str, identity_in: str, **more: Any) -> TemplateType:
    """Return the type of a resource that Batch stores. `kind` is the kind of the resource in its ARN."""
    return api_type(
        name,
        SERVICE,
        target=target,
        identity_in=identity_in,
        found=lambda tx, caller, identity, properties: _exists(tx, caller, kind, identity),
        tagging=TAGGING,
        system_tags=set_reserved_tags,
        **more,
    )


# Compute environments


def _environment_update(identity: str, old: Properties, new: Properties) -> Params:
    """Return the changed members. UpdateComputeEnvironment does not accept all members of computeResources."""
    names = changed(old, new, without=("ComputeResources", "ReplaceComputeEnvironment", "Tags"))
    given = {name: new[name] for name in names if name in new}
    if "State" in old and "State" not in new:
        given["State"] = ENABLED
    before, after = old.get("ComputeResources", {}), new.get("ComputeResources", {})
    resources = {name: after.get(name, EMPTY.get(name)) for name in changed(before, after)}
    resources = {name: value for name, value in resources.items() if value is not None}
    if resources:
        latest = {"UpdateToLatestImageVersion": True} if after.get("UpdateToLatestImageVersion") else {}
        given["ComputeResources"] = resources | latest
    return {**request_of(SERVICE, "UpdateComputeEnvironment", given), "computeEnvironment": identity}


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


def _disable_environment(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    _call(tx, caller, "UpdateComputeEnvironment", {"computeEnvironment": identity, "state": DISABLED})


def _environment_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    environment = find_environment(tx, caller.region, step.physical_id)
    if environment is None:
        return None
    return Waiting((environment.key,), f"(compute environment {environment.name}) its instances are terminating.")


# Job queues


def _queue_update(identity: str, old: Properties, new: Properties) -> Params:
    """Return the changed members."""
    names = changed(old, new, without=("Tags",))
    defaults = {"State": ENABLED, "JobStateTimeLimitActions": [], "SchedulingPolicyArn": ""}
    given = {name: new[name] if name in new else defaults[name] for name in names if name in new or name in defaults}
    return {**request_of(SERVICE, "UpdateJobQueue", given), "jobQueue": identity}


def _disable_queue(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    _call(tx, caller, "UpdateJobQueue", {"jobQueue": identity, "state": DISABLED})


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


def _resource_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    found = _call(tx, caller, "DescribeConsumableResource", {"consumableResource": identity})
    members = ("AvailableQuantity", "ConsumableResourceArn", "CreatedAt", "InUseQuantity")
    return {member: found[member[0].lower() + member[1:]] for member in members}


TEMPLATE_TYPES = (
    _batch_type(
        "AWS::Batch::ComputeEnvironment",
        ENVIRONMENT,
        "computeEnvironment",
        "computeEnvironmentArn",
        create="CreateComputeEnvironment",
        update="UpdateComputeEnvironment",
        update_request=_environment_update,
        unsent=("ReplaceComputeEnvironment",),
        delete="DeleteComputeEnvironment",
        before_delete=_disable_environment,
        attributes=lambda tx, caller, identity: {"ComputeEnvironmentArn": identity},
        name_property="ComputeEnvironmentName",
        settled=_environment_settled,
        gone=_environment_gone,
        replaces=_replaces_environment,
    ),
    _batch_type(
        "AWS::Batch::JobQueue",
        QUEUE,
        "jobQueue",
        "jobQueueArn",
        create="CreateJobQueue",
        update="UpdateJobQueue",
        update_request=_queue_update,
        delete="DeleteJobQueue",
        before_delete=_disable_queue,
        attributes=lambda tx, caller, identity: {"JobQueueArn": identity},
        name_property="JobQueueName",
        gone=_queue_gone,
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
    _batch_type(
        "AWS::Batch::SchedulingPolicy",
        POLICY,
        "arn",
        "arn",
        create="CreateSchedulingPolicy",
        update="UpdateSchedulingPolicy",
        defaults={"FairsharePolicy": {}},
        delete="DeleteSchedulingPolicy",
        attributes=lambda tx, caller, identity: {"Arn": identity},
        name_property="Name",
    ),
    _batch_type(
        "AWS::Batch::ConsumableResource",
        RESOURCE,
        "consumableResource",
        "consumableResourceArn",
        create="CreateConsumableResource",
        update="UpdateConsumableResource",
        update_request=lambda identity, old, new: {
            "consumableResource": identity,
            "operation": "SET",
            "quantity": new["TotalQuantity"],
        },
        delete="DeleteConsumableResource",
        attributes=_resource_attributes,
        name_property="ConsumableResourceName",
    ),
)
