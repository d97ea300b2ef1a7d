"""`corral stop`: end tasks."""

from __future__ import annotations

import time

import click

from corral.cli import tasks
from corral.cli.follow import HOLD_S, POLL_S
from corral.cli.here import Data, data_option
from corral.cli.suggest import task_ids
from corral.cli.where import client, cluster_option, find, holding
from corral.cli.words import print_json


@click.command(short_help="Stop tasks.")
@data_option
@click.option("--reason", metavar="TEXT", help="Shown as the task's stoppedReason.")
@click.option("--wait", "-w", is_flag=True, help="Return when they have stopped.")
@cluster_option("Whose tasks; an ARN names its own.")
@click.option("--json", "as_json", is_flag=True, help="The tasks as StopTask tells them, or with --wait as they ended.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=task_ids("RUNNING"))
def stop(data: Data, reason: str | None, wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Stop tasks: SIGTERM, the container's stopTimeout (30 s), SIGKILL. A TASK is an id, the beginning of one, or an ARN.

    When one of them is unknown, none is stopped.
    """
    where = find(data)
    ecs = client(where, "ecs")
    found = [tasks.find(ecs, task, cluster or where.cluster) for task in given]
    for of_cluster, task_id in found:
        tasks.describe_one(ecs, of_cluster, task_id)
    why = {"reason": reason} if reason else {}
    stopped = [ecs.stop_task(cluster=of_cluster, task=task_id, **why)["task"] for of_cluster, task_id in dict.fromkeys(found)]
    if wait:
        for at, (of_cluster, task_id) in enumerate(dict.fromkeys(found)):
            while not tasks.is_stopped(stopped[at]):
                began_s = time.monotonic()
                with holding(HOLD_S):
                    stopped[at] = tasks.describe_one(ecs, of_cluster, task_id)
                if not tasks.is_stopped(stopped[at]):  # AWS answers at once
                    time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))
    if as_json:
        print_json(stopped)
        return
    for task in stopped:
        word = "has stopped" if tasks.is_stopped(task) else "is stopping"
        click.echo(f"{tasks.short(tasks.id_of(task))} {word}")
