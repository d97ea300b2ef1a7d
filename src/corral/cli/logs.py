"""`corral logs`: what a task wrote, and what it writes."""

from __future__ import annotations

import heapq
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from corral.cli import tasks
from corral.cli.follow import LogPlace, Start, follow, has_log, log_places, pages
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.suggest import task_ids
from corral.cli.where import Where, client, cluster_option, find
from corral.cli.words import DURATION, say, server_time, with_short_ids

TAIL_MAX = 10_000  # what one GetLogEvents gives


@click.command()
@data_option
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until the task has stopped.")
@click.option("--container", "-c", metavar="NAME", help="Whose log (default: all of them, each line with its container's name).")
@click.option("--since", metavar="TIME", help="Only what came since: 10m, 2h, or a time as 2026-01-31T08:00:00Z.")
@click.option("--tail", type=click.IntRange(0, TAIL_MAX), metavar="N", help="Only the last N events of each log.")
@click.option("--timestamps", is_flag=True, help="Each line with the time of its event (UTC).")
@cluster_option("Whose task; an ARN names its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: timestamp, message, ingestionTime, container.")
@click.argument("task", metavar="TASK", shell_complete=task_ids("RUNNING", "STOPPED"))
def logs(
    data: Data, following: bool, container: str | None, since: str | None, tail: int | None, timestamps: bool,
    cluster: str | None,
    as_json: bool, task: str,
) -> None:  # fmt: skip
    """Print a task's log. TASK is an id, the beginning of one, or an ARN."""
    where = find(data)
    ecs = client(where, "ecs")
    cluster, task_id = tasks.find(ecs, task, cluster or where.cluster)
    reply = ecs.describe_tasks(cluster=cluster, tasks=[task_id])
    found = tasks.only(reply["tasks"], task_id, cluster)
    start = Start(tail, _since_ms(since, server_time(reply)))
    definition = ecs.describe_task_definition(taskDefinition=found["taskDefinitionArn"])["taskDefinition"]
    names = _check(definition, task_id, container)
    printer = Printer(names, timestamps=timestamps, as_json=as_json)
    if following:
        follow(where, cluster, task_id, lambda seen: log_places(definition, seen, container), printer.show, start=start)
        return
    streams = [_events(where, place, start) for place in log_places(definition, found, container)]
    for place, event in heapq.merge(*streams, key=lambda pair: pair[1]["timestamp"]):
        printer.show(place, [event], flush=False)
    sys.stdout.flush()
    if tasks.state(found) == "WAITING":
        say(f"task {tasks.short(task_id)} has not started: {with_short_ids(tasks.reason(found))}")


def _since_ms(text: str | None, now: datetime | None) -> int | None:
    """By the server's clock: the events have its times."""
    if text is None:
        return None
    if re.match(r"[0-9]{4}-", text):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise click.BadParameter(f"'{text}' is no time: say it as 2026-01-31T08:00:00Z.", param_hint="--since") from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    else:
        assert now is not None, "every HTTP answer has a date"
        at = now - timedelta(seconds=DURATION.convert(text, None, None))
    return int(at.timestamp() * 1000)


def _check(definition: dict[str, Any], task_id: str, container: str | None) -> list[str]:
    """The names of the containers whose logs are wanted."""
    names = [defined["name"] for defined in definition["containerDefinitions"]]
    logged = [defined["name"] for defined in definition["containerDefinitions"] if has_log(defined)]
    if container is not None and container not in names:
        raise Failed(f"task {tasks.short(task_id)} has no container {container}; it has {', '.join(names)}.")
    if not logged or container not in (None, *logged):
        raise Failed(f"{container or 'task ' + tasks.short(task_id)} keeps no log: its task definition has no awslogs log driver.")
    return [container] if container else logged


def _events(where: Where, place: LogPlace, start: Start) -> Iterator[tuple[LogPlace, dict[str, Any]]]:
    for page in pages(where, place, start):
        for event in page.events:
            yield place, event


class Printer:
    """Lines as a person or a program wants them. Where there are several logs, each line says whose it is."""

    def __init__(self, names: list[str], *, timestamps: bool, as_json: bool) -> None:
        self._width = max(map(len, names)) if len(names) > 1 else 0
        self._timestamps = timestamps
        self._as_json = as_json

    def show(self, place: LogPlace, events: list[dict[str, Any]], *, flush: bool = True) -> None:
        sys.stdout.write("".join(self._line(place, event) for event in events))
        if flush:
            sys.stdout.flush()

    def _line(self, place: LogPlace, event: dict[str, Any]) -> str:
        if self._as_json:
            return json.dumps({**event, "container": place.container}) + "\n"
        name = f"{place.container:<{self._width}} | " if self._width else ""
        at = ""
        if self._timestamps:
            at = datetime.fromtimestamp(event["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")
        return f"{at}{name}{event['message']}\n"
