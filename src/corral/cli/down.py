"""`corral down`: stop the server; tasks go on unless told otherwise."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

import click

from corral.cli import here, tasks
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import Where, client, holding, of_folder, status
from corral.cli.words import count, print_json, say

GONE_S = 20.0
STOP_TASKS_S = 600.0
HOLD_S = 20.0


@click.command()
@data_option
@click.option("--stop-tasks", is_flag=True, help="Stop every task first and wait until they have ended.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def down(data: Data, stop_tasks: bool, as_json: bool) -> None:
    """Stop Corral. Running tasks go on; their results are collected at the next `corral up`."""
    pid = here.pid_of(data)
    if pid is None:
        _report(data, as_json, stopped=False, left=0, ended=0)
        return
    watch = os.pidfd_open(pid)  # names this very process, whatever becomes of its number
    ended = _stop_all(of_folder(data)) if stop_tasks else 0
    left = _unfinished(data)
    try:
        if here.pid_of(data) == pid:
            signal.pidfd_send_signal(watch, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it went by itself
    if not select.select([watch], [], [], GONE_S)[0]:
        raise Failed(f"process {pid} still runs {GONE_S:.0f} s after it was asked to end. Nothing is lost by `kill -9 {pid}`.")
    _report(data, as_json, stopped=True, left=left, ended=ended)


def _report(data: Data, as_json: bool, *, stopped: bool, left: int, ended: int) -> None:
    if as_json:
        print_json({"stopped": stopped, "data": str(data.path), "tasksStopped": ended, "tasksLeft": left})
        return
    if not stopped:
        click.echo(f"Corral is not running on {data.path}.")
        return
    click.echo(f"Corral on {data.path} is down.")
    if ended:
        click.echo(f"{count(ended, 'task')} stopped.")
    if left:
        goes = "goes on; its result is" if left == 1 else "go on; their results are"
        click.echo(f"{count(left, 'task')} {goes} collected at the next `{here.start_command(data)}`.")


def _unfinished(data: Data) -> int:
    """How many tasks are not over, in all regions; a server that cannot say is stopped all the same."""
    try:
        return _alive(of_folder(data))
    except Exception as error:
        say(f"it could not be asked about its tasks: {error}")
        return 0


def _alive(where: Where) -> int:
    return sum(number for state, number in status(where)[0]["tasks"].items() if state != "STOPPED")


def _stop_all(where: Where) -> int:
    """Stop every task of every region and wait for their ends; how many they were."""
    stopped = 0
    deadline_s = time.monotonic() + STOP_TASKS_S
    for region in _regions(where):
        if not _alive(where):
            break
        ecs = client(where, "ecs", region)
        for page in ecs.get_paginator("list_clusters").paginate():
            for cluster in ecs.describe_clusters(clusters=page["clusterArns"])["clusters"]:
                stopped += _stop_tasks(ecs, cluster, deadline_s)
    return stopped


def _stop_tasks(ecs: Any, cluster: dict[str, Any], deadline_s: float) -> int:
    """Stop every task of a cluster and wait for their ends; how many they were."""
    alive, name = tasks.unfinished(ecs, cluster), cluster["clusterName"]
    if alive:
        say(f"stopping {count(len(alive), 'task')} and waiting for the end")
    for task in alive:
        ecs.stop_task(cluster=name, task=tasks.id_of(task), reason="corral down --stop-tasks")
    _wait(ecs, name, [tasks.id_of(task) for task in alive], deadline_s)
    return len(alive)


def _regions(where: Where) -> list[str | None]:
    """Ours first; a task is found only in its own region."""
    from botocore.session import get_session

    return [where.region, *(name for name in get_session().get_available_regions("ecs") if name != where.region)]


def _wait(ecs: Any, cluster: str, ids: list[str], deadline_s: float) -> None:
    while ids:
        with holding(HOLD_S):  # a task may take its stopTimeout to end
            found = tasks.describe(ecs, ids[: tasks.DESCRIBE_MAX], cluster)
        ended = {tasks.id_of(task) for task in found if tasks.is_stopped(task)}
        ids = [task_id for task_id in ids if task_id not in ended]
        if ids and time.monotonic() > deadline_s:
            raise Failed(f"{count(len(ids), 'task')} did not stop within {STOP_TASKS_S:.0f} s, {ids[0]} for one; Corral stays up.")
