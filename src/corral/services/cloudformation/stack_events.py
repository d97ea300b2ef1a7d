"""Changes of the status of stacks and of their resources. Each change writes an event, without secret values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec.structs import asdict, replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import role_session
from corral.model.session import SessionTerms
from corral.model.stack import (
    STACK_TYPE,
    ResourceStatus,
    Stack,
    StackCaller,
    StackEvent,
    StackResource,
    StackStatus,
)
from corral.services.cloudformation.no_echo import hide, secrets_of
from corral.store import Store

SERVICE_PRINCIPAL = "cloudformation.amazonaws.com"
ROLE_SESSION = "AWSCloudFormation"  # the name of the session in which a stack uses its role
OF_ROLE = SessionTerms(is_restricted=True)
EVENT_GAP_S = 0.001  # the smallest difference between the times of two events of a stack


def sender_of(stack: Stack) -> Caller:
    """Return who sent the stack's last operation, without the role of the stack."""
    given = stack.caller
    return Caller(**{name: getattr(given, name) for name in given.__struct_fields__}, creates_for=stack.owner)


def caller_of(stack: Stack) -> Caller:
    """Return the caller of the stack's last operation. The steps of the stack run as this caller, for the owner of the stack.

    If policies restrict the caller and the stack has a role, its steps have the permissions of the role, as on AWS.
    """
    given, caller = stack.caller, sender_of(stack)
    if not stack.version.role_arn or not caller.is_restricted:
        return replace(caller, via=(SERVICE_PRINCIPAL,))
    role = stack.version.role_arn.rpartition("/")[2]
    return replace(caller, principal=role_session(given.account, role, ROLE_SESSION, given.principal.owner), terms=OF_ROLE)


def stored_caller(caller: Caller) -> StackCaller:
    return StackCaller(**{name: getattr(caller, name) for name in StackCaller.__struct_fields__})


def set_status(tx: Tx[Store], stack: Stack, status: StackStatus, reason: str = "", **changes: Any) -> Stack:
    """Set the status of a stack, write its event, and store the stack. Return it."""
    stack = stack.but(status=status, **changes)
    reason = hide(reason, secrets_of(tx, stack))
    stack = stack.but(status_reason=reason)
    tx.store.stacks.put(stack)
    _add(tx, stack, StackEvent("", stack.id, stack.name, stack.name, stack.id, STACK_TYPE, status.value, tx.now_s, reason))
    return stack


def set_resource(
    tx: Tx[Store], stack: Stack, resource: StackResource, status: ResourceStatus, reason: str = "", **changes: Any
) -> StackResource:
    """Set the status of a resource, write its event, and store the resource. Return it."""
    reason = hide(reason, secrets_of(tx, stack))
    resource = resource.but(status=status, status_reason=reason, changed_at_s=tx.now_s, **changes)
    tx.store.stacks.put_resource(resource)
    add_event(tx, stack, resource, reason)
    return resource


def add_event(tx: Tx[Store], stack: Stack, resource: StackResource, reason: str) -> None:
    """Write an event of a resource, with its present status."""
    secrets, physical_id = secrets_of(tx, stack), resource.physical_id or ""
    shown = hide(reason, secrets), orjson.dumps(hide(resource.version.declared, secrets)).decode()
    given = (resource.logical_id, physical_id, resource.type, resource.status.value, tx.now_s, *shown)
    _add(tx, stack, StackEvent("", stack.id, stack.name, *given))


def _add(tx: Tx[Store], stack: Stack, event: StackEvent) -> None:
    at_s = _event_at_s(tx, stack)
    made = tx.ids.uuid() if event.physical_id == stack.id else f"{event.logical_id}-{event.status}-{_text(tx, at_s)}"
    values = {**asdict(event), "id": made, "at_s": at_s, "client_token": stack.client_token}
    tx.store.stacks.add_event(StackEvent(**values))
    tx.changed(stack.key)


def _text(tx: Tx[Store], at_s: float) -> str:
    return datetime.fromtimestamp(round(tx.steps.wall_s(at_s), 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event_at_s(tx: Tx[Store], stack: Stack) -> float:
    """Return a time for the next event. It is later than the time of the last event, because clients sort events by time."""
    last_s = tx.store.stacks.last_event_s(stack.id)
    return max(tx.now_s, last_s + EVENT_GAP_S) if last_s is not None else tx.now_s
