"""Look-up of the stacks and change sets that a request names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.change_set import ChangeSet
from corral.model.stack import Stack
from corral.services.cloudformation.errors import ValidationError, absent_stack, no_such_change_set, no_such_stack
from corral.store import Store

SETTLE_MAX_S = 2.0  # how long the response to a stack operation may wait for the end of the operation
NO_STACK_NAME = "StackName must be specified if ChangeSetName is not specified as an ARN."


def find_stack(
    tx: Tx[Store], caller: Caller, given: str, *, deleted: bool = False, missing: Callable[[str], ApiError] = no_such_stack
) -> Stack:
    """Return the stack with this name or ARN. A deleted stack is found only by its ARN, and only if `deleted` is True.

    If there is none, raise the error that `missing` returns.
    """
    if given.startswith("arn:"):
        stack = tx.store.stacks.get(given)
        if stack is not None and (stack.region != caller.region or (stack.deleted_at_s is not None and not deleted)):
            stack = None
    else:
        stack = tx.store.stacks.named(caller.region, given)
    if stack is None:
        raise missing(given)
    return stack


def find_change_set(tx: Tx[Store], caller: Caller, params: Mapping[str, Any]) -> ChangeSet:
    """Return the change set that a request names by its ARN, or by its name and its stack."""
    given = params["ChangeSetName"]
    if given.startswith("arn:"):
        found = tx.store.change_sets.get(given)
    else:
        found = tx.store.change_sets.named(named_stack(tx, caller, params).id, given)
    if found is None or found.stack_id.split(":")[3] != caller.region:
        raise no_such_change_set(given)
    return found


def named_stack(tx: Tx[Store], caller: Caller, params: Mapping[str, Any]) -> Stack:
    """Return the stack of a request that names a change set."""
    given = params.get("StackName")
    if not given:
        raise ValidationError(NO_STACK_NAME)
    return find_stack(tx, caller, given, deleted=True, missing=absent_stack)


def wait_for_stack(tx: Tx[Store], stack: Stack | None) -> None:
    """Raise Wait while an operation of the stack is in progress, for at most SETTLE_MAX_S seconds."""
    if stack is not None and stack.status.in_progress and not tx.final:
        raise Wait([f"stack:{stack.id}"], tx.now_s + SETTLE_MAX_S)
