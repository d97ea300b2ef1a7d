"""`corral stop` stops tasks."""

from __future__ import annotations

import click

from corral.cli import tasks
from corral.cli.completion import complete_tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client, cluster_option, find_endpoint
from corral.cli.output import print_json, print_line
from corral.cli.run_names import find_runs
from corral.cli.task_logs import wait_until_stopped


@click.command(short_help="Stop tasks.")
@data_option
@click.option("--reason", metavar="TEXT", help="The task's stoppedReason.")
@click.option("--wait", "-w", is_flag=True, help="Wait until the tasks have stopped.")
@cluster_option("The cluster of the tasks that are not ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON. With --wait, print them after they have stopped.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING", "WAITING"))
def stop(data: DataFolder, reason: str | None, wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Stop tasks. Each process receives SIGTERM, and SIGKILL after the container's stopTimeout (default: 30 s).

    TASK is a name, an id, a prefix of an id, a glob, or an ARN. A name means its latest task that has not stopped. If one of the
    tasks does not exist, no task is stopped.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = [run for task in given for run in find_runs(ecs, task, cluster or endpoint.cluster, unfinished=True)]
    for of_cluster, task_id in found:
        tasks.describe_one(ecs, of_cluster, task_id)
    why = {"reason": reason} if reason else {}
    stopped = [ecs.stop_task(cluster=of_cluster, task=task_id, **why)["task"] for of_cluster, task_id in dict.fromkeys(found)]
    if wait:
        clusters = [of_cluster for of_cluster, _ in dict.fromkeys(found)]
        stopped = [wait_until_stopped(ecs, of_cluster, task) for of_cluster, task in zip(clusters, stopped)]
    if as_json:
        print_json(stopped)
        return
    for task in stopped:
        state = "has stopped" if tasks.is_stopped(task) else "is stopping"
        print_line(f"{tasks.short(tasks.id_of(task))} {state}")
