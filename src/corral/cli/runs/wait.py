"""`corral wait` waits until tasks have stopped. It exits with the exit code of the first task that failed, or with 0.

The first task is the first in the order of the arguments, not in time.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, cluster_option, find_endpoint
from corral.cli.printing.errors import NO_EXIT_CODE, TIMED_OUT
from corral.cli.printing.output import print_json, print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.recorded_runs import find_everywhere
from corral.cli.runs.task_logs import wait_until_stopped

SHOWN_MAX = 10  # print the reasons of at most this many tasks without an exit code


@click.command(short_help="Wait until tasks have stopped.")
@data_option
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the stopped tasks as JSON.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING", "WAITING"))
def wait(data: DataFolder, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Wait until tasks have stopped. Exit with the exit code of the first task, in the order of the arguments, that failed.

    If no task failed, exit with 0. If the first failed task reached its time limit, exit with 124. If it has no exit code, exit
    with 125.

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array. A name means the latest task with this
    name, or all tasks of the array with this name. If a task is requeued after a failure, this command waits for the task that
    replaces it. A task that has stopped is found as long as `corral history` lists it.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = {tasks.id_of(run.task): run for each in given for run in find_everywhere(endpoint, each, cluster)}
    ended: dict[str, dict[str, Any]] = {}
    for task_id, run in found.items():
        stopped = run.task if tasks.is_stopped(run.task) else wait_until_stopped(endpoint, run.cluster, task_id)
        while replacement := tasks.tag_value(stopped, tasks.REQUEUED_TAG):
            stopped = wait_until_stopped(endpoint, run.cluster, replacement)
        ended[tasks.id_of(stopped)] = stopped
    if as_json:
        print_json(list(ended.values()))
    definitions: dict[str, dict[str, Any]] = {}
    codes = {task_id: _exit_code(ecs, definitions, task) for task_id, task in ended.items()}
    without = [task_id for task_id, code in codes.items() if code is None]
    for task_id in without[:SHOWN_MAX]:
        print_message(f"task {tasks.short(task_id)} has no exit code: {shorten_ids(tasks.reason(ended[task_id]))}")
    if len(without) > SHOWN_MAX:
        print_message(f"{len(without) - SHOWN_MAX} more tasks have no exit code")
    sys.exit(next((NO_EXIT_CODE if code is None else code for code in codes.values() if code != 0), 0))


def _exit_code(ecs: Any, definitions: dict[str, dict[str, Any]], task: dict[str, Any]) -> int | None:
    """Return the exit code of a stopped task, or None if the task has none. `definitions` caches task definitions by ARN."""
    if tasks.reached_time_limit(task):
        return TIMED_OUT
    if "failed" in task:  # `task` is from the history. Its task definition may be deleted, so do not read it
        code: int | None = task.get("exitCode")
        return code
    arn = task["taskDefinitionArn"]
    if arn not in definitions:
        definitions[arn] = ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]
    return tasks.exit_code(definitions[arn], task)
