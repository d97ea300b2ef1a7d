"""Scaling activities: the record of what a group did and why, and the operation DescribeScalingActivities."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from time import gmtime, strftime
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import NAMED_MAX, busy_on, named
from corral.fleet.lenders import why_lent_later
from corral.model.group import Group, ScalingActivity, group_arn
from corral.model.numbers import whole_number
from corral.model.placement import INSTANCE
from corral.operations.stored_resources import Params
from corral.services.autoscaling.errors import ValidationError
from corral.services.autoscaling.names import ACTIVITY_PAGES, find_group
from corral.services.autoscaling.notifications import notify
from corral.services.ecs.managed_scaling import tasks_to_drain
from corral.services.ecs.task_description import why_claim_waits
from corral.store import Store

WAITING, PRE_IN_SERVICE, IN_PROGRESS, MID_HOOK = "WaitingForInstanceId", "PreInService", "InProgress", "MidLifecycleAction"
SUCCESSFUL, FAILED, CANCELLED = "Successful", "Failed", "Cancelled"
# Status → the percentage in Progress.
PROGRESS = {WAITING: 20, PRE_IN_SERVICE: 30, IN_PROGRESS: 50, MID_HOOK: 60}
SHOWN_S = 42 * 86_400.0  # six weeks
IDS_MAX = 50
ROWS_PER_READ = 100


def stamp(at_s: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(at_s))


def sentence(tx: Tx[Store], text: str) -> str:
    """Return one sentence of a cause with its time: `At 2026-01-01T00:00:00Z an instance was started.`"""
    return f"At {stamp(tx.wall_s)} {text}"


def begin(
    tx: Tx[Store],
    group: Group,
    description: str,
    cause: str,
    *,
    instance_id: str = "",
    status: str = IN_PROGRESS,
    details: dict[str, str] | None = None,
) -> ScalingActivity:
    activity = ScalingActivity(
        id=tx.ids.uuid(),
        region=group.region,
        group=group.name,
        group_uid=group.uid,
        started_at_s=tx.now_s,
        description=description,
        cause=cause,
        status=status,
        instance_id=instance_id,
        progress=PROGRESS[status],
        details=orjson.dumps(details or {}).decode(),
    )
    tx.store.groups.put_activity(activity)
    return activity


def advance(tx: Tx[Store], activity_id: str, status: str) -> None:
    activity = tx.store.groups.activity(activity_id)
    if activity is not None and activity.ended_at_s is None and activity.status != status:
        tx.store.groups.put_activity(activity.but(status=status, progress=PROGRESS[status]))


def finish(tx: Tx[Store], activity_id: str, status: str = SUCCESSFUL, message: str = "") -> ScalingActivity | None:
    activity = tx.store.groups.activity(activity_id) if activity_id else None
    if activity is None or activity.ended_at_s is not None:
        return activity
    ended = activity.but(status=status, message=message or activity.message, progress=100, ended_at_s=tx.now_s)
    tx.store.groups.put_activity(ended)
    notify(tx, ended)
    tx.due("activities:", tx.now_s + SHOWN_S)
    return ended


def record(
    tx: Tx[Store], group: Group, description: str, cause: str, status: str = SUCCESSFUL, message: str = ""
) -> ScalingActivity:
    """Store an activity that has already ended."""
    ended = finish(tx, begin(tx, group, description, cause).id, status, message)
    assert ended is not None
    return ended


# DescribeScalingActivities


def describe_scaling_activities(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name = params.get("AutoScalingGroupName")
    with_deleted = params.get("IncludeDeletedGroups", False)
    ids = set(params.get("ActivityIds", ()))
    if len(ids) > IDS_MAX:
        raise ValidationError(f"The number of activity ids that may be passed in is limited to {IDS_MAX}")
    if name is not None and not with_deleted:
        find_group(tx, caller, name)
    earliest_s, latest_s, status = _filters(params, tx.now_s)
    live = {group.name: group.uid for group in tx.store.groups.listed(caller.region)} if not with_deleted else {}

    def wanted(activity: ScalingActivity) -> bool:
        return (
            (not ids or activity.id in ids)
            and (with_deleted or live.get(activity.group) == activity.group_uid)
            and earliest_s <= activity.started_at_s <= latest_s
            and (status is None or activity.status in status)
        )

    def candidates(after: str, limit: int) -> list[tuple[str, ScalingActivity]]:
        """Return activities in progress, newest first, and then ended activities, newest first."""
        found: list[tuple[str, ScalingActivity]] = []
        in_ended, number = ACTIVITY_PAGES.position(params, _position) if after else (False, None)
        for ended in (False, True):
            if in_ended and not ended:
                continue
            before = number if ended == in_ended else None
            while limit < 0 or len(found) < limit:
                rows = tx.store.groups.activities(caller.region, name, ended=ended, before=before, limit=ROWS_PER_READ)
                found += [(f"{ended:d}/{at}", each) for at, each in rows if wanted(each)]
                if len(rows) < ROWS_PER_READ:
                    break
                before = rows[-1][0]
        return found if limit < 0 else found[:limit]

    found, more = ACTIVITY_PAGES.page(params, candidates)
    return {"Activities": [activity_view(tx, activity) for activity in found], **more}


def _position(after: str) -> tuple[bool, int | None]:
    """Parse the position of a page: whether it begins with ended activities, and the number of the activity before it."""
    ended, _, digits = after.partition("/")
    number = whole_number(digits)
    if ended not in ("0", "1") or number is None:
        raise ValueError("not a position")
    return ended == "1", number


def _filters(params: Params, now_s: float) -> tuple[float, float, set[str] | None]:
    """Return the earliest and the latest start time, and the statuses, that a request selects. None selects all statuses."""
    earliest_s, latest_s, states = now_s - SHOWN_S, inf, None
    for each in params.get("Filters", ()):
        values = each.get("Values", [])
        if each.get("Name") == "Status":
            states = set(values)
            continue
        if each.get("Name") not in ("StartTimeLowerBound", "StartTimeUpperBound") or len(values) != 1:
            raise ValidationError(
                f"The filter {each.get('Name')} is not valid: use StartTimeLowerBound or StartTimeUpperBound with one time, or "
                "Status."
            )
        try:
            given = datetime.fromisoformat(values[0])
        except ValueError:
            raise ValidationError(f"{values[0]} is not a time: use the form 2026-01-31T12:00:00Z.") from None
        at_s = (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp()
        if each["Name"] == "StartTimeLowerBound":
            earliest_s = max(earliest_s, at_s)
        else:
            latest_s = at_s
    return earliest_s, latest_s, states


def activity_view(tx: Tx[Store], activity: ScalingActivity) -> dict[str, Any]:
    group = tx.store.groups.get(activity.region, activity.group)
    view: dict[str, Any] = {
        "ActivityId": activity.id,
        "AutoScalingGroupName": activity.group,
        "Description": activity.description,
        "Cause": activity.cause,
        "StartTime": activity.started_at_s,
        "StatusCode": activity.status,
        "Progress": activity.progress,
        "Details": activity.details,
        "AutoScalingGroupState": "InService" if group is not None and group.uid == activity.group_uid else "Deleted",
        "AutoScalingGroupARN": group_arn(tx.settings.account, activity.region, activity.group_uid, activity.group),
    }
    if activity.ended_at_s is not None:
        view["EndTime"] = activity.ended_at_s
    message = activity.message or why_waiting(tx, activity)
    return view | ({"StatusMessage": message} if message else {})


def why_waiting(tx: Tx[Store], activity: ScalingActivity) -> str:
    """Return why an activity waits: a launch waits for GPUs, a termination for tasks. If it does not wait, return an empty text.

    The reason is computed for each request, so it is always current.
    """
    member = tx.store.groups.member(activity.instance_id) if activity.status == IN_PROGRESS else None
    if member is not None and member.task_wait is not None and (busy := busy_on(tx, member.instance_id)):
        return f"Waiting for {named(busy)}."
    if member is not None and member.task_wait is not None and member.task_wait.drains:
        instance = tx.store.instances.get(member.instance_id)
        tasks = [task.id for task in tasks_to_drain(tx, instance)] if instance is not None else []
        many = "1 task of the draining instance has" if len(tasks) == 1 else f"{len(tasks)} tasks of the draining instance have"
        return f"Waiting until {many} ended: {', '.join(tasks[:NAMED_MAX])}." if tasks else ""
    if activity.status == WAITING and (why := why_lent_later(tx, activity.instance_id)):
        return f"Waiting for a machine: {why}."
    claim = tx.store.claims.get(INSTANCE, activity.instance_id) if activity.status == WAITING else None
    pool = tx.store.claims.pool_of(INSTANCE, activity.instance_id)
    return f"Waiting for capacity: {why_claim_waits(tx, pool, claim)}." if claim is not None and pool is not None else ""
