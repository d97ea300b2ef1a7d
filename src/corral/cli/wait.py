"""`corral wait` waits until tasks have stopped, and exits with their exit code."""

from __future__ import annotations

import sys

import click

from corral.cli import tasks
from corral.cli.completion import complete_tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client, cluster_option, find_endpoint
from corral.cli.errors import NO_EXIT_CODE, TIMED_OUT
from corral.cli.foreground_run import exit_code, reached_time_limit
from corral.cli.output import print_json, print_message, shorten_ids
from corral.cli.run_names import find_runs
from corral.cli.task_logs import wait_until_stopped


@click.command(short_help="Wait until tasks have stopped.")
@data_option
@cluster_option("The cluster of the tasks that are not ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the stopped tasks as JSON.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING", "WAITING"))
def wait(data: DataFolder, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Wait until tasks have stopped. Exit with the exit code of the first of them that failed, or with 0.

    TASK is a name, an id, a prefix of an id, a glob, or an ARN. A name means its latest task.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = [run for each in given for run in find_runs(ecs, each, cluster or endpoint.cluster)]
    ended, failure = [], 0
    for of_cluster, task_id in dict.fromkeys(found):
        task = wait_until_stopped(ecs, of_cluster, tasks.describe_one(ecs, of_cluster, task_id))
        ended.append(task)
        definition = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
        code = exit_code(definition, task)
        if reached_time_limit(task):
            code = TIMED_OUT
        if code is None:
            print_message(f"task {tasks.short(task_id)} has no exit code: {shorten_ids(tasks.reason(task))}")
            code = NO_EXIT_CODE
        failure = failure or code
    if as_json:
        print_json(ended)
    sys.exit(failure)
