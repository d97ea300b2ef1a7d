"""Change sets. A change set is a stored request to create or update a stack. A caller can review it, and then execute it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.change_set import (
    AVAILABLE,
    CREATE_COMPLETE,
    EXECUTE_IN_PROGRESS,
    EXECUTED,
    FAILED,
    OBSOLETE,
    UNAVAILABLE,
    ChangeSet,
)
from corral.model.stack import Stack, StackStatus
from corral.operations.pagination import among
from corral.services.cloudformation import errors, stack_operations
from corral.services.cloudformation.change_details import described, shown
from corral.services.cloudformation.lookup import find_change_set, named_stack, wait_for_stack
from corral.services.cloudformation.no_echo import parameter_secrets, secrets_of
from corral.services.cloudformation.stack_descriptions import PAGE, shown_parameters
from corral.services.cloudformation.stack_operations import StackSpec
from corral.services.cloudformation.stack_requests import digest, recall, remember, stack_spec
from corral.services.cloudformation.stack_settings import checked_role
from corral.store import Store

NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


def create_change_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    type_ = params.get("ChangeSetType", "UPDATE")
    if type_ == "IMPORT":
        raise errors.ValidationError(
            "Corral does not import existing resources into stacks: ChangeSetType must be CREATE or UPDATE."
        )
    name, request = params["ChangeSetName"], digest("CreateChangeSet", params)
    stack = _stack(tx, caller, params, type_)
    existing = tx.store.change_sets.named(stack.id, name) if stack is not None else None
    if existing is not None and (existing.status == FAILED or existing.execution_status in EXECUTED):
        # A change set that has failed or was executed cannot be executed again, so a new change set may have the same name. `aws
        # cloudformation deploy` needs this: two deployments in the same second give their change sets the same name.
        tx.store.change_sets.drop(existing.id)
    elif existing is not None:
        if existing.request != request:
            raise errors.AlreadyExistsException(
                f"ChangeSet {name} cannot be created due to a mismatch with existing attribute Template"
            )
        return {"Id": existing.id, "StackId": existing.stack_id}
    checked_role(tx, caller, params)
    is_new = type_ == "CREATE"
    spec = stack_spec(tx, caller, params, stack.name if stack is not None else params["StackName"], stack, expands=False)
    spec = replace(spec, on_failure=params.get("OnStackFailure", "ROLLBACK"))
    changes = stack_operations.planned_changes(tx, caller, None if is_new else stack, spec)
    if stack is None:
        stack = stack_operations.review_stack(tx, caller, spec)
    values = spec.parameters
    secrets = secrets_of(tx, stack) | parameter_secrets(values.no_echo, values.texts, values.values)
    has_changes = is_new or stack_operations.is_changed(tx, caller, stack, spec, changes)
    change_set = ChangeSet(
        id=f"arn:aws:cloudformation:{caller.region}:{caller.account}:changeSet/{name}/{tx.ids.uuid()}",
        name=name,
        stack_id=stack.id,
        stack_name=stack.name,
        type=type_,
        status=CREATE_COMPLETE if has_changes else FAILED,
        execution_status=AVAILABLE if has_changes else UNAVAILABLE,
        status_reason="" if has_changes else NO_CHANGES,
        created_at_s=tx.now_s,
        request=request,
        spec=msgspec.to_builtins(spec),
        changes=[{"Type": "Resource", "ResourceChange": described(each, secrets)} for each in changes],
        description=params.get("Description", ""),
        include_nested_stacks=params.get("IncludeNestedStacks", False),
        on_stack_failure=params.get("OnStackFailure", ""),
    )
    tx.store.change_sets.put(change_set)
    return {"Id": change_set.id, "StackId": stack.id}


def _stack(tx: Tx[Store], caller: Caller, params: Mapping[str, Any], type_: str) -> Stack | None:
    """Return the stack of a new change set. Return None if the change set is for a stack that does not exist yet."""
    given = params["StackName"]
    stack = tx.store.stacks.get(given) if given.startswith("arn:") else tx.store.stacks.named(caller.region, given)
    if stack is not None and stack.region != caller.region:
        stack = None
    if type_ == "CREATE":
        if stack is None and given.startswith("arn:"):
            raise errors.absent_stack(given)
        if stack is not None and stack.status is not StackStatus.REVIEW_IN_PROGRESS:
            raise errors.ValidationError(
                f"Stack [{given}] already exists and cannot be created again with the changeSet [{params['ChangeSetName']}]."
            )
        return stack
    if stack is None or stack.status is StackStatus.REVIEW_IN_PROGRESS or stack.deleted_at_s is not None:
        raise errors.absent_stack(given)
    stack_operations.require_updatable(stack)
    return stack


def execute_change_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if recall(tx, caller, "ExecuteChangeSet", params) is not None:
        return {}
    found = find_change_set(tx, caller, params)
    if found.status != CREATE_COMPLETE:
        raise errors.InvalidChangeSetStatus(f"ChangeSet [{found.id}] cannot be executed in its current status of [{found.status}]")
    stack = tx.store.stacks.get(found.stack_id)
    assert stack is not None, "a change set is deleted together with its stack"
    execution_status = found.execution_status_in(stack.status)
    if execution_status != AVAILABLE:
        raise errors.InvalidChangeSetStatus(
            f"ChangeSet [{found.id}] cannot be executed in its current execution status of [{execution_status}]"
        )
    spec = replace(
        msgspec.convert(found.spec, StackSpec),
        change_set_id=found.id,
        client_token=params.get("ClientRequestToken", ""),
        disable_rollback=params.get("DisableRollback", False) or found.on_stack_failure == "DO_NOTHING",
        retain_except_on_create=params.get("RetainExceptOnCreate", False),
    )
    if found.type == "CREATE":
        stack_operations.begin_create(tx, caller, spec, stack=stack)
    else:
        stack_operations.begin_update(tx, caller, stack, spec)
    tx.store.change_sets.drop_of_stack(stack.id, kept=found.id)
    tx.store.change_sets.put(found.but(execution_status=EXECUTE_IN_PROGRESS))
    return remember(tx, caller, "ExecuteChangeSet", params, {})


def wait_for_execution(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> None:
    wait_for_stack(tx, tx.store.stacks.get(find_change_set(tx, caller, params).stack_id))


def delete_change_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    given = params["ChangeSetName"]
    if given.startswith("arn:"):
        found = tx.store.change_sets.get(given)
    else:
        found = tx.store.change_sets.named(named_stack(tx, caller, params).id, given)
    if found is None:
        return {}  # AWS does not report that the change set does not exist
    stack = tx.store.stacks.get(found.stack_id)
    if stack is not None and found.execution_status_in(stack.status) == EXECUTE_IN_PROGRESS:
        raise errors.InvalidChangeSetStatus(f"ChangeSet [{found.id}] cannot be deleted while it is executed")
    tx.store.change_sets.drop(found.id)
    return {}


def describe_change_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = find_change_set(tx, caller, params)
    spec = msgspec.convert(found.spec, StackSpec)
    numbered = {f"{at:05}": change for at, change in enumerate(found.changes)}
    changes, more = PAGE.page(params, among(numbered))
    values = spec.parameters
    optional = {  # members that AWS leaves out if they are empty
        "Parameters": shown_parameters(values.texts, values.resolved_ssm, values.no_echo),
        "Tags": [{"Key": key, "Value": value} for key, value in spec.tags.items()],
        "OnStackFailure": found.on_stack_failure,
    }
    with_values = params.get("IncludePropertyValues", False)
    changes = [{**each, "ResourceChange": shown(each["ResourceChange"], with_values=with_values)} for each in changes]
    return {
        **_summary(tx, found),
        "NotificationARNs": list(spec.notification_arns),
        "RollbackConfiguration": spec.rollback,
        "Capabilities": list(spec.capabilities),
        "Changes": changes,
        **{name: value for name, value in optional.items() if value},
        **more,
    }


def list_change_sets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stack = named_stack(tx, caller, params)

    def candidates(after: str, limit: int) -> list[tuple[str, ChangeSet]]:
        return [(each.name, each) for each in tx.store.change_sets.listed(stack.id, after, limit)]

    found, more = PAGE.page(params, candidates)
    return {"Summaries": [_summary(tx, each) for each in found], **more}


def _summary(tx: Tx[Store], found: ChangeSet) -> dict[str, Any]:
    """Return the members that DescribeChangeSet and ListChangeSets share."""
    stack = tx.store.stacks.get(found.stack_id)
    return {
        "ChangeSetName": found.name,
        "ChangeSetId": found.id,
        "StackId": found.stack_id,
        "StackName": found.stack_name,
        "CreationTime": found.created_at_s,
        "ExecutionStatus": found.execution_status_in(stack.status) if stack is not None else OBSOLETE,
        "Status": found.status,
        **({"StatusReason": found.status_reason} if found.status_reason else {}),
        **({"Description": found.description} if found.description else {}),
        "IncludeNestedStacks": found.include_nested_stacks,
    }
