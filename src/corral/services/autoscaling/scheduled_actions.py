"""Operations on scheduled actions, which change the sizes of a group once or repeatedly, and their execution.

Their times are wall times (`core/clock.py`).
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.clock import WallSeconds
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.scaling.schedules import CronError, next_time, read_cron
from corral.model.group import Group
from corral.operations.stored_resources import Params
from corral.operations.time_zones import is_time_zone, offset_of
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.errors import AlreadyExistsFault, LimitExceededFault, ValidationError
from corral.services.autoscaling.groups import CAPACITY_MAX
from corral.services.autoscaling.names import (
    PAGES,
    SCHEDULE,
    SERVICE,
    changeable_group,
    document_of,
    documents_of,
    drop_document,
    find_group,
    put_document,
)
from corral.store import Store
from corral.store.stored_resources import Document

ACTIONS_MAX, BATCH_MAX = 125, 50
SIZES = ("MinSize", "MaxSize", "DesiredCapacity")
MEMBERS = ("StartTime", "EndTime", "Recurrence", "TimeZone", *SIZES)
NEXT = "_next"  # the member with the time of the next execution


def put_scheduled_update_group_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    _put(tx, changeable_group(tx, caller, params["AutoScalingGroupName"]), params)
    return {}


def batch_put_scheduled_update_group_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, given = changeable_group(tx, caller, params["AutoScalingGroupName"]), params["ScheduledUpdateGroupActions"]
    _check_batch(given)
    failed = []
    for action in given:
        try:
            _put(tx, group, action)
        except ApiError as error:
            failed.append(_failure(action["ScheduledActionName"], error))
    return {"FailedScheduledUpdateGroupActions": failed}


def _put(tx: Tx[Store], group: Group, params: Params) -> None:
    name = params["ScheduledActionName"]
    if ":" in name:
        raise ValidationError(f"The name {name} is not valid: it must not contain a colon.")
    others = [each for each in documents_of(tx, group.region, SCHEDULE, group.name) if each["ScheduledActionName"] != name]
    before = document_of(tx, group.region, SCHEDULE, group.name, name)
    if before is None and len(others) >= ACTIONS_MAX:
        raise LimitExceededFault(f"A group can have at most {ACTIONS_MAX} scheduled actions.")
    given = {member: params[member] for member in MEMBERS if member in params}
    if "StartTime" not in given and "Time" in params:
        given["StartTime"] = params["Time"]
    action = _checked(given, tx.wall_s, CAPACITY_MAX[group.settings.get("DesiredCapacityType", "units")])
    if any(each[NEXT] == action[NEXT] for each in others):
        raise AlreadyExistsFault(f"AutoScalingGroup {group.name} already has a scheduled action at the same time.")
    action |= {
        "AutoScalingGroupName": group.name,
        "ScheduledActionName": name,
        "ScheduledActionARN": before["ScheduledActionARN"] if before is not None else _arn(tx, group, name),
    }
    put_document(tx, group.region, SCHEDULE, group.name, name, action)
    tx.due(f"schedule:{group.region}/{group.name}", tx.steps.steady_s(action[NEXT]))


def _arn(tx: Tx[Store], group: Group, name: str) -> str:
    prefix = f"arn:aws:autoscaling:{group.region}:{tx.settings.account}:scheduledUpdateGroupAction:{tx.ids.uuid()}"
    return f"{prefix}:autoScalingGroupName/{group.name}:scheduledActionName/{name}"


def _checked(action: Document, now_s: float, size_max: int) -> Document:
    """Check an action. Return it with the time of its first execution."""
    start_s, end_s = action.get("StartTime"), action.get("EndTime")
    for member in SIZES:
        if not 0 <= action.get(member, 0) <= size_max:
            raise ValidationError(f"{member} must be between 0 and {size_max}: {action[member]} is not valid.")
    if "MinSize" in action and "MaxSize" in action and action["MinSize"] > action["MaxSize"]:
        raise ValidationError(f"Max bound, {action['MaxSize']}, must be greater than or equal to min bound, {action['MinSize']}")
    if not any(member in action for member in SIZES):
        raise ValidationError("At least one of MinSize, MaxSize and DesiredCapacity must be specified.")
    if start_s is None and "Recurrence" not in action:
        raise ValidationError("Either StartTime or Recurrence must be specified.")
    if "TimeZone" in action and not is_time_zone(action["TimeZone"]):
        raise ValidationError(f"The time zone {action['TimeZone']} is not known: use a name of the IANA database.")
    if start_s is not None and start_s < now_s:
        raise ValidationError("Given start time is in the past")
    if end_s is not None and end_s < now_s:
        raise ValidationError("Given end time is in the past")
    if start_s is not None and end_s is not None and end_s <= start_s:
        raise ValidationError("The end time must be after the start time.")
    recurs_s = _recurs(action, now_s)  # also refuses a recurrence that is not valid
    first_s = start_s if start_s is not None else recurs_s
    if first_s is None or (end_s is not None and first_s > end_s):
        raise ValidationError(f"The recurrence {action.get('Recurrence')} has no time before the end time.")
    return {"StartTime": first_s, **action, NEXT: first_s}


def _recurs(action: Document, after_s: float) -> float | None:
    """Return the first time after `after_s` at which an action recurs, or None if it does not recur."""
    if "Recurrence" not in action:
        return None
    try:
        cron = read_cron(action["Recurrence"])
    except CronError as error:
        raise ValidationError(f"The recurrence '{action['Recurrence']}' is not valid: {error}.") from None
    return next_time(cron, after_s, offset_of(action.get("TimeZone", "UTC")))


def describe_scheduled_actions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe scheduled actions. If the request names actions, StartTime and EndTime are ignored."""
    names, group = params.get("ScheduledActionNames"), params.get("AutoScalingGroupName")
    if group is not None:
        group = find_group(tx, caller, group).name
    from_s, to_s = params.get("StartTime"), params.get("EndTime")

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        found = [
            (key, action)
            for key, action in tx.store.stored.listed(SERVICE, SCHEDULE, caller.region, after)
            if (group is None or action["AutoScalingGroupName"] == group)
            and (action["ScheduledActionName"] in names if names else _within(action, from_s, to_s))
        ]
        return found if limit < 0 else found[:limit]

    found, more = PAGES.page(params, candidates)
    return {"ScheduledUpdateGroupActions": [_view(action) for action in found], **more}


def _within(action: Document, from_s: float | None, to_s: float | None) -> bool:
    return (from_s is None or action[NEXT] >= from_s) and (to_s is None or action[NEXT] <= to_s)


def _view(action: Document) -> Document:
    """Return an action as responses show it. StartTime and the deprecated Time are both the time of the next execution."""
    shown = {member: value for member, value in action.items() if member[0] != "_"}
    times = {member: WallSeconds(action[member]) for member in ("EndTime",) if member in action}
    return {**shown, **times, "StartTime": WallSeconds(action[NEXT]), "Time": WallSeconds(action[NEXT])}


def delete_scheduled_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find_group(tx, caller, params["AutoScalingGroupName"])
    _delete(tx, group, params["ScheduledActionName"])
    return {}


def batch_delete_scheduled_action(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, names = find_group(tx, caller, params["AutoScalingGroupName"]), params["ScheduledActionNames"]
    _check_batch(names)
    failed = []
    for name in names:
        try:
            _delete(tx, group, name)
        except ApiError as error:
            failed.append(_failure(name, error))
    return {"FailedScheduledActions": failed}


def _delete(tx: Tx[Store], group: Group, name: str) -> None:
    if not drop_document(tx, group.region, SCHEDULE, group.name, name):
        raise ValidationError(f"Scheduled action name not found: {name}")


def _check_batch(given: list[Any]) -> None:
    if not 1 <= len(given) <= BATCH_MAX:
        raise ValidationError(f"A request must contain 1 to {BATCH_MAX} scheduled actions: this one contains {len(given)}.")


def _failure(name: str, error: ApiError) -> dict[str, str]:
    return {"ScheduledActionName": name, "ErrorCode": error.code.removesuffix("Fault"), "ErrorMessage": error.message}


# Execution


def run_due_actions(tx: Tx[Store], region: str, name: str) -> float | None:
    """Execute the actions of a group that are due, earliest first. Return the wall time of the next execution."""
    group = tx.store.groups.get(region, name)
    if group is None:
        return None
    actions = list(documents_of(tx, region, SCHEDULE, name))
    later = [action[NEXT] for action in actions if action[NEXT] > tx.wall_s]
    for action in sorted((each for each in actions if each[NEXT] <= tx.wall_s), key=lambda each: float(each[NEXT])):
        if "ScheduledActions" not in group.suspended:
            group = _run(tx, group, action)
        next_s = _recurs(action, tx.wall_s)
        if next_s is None or ("EndTime" in action and next_s > action["EndTime"]):
            drop_document(tx, region, SCHEDULE, name, action["ScheduledActionName"])
        else:
            put_document(tx, region, SCHEDULE, name, action["ScheduledActionName"], {**action, NEXT: next_s})
            later.append(next_s)
    return min(later, default=None)


def _run(tx: Tx[Store], group: Group, action: Document) -> Group:
    """Set the sizes of a group. If sizes contradict each other, use the nearest valid sizes."""
    most = action.get("MaxSize", max(group.max_size, action.get("MinSize", 0)))
    least = min(action.get("MinSize", min(group.min_size, most)), most)
    desired = max(least, min(most, action.get("DesiredCapacity", group.desired)))
    cause = (
        f"the scheduled action {action['ScheduledActionName']} executed. It set AutoScalingGroup constraints to min: {least}, "
        f"max: {most}, desired: {desired},"
    )
    return group_changes.set_desired(tx, group, desired, cause, min_size=least, max_size=most)
