"""Descriptions of stacks, their resources and their events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.model.stack import Output, Stack, StackEvent, StackResource, StackStatus
from corral.operations.pagination import Pagination
from corral.services.cloudformation.errors import ValidationError, absent_stack
from corral.services.cloudformation.lookup import find_stack
from corral.services.cloudformation.no_echo import HIDDEN
from corral.store import Store

DESCRIBED_RESOURCES_MAX = 100  # DescribeStackResources has no pages
PAGE = Pagination(ValidationError, limit=None, token="NextToken", next_token="NextToken", default=100)
NOT_CHECKED = {"StackDriftStatus": "NOT_CHECKED"}
RESOURCE_NOT_CHECKED = {"DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"}}


def describe_stacks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if "StackName" in params:
        return {"Stacks": [_described(find_stack(tx, caller, params["StackName"], deleted=True))]}
    stacks, more = _page(tx, params, caller, deleted=False, statuses=())
    return {"Stacks": [_described(stack) for stack in stacks], **more}


def list_stacks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stacks, more = _page(tx, params, caller, deleted=True, statuses=params.get("StackStatusFilter", ()))
    return {"StackSummaries": [_summary(stack) for stack in stacks], **more}


def _page(
    tx: Tx[Store], params: Mapping[str, Any], caller: Caller, *, deleted: bool, statuses: Iterable[str]
) -> tuple[list[Stack], dict[str, Any]]:
    """Return one page of stacks, newest first, and the response members about the next page."""
    wanted, limit = frozenset(statuses), PAGE.limit_of(params)
    assert limit is not None
    before = PAGE.position(params, _read_position)
    found: list[Stack] = []
    while len(found) <= limit:
        batch = tx.store.stacks.listed(caller.region, deleted=deleted, before=before, limit=limit + 1)
        found += [stack for stack in batch if not wanted or stack.status in wanted]
        if len(batch) <= limit:
            break
        before = (batch[-1].created_at_s, batch[-1].id)
    if len(found) <= limit:
        return found, PAGE.more(None)
    last = found[limit - 1]
    return found[:limit], PAGE.more(f"{last.created_at_s!r} {last.id}")


def _read_position(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    created, _, stack_id = text.partition(" ")
    return float(created), stack_id


def _summary(stack: Stack) -> dict[str, Any]:
    return {
        "StackId": stack.id,
        "StackName": stack.name,
        **({"TemplateDescription": stack.version.description} if stack.version.description else {}),
        **_times(stack),
        "StackStatus": stack.status.value,
        **({"StackStatusReason": stack.status_reason} if stack.status_reason else {}),
        **_parents(stack),
        "DriftInformation": NOT_CHECKED,
    }


def _described(stack: Stack) -> dict[str, Any]:
    version, shows_protection = stack.version, not stack.parent_id and stack.status is not StackStatus.DELETE_COMPLETE
    shown = {  # members that AWS leaves out if they are empty
        "ChangeSetId": stack.change_set_id,
        "Description": version.description,
        "Parameters": shown_parameters(version.parameters, version.resolved_ssm, version.no_echo),
        "StackStatusReason": stack.status_reason,
        "TimeoutInMinutes": stack.timeout_minutes,
        "RetainExceptOnCreate": stack.retain_except_on_create,
        "Capabilities": list(version.capabilities),
        "Outputs": [_output(output) for output in version.outputs],
        "RoleARN": version.role_arn,
        **_parents(stack),
    }
    return {
        "StackId": stack.id,
        "StackName": stack.name,
        **_times(stack),
        "RollbackConfiguration": version.rollback,
        "StackStatus": stack.status.value,
        "DisableRollback": stack.disable_rollback,
        "NotificationARNs": list(version.notification_arns),
        "Tags": [{"Key": key, "Value": value} for key, value in version.tags.items()],
        **({"EnableTerminationProtection": stack.termination_protection} if shows_protection else {}),
        "DriftInformation": NOT_CHECKED,
        **{name: value for name, value in shown.items() if value},
    }


def _output(output: Output) -> dict[str, str]:
    return {
        "OutputKey": output.key,
        "OutputValue": output.value,
        **({"Description": output.description} if output.description else {}),
        **({"ExportName": output.export_name} if output.export_name else {}),
    }


def _times(stack: Stack) -> dict[str, float]:
    times = {"LastUpdatedTime": stack.updated_at_s, "DeletionTime": stack.deleting_at_s or stack.deleted_at_s}
    return {"CreationTime": stack.created_at_s, **{name: at_s for name, at_s in times.items() if at_s is not None}}


def _parents(stack: Stack) -> dict[str, str]:
    return {"ParentId": stack.parent_id, "RootId": stack.root_id} if stack.parent_id else {}


def shown_parameters(texts: Mapping[str, str], resolved: Mapping[str, str], no_echo: Iterable[str]) -> list[dict[str, str]]:
    """Return the parameters of a stack or of a change set in the form of a response."""
    hidden = frozenset(no_echo)
    return [
        {
            "ParameterKey": name,
            "ParameterValue": HIDDEN if name in hidden else text,
            **({"ResolvedValue": HIDDEN if name in hidden else resolved[name]} if name in resolved else {}),
        }
        for name, text in texts.items()
    ]


# Resources


def describe_stack_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    given, logical_id = params["StackName"], params["LogicalResourceId"]
    stack = find_stack(tx, caller, given, deleted=True, missing=lambda name: ValidationError(f"Stack '{name}' does not exist"))
    resource = tx.store.stacks.resource(stack.id, logical_id)
    if resource is None or resource.leftover:
        raise ValidationError(f"Resource {logical_id} does not exist for stack {given}")
    metadata = {"Metadata": orjson.dumps(resource.version.metadata).decode()} if resource.version.metadata else {}
    return {
        "StackResourceDetail": {
            "StackName": stack.name,
            "StackId": stack.id,
            **_resource(resource),
            "LastUpdatedTimestamp": resource.changed_at_s,
            **metadata,
        }
    }


def describe_stack_resources(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if "StackName" in params:
        stack = find_stack(tx, caller, params["StackName"], deleted=True)
    elif "PhysicalResourceId" in params:
        stack = stack_with_resource(tx, caller, params["PhysicalResourceId"])
    else:
        raise ValidationError("Either StackName or PhysicalResourceId must be specified.")
    logical_id, physical_id = params.get("LogicalResourceId"), params.get("PhysicalResourceId")
    found = [
        resource
        for resource in _resources(tx, stack)
        if logical_id in (None, resource.logical_id) and physical_id in (None, resource.physical_id)
    ]
    if not found and logical_id is not None:
        raise ValidationError(f"Resource {logical_id} does not exist for stack {stack.name}")
    return {
        "StackResources": [
            {"StackName": stack.name, "StackId": stack.id, **_resource(resource), "Timestamp": resource.changed_at_s}
            for resource in found[:DESCRIBED_RESOURCES_MAX]
        ]
    }


def list_stack_resources(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], deleted=True)

    def candidates(after: str, limit: int) -> list[tuple[str, StackResource]]:
        return [(each.logical_id, each) for each in _resources(tx, stack) if each.logical_id > after][:limit]

    resources, more = PAGE.page(params, candidates)
    return {
        "StackResourceSummaries": [{**_resource(each), "LastUpdatedTimestamp": each.changed_at_s} for each in resources],
        **more,
    }


def stack_with_resource(tx: Tx[Store], caller: Caller, physical_id: str) -> Stack:
    """Return the stack that has this resource. Raise an error if there is none."""
    for resource in tx.store.stacks.with_physical_id(physical_id):
        stack = tx.store.stacks.get(resource.stack_id)
        if stack is not None and stack.region == caller.region and stack.deleted_at_s is None and not resource.leftover:
            return stack
    raise ValidationError(f"Stack for {physical_id} does not exist")


def _resources(tx: Tx[Store], stack: Stack) -> list[StackResource]:
    """Return the resources of a stack, sorted by logical id.

    Leftovers are omitted: these are replaced resources that the stack must still delete.
    """
    found = [resource for resource in tx.store.stacks.resources(stack.id).values() if not resource.leftover]
    return sorted(found, key=lambda resource: resource.logical_id)


def _resource(resource: StackResource) -> dict[str, Any]:
    reason = (resource.step.waits_for if resource.step is not None else "") or resource.status_reason
    return {
        "LogicalResourceId": resource.logical_id,
        **({"PhysicalResourceId": resource.physical_id} if resource.physical_id else {}),
        "ResourceType": resource.type,
        "ResourceStatus": resource.status.value,
        **({"ResourceStatusReason": reason} if reason else {}),
        **RESOURCE_NOT_CHECKED,
    }


# Events


def describe_stack_events(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = find_stack(tx, caller, params["StackName"], deleted=True, missing=absent_stack)
    before, limit = PAGE.position(params, _read_event_number), PAGE.limit_of(params)
    assert limit is not None
    found = tx.store.stacks.events(stack.id, before, limit + 1)
    more = PAGE.more(str(found[limit - 1][0]) if len(found) > limit else None)
    return {"StackEvents": [_event(event) for _, event in found[:limit]], **more}


def _read_event_number(text: str) -> int | None:
    number = whole_number(text) if text else None
    if text and number is None:
        raise ValueError(text)
    return number


def _event(event: StackEvent) -> dict[str, Any]:
    return {
        "StackId": event.stack_id,
        "EventId": event.id,
        "StackName": event.stack_name,
        "LogicalResourceId": event.logical_id,
        "PhysicalResourceId": event.physical_id,
        "ResourceType": event.type,
        "Timestamp": event.at_s,
        "ResourceStatus": event.status,
        **({"ResourceStatusReason": event.reason} if event.reason else {}),
        **({"ResourceProperties": event.properties} if event.properties else {}),
        **({"ClientRequestToken": event.client_token} if event.client_token else {}),
    }
