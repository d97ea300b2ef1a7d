"""Recorded runs: stopped tasks in Corral's history. ECS shows a stopped task for an hour, and the history keeps it for 30 days.

GetHistory describes a recorded run in the form of DescribeTasks, so commands treat it as a task of ECS. The description also has
the members `name`, `command`, `folder`, `git`, `exitCode`, `failed`, `waitingSeconds`, `wallSeconds`, `gpus` and `gpuUse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.printing.errors import CliError, RunNotFound
from corral.cli.printing.output import parsed_date, print_message, server_time
from corral.cli.runs import tasks
from corral.cli.runs.names import RunId, find_runs, is_glob, member_of, named_runs

SERVICE_GROUP = "service:"  # the group of a service's task is this prefix and the name of the service
MEMBERS_MAX = 10_000  # the maximum number of members of an array
RUNS_MAX = 100_000  # the maximum number of runs of one name that are searched
PAGE = 1_000  # the maximum number of tasks in a response
TIMES = ("createdAt", "startedAt", "stoppingAt", "stoppedAt")
RELAY = "/corral/channel/command_relay.py"
RELAY_WORDS = 7  # `corral run -i` puts this many words before the user's command (`RunTerminal.wrap`)
_ID = re.compile(r"[0-9a-f]{1,32}")
_ARRAY_ID = re.compile(r"[0-9a-f]{12}")


class NamedRun(NamedTuple):
    cluster: str
    task: dict[str, Any]  # as DescribeTasks returns it, or from the history
    is_recorded: bool  # True: ECS no longer describes the task, and `task` is from the history
    now: datetime | None  # the server's time


def find_everywhere(endpoint: Endpoint, given: str, cluster: str | None) -> list[NamedRun]:
    """Find the runs that an argument of the command line names: first among the tasks that ECS shows, then in the history.

    `cluster` is the value of --cluster, or None.
    """
    try:
        ids = find_runs(endpoint, given, cluster)
    except RunNotFound:
        recorded = [] if is_aws(endpoint) else find_recorded(endpoint, given)
        if not recorded:
            raise
        return recorded
    described = _described(endpoint, ids)
    found = []
    for of_cluster, task_id in ids:
        if task_id in described or is_aws(endpoint):
            task, now = described.get(task_id, ({}, None))
            found.append(NamedRun(of_cluster, tasks.only([task] if task else [], task_id, of_cluster), False, now))
        else:
            found += find_recorded(endpoint, task_id)
    return found if _names_one(given, found) or is_aws(endpoint) else [*_ended_members(endpoint, found), *found]


def _names_one(given: str, found: list[NamedRun]) -> bool:
    """Whether `given` names one run: by its id or ARN, by the beginning of its id, or by a name and an index."""
    if tasks.is_exact(given) or member_of(given) is not None:
        return True
    if len(found) != 1:
        return False
    task = found[0].task
    return tasks.name(task) != given and tasks.id_of(task).startswith(given.lower())


def _ended_members(endpoint: Endpoint, found: list[NamedRun]) -> list[NamedRun]:
    """Return the members of arrays in `found` that ECS no longer shows, because they have ended long ago."""
    arrays = {(tasks.array_id(run.task), tasks.name(run.task)) for run in found if tasks.array_id(run.task)}
    known = {tasks.id_of(run.task) for run in found}
    return [
        run
        for array_id, name in arrays
        for run in reversed(recorded_members(endpoint, name))
        if tasks.array_id(run.task) == array_id and tasks.id_of(run.task) not in known
    ]


def find_array(endpoint: Endpoint, given: str, cluster: str | None) -> list[NamedRun]:
    """Find an array by its name or its id. Return its tasks, oldest first, or an empty list if `given` does not name an array.

    A name means the latest array with this name, together with its reruns: arrays of this name with the same task definition. A
    newer run of the same name that is not a member of an array does not hide the array.
    """
    if tasks.is_exact(given) or member_of(given) is not None or is_glob(given) or is_aws(endpoint):
        return []
    ecs = client(endpoint, "ecs")
    recorded = recorded_members(endpoint, given)
    clusters = dict.fromkeys([cluster or endpoint.cluster, *(run.cluster for run in recorded if cluster is None)])
    runs = [NamedRun(name, task, False, None) for name in clusters for task in named_runs(ecs, given, name)]
    by_id = {tasks.id_of(run.task): run for run in [*runs, *recorded] if run.cluster in clusters}
    found = sorted(by_id.values(), key=lambda run: run.task["createdAt"])
    members = [run for run in found if tasks.array_id(run.task)]
    if not found:
        with suppress(RunNotFound):
            runs = find_everywhere(endpoint, given, cluster)
            members = [run for run in runs if tasks.array_id(run.task) == given.lower()]
        return sorted(members, key=lambda run: run.task["createdAt"])
    if members and found[-1] != members[-1]:
        newer = tasks.short(tasks.id_of(found[-1].task))
        print_message(f"{given} means array {tasks.array_id(members[-1].task)}; `corral rerun {newer}` runs the newer run {newer}")
    same = ("clusterArn", "taskDefinitionArn")
    return [run for run in members if all(run.task[name] == members[-1].task[name] for name in same)]


def describe_everywhere(endpoint: Endpoint, cluster: str, task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Describe tasks of one cluster. If ECS no longer describes a task, return its description in the history, if there is one."""
    found = tasks.describe(client(endpoint, "ecs"), task_ids, cluster)
    missing = dict.fromkeys(task_ids).keys() - map(tasks.id_of, found) if len(found) < len(task_ids) else ()
    if missing and not is_aws(endpoint):
        found += [run.task for task_id in missing for run in find_recorded(endpoint, task_id)]
    return found


def _described(endpoint: Endpoint, ids: list[RunId]) -> dict[str, tuple[dict[str, Any], datetime | None]]:
    """Return the tasks that ECS shows, by id, each with the server's time."""
    ecs = client(endpoint, "ecs")
    found: dict[str, tuple[dict[str, Any], datetime | None]] = {}
    for cluster in dict.fromkeys(of_cluster for of_cluster, _ in ids):
        of_cluster = [task_id for each, task_id in ids if each == cluster]
        for start in range(0, len(of_cluster), tasks.DESCRIBE_MAX):
            part = of_cluster[start : start + tasks.DESCRIBE_MAX]
            reply = ecs.describe_tasks(cluster=cluster, tasks=part, include=["TAGS"])
            found |= {tasks.id_of(task): (task, server_time(reply)) for task in reply["tasks"]}
    return found


def find_one(endpoint: Endpoint, given: str, cluster: str | None) -> NamedRun:
    """Find one run. If `given` means several runs, return the latest."""
    found = sorted(find_everywhere(endpoint, given, cluster), key=lambda run: run.task["createdAt"])
    if len(found) > 1:
        latest = tasks.short(tasks.id_of(found[-1].task))
        print_message(f"{len(found)} runs match {given}: using the latest, {latest}")
    return found[-1]


def find_recorded(endpoint: Endpoint, given: str) -> list[NamedRun]:
    """Find runs in the history: by a name, a glob, an ARN, the id of an array, or the beginning of an id.

    A name means the latest run with this name. If this run is a member of an array, the name means all members of the array.
    `NAME:17` means the latest run with this name and the index 17.
    """
    if given.startswith("arn:"):
        given = given.rpartition("/")[2]
    if given and not tasks.is_exact(given):
        if named := _find_named(endpoint, given):
            return named
        if (member := member_of(given)) is not None:
            name, index = member
            members = recorded_members(endpoint, name) or _of_array(endpoint, name)
            return [run for run in members if tasks.array_index(run.task) == index][:1]
        if members := _of_array(endpoint, given):
            return members[::-1]
    if not _ID.fullmatch(given.lower()):
        return []
    by_id, now = history_page(endpoint, id=given.lower(), limit=tasks.AMBIGUOUS_NAMED_MAX + 1)
    if len(by_id) > 1:
        named_ids = ", ".join(tasks.id_of(task) for task in by_id[: tasks.AMBIGUOUS_NAMED_MAX])
        more = ", …" if len(by_id) > tasks.AMBIGUOUS_NAMED_MAX else ""
        raise CliError(f"several runs in the history have ids that begin with {given}: {named_ids}{more}. Give more digits.")
    return [_found(task, now) for task in by_id]


def recorded_members(endpoint: Endpoint, name: str) -> list[NamedRun]:
    """Return the recorded members of all arrays with this name, newest first."""
    found, _, now = recorded_runs(endpoint, RUNS_MAX, name=name)
    return [_found(task, now) for task in found if tasks.array_id(task)]


def _of_array(endpoint: Endpoint, given: str) -> list[NamedRun]:
    """Return the recorded members of the array with this id, newest first."""
    if not _ARRAY_ID.fullmatch(given.lower()):
        return []
    found, _, now = recorded_runs(endpoint, MEMBERS_MAX, array=given.lower())
    return [_found(task, now) for task in found if tasks.array_id(task) == given.lower()]


def _find_named(endpoint: Endpoint, given: str) -> list[NamedRun]:
    latest, now = history_page(endpoint, name=given, latest=True)
    found: list[NamedRun] = []
    for task in latest:
        name, array_id = task["name"], tasks.array_id(task)
        same = recorded_runs(endpoint, MEMBERS_MAX, name=name)[0] if array_id else []
        found += [_found(each, now) for each in reversed(same) if tasks.array_id(each) == array_id] or [_found(task, now)]
        if task.get("sameName", 0) > max(1, len(found)):  # `sameName` is not in the response to a glob
            shown = f"array {array_id}" if array_id else tasks.short(tasks.id_of(task))
            print_message(f"{task['sameName']} runs in the history have the name {name}: using the latest, {shown}")
    return found


def recorded_runs(
    endpoint: Endpoint, limit: int, *, only_runs: bool = False, owner: str = "", **filters: Any
) -> tuple[list[dict[str, Any]], bool, datetime | None]:
    """Return the latest recorded runs (at most `limit`), newest first, whether there are more of them, and the server's time.

    With `only_runs`, omit the tasks of services and of Batch jobs. With `owner`, omit the tasks of others.
    """
    found: list[dict[str, Any]] = []
    now: datetime | None = None
    for page, at in _pages(endpoint, PAGE if only_runs or owner else min(limit + 1, PAGE), filters):
        now = at
        runs = [task for task in page if not only_runs or not (task["group"].startswith(SERVICE_GROUP) or "jobId" in task)]
        found += [task for task in runs if owner in ("", task.get("owner"))]
        if len(found) > limit:
            break
    return found[:limit], len(found) > limit, now


def recorded_names(endpoint: Endpoint, prefix: str) -> list[str]:
    """Return names of recorded runs, for completion."""
    page, _ = call(endpoint, "ListTaskNames", {"prefix": prefix}, quick=True)
    return list(page["names"])


def history_page(endpoint: Endpoint, **filters: Any) -> tuple[list[dict[str, Any]], datetime | None]:
    """Return the first page of matching runs, and the server's time."""
    return next(islice(_pages(endpoint, PAGE, filters), 1))


def _pages(endpoint: Endpoint, size: int, filters: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], datetime | None]]:
    asked = {"limit": size, **filters}
    while True:
        page, date = call(endpoint, "GetHistory", asked)
        yield [_converted(task) for task in page["tasks"]], parsed_date(date)
        if "nextToken" not in page:
            return
        asked["nextToken"] = page["nextToken"]


def _found(task: dict[str, Any], now: datetime | None) -> NamedRun:
    return NamedRun(task["clusterArn"].rpartition("/")[2], task, True, now)


def _converted(task: dict[str, Any]) -> dict[str, Any]:
    """Convert times to datetimes, as botocore does for DescribeTasks."""
    times = {name: datetime.fromtimestamp(task[name], UTC) for name in TIMES if name in task}
    return task | times | ({"command": plain_command(task["command"])} if "command" in task else {})


def plain_command(words: list[str]) -> list[str]:
    """Return the user's command. The command of `corral run -i` begins with a program that relays the terminal."""
    is_relayed = len(words) > RELAY_WORDS and words[3].endswith(RELAY) and words[RELAY_WORDS - 1] == "--"
    return words[RELAY_WORDS:] if is_relayed else words
