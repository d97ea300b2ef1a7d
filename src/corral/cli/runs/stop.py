"""`corral stop` stops tasks."""

from __future__ import annotations

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, cluster_option, find_endpoint, is_aws
from corral.cli.printing.errors import RunNotFound
from corral.cli.printing.output import print_json, print_line
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import describe_runs, find_runs, is_glob
from corral.cli.runs.recorded_runs import find_recorded
from corral.cli.runs.task_logs import wait_until_stopped


@click.command(short_help="Stop tasks.")
@data_option
@click.option("--reason", metavar="TEXT", help="The task's stoppedReason.")
@click.option("--wait", "-w", is_flag=True, help="Wait until the tasks have stopped.")
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON. With --wait, print them after they have stopped.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING", "WAITING"))
def stop(data: DataFolder, reason: str | None, wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Stop tasks. Each process receives SIGTERM, and SIGKILL after the container's stopTimeout (default: 30 s).

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array. A name means the latest task with this
    name that has not stopped, or all tasks of the array with this name. `NAME:17` is one task of an array. If one of the tasks
    does not exist, no task is stopped.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    runs, recorded = [], []
    for each in given:
        try:
            runs += find_runs(endpoint, each, cluster, unfinished=True)
        except RunNotFound:
            ended = [] if is_aws(endpoint) or is_glob(each) else find_recorded(endpoint, each)
            if not ended:
                raise
            recorded += [run.task for run in ended]
    found = list(dict.fromkeys(runs))
    describe_runs(ecs, found)
    why = {"reason": reason} if reason else {}
    # The last task first, so that a waiting member of an array does not start when another member stops.
    stopped = [ecs.stop_task(cluster=of_cluster, task=task_id, **why)["task"] for of_cluster, task_id in reversed(found)][::-1]
    if wait:
        stopped = [wait_until_stopped(endpoint, of_cluster, task_id) for of_cluster, task_id in found]
    stopped += recorded  # nothing is left to do for them
    if as_json:
        print_json(stopped)
        return
    for task in stopped:
        state = "has stopped" if tasks.is_stopped(task) else "is stopping"
        print_line(f"{tasks.short(tasks.id_of(task))} {state}")
