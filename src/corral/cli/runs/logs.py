"""`corral logs` prints and follows the logs of tasks."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, cluster_option, find_endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import DURATION, end_bar, parse_time, print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_runs
from corral.cli.runs.log_printer import LogPrinter
from corral.cli.runs.log_states import LogState, TaskLogStream, log_states, report_dropped, report_unstored
from corral.cli.runs.recorded_runs import find_everywhere
from corral.cli.runs.task_logs import FollowedTask, LogStart, follow, has_log, log_streams, pages

TAIL_MAX = 10_000  # the maximum number of events in a response of GetLogEvents
TASKS_MAX = 30  # `corral logs -f` has a thread for each task and for each log


class LoggedTask(NamedTuple):
    cluster: str
    task: dict[str, Any]
    definition: dict[str, Any]
    containers: list[str]  # the names of the containers whose logs are printed
    container: str | None  # the value of --container
    is_recorded: bool  # True: ECS no longer describes the task, so `task` is from Corral's history of ended runs

    def streams(self, task: dict[str, Any]) -> list[TaskLogStream]:
        return log_streams(self.definition, task, self.container)


@click.command()
@data_option
@click.option("--follow", "-f", "following", is_flag=True, help="Follow the logs until the tasks have stopped.")
@click.option(
    "--container", "-c", metavar="NAME", help="The container (default: all). With several, each line begins with the name."
)
@click.option("--since", metavar="TIME", help="Only events since this time: 10m or 2h ago, or a date such as 2026-01-31T08:00:00Z.")
@click.option("--tail", type=click.IntRange(0, TAIL_MAX), metavar="N", help="Only the last N events of each log.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with the time of its event (UTC).")
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line: timestamp, message, ingestionTime, container, task."
)
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_runs)
def logs(
    data: DataFolder, following: bool, container: str | None, since: str | None, tail: int | None, timestamps: bool,
    cluster: str | None,
    as_json: bool, given: tuple[str, ...],
) -> None:  # fmt: skip
    """Print the logs of tasks. TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array.

    A name means the latest task with this name, or all tasks of the array with this name. `NAME:17` is one task of an array.

    If there are several tasks, each line begins with the name of its task. With --follow, a task that waits is followed from its
    start on. Until then, the reason why it waits is printed. Tasks that have stopped are found as long as `corral history` lists
    them.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = {tasks.id_of(run.task): run for each in given for run in find_everywhere(endpoint, each, cluster)}
    is_large = len(found) > TASKS_MAX
    if is_large and len({tasks.array_id(run.task) or task_id for task_id, run in found.items()}) > 1:
        raise CliError(f"{len(found)} tasks are too many: name at most {TASKS_MAX} tasks, or one array.")
    definitions: dict[str, dict[str, Any]] = {}
    logged, now = [], None
    for task_id, run in found.items():
        arn, now = run.task["taskDefinitionArn"], run.now
        if arn not in definitions:
            definitions[arn] = ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]
        containers = _check(definitions[arn], task_id, container)
        logged.append(LoggedTask(run.cluster, run.task, definitions[arn], containers, container, run.is_recorded))
    start = LogStart(tail, _since_ms(since, now))
    names = _names(logged)
    printer = LogPrinter(list(names.values()), timestamps=timestamps, as_json=as_json)
    _print_events(endpoint, [each for each in logged if each.is_recorded or not following], start, names, printer)
    live = [each for each in logged if not each.is_recorded]
    if following and is_large and live:
        from corral.cli.runs.array_output import ArrayOutput

        members = {at: tasks.id_of(each.task) for at, each in enumerate(live)}
        ArrayOutput(endpoint, live[0].cluster, live[0].definition, members, printer, start).follow()
        return
    if following:
        _follow(endpoint, live, start, names, printer)
        return
    for each in logged[:TASKS_MAX]:
        if "startedAt" not in each.task and (tasks.state(each.task) == "WAITING" or tasks.is_stopped(each.task)):
            _print_not_started(each.task)


def _print_not_started(task: dict[str, Any]) -> None:
    print_message(f"task {tasks.short(tasks.id_of(task))} has not started: {shorten_ids(tasks.reason(task))}")


def _print_events(
    endpoint: Endpoint, logged: list[LoggedTask], start: LogStart, names: dict[tuple[str, str], str], printer: LogPrinter
) -> None:
    """Print the events of all logs up to now, in the order of their times. Then report the logs that are not complete."""
    owners = {stream: each for each in logged for stream in each.streams(each.task)}
    states = log_states(endpoint, owners)  # read before the logs: a log that is complete now is printed completely
    streams = []
    for stream, each in owners.items():
        printer.add(stream, tasks.id_of(each.task), names[tasks.id_of(each.task), stream.container])
        streams.append(_events(endpoint, stream, start, states))
    # The logs of a large array are printed one after the other, because a merge reads from all logs at the same time.
    events = (
        chain.from_iterable(streams) if len(logged) > TASKS_MAX else heapq.merge(*streams, key=lambda pair: pair[1]["timestamp"])
    )
    for stream, event in events:
        printer.show(stream, [event], flush=False)
    end_bar()
    sys.stdout.flush()
    for stream, state in states.items():
        task_id = tasks.id_of(owners[stream].task)
        name = f"task {tasks.short(task_id)}" + (f", container {stream.container}" if len(owners[stream].containers) > 1 else "")
        report_unstored(name, state, f"; `corral logs -f {tasks.short(task_id)}` waits for them")
        report_dropped(name, state)
        printer.show_state(stream, state)


def _names(logged: list[LoggedTask]) -> dict[tuple[str, str], str]:
    """Return the name of each log, which is printed before its lines if there are several logs: (task id, container) -> name.

    If there are several tasks, the name of a log contains the name of its task. It also contains the id of the task if several
    tasks have the same name. If the task has several containers, it contains the name of the container.
    """
    labels = {tasks.id_of(each.task): tasks.label(each.task) for each in logged}
    counts = Counter(labels.values())
    names = {}
    for each in logged:
        task_id = tasks.id_of(each.task)
        parts = []
        if len(logged) > 1:
            label = labels[task_id]
            parts.append(label if counts[label] == 1 else f"{label} {tasks.short(task_id)}")
        for container in each.containers:
            names[task_id, container] = "/".join([*parts, container] if len(each.containers) > 1 or not parts else parts)
    return names


def _follow(
    endpoint: Endpoint, logged: list[LoggedTask], start: LogStart, names: dict[tuple[str, str], str], printer: LogPrinter
) -> None:
    from corral.cli.runs.foreground_run import ProgressReporter

    reporters: dict[str, ProgressReporter] = {}  # task id -> reporter, for tasks that wait or have waited

    def streams_of(each: LoggedTask, task: dict[str, Any]) -> list[TaskLogStream]:
        streams = each.streams(task)
        for stream in streams:
            printer.add(stream, tasks.id_of(task), names[tasks.id_of(task), stream.container])
        return streams

    def on_task(task: dict[str, Any]) -> None:
        task_id = tasks.id_of(task)
        if task_id not in reporters and tasks.state(task) == "WAITING":
            reporters[task_id] = ProgressReporter(task_id, is_live=len(logged) == 1)
        if task_id in reporters:
            reporters[task_id].report(task)
        if tasks.is_stopped(task) and "startedAt" not in task:
            if task_id in reporters:
                reporters[task_id].close()
            _print_not_started(task)

    followed = [
        FollowedTask(each.cluster, tasks.id_of(each.task), lambda task, each=each: streams_of(each, task))  # type: ignore[misc]
        for each in logged
    ]
    try:
        follow(endpoint, followed, printer.show, start=start, on_task=on_task)
    finally:
        end_bar()
        for reporter in reporters.values():
            reporter.close()


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
    """Return the names of the containers whose logs are printed. Raise a CliError if there is no such container."""
    names = [defined["name"] for defined in definition["containerDefinitions"]]
    logged = [defined["name"] for defined in definition["containerDefinitions"] if has_log(defined)]
    if container is not None and container not in names:
        raise CliError(f"task {tasks.short(task_id)} has no container {container}. Its containers: {', '.join(names)}.")
    if not logged or container not in (None, *logged):
        owner = f"container {container}" if container else f"task {tasks.short(task_id)}"
        raise CliError(f"{owner} has no log: its task definition does not use the awslogs log driver.")
    return [container] if container else logged


def _events(
    endpoint: Endpoint, stream: TaskLogStream, start: LogStart, states: dict[TaskLogStream, LogState]
) -> Iterator[tuple[TaskLogStream, dict[str, Any]]]:
    """Yield the events of a log up to now. If the log was not complete at the beginning, update its state at the end."""
    token = None
    while True:
        state = states.get(stream)
        for page in pages(endpoint, stream, start, token):
            token = page.token
            for event in page.events:
                yield stream, event
        if state is None or not state.unstored:
            return
        states |= log_states(endpoint, [stream])
        if states[stream].unstored:
            return
