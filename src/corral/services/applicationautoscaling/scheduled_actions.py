"""Scheduled actions, which change the limits of a scalable target once or repeatedly, and their execution.

Their times are wall times (`core/clock.py`).
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.clock import WallSeconds
from corral.core.transactions import Tx
from corral.decide.scaling.schedules import CronError, next_run, read_schedule
from corral.operations.stored_resources import Params
from corral.operations.time_zones import is_time_zone, offset_of
from corral.services.applicationautoscaling import activities
from corral.services.applicationautoscaling.errors import LimitExceededException, ValidationException, not_found
from corral.services.applicationautoscaling.names import (
    DIMENSION,
    NAMESPACE,
    PAGES,
    SCHEDULE,
    SERVICE,
    documents_of,
    find_target,
    is_listed,
    key_of,
    listed,
    put_target,
    registered,
    resource_of,
    service_of,
    shown,
)
from corral.services.applicationautoscaling.targets import CAPACITY_MAX, bring_inside
from corral.store import Store
from corral.store.stored_resources import Document

ACTIONS_MAX = 200  # the quota of AWS
KEPT = ("Schedule", "Timezone", "ScalableTargetAction")  # members that an update does not have to repeat
NEXT = "_next"  # the member with the time of the next run


def put_scheduled_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Create or change an action. An update without a start time or an end time deletes the old time."""
    resource, name = registered(tx, caller, params)["ResourceId"], params["ScheduledActionName"]
    before = tx.store.stored.get(SERVICE, SCHEDULE, caller.region, key_of(resource, name))
    if before is None and len(list(documents_of(tx, caller.region, SCHEDULE, resource))) >= ACTIONS_MAX:
        raise LimitExceededException(f"A scalable target can have at most {ACTIONS_MAX} scheduled actions.")
    old: Document = before or {}
    kept = {member: old[member] for member in KEPT if member in old}
    given = {member: params[member] for member in (*KEPT, "StartTime", "EndTime") if member in params}
    action: Document = {
        "ScheduledActionName": name,
        "ScheduledActionARN": old.get("ScheduledActionARN") or _arn(tx, caller, resource, name),
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource,
        "ScalableDimension": DIMENSION,
        "CreationTime": old.get("CreationTime", tx.wall_s),
        **kept,
        **given,
    }
    action[NEXT] = _first_run(action, tx.wall_s)
    tx.store.stored.put(SERVICE, SCHEDULE, caller.region, key_of(resource, name), action, tx.now_s)
    tx.due(f"target-schedule:{caller.region}/{resource}", tx.steps.steady_s(action[NEXT]))
    return {}


def _arn(tx: Tx[Store], caller: Caller, resource: str, name: str) -> str:
    prefix = f"arn:aws:autoscaling:{caller.region}:{caller.account}:scheduledAction:{tx.ids.uuid()}"
    return f"{prefix}:resource/{NAMESPACE}/{resource}:scheduledActionName/{name}"


def _first_run(action: Document, now_s: float) -> float:
    """Check an action and return the time of its first run."""
    limits = action.get("ScalableTargetAction") or {}
    if "Schedule" not in action:
        raise ValidationException("Schedule is required for a new scheduled action.")
    if not limits:
        raise ValidationException("ScalableTargetAction must have a MinCapacity, a MaxCapacity or both.")
    for member, value in limits.items():
        if not 0 <= value <= CAPACITY_MAX:
            raise ValidationException(f"{member} must be between 0 and {CAPACITY_MAX}: {value} is not valid.")
    if limits.get("MinCapacity", 0) > limits.get("MaxCapacity", CAPACITY_MAX):
        raise ValidationException("Maximum capacity cannot be less than minimum capacity")
    if "Timezone" in action and not is_time_zone(action["Timezone"]):
        raise ValidationException(f"The time zone {action['Timezone']} is not known: use a name of the IANA database.")
    start_s, end_s = action.get("StartTime"), action.get("EndTime")
    if end_s is not None and end_s <= max(now_s, start_s or now_s):
        raise ValidationException("EndTime must be in the future and after StartTime.")
    first_s = _next_run(action, now_s)
    if first_s is None:
        raise ValidationException(f"The schedule {action['Schedule']} has no time in the future and before EndTime.")
    return first_s


def _next_run(action: Document, after_s: float) -> float | None:
    begin_s = float(action["StartTime"] if "StartTime" in action else action["CreationTime"])
    try:
        schedule = read_schedule(action["Schedule"])
    except CronError as error:
        raise ValidationException(f"The schedule {action['Schedule']} is not valid: {error}.") from None
    next_s = next_run(schedule, after_s, begin_s, offset_of(action.get("Timezone", "UTC")))
    return None if next_s is None or next_s > action.get("EndTime", next_s) else next_s


def describe_scheduled_actions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if not is_listed(params):
        return {"ScheduledActions": []}
    names, resource = params.get("ScheduledActionNames"), resource_of(params) if "ResourceId" in params else None

    def chosen(action: Document) -> bool:
        return (resource is None or action["ResourceId"] == resource) and (not names or action["ScheduledActionName"] in names)

    found, more = PAGES.page(params, listed(tx, caller, SCHEDULE, chosen))
    return {"ScheduledActions": [_view(action) for action in found], **more}


def _view(action: Document) -> Document:
    members = ("StartTime", "EndTime", "CreationTime")
    times: Document = {member: WallSeconds(action[member]) for member in members if member in action}
    return {**shown(action), **times}


def delete_scheduled_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    resource, name = resource_of(params), params["ScheduledActionName"]
    if not tx.store.stored.drop(SERVICE, SCHEDULE, caller.region, key_of(resource, name)):
        raise not_found("scheduled action found", resource, DIMENSION, f"scheduled action name: {name}")
    return {}


# Runs


def run_due_actions(tx: Tx[Store], region: str, resource: str) -> float | None:
    """Run the actions of a target that are due, earliest first. Return the wall time of the next run."""
    actions = list(documents_of(tx, region, SCHEDULE, resource))
    later = [action[NEXT] for action in actions if action[NEXT] > tx.wall_s]
    for action in sorted((each for each in actions if each[NEXT] <= tx.wall_s), key=lambda each: float(each[NEXT])):
        target, key = find_target(tx, region, resource), key_of(resource, action["ScheduledActionName"])
        if target is not None and not target["SuspendedState"]["ScheduledScalingSuspended"]:
            _run(tx, region, target, action)
        next_s = _next_run(action, tx.wall_s)
        if next_s is None:
            tx.store.stored.drop(SERVICE, SCHEDULE, region, key)
        else:
            tx.store.stored.put(SERVICE, SCHEDULE, region, key, {**action, NEXT: next_s}, tx.now_s)
            later.append(next_s)
    return min(later, default=None)


def _run(tx: Tx[Store], region: str, target: Document, action: Document) -> None:
    """Set the limits of a target. If the action has one limit, and the other limit of the target contradicts it, set both to it."""
    limits = action["ScalableTargetAction"]
    most = limits.get("MaxCapacity", max(target["MaxCapacity"], limits.get("MinCapacity", 0)))
    least = min(limits.get("MinCapacity", target["MinCapacity"]), most)
    target = {**target, "MinCapacity": least, "MaxCapacity": most}
    put_target(tx, region, target)
    names = {"MinCapacity": f"min capacity to {least}", "MaxCapacity": f"max capacity to {most}"}
    text = " and ".join(names[member] for member in names if member in limits)
    cause = f"scheduled action name {action['ScheduledActionName']} was triggered"
    activities.record_limits(tx, region, target["ResourceId"], text, cause)
    service = service_of(tx, region, target["ResourceId"])
    if service is not None:
        bring_inside(tx, target, service)
