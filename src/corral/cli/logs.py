"""`corral logs` prints and follows the log of a task."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from corral.cli import tasks
from corral.cli.completion import complete_task_ids
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, cluster_option, find_endpoint
from corral.cli.errors import CliError
from corral.cli.output import DURATION, escape_log, json_text, parse_time, print_message, server_time, shorten_ids
from corral.cli.task_logs import LogStart, TaskLogStream, follow, has_log, log_streams, pages

TAIL_MAX = 10_000  # the maximum number of events in a response of GetLogEvents


@click.command()
@data_option
@click.option("--follow", "-f", "following", is_flag=True, help="Follow the log until the task has stopped.")
@click.option("--container", "-c", metavar="NAME", help="The container (default: all, with each line prefixed by its name).")
@click.option("--since", metavar="TIME", help="Only events since this time: 10m or 2h ago, or a date such as 2026-01-31T08:00:00Z.")
@click.option("--tail", type=click.IntRange(0, TAIL_MAX), metavar="N", help="Only the last N events of each log.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with the time of its event (UTC).")
@cluster_option("The cluster of the task, if TASK is not an ARN.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: timestamp, message, ingestionTime, container.")
@click.argument("task", metavar="TASK", shell_complete=complete_task_ids("RUNNING", "STOPPED"))
def logs(
    data: DataFolder, following: bool, container: str | None, since: str | None, tail: int | None, timestamps: bool,
    cluster: str | None,
    as_json: bool, task: str,
) -> None:  # fmt: skip
    """Print a task's log. TASK is an id, a prefix of an id, or an ARN."""
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    cluster, task_id = tasks.find(ecs, task, cluster or endpoint.cluster)
    reply = ecs.describe_tasks(cluster=cluster, tasks=[task_id])
    found = tasks.only(reply["tasks"], task_id, cluster)
    start = LogStart(tail, _since_ms(since, server_time(reply)))
    definition = ecs.describe_task_definition(taskDefinition=found["taskDefinitionArn"])["taskDefinition"]
    names = _check(definition, task_id, container)
    printer = LogPrinter(names, timestamps=timestamps, as_json=as_json)
    if following:
        follow(endpoint, cluster, task_id, lambda seen: log_streams(definition, seen, container), printer.show, start=start)
        return
    streams = [_events(endpoint, stream, start) for stream in log_streams(definition, found, container)]
    for stream, event in heapq.merge(*streams, key=lambda pair: pair[1]["timestamp"]):
        printer.show(stream, [event], flush=False)
    sys.stdout.flush()
    if tasks.state(found) == "WAITING":
        print_message(f"task {tasks.short(task_id)} has not started: {shorten_ids(tasks.reason(found))}")


def _since_ms(text: str | None, now: datetime | None) -> int | None:
    """Parse --since. A duration is relative to the server's clock, because events have timestamps of the server."""
    if text is None:
        return None
    at = parse_time(text)
    if at is None:
        assert now is not None, "every HTTP response has a Date header"
        at = now - timedelta(seconds=DURATION.convert(text, None, None))
    return int(at.timestamp() * 1000)


def _check(definition: dict[str, Any], task_id: str, container: str | None) -> list[str]:
    """Return the names of the containers whose logs are printed."""
    names = [defined["name"] for defined in definition["containerDefinitions"]]
    logged = [defined["name"] for defined in definition["containerDefinitions"] if has_log(defined)]
    if container is not None and container not in names:
        raise CliError(f"task {tasks.short(task_id)} has no container {container}. Its containers: {', '.join(names)}.")
    if not logged or container not in (None, *logged):
        owner = f"container {container}" if container else f"task {tasks.short(task_id)}"
        raise CliError(f"{owner} has no log: its task definition does not use the awslogs log driver.")
    return [container] if container else logged


def _events(endpoint: Endpoint, stream: TaskLogStream, start: LogStart) -> Iterator[tuple[TaskLogStream, dict[str, Any]]]:
    for page in pages(endpoint, stream, start):
        for event in page.events:
            yield stream, event


class LogPrinter:
    """Prints events as text or JSON. If there are several logs, each line has the name of its container."""

    def __init__(self, names: list[str], *, timestamps: bool, as_json: bool) -> None:
        self._width = max(map(len, names)) if len(names) > 1 else 0
        self._timestamps = timestamps
        self._as_json = as_json

    def show(self, stream: TaskLogStream, events: list[dict[str, Any]], *, flush: bool = True) -> None:
        sys.stdout.write("".join(self._line(stream, event) for event in events))
        if flush:
            sys.stdout.flush()

    def _line(self, stream: TaskLogStream, event: dict[str, Any]) -> str:
        if self._as_json:
            return json_text({**event, "container": stream.container}) + "\n"
        name = f"{stream.container:<{self._width}} | " if self._width else ""
        at = ""
        if self._timestamps:
            at = datetime.fromtimestamp(event["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")
        return escape_log(f"{at}{name}{event['message']}", sys.stdout) + "\n"
