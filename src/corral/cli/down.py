"""`corral down` stops the server. With --stop-tasks it also stops the tasks."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

import click

from corral.cli import data_folder, tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, endpoint_of_folder, long_poll, status_page
from corral.cli.errors import CliError
from corral.cli.output import count, print_json, print_line, print_message
from corral.cli.task_logs import LONG_POLL_S

GONE_S = 20.0
STOP_TASKS_S = 600.0


@click.command()
@data_option
@click.option("--stop-tasks", is_flag=True, help="First stop all tasks and wait until they have stopped.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def down(data: DataFolder, stop_tasks: bool, as_json: bool) -> None:
    """Stop Corral. Tasks keep running, and the next `corral up` collects their results."""
    pid = data_folder.pid_of(data)
    if pid is None:
        _report(data, as_json, stopped=False, left=0, ended=0)
        return
    watch = os.pidfd_open(pid)  # a pidfd always refers to this process, even if another process gets its id later
    ended = _stop_all(endpoint_of_folder(data)) if stop_tasks else 0
    left = _unfinished(data)
    try:
        if data_folder.pid_of(data) == pid:
            signal.pidfd_send_signal(watch, signal.SIGTERM)
    except ProcessLookupError:
        pass  # the process has already exited
    if not select.select([watch], [], [], GONE_S)[0]:
        raise CliError(f"process {pid} did not exit within {GONE_S:.0f} s. `kill -9 {pid}` ends it without losing data.")
    _report(data, as_json, stopped=True, left=left, ended=ended)


def _report(data: DataFolder, as_json: bool, *, stopped: bool, left: int, ended: int) -> None:
    if as_json:
        print_json({"stopped": stopped, "data": str(data.path), "tasksStopped": ended, "tasksLeft": left})
        return
    if not stopped:
        print_line(f"Corral is not running on {data.path}.")
        return
    print_line(f"Corral on {data.path} is down.")
    if ended:
        print_line(f"{count(ended, 'task')} stopped.")
    if left:
        keeps = "keeps running" if left == 1 else "keep running"
        print_line(f"{count(left, 'task')} {keeps}; `{data_folder.start_command(data)}` collects the results.")


def _unfinished(data: DataFolder) -> int:
    """Return how many tasks of all regions have not stopped. Return 0 if the server does not respond."""
    try:
        return _alive(endpoint_of_folder(data))
    except Exception as error:
        print_message(f"the tasks could not be counted: {error}")
        return 0


def _alive(endpoint: Endpoint) -> int:
    return sum(number for state, number in status_page(endpoint)[0]["tasks"].items() if state != "STOPPED")


def _stop_all(endpoint: Endpoint) -> int:
    """Stop all tasks of all regions, wait until they have stopped, and return their number."""
    stopped = 0
    deadline_s = time.monotonic() + STOP_TASKS_S
    for region in _regions(endpoint):
        if not _alive(endpoint):
            break
        ecs = client(endpoint, "ecs", region)
        for page in ecs.get_paginator("list_clusters").paginate():
            for cluster in ecs.describe_clusters(clusters=page["clusterArns"])["clusters"]:
                stopped += _stop_tasks(ecs, cluster, deadline_s)
    return stopped


def _stop_tasks(ecs: Any, cluster: dict[str, Any], deadline_s: float) -> int:
    """Stop all tasks of a cluster, wait until they have stopped, and return their number."""
    alive, name = tasks.unfinished(ecs, cluster), cluster["clusterName"]
    if alive:
        print_message(f"stopping {count(len(alive), 'task')}")
    for task in alive:
        ecs.stop_task(cluster=name, task=tasks.id_of(task), reason="corral down --stop-tasks")
    _wait(ecs, name, [tasks.id_of(task) for task in alive], deadline_s)
    return len(alive)


def _regions(endpoint: Endpoint) -> list[str | None]:
    """Return all regions, first the endpoint's own. All are needed, because ListTasks returns only tasks of one region."""
    from botocore.session import get_session

    return [endpoint.region, *(name for name in get_session().get_available_regions("ecs") if name != endpoint.region)]


def _wait(ecs: Any, cluster: str, ids: list[str], deadline_s: float) -> None:
    while ids:
        with long_poll(LONG_POLL_S):  # a task may take as long as its stopTimeout
            found = tasks.describe(ecs, ids[: tasks.DESCRIBE_MAX], cluster)
        ended = {tasks.id_of(task) for task in found if tasks.is_stopped(task)}
        ids = [task_id for task_id in ids if task_id not in ended]
        if ids and time.monotonic() > deadline_s:
            left = f"{count(len(ids), 'task')} did not stop within {STOP_TASKS_S:.0f} s ({ids[0]}, ...)"
            raise CliError(f"{left}. Corral is still running.")
