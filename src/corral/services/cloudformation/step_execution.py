"""Runs the steps of stack operations: calls the functions of a resource's type, and waits until the resource is settled.

A resource is settled when it is ready, for example when the tasks of a service run. The functions of a resource's type run in an
attempt (`Tx.attempt`): if they fail, their effects are undone, and the step has failed with a reason. Stacks are in the state lane.
The steps of log groups and alarms run in the lanes of logs and metrics: the state lane sends the step to the other lane (a
hand-over), and the other lane sends the result back.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import orjson
from msgspec import convert, to_builtins
from msgspec.structs import asdict

from corral.access.caller import Caller
from corral.core.commands import NeedsThread
from corral.core.errors import ApiError
from corral.core.transactions import CommitFailed, Tx
from corral.decide.templates import TemplateError
from corral.decide.templates.stack_plan import SignalRule, count_signals, signal_policy
from corral.model.stack import (
    CREATE,
    DELETE,
    UPDATE,
    ResourceStatus,
    ResourceVersion,
    Stack,
    StackResource,
    StackStatus,
    StackStep,
)
from corral.services.cloudformation.no_echo import hide, secrets_of
from corral.services.cloudformation.stack_evaluation import SECURE_REFERENCE, given_properties, secure_values, with_secrets
from corral.services.cloudformation.stack_events import add_event, caller_of, set_resource
from corral.store import Store
from corral.template_types.api_calls import authorize_step
from corral.template_types.lookup import read_attributes, resource_type, stored_only_reason
from corral.template_types.resource_types import ResourceStep, TemplateType, ValidationError, Waiting

log = logging.getLogger("corral")

READ_AGAIN_S = 60.0  # a file that was to be read before a restart of the server is read again after this time
INTERNAL_FAILURE = "Internal Failure"
INITIATED = "Resource creation Initiated"
CANCELLED = {CREATE: "Resource creation cancelled", UPDATE: "Resource update cancelled"}
LANE_STEP, LANE_RESULT = "stack step", "stack step result"  # kinds of hand-overs


def step_key(resource: StackResource) -> str:
    return f"step:{resource.stack_id}#{resource.key}"


def attempt(tx: Tx[Any], what: str, function: Callable[[], Any]) -> tuple[Any, str]:
    """Call a function of a type. Return its result and "", or None and the reason why it failed. A failed call has no effects."""
    try:
        return tx.attempt(function), ""
    except (ApiError, TemplateError) as error:
        return None, error.message or type(error).__name__
    except (CommitFailed, sqlite3.OperationalError, NeedsThread):  # if the disk is full, the whole transaction is tried again
        raise
    except Exception:
        log.exception("a bug made the step of a stack fail: %s", what)
        return None, INTERNAL_FAILURE


# Run the functions of the type


def run_step(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    """Call `create`, `update` or `delete` of the type, or hand the step over to the lane of the type."""
    step, type_ = resource.step, resource_type(resource.type)
    assert step is not None
    if type_.lane != "state":
        _hand_over(tx, stack, resource, type_)
        return
    try:
        result, failure = attempt(tx, resource.key, lambda: call_type(tx, caller_of(stack), type_, _step_view(tx, stack, resource)))
    except NeedsThread as needed:
        _wait_for_thread(tx, resource, needed)
        return
    if failure:
        _fail(tx, stack, resource, failure, undone=True)
        return
    settle(tx, stack, _has_run(tx, stack, resource, result))


def call_type(tx: Tx[Any], caller: Caller, type_: TemplateType, view: ResourceStep) -> str:
    """Call the function of a type for a step. Return the physical id."""
    if type_.lane == "state":
        authorize_step(tx, caller, type_)
    if view.action == CREATE:
        return type_.create(tx, caller, view.properties)
    if view.action == UPDATE:
        type_.update(tx, caller, view.physical_id, view.old_properties or {}, view.properties)
    else:
        type_.delete(tx, caller, view.physical_id, view.properties)
    return view.physical_id


def _wait_for_thread(tx: Tx[Store], resource: StackResource, needed: NeedsThread) -> None:
    """Continue the step when a file has been read, for example the template of a nested stack. Try again after a restart."""
    tx.in_thread(step_key(resource), needed)
    tx.due(step_key(resource), tx.now_s + READ_AGAIN_S)


def _has_run(tx: Tx[Store], stack: Stack, resource: StackResource, physical_id: str) -> StackResource:
    step, type_ = resource.step, resource_type(resource.type)
    assert step is not None
    version = resource.version.but(physical_id=physical_id)
    resource = resource.but(version=version, step=step.but(has_run=True, handed=""), is_stored_only=type_.is_stored_only)
    if step.action == CREATE:
        return set_resource(tx, stack, resource, resource.status, INITIATED)
    return resource


def _step_view(tx: Tx[Store], stack: Stack, resource: StackResource) -> ResourceStep:
    """Return the step in the form that the functions of its type get. Raise an ApiError if a secure parameter cannot be read."""
    step, version, logical_id = resource.step, resource.version, resource.logical_id
    assert step is not None
    properties = given_properties(stack, logical_id, version)
    old = given_properties(stack, logical_id, step.old) if step.old is not None else None
    if step.action != DELETE:
        properties = with_secrets(tx, caller_of(stack), properties)
        with suppress(ApiError):  # a parameter that the old properties refer to may have been deleted
            old = with_secrets(tx, caller_of(stack), old)
    return ResourceStep(
        stack_id=stack.id,
        stack_name=stack.name,
        logical_id=logical_id,
        physical_id=version.physical_id or "",
        action=step.action,
        properties=properties,
        old_properties=old,
        replaced_id=step.old.physical_id if step.action == CREATE and step.old is not None else None,
        metadata=version.metadata,
        creation_policy=version.creation_policy,
        update_policy=version.update_policy,
        is_rollback=step.is_rollback,
        started_s=step.started_at_s,
        received=step.received,
        memory=deepcopy(step.memory),  # a copy, because a type may change lists in the memory and then fail
        key=resource.key,
        type=resource.type,
    )


# Wait until the resource is settled


def settle(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    """Continue a step whose function has run: call `settled` or `gone` of its type, and count signals."""
    step, type_, caller = resource.step, resource_type(resource.type), caller_of(stack)
    assert step is not None
    try:
        view = _step_view(tx, stack, resource)
    except ApiError as error:
        _fail(tx, stack, resource, error.message)
        return
    check = type_.gone if step.action == DELETE else type_.settled
    waiting: Waiting | None = None
    if check is not None:
        try:
            waiting, failure = attempt(tx, resource.key, lambda: check(tx, caller, view))
        except NeedsThread as needed:
            _wait_for_thread(tx, resource, needed)
            return
        resource = _with_physical_id(tx, stack, resource, view.physical_id, failed=bool(failure))
        if failure:
            _fail(tx, stack, resource, failure)
            return
    for note in view.notes:
        add_event(tx, stack, resource, note)
    if step.action == CREATE and "ResourceSignal" in resource.version.creation_policy:
        signals, failure = attempt(tx, resource.key, lambda: type_.signals(tx, caller, view) if type_.signals else {})
        if failure:
            _fail(tx, stack, resource, failure)
            return
        rule, text, until_s = _count(resource, step, {**signals, **step.received}, tx.now_s)
        if rule is SignalRule.FAILED:
            _fail(tx, stack, resource.but(step=step), text)
            return
        if rule is SignalRule.WAITING:
            earliest = until_s if waiting is None or waiting.until_s is None else min(until_s, waiting.until_s)
            waiting = Waiting(waiting.keys if waiting else (), (waiting.reason if waiting else "") or text, earliest)
    if waiting is None:
        _complete(tx, stack, resource.but(step=step), type_, view.attributes)
        return
    resource = resource.but(step=step.but(memory=view.memory, waits_for=_shown(tx, stack, resource, waiting.reason)))
    tx.store.stacks.put_resource(resource)
    tx.watch(step_key(resource), waiting.keys)
    if waiting.until_s is not None:
        tx.due(step_key(resource), waiting.until_s)


def _count(resource: StackResource, step: StackStep, signals: Mapping[str, str], now_s: float) -> tuple[SignalRule, str, float]:
    try:
        policy = signal_policy(resource.version.creation_policy)
    except TemplateError as error:
        return SignalRule.FAILED, error.message, now_s
    until_s = step.started_at_s + policy.timeout_s
    decided, text = count_signals(signals, policy.count, policy.percent, expired=now_s >= until_s)
    return decided, text, until_s


def _with_physical_id(tx: Tx[Store], stack: Stack, resource: StackResource, physical_id: str, *, failed: bool) -> StackResource:
    """Set the physical id that the type has returned. If the id differs after an update, the resource was replaced."""
    step, old_id = resource.step, resource.physical_id
    assert step is not None
    if physical_id == old_id or step.action == DELETE or (failed and step.action == UPDATE):
        return resource
    before = resource.before
    if step.action == UPDATE and step.is_rollback:
        leave_over(tx, stack, resource, resource.version, is_new=True)
        before = before.but(physical_id=physical_id) if before is not None else None
    elif step.action == UPDATE and (before is None or before.physical_id != old_id):
        leave_over(tx, stack, resource, resource.version, is_new=True)  # an earlier update, which failed, has created the resource
    return resource.but(version=resource.version.but(physical_id=physical_id), before=before)


def _complete(
    tx: Tx[Store], stack: Stack, resource: StackResource, type_: TemplateType, attributes: dict[str, Any] | None = None
) -> None:
    step, physical_id = resource.step, resource.physical_id
    assert step is not None and physical_id is not None
    tx.watch(step_key(resource), ())
    if step.action == DELETE:
        set_deleted(tx, stack, resource, ResourceStatus.DELETE_COMPLETE)
        return
    if attributes is None:
        attributes, failure = attempt(
            tx, resource.key, lambda: read_attributes(tx, caller_of(stack), type_, physical_id, resource.version.properties)
        )
        if failure:
            _fail(tx, stack, resource, failure)
            return
    _set_complete(tx, stack, resource, attributes)


def _set_complete(tx: Tx[Store], stack: Stack, resource: StackResource, attributes: dict[str, Any]) -> None:
    step = resource.step
    assert step is not None
    resource = resource.but(version=resource.version.but(attributes=attributes), step=None)
    if step.is_rollback:
        restored(tx, stack, resource)
    else:
        status = ResourceStatus.UPDATE_COMPLETE if step.old is not None else ResourceStatus.CREATE_COMPLETE
        set_resource(tx, stack, resource, status, stored_only_reason(resource.type) if resource.is_stored_only else "")


def leave_over(tx: Tx[Store], stack: Stack, resource: StackResource, version: ResourceVersion, *, is_new: bool) -> None:
    """Store a resource as a leftover: the stack must delete it, and another resource has its logical id now."""
    resources = tx.store.stacks.resources(stack.id)
    number = 1
    while f"{resource.logical_id}/{number}" in resources:
        number += 1
    row = resource.but(version=version, before=None, step=None, is_new=is_new, leftover=number, status_reason="")
    tx.store.stacks.put_resource(row)


def restored(tx: Tx[Store], stack: Stack, resource: StackResource, *, shown: bool = True) -> None:
    """Record that a resource is in the state from before the update that is rolled back. If `shown` is set, write an event."""
    assert resource.before is not None
    version = resource.before.but(attributes=resource.version.attributes)
    reason = stored_only_reason(resource.type) if resource.is_stored_only else ""
    changes = {"version": version, "before": None, "step": None, "operation": stack.operation}
    if shown:
        set_resource(tx, stack, resource, ResourceStatus.UPDATE_COMPLETE, reason, **changes)
    else:
        tx.store.stacks.put_resource(resource.but(**changes))


def set_deleted(tx: Tx[Store], stack: Stack, resource: StackResource, status: ResourceStatus) -> None:
    resource = set_resource(tx, stack, resource, status, step=None)
    keeps = stack.status in (StackStatus.DELETE_IN_PROGRESS, StackStatus.ROLLBACK_IN_PROGRESS)
    if resource.leftover or not keeps:
        tx.store.stacks.drop_resource(resource)


def _fail(tx: Tx[Store], stack: Stack, resource: StackResource, reason: str, *, undone: bool = False) -> None:
    """End a step that has failed. `undone` is set if the effects of the type's function were undone, so nothing has changed."""
    step = resource.step
    assert step is not None
    _abandon(tx, stack, resource)
    status = ResourceStatus[f"{_verb(step)}_FAILED"]
    version = step.old if undone and step.action == UPDATE and step.old is not None else resource.version
    set_resource(tx, stack, resource, status, _shown(tx, stack, resource, reason), step=None, version=version)


def _shown(tx: Tx[Store], stack: Stack, resource: StackResource, reason: str) -> str:
    """Return the reason of a step without secret values. The function of a type gets secret values, and its error may name one."""
    secure = secure_values(tx, caller_of(stack), resource.version.properties) if reason else set()
    return str(hide(reason, secrets_of(tx, stack) | secure))


def _abandon(tx: Tx[Store], stack: Stack, resource: StackResource) -> None:
    """Stop waiting for a step that has failed or is cancelled."""
    step, abandon = resource.step, resource_type(resource.type).abandon
    tx.watch(step_key(resource), ())
    if step is not None and abandon is not None:
        abandon(tx, caller_of(stack), step.memory)


def _verb(step: StackStep) -> str:
    return UPDATE if step.action == CREATE and step.old is not None else step.action


def cancel_steps(tx: Tx[Store], stack: Stack) -> None:
    """Cancel the steps of a stack, because its operation has failed or the stack is deleted.

    A step that another lane runs continues until its result arrives.
    """
    for resource in list(tx.store.stacks.resources(stack.id).values()):
        step = resource.step
        if step is None or step.action == DELETE or resource.status.value.endswith("_FAILED"):
            continue
        _abandon(tx, stack, resource)
        verb = _verb(step)
        left = step if step.handed else None
        set_resource(tx, stack, resource, ResourceStatus[f"{verb}_FAILED"], CANCELLED[verb], step=left, operation=stack.operation)


# Steps in other lanes


def _hand_over(tx: Tx[Store], stack: Stack, resource: StackResource, type_: TemplateType) -> None:
    step = resource.step
    assert step is not None

    def prepare() -> ResourceStep:
        authorize_step(tx, caller_of(stack), type_)
        if found := SECURE_REFERENCE.search(orjson.dumps(resource.version.properties).decode()):  # hand-overs are stored as text
            kind = "SSM Secure" if found[1].startswith("ssm") else "Secrets Manager"
            raise ValidationError(f"{kind} reference is not supported in: [{type_.name}/Properties]")
        return _step_view(tx, stack, resource)

    view, refusal = attempt(tx, resource.key, prepare)
    if refusal:
        _fail(tx, stack, resource, refusal, undone=True)
        return
    token = tx.ids.uuid()
    tx.store.stacks.put_resource(resource.but(step=step.but(handed=token)))
    given = {"caller": to_builtins(caller_of(stack)), "step": asdict(view)}
    tx.hand_over(type_.lane, LANE_STEP, {"token": token, "key": resource.key, "type": resource.type, **given})


def run_lane_step(tx: Tx[Any], payload: dict[str, Any]) -> None:
    """Run a step in the lane of its type, and hand the result back. It is called once for each step."""
    type_, caller, view = resource_type(payload["type"]), convert(payload["caller"], Caller), ResourceStep(**payload["step"])

    def run() -> tuple[str, dict[str, Any]]:
        view.physical_id = call_type(tx, caller, type_, view)
        check = type_.gone if view.action == DELETE else type_.settled
        if check is not None:
            check(tx, caller, view)
        return view.physical_id, read_attributes(
            tx, caller, type_, view.physical_id, view.properties
        ) if view.action != DELETE else {}

    result, failure = attempt(tx, view.logical_id, run)
    physical_id, attributes = result if not failure else (None, {})
    given = {"token": payload["token"], "stack": view.stack_id, "key": payload["key"]}
    found = {"physical_id": physical_id, "attributes": attributes, "failure": failure, "notes": [] if failure else view.notes}
    tx.hand_over("state", LANE_RESULT, {**given, **found})


def receive_lane_result(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Continue a step that another lane has run."""
    stack = tx.store.stacks.get(payload["stack"])
    resource = tx.store.stacks.resource(payload["stack"], payload["key"])
    if stack is None or resource is None or resource.step is None or resource.step.handed != payload["token"]:
        return
    tx.mark(stack.key)
    step, failure = resource.step, payload["failure"]
    is_cancelled = resource.status.value.endswith("_FAILED")
    if failure and not is_cancelled:
        _fail(tx, stack, resource, failure, undone=True)
        return
    if is_cancelled:
        version = resource.version
        if not failure and step.action == CREATE:
            version = version.but(physical_id=payload["physical_id"])
        elif failure and step.action == UPDATE and step.old is not None:
            version = step.old
        tx.store.stacks.put_resource(resource.but(version=version, step=None))
        return
    resource = _has_run(tx, stack, resource, payload["physical_id"])
    for note in payload["notes"]:
        add_event(tx, stack, resource, note)
    if step.action == DELETE:
        set_deleted(tx, stack, resource, ResourceStatus.DELETE_COMPLETE)
    else:
        _set_complete(tx, stack, resource, payload["attributes"])
