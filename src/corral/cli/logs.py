"""`corral logs`: what a task wrote, and what it writes."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from corral.cli import tasks
from corral.cli.follow import follow, has_log, log_place, read_on
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import client, find
from corral.cli.words import say, with_short_ids


@click.command()
@data_option
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until the task has stopped.")
@click.option("--container", "-c", metavar="NAME", help="Whose log (default: the first container that has one).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: timestamp, message, ingestionTime.")
@click.argument("task", metavar="TASK")
def logs(data: Data, following: bool, container: str | None, as_json: bool, task: str) -> None:
    """Print a task's log. TASK is an id, the beginning of one, or an ARN."""
    where = find(data)
    ecs = client(where, "ecs")
    cluster, task_id = tasks.find(ecs, task)
    found = tasks.describe_one(ecs, cluster, task_id)
    definition = ecs.describe_task_definition(taskDefinition=found["taskDefinitionArn"])["taskDefinition"]
    _check(definition, task_id, container)
    show = _show_json if as_json else _show
    if following:
        follow(where, cluster, task_id, lambda seen: log_place(definition, seen, container), show)
        return
    place = log_place(definition, found, container)
    if place:
        read_on(where, place, None, show)
    if tasks.state(found) == "WAITING":
        say(f"task {tasks.short(task_id)} has not started: {with_short_ids(tasks.reason(found))}")


def _check(definition: dict[str, Any], task_id: str, container: str | None) -> None:
    names = [defined["name"] for defined in definition["containerDefinitions"]]
    logged = [defined["name"] for defined in definition["containerDefinitions"] if has_log(defined)]
    if container is not None and container not in names:
        raise Failed(f"task {tasks.short(task_id)} has no container {container}; it has {', '.join(names)}.")
    if not logged or container not in (None, *logged):
        raise Failed(f"{container or 'task ' + tasks.short(task_id)} keeps no log: its task definition has no awslogs log driver.")


def _show(events: list[dict[str, Any]]) -> None:
    sys.stdout.write("".join(f"{event['message']}\n" for event in events))
    sys.stdout.flush()


def _show_json(events: list[dict[str, Any]]) -> None:
    sys.stdout.write("".join(f"{json.dumps(event)}\n" for event in events))
    sys.stdout.flush()
