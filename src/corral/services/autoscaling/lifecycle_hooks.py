"""Operations on lifecycle hooks, and the lifecycle actions of instances.

An action is the wait of one instance for one hook, during its launch or its termination.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import gmtime, strftime
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.group import (
    ABANDON,
    CONTINUE,
    LAUNCHING,
    TERMINATING_HOOK,
    Group,
    GroupMember,
    LifecycleAction,
    LifecycleState,
)
from corral.model.instance import ec2_id
from corral.operations.stored_resources import Params
from corral.services.autoscaling.errors import LimitExceededFault, ValidationError
from corral.services.autoscaling.names import (
    HOOK,
    changeable_group,
    document_of,
    documents_of,
    drop_document,
    find_group,
    put_document,
)
from corral.services.autoscaling.notifications import publish, send_test, test_message
from corral.services.sqs.queue_names import queue_with_arn
from corral.services.sqs.send_message import deliver
from corral.store import Store
from corral.store.stored_resources import Document

TRANSITIONS = (LAUNCHING, TERMINATING_HOOK)
RESULTS = (CONTINUE, ABANDON)
HEARTBEAT_S = 3600
HEARTBEAT_MIN_S, HEARTBEAT_MAX_S = 30, 7200
WAIT_MAX_S = 172_800  # an action waits at most 48 hours, or 100 heartbeat timeouts if that is less
HOOKS_MAX = 50
SENDER = "autoscaling.amazonaws.com"
MEMBERS = ("LifecycleTransition", "RoleARN", "NotificationTargetARN", "NotificationMetadata", "HeartbeatTimeout", "DefaultResult")


# Operations


def put_lifecycle_hook(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    put_hook(tx, group, params)
    return {}


def put_hook(tx: Tx[Store], group: Group, params: Params) -> None:
    """Add or change a hook of a group. If the hook has a new target, send a test message to it."""
    name = params["LifecycleHookName"]
    before = document_of(tx, group.region, HOOK, group.name, name)
    if before is None and len(list(documents_of(tx, group.region, HOOK, group.name))) >= HOOKS_MAX:
        raise LimitExceededFault(f"A group can have at most {HOOKS_MAX} lifecycle hooks.")
    hook = {**(before or {}), **{member: params[member] for member in MEMBERS if member in params}}
    transition, result = hook.get("LifecycleTransition"), hook.setdefault("DefaultResult", ABANDON)
    heartbeat_s = hook.setdefault("HeartbeatTimeout", HEARTBEAT_S)
    if transition not in TRANSITIONS:
        raise ValidationError(f"LifecycleTransition must be one of {', '.join(TRANSITIONS)}: {transition} is not valid.")
    if result not in RESULTS:
        raise ValidationError(f"DefaultResult must be one of {', '.join(RESULTS)}: {result} is not valid.")
    if not HEARTBEAT_MIN_S <= heartbeat_s <= HEARTBEAT_MAX_S:
        raise ValidationError(
            f"HeartbeatTimeout must be between {HEARTBEAT_MIN_S} and {HEARTBEAT_MAX_S} seconds: {heartbeat_s} is not valid."
        )
    if not hook.get("NotificationTargetARN"):
        hook.pop("NotificationTargetARN", None)  # an empty ARN removes the target
    hook |= {
        "LifecycleHookName": name,
        "AutoScalingGroupName": group.name,
        "GlobalTimeout": min(WAIT_MAX_S, 100 * heartbeat_s),
    }
    put_document(tx, group.region, HOOK, group.name, name, hook)
    target = hook.get("NotificationTargetARN", "")
    if target and target != (before or {}).get("NotificationTargetARN"):
        _send_test(tx, group, target, hook)


def describe_lifecycle_hooks(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find_group(tx, caller, params["AutoScalingGroupName"])
    names = params.get("LifecycleHookNames")
    hooks = documents_of(tx, group.region, HOOK, group.name)
    return {"LifecycleHooks": [hook for hook in hooks if not names or hook["LifecycleHookName"] in names]}


def delete_lifecycle_hook(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Delete a hook. Its waiting actions end: launches are abandoned, and terminations continue."""
    group = find_group(tx, caller, params["AutoScalingGroupName"])
    name = params["LifecycleHookName"]
    if not drop_document(tx, group.region, HOOK, group.name, name):
        raise ValidationError(f"No Lifecycle Hook found: the group {group.name} has no hook {name}.")
    for member in tx.store.groups.members(group.region, group.name):
        if name in member.actions and not member.actions[name].result:
            _complete(tx, member, name, ABANDON if member.state is LifecycleState.PENDING_WAIT else CONTINUE)
    tx.mark(group.key)
    return {}


def complete_lifecycle_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    result = params["LifecycleActionResult"]
    if result not in RESULTS:
        raise ValidationError(f"LifecycleActionResult must be one of {', '.join(RESULTS)}: {result} is not valid.")
    group, member, name = _action(tx, params, caller)
    _complete(tx, member, name, result)
    tx.mark(group.key)
    return {}


def record_lifecycle_action_heartbeat(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, member, name = _action(tx, params, caller)
    action = member.actions[name]
    deadline_s = min(tx.now_s + action.heartbeat_s, action.last_deadline_s)
    extended = LifecycleAction(
        action.token, action.heartbeat_s, deadline_s, action.last_deadline_s, action.default_result, action.result
    )
    tx.store.groups.put_member(member.but(actions={**member.actions, name: extended}))
    tx.mark(group.key)
    return {}


def _action(tx: Tx[Store], params: Params, caller: Caller) -> tuple[Group, GroupMember, str]:
    """Find the waiting action that a request names by its token or by its instance."""
    group, name = find_group(tx, caller, params["AutoScalingGroupName"]), params["LifecycleHookName"]
    token, instance_id = params.get("LifecycleActionToken"), params.get("InstanceId")
    if token is None and instance_id is None:
        raise ValidationError("Either LifecycleActionToken or InstanceId must be specified.")
    if instance_id is not None:
        found = tx.store.groups.member_with_ec2_id(caller.region, instance_id)
        members = [found] if found is not None and found.group == group.name else []
    else:
        members = tx.store.groups.members(group.region, group.name)
    for member in members:
        action = member.actions.get(name)
        if action is not None and not action.result and token in (None, action.token):
            return group, member, name
    # AWS has the same text if the instance has left the group. Clients look for it.
    given = f"token {token}" if token is not None else f"instance ID {instance_id}"
    raise ValidationError(f"No active Lifecycle Action found with {given}")


def _complete(tx: Tx[Store], member: GroupMember, name: str, result: str) -> None:
    action = member.actions[name]
    done = LifecycleAction(
        action.token, action.heartbeat_s, action.deadline_s, action.last_deadline_s, action.default_result, result
    )
    tx.store.groups.put_member(member.but(actions={**member.actions, name: done}))


# Actions


def start_actions(tx: Tx[Store], group: Group, member: GroupMember, transition: str) -> dict[str, LifecycleAction]:
    """Create an action for each hook of a transition, and send a message to the target of each hook.

    The result is empty if the group has no hook of this transition.
    """
    actions: dict[str, LifecycleAction] = {}
    for hook in documents_of(tx, group.region, HOOK, group.name):
        if hook["LifecycleTransition"] != transition:
            continue
        action = LifecycleAction(
            token=tx.ids.uuid(),
            heartbeat_s=hook["HeartbeatTimeout"],
            deadline_s=tx.now_s + hook["HeartbeatTimeout"],
            last_deadline_s=tx.now_s + hook["GlobalTimeout"],
            default_result=hook["DefaultResult"],
        )
        actions[hook["LifecycleHookName"]] = action
        _notify(tx, group, member, hook, action)
    return actions


def _notify(tx: Tx[Store], group: Group, member: GroupMember, hook: Document, action: LifecycleAction) -> None:
    target = hook.get("NotificationTargetARN", "")
    message = {
        "Origin": "EC2" if hook["LifecycleTransition"] == LAUNCHING else "AutoScalingGroup",
        "LifecycleHookName": hook["LifecycleHookName"],
        "Destination": "AutoScalingGroup" if hook["LifecycleTransition"] == LAUNCHING else "EC2",
        "AccountId": tx.settings.account,
        "RequestId": tx.ids.uuid(),
        "LifecycleTransition": hook["LifecycleTransition"],
        "AutoScalingGroupName": group.name,
        "Service": "AWS Auto Scaling",
        "Time": _iso(tx.wall_s),
        "EC2InstanceId": ec2_id(member.instance_id),
        "LifecycleActionToken": action.token,
    }
    if "NotificationMetadata" in hook:
        message["NotificationMetadata"] = hook["NotificationMetadata"]
    if (queue := queue_with_arn(tx, target)) is not None:
        deliver(tx, queue, orjson.dumps(message).decode(), sender=SENDER, group_id=group.name if queue.is_fifo else None)
    elif target:
        step = "LAUNCHING" if hook["LifecycleTransition"] == LAUNCHING else "TERMINATING"
        subject = f"Auto Scaling:  Lifecycle action '{step}' for instance {message['EC2InstanceId']} in progress."
        publish(tx, target, subject, message)


def _send_test(tx: Tx[Store], group: Group, target: str, hook: Document) -> None:
    if ":sqs:" not in target:
        send_test(tx, group, target)
        return
    queue = queue_with_arn(tx, target)
    if queue is None or queue.is_fifo:
        why = "the queue does not exist" if queue is None else "FIFO queues are not supported"
        raise ValidationError(
            f"Unable to publish test message to notification target {target} using IAM role {hook.get('RoleARN', '')}: {why}. "
            "Please check your target and role configuration and try to put lifecycle hook again."
        )
    deliver(tx, queue, orjson.dumps(test_message(tx, group)).decode(), sender=SENDER)


def _iso(at_s: float) -> str:
    ms = round(at_s * 1000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(ms // 1000))}.{ms % 1000:03d}Z"


def verdict(actions: Iterable[LifecycleAction], now_s: float) -> tuple[str | None, float | None]:
    """Return the result, and the time of the next timeout. The result is None while a hook still waits.

    A hook that has timed out counts with its default result. The result is ABANDON as soon as one hook abandons, and CONTINUE when
    all hooks continue.
    """
    deadlines: list[float] = []
    for action in actions:
        deadline_s = min(action.deadline_s, action.last_deadline_s)
        result = action.result or (action.default_result if deadline_s <= now_s else "")
        if result == ABANDON:
            return ABANDON, None
        if not result:
            deadlines.append(deadline_s)
    return (None, min(deadlines)) if deadlines else (CONTINUE, None)
