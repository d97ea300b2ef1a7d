"""`corral stop`: end tasks."""

from __future__ import annotations

import click

from corral.cli import tasks
from corral.cli.here import Data, data_option
from corral.cli.where import client, find
from corral.cli.words import print_json


@click.command(short_help="Stop tasks.")
@data_option
@click.option("--reason", metavar="TEXT", help="Shown as the task's stoppedReason.")
@click.option("--json", "as_json", is_flag=True, help="The tasks as StopTask tells them.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...")
def stop(data: Data, reason: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Stop tasks: SIGTERM, the container's stopTimeout (30 s), SIGKILL. A TASK is an id, the beginning of one, or an ARN.

    When one of them is unknown, none is stopped. It does not wait for their ends.
    """
    ecs = client(find(data), "ecs")
    found = [tasks.find(ecs, task) for task in given]
    for cluster, task_id in found:
        tasks.describe_one(ecs, cluster, task_id)
    why = {"reason": reason} if reason else {}
    stopped = [ecs.stop_task(cluster=cluster, task=task_id, **why)["task"] for cluster, task_id in dict.fromkeys(found)]
    if as_json:
        print_json(stopped)
        return
    for task in stopped:
        word = "has stopped" if tasks.is_stopped(task) else "is stopping"
        click.echo(f"{tasks.short(tasks.id_of(task))} {word}")
