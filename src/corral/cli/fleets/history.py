"""Computes the history of a fleet from the responses of AWS's APIs, for `corral fleet`.

The history is the number of workers in the last minutes, the workers that crashed, and the time line of the last scale-out. Only
events that have happened are part of it: a launch that was cancelled or failed has launched no instance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from corral.cli.printing.output import SHORT_ID

WINDOW_S = 600
LAUNCHING, TERMINATING = "Launching", "Terminating"
INSTANCE = re.compile(r"i-[0-9a-f]+")
COUNT = re.compile(r"^Setting desired count to (?P<after>[0-9]+)\.")
BY_ALARM = re.compile(
    r"alarm (?P<alarm>.+) in state (?P<state>[A-Z_]+) triggered policy (?P<policy>.+?)(?: changing the desired|$)"
)
BY_PROVIDER = re.compile(r"the capacity provider (?P<provider>.+?), whose tasks need [0-9]+ instances?, scaled the group")
CAPACITIES = re.compile(r"changing the desired capacity from (?P<before>[0-9]+) to (?P<after>[0-9]+)\.")
S3 = "s3.amazonaws.com"
CRASH_CODES = ("EssentialContainerExited", "TaskFailedToStart")
TOGETHER_S = 2.0  # the launches of one scale-out begin within this time

AlarmChange = Callable[[str, str, datetime], datetime | None]  # (alarm, state, time) → when it last entered the state before that


# The number of workers


def instance_history(activities: list[dict[str, Any]], present: int, now: datetime, size: int) -> list[float | None]:
    """Return the number of instances in service in the last minutes, oldest first, from the activities of a group.

    The termination of an instance counts only if the instance was in service: its launch was successful, or is older than the
    listed activities.
    """
    never = {
        found[0]
        for each in activities
        if each["Description"].startswith(LAUNCHING) and each["StatusCode"] != "Successful"
        if (found := INSTANCE.search(each["Description"]))
    }
    changes = []
    for each in activities:
        is_launch, instance = each["Description"].startswith(LAUNCHING), INSTANCE.search(each["Description"])
        if each["StatusCode"] in ("Failed", "Cancelled") or (instance is not None and instance[0] in never):
            continue
        at = each.get("EndTime") if is_launch else each["StartTime"]
        if at is not None:
            changes.append((at, 1 if is_launch else -1))
    return [float(max(0, present - sum(delta for when, delta in changes if when > at))) for at in _times(now, size)]


def task_history(tasks: list[dict[str, Any]], now: datetime, size: int) -> list[float | None]:
    """Return the number of running tasks in the last minutes, oldest first. `tasks` has also the tasks that stopped meanwhile."""
    times = [(each["started"], each["stopped"]) for each in tasks if each["started"] is not None]
    return [float(sum(start <= at and (end is None or end > at) for start, end in times)) for at in _times(now, size)]


def _times(now: datetime, size: int) -> list[datetime]:
    return [now - timedelta(seconds=WINDOW_S * at / size) for at in reversed(range(size))]


# Crashes


def crashes(tasks: Iterable[dict[str, Any]], now: datetime) -> dict[str, Any] | None:
    """Return how many workers crashed in the last minutes, and the last of them. Return None if none has.

    A worker crashes if its program ends with an error, or if it cannot start. A worker that a scale-in, a deployment or a user
    stops has not crashed.
    """
    since = now - timedelta(seconds=WINDOW_S)
    found = [each for each in tasks if _is_crash(each) and each["stopped"] is not None and each["stopped"] > since]
    if not found:
        return None
    last = max(found, key=lambda each: each["stopped"])
    code = f"exit code {last['exitCode']}" if last["exitCode"] else ""
    reason = ": ".join(filter(None, (code, last["reason"])))
    return {"count": len(found), "windowS": WINDOW_S, "task": last["id"], "at": last["stopped"], "reason": reason}


def _is_crash(task: dict[str, Any]) -> bool:
    return task["state"] == "STOPPED" and task["stopCode"] in CRASH_CODES and task["exitCode"] != 0


# What the fleet waits for


def waiting_activity(activities: list[dict[str, Any]]) -> str | None:
    """Return what the newest unfinished activity with a status message waits for. Return None if there is no such activity."""
    unfinished = [each for each in activities if each["StatusCode"] not in ("Successful", "Failed", "Cancelled", "Overridden")]
    return next((f"{each['Description']}: {each['StatusMessage']}" for each in unfinished if each.get("StatusMessage")), None)


# The last scale-out


class TimeLineStep(NamedTuple):
    kind: str
    text: str
    at: datetime | None


def scale_out_of_group(
    activities: list[dict[str, Any]], tasks: list[dict[str, Any]], wakes: list[dict[str, Any]], alarm_change: AlarmChange
) -> dict[str, Any] | None:
    """Return the steps of the last scale-out of a group by an alarm or a capacity provider, with the milliseconds since the first.

    `wakes` are the arrivals of messages in the empty queue. Return None if `activities` has no such scale-out.
    """
    launches = [(each, sizes) for each in activities if (sizes := _scale_out_sizes(each)) is not None]
    if not launches:
        return None
    newest, sizes = launches[0]
    together = [each for each, other in launches if other == sizes and _seconds_between(each, newest) < TOGETHER_S]
    launched = [each for each in together if each["StatusCode"] == "Successful"] or together
    launch = min(launched, key=lambda each: each["StartTime"])
    began, cause, instance = launch["StartTime"], launch["Cause"], INSTANCE.search(launch["Description"])
    name = instance[0] if instance else ""
    task = _task_of_launch(launch, name, tasks)
    before, after = sizes
    by_provider = BY_PROVIDER.search(cause)
    if by_provider is not None:
        steps = [TimeLineStep("policy", f"capacity provider {by_provider['provider']} sets {before} → {after}", began)]
    else:
        steps = _alarm_steps(BY_ALARM.search(cause), began, wakes if before == 0 else [], alarm_change, with_alarm=before == 0)
        match = BY_ALARM.search(cause)
        steps.append(TimeLineStep("policy", f"policy {match['policy'] if match else ''} sets {before} → {after}", began))
    steps.append(_launch_step(launch, name, task["joined"] if task is not None else None))
    if task is not None:
        steps.append(TimeLineStep("joined", "instance joined the cluster", task["joined"]))
        steps += _task_steps(task)
    return _time_line(steps, before, after)


def _task_of_launch(launch: dict[str, Any], instance: str, tasks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first task on the launched instance.

    The instance of a task is not known after the instance has ended. Then it is the first such task that started after the launch.
    """
    if launch["StatusCode"] != "Successful":
        return None
    on_it = [each for each in tasks if instance and each["instance"] == instance]
    ended = [
        each for each in tasks if not each["instance"] and each["started"] is not None and each["started"] >= launch["StartTime"]
    ]
    return next(iter(on_it or ended), None)


def scale_out_of_service(
    activities: list[dict[str, Any]], tasks: list[dict[str, Any]], wakes: list[dict[str, Any]], alarm_change: AlarmChange
) -> dict[str, Any] | None:
    """Return the steps of the last scale-out of a service by an alarm. The activity of a service has no count before the change."""
    counts = [(each, int(match["after"])) for each in activities if (match := COUNT.match(each["Description"]))]
    for at, (activity, after) in enumerate(counts):
        match, began = BY_ALARM.search(activity["Cause"]), activity["StartTime"]
        older = counts[at + 1][1] if at + 1 < len(counts) else None
        task = next((each for each in tasks if each["created"] is not None and each["created"] >= began), None)
        if match is None or not (_is_new(task, began) or (older is not None and older < after)):
            continue
        steps = _alarm_steps(match, began, wakes if older in (0, None) else [], alarm_change, with_alarm=True)
        steps.append(TimeLineStep("policy", f"policy {match['policy']} sets the desired count to {after}", began))
        return _time_line([*steps, *(_task_steps(task) if task is not None else [])], None, after)
    return None


def _is_new(task: dict[str, Any] | None, began: datetime) -> bool:
    """Whether a task was created because of a change that began at this time. A user may have lowered the count before."""
    return task is not None and (task["created"] - began).total_seconds() < TOGETHER_S


def _alarm_steps(
    match: re.Match[str] | None, began: datetime, wakes: list[dict[str, Any]], alarm_change: AlarmChange, *, with_alarm: bool
) -> list[TimeLineStep]:
    if match is None or not with_alarm:
        return []
    changed = alarm_change(match["alarm"], match["state"], began)
    steps = [TimeLineStep("alarm", f"alarm {match['alarm']} enters {match['state']}", changed)]
    woken = [each for each in wakes if each["atMs"] / 1000 <= (changed or began).timestamp()]
    if woken:
        what = "message sent by S3" if woken[-1]["sender"] == S3 else "message sent"
        steps.insert(0, TimeLineStep("message", what, _time(woken[-1]["atMs"])))
    return steps


def _launch_step(launch: dict[str, Any], instance: str, joined: datetime | None) -> TimeLineStep:
    status = launch["StatusCode"]
    if status == "Successful":  # the activity can end a little later than the instance joins the cluster
        ended = launch.get("EndTime")
        return TimeLineStep("instance", f"instance {instance} launched", min(ended, joined) if ended and joined else ended)
    if status in ("Failed", "Cancelled"):
        return TimeLineStep(
            "instance",
            f"the launch of instance {instance} {'failed' if status == 'Failed' else 'was cancelled'}",
            launch.get("EndTime"),
        )
    return TimeLineStep("instance", f"instance {instance} waits", launch["StartTime"])


def _task_steps(task: dict[str, Any]) -> list[TimeLineStep]:
    name = task["id"][:SHORT_ID]
    return [
        TimeLineStep("task", f"task {name} created", task["created"]),
        TimeLineStep("running", f"task {name} running", task["started"]),
        TimeLineStep("receive", "first message received", _time(task.get("firstReceiveMs"))),
    ]


def _time_line(steps: list[TimeLineStep], before: int | None, after: int) -> dict[str, Any]:
    known = sorted(((each, each.at) for each in steps if each.at is not None), key=lambda pair: pair[1])
    first = known[0][1]
    return {
        "at": first,
        "before": before,
        "after": after,
        "steps": [{"step": each.kind, "text": each.text, "ms": round((at - first).total_seconds() * 1000)} for each, at in known],
    }


def _scale_out_sizes(activity: dict[str, Any]) -> tuple[int, int] | None:
    """Return the desired capacity before and after the scale-out that caused a launch. Return None for other activities."""
    cause = activity["Cause"]
    sizes = CAPACITIES.search(cause) if activity["Description"].startswith(LAUNCHING) else None
    if sizes is None or not (BY_ALARM.search(cause) or BY_PROVIDER.search(cause)):
        return None
    before, after = int(sizes["before"]), int(sizes["after"])
    return (before, after) if after > before else None


def _seconds_between(first: dict[str, Any], second: dict[str, Any]) -> float:
    return abs(float((first["StartTime"] - second["StartTime"]).total_seconds()))


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
