"""`corral stop` stops tasks."""

from __future__ import annotations

import time

import click

from corral.cli import tasks
from corral.cli.completion import complete_task_ids
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client, cluster_option, find_endpoint, long_poll
from corral.cli.output import print_json, print_line
from corral.cli.task_logs import LONG_POLL_S, POLL_S


@click.command(short_help="Stop tasks.")
@data_option
@click.option("--reason", metavar="TEXT", help="The task's stoppedReason.")
@click.option("--wait", "-w", is_flag=True, help="Wait until the tasks have stopped.")
@cluster_option("The cluster of the tasks that are not ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON. With --wait, print them after they have stopped.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_task_ids("RUNNING"))
def stop(data: DataFolder, reason: str | None, wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Stop tasks. Each process receives SIGTERM, and SIGKILL after the container's stopTimeout (default: 30 s).

    TASK is an id, a prefix of an id, or an ARN. If one of the tasks does not exist, no task is stopped.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = [tasks.find(ecs, task, cluster or endpoint.cluster) for task in given]
    for of_cluster, task_id in found:
        tasks.describe_one(ecs, of_cluster, task_id)
    why = {"reason": reason} if reason else {}
    stopped = [ecs.stop_task(cluster=of_cluster, task=task_id, **why)["task"] for of_cluster, task_id in dict.fromkeys(found)]
    if wait:
        for at, (of_cluster, task_id) in enumerate(dict.fromkeys(found)):
            while not tasks.is_stopped(stopped[at]):
                began_s = time.monotonic()
                with long_poll(LONG_POLL_S):
                    stopped[at] = tasks.describe_one(ecs, of_cluster, task_id)
                if not tasks.is_stopped(stopped[at]):  # AWS has no long polls, so wait before the next request
                    time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))
    if as_json:
        print_json(stopped)
        return
    for task in stopped:
        state = "has stopped" if tasks.is_stopped(task) else "is stopping"
        print_line(f"{tasks.short(tasks.id_of(task))} {state}")
