"""Recorded runs: stopped tasks in Corral's history. ECS shows a stopped task for an hour, and the history keeps it for 30 days.

The page `/_corral/history` describes a recorded run in the form of DescribeTasks, so commands treat it as a task of ECS. The
description also has the members `name`, `command`, `folder`, `git`, `exitCode`, `failed`, `waitingSeconds`, `wallSeconds`, `gpus`
and `gpuUse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from corral.cli import tasks
from corral.cli.endpoint import Endpoint, client, is_aws, own_page
from corral.cli.errors import CliError, RunNotFound
from corral.cli.output import parsed_date, print_message, server_time
from corral.cli.run_names import RunId, find_runs

MEMBERS_MAX = 10_000  # the maximum number of members of an array
PAGE = 1_000  # the maximum number of tasks in a response
TIMES = ("createdAt", "startedAt", "stoppingAt", "stoppedAt")
RELAY = "/corral/channel/command_relay.py"
RELAY_WORDS = 7  # `corral run -i` puts this many words before the user's command (`RunTerminal.wrap`)
_ID = re.compile(r"[0-9a-f]{1,32}")
_INDEX = re.compile(r"[0-9]{1,9}")


class NamedRun(NamedTuple):
    cluster: str
    task: dict[str, Any]  # as DescribeTasks returns it, or from the history
    is_recorded: bool  # True: ECS no longer describes the task, and `task` is from the history
    now: datetime | None  # the server's time


def find_everywhere(endpoint: Endpoint, given: str, cluster: str) -> list[NamedRun]:
    """Find the runs that an argument of the command line names: first among the tasks that ECS shows, then in the history."""
    ecs = client(endpoint, "ecs")
    try:
        ids = find_runs(ecs, given, cluster)
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
            found += find_recorded(endpoint, task_id) or _unknown(given)
    return found


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


def find_one(endpoint: Endpoint, given: str, cluster: str) -> NamedRun:
    """Find one run. If `given` means several runs, return the latest."""
    found = sorted(find_everywhere(endpoint, given, cluster), key=lambda run: run.task["createdAt"])
    if len(found) > 1:
        latest = tasks.short(tasks.id_of(found[-1].task))
        print_message(f"{len(found)} runs match {given}: using the latest, {latest}")
    return found[-1]


def find_recorded(endpoint: Endpoint, given: str) -> list[NamedRun]:
    """Find runs in the history: by a name, a glob, an ARN, or the beginning of an id.

    A name means the latest run with this name. If this run is a member of an array, the name means all members of the array, and
    `NAME:17` means the member with the index 17.
    """
    if given.startswith("arn:"):
        given = given.rpartition("/")[2]
    if given and not tasks.is_exact(given):
        if named := _find_named(endpoint, given):
            return named
        of_array, _, index = given.rpartition(":")
        if of_array and _INDEX.fullmatch(index):
            return [run for run in _find_named(endpoint, of_array) if tasks.array_index(run.task) == int(index)][-1:]
    if not _ID.fullmatch(given.lower()):
        return []
    by_id, now = history_page(endpoint, id=given.lower(), limit=str(tasks.AMBIGUOUS_NAMED_MAX + 1))
    if len(by_id) > 1:
        named_ids = ", ".join(tasks.id_of(task) for task in by_id[: tasks.AMBIGUOUS_NAMED_MAX])
        more = ", …" if len(by_id) > tasks.AMBIGUOUS_NAMED_MAX else ""
        raise CliError(f"several runs in the history have ids that begin with {given}: {named_ids}{more}. Give more digits.")
    return [_found(task, now) for task in by_id]


def _find_named(endpoint: Endpoint, given: str) -> list[NamedRun]:
    latest, now = history_page(endpoint, name=given, latest="1")
    found: list[NamedRun] = []
    for task in latest:
        name, array_id = task["name"], tasks.array_id(task)
        same = recorded_runs(endpoint, MEMBERS_MAX, name=name)[0] if array_id else []
        found += [_found(each, now) for each in reversed(same) if tasks.array_id(each) == array_id] or [_found(task, now)]
        if task.get("sameName", 0) > max(1, len(found)):  # `sameName` is not in the response to a glob
            shown = f"array {array_id}" if array_id else tasks.short(tasks.id_of(task))
            print_message(f"{task['sameName']} runs in the history have the name {name}: using the latest, {shown}")
    return found


def recorded_runs(endpoint: Endpoint, limit: int, **filters: str) -> tuple[list[dict[str, Any]], bool, datetime | None]:
    """Return the latest recorded runs (at most `limit`), newest first, whether there are more of them, and the server's time."""
    found: list[dict[str, Any]] = []
    now: datetime | None = None
    for page, at in _pages(endpoint, min(limit + 1, PAGE), filters):
        now = at
        found += page
        if len(found) > limit:
            break
    return found[:limit], len(found) > limit, now


def recorded_names(endpoint: Endpoint, prefix: str) -> list[str]:
    """Return names of recorded runs, for completion."""
    page, _ = own_page(endpoint, _path(endpoint, {"names": prefix}), quick=True)
    return list(page["names"])


def history_page(endpoint: Endpoint, **filters: str) -> tuple[list[dict[str, Any]], datetime | None]:
    """Return the first page of matching runs, and the server's time."""
    return next(islice(_pages(endpoint, PAGE, filters), 1))


def _pages(endpoint: Endpoint, size: int, filters: dict[str, str]) -> Iterator[tuple[list[dict[str, Any]], datetime | None]]:
    query = {"limit": str(size), **filters}
    while True:
        page, date = own_page(endpoint, _path(endpoint, query))
        yield [_converted(task) for task in page["tasks"]], parsed_date(date)
        if page["before"] is None:
            return
        query["before"] = str(page["before"])


def _path(endpoint: Endpoint, query: dict[str, str]) -> str:
    from urllib.parse import urlencode

    region = endpoint.region or client(endpoint, "ecs").meta.region_name
    return f"/_corral/history?{urlencode({'region': region, **query})}"


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


def _unknown(given: str) -> list[NamedRun]:
    raise RunNotFound(f"there is no run {given}: `corral ps` lists the tasks that run or wait, `corral history` those that ended.")
