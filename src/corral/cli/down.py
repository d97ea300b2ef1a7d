"""`corral down` stops the server. With --stop-tasks it also stops the tasks, and with --purge it also deletes the data."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from corral.cli import data_folder, tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, endpoint_of_folder, long_poll, status_page
from corral.cli.errors import CliError
from corral.cli.output import count, print_json, print_line, print_message
from corral.cli.task_logs import LONG_POLL_S
from corral.data_folder import CONFIGURATION, FILES, FOLDERS

GONE_S = 20.0
STOP_TASKS_S = 600.0
LOCK_POLL_S = 0.05


@click.command()
@data_option
@click.option("--stop-tasks", is_flag=True, help="First stop all tasks and wait until they have stopped.")
@click.option("--purge", is_flag=True, help="Stop all tasks, and delete all data of Corral except corral.toml. Asks first.")
@click.option("--yes", "-y", is_flag=True, help="With --purge: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def down(data: DataFolder, stop_tasks: bool, purge: bool, yes: bool, as_json: bool) -> None:
    """Stop Corral. Tasks keep running, and the next `corral up` collects their results."""
    pid = data_folder.pid_of(data)
    if pid is None:
        if purge:
            raise CliError(
                f"--purge stops the tasks first, so Corral must be running. Start it with `{data_folder.start_command(data)}`."
            )
        _report(data, as_json, stopped=False, left=0, ended=0)
        return
    if purge and not yes:
        _confirm(data)
    stop_tasks = stop_tasks or purge
    watch = os.pidfd_open(pid)  # a pidfd always refers to this process, even if another process gets its id later
    ended = _stop_all(endpoint_of_folder(data), end_services=purge) if stop_tasks else 0
    if purge and (alive := _alive(endpoint_of_folder(data))):
        raise CliError(
            f"{count(alive, 'task')} started while the others were being stopped. The services are deleted, but no other data: "
            "try again."
        )
    left = _unfinished(data)
    stop_server(data, pid, watch)
    if purge:
        _purge(data.path)
    _report(data, as_json, stopped=True, left=left, ended=ended, purged=purge)


def stop_server(data: DataFolder, pid: int, watch: int | None = None) -> None:
    """End the server of a data folder and wait until it has exited. `watch` is a pidfd of its process."""
    try:
        watch = os.pidfd_open(pid) if watch is None else watch
        if data_folder.pid_of(data) == pid:
            signal.pidfd_send_signal(watch, signal.SIGTERM)
    except ProcessLookupError:
        return  # the process has already exited
    if not select.select([watch], [], [], GONE_S)[0]:
        raise CliError(f"process {pid} did not exit within {GONE_S:.0f} s. `kill -9 {pid}` ends it without losing data.")


def _confirm(data: DataFolder) -> None:
    """Ask the user whether all data should be deleted. Without a terminal, the user cannot answer, so raise a CliError."""
    alive = count(_unfinished(data), "task")
    print_message(f"--purge stops {alive}, and deletes stacks, queues, objects, images, logs and keys in {data.path}.")
    if not os.isatty(0):
        raise CliError("nothing was deleted. Add --yes to delete without a question.")
    click.confirm("Delete everything?", abort=True, err=True)


def _purge(folder: Path) -> None:
    """End the agent and the spawner of a server that has stopped. Then delete the data of Corral, except corral.toml.

    Files in the folder that do not belong to Corral are kept.
    """
    for name in ("agent.lock", "spawner.lock"):
        _end_holder(folder / "node" / name)
    for name in FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in FILES - {CONFIGURATION}:
        (folder / name).unlink(missing_ok=True)


def _end_holder(lock: Path) -> None:
    """Send SIGTERM to the process that holds a lock, and wait until the process has released it."""
    if not lock.exists():
        return
    deadline_s, told = time.monotonic() + GONE_S, False
    with lock.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            pid = lock.read_text().strip()
            if not told and pid.isdigit():
                with suppress(ProcessLookupError):  # the process has just ended
                    os.kill(int(pid), signal.SIGTERM)
                told = True
            if time.monotonic() > deadline_s:
                raise CliError(f"process {pid} still uses {lock.parent}. End it, then delete the folder.")
            time.sleep(LOCK_POLL_S)


def _report(data: DataFolder, as_json: bool, *, stopped: bool, left: int, ended: int, purged: bool = False) -> None:
    if as_json:
        result = {"stopped": stopped, "data": str(data.path), "tasksStopped": ended, "tasksLeft": left, "purged": purged}
        print_json(result)
        return
    if not stopped:
        print_line(f"Corral is not running on {data.path}.")
        return
    print_line(f"Corral on {data.path} is down.")
    if ended:
        print_line(f"{count(ended, 'task')} stopped.")
    if purged:
        print_line(f"All data in {data.path} except corral.toml is deleted.")
    if left:
        keeps = "keeps running" if left == 1 else "keep running"
        print_line(f"{count(left, 'task')} {keeps}; `{data_folder.start_command(data)}` collects the results.")


def _unfinished(data: DataFolder) -> int:
    """Return how many tasks of all regions have not stopped. If the server does not respond, print a message and return 0."""
    try:
        return _alive(endpoint_of_folder(data))
    except Exception as error:
        print_message(f"the tasks could not be counted: {error}")
        return 0


def _alive(endpoint: Endpoint) -> int:
    return sum(number for state, number in status_page(endpoint)[0]["tasks"].items() if state != "STOPPED")


def _stop_all(endpoint: Endpoint, *, end_services: bool = False) -> int:
    """Stop all tasks of all regions, wait until they have stopped, and return their number.

    With `end_services`, delete the services first, so that they start no new tasks.
    """
    stopped, before = 0, _alive(endpoint)
    deadline_s = time.monotonic() + STOP_TASKS_S
    for region in _regions(endpoint):
        if not _alive(endpoint):
            break
        ecs = client(endpoint, "ecs", region)
        for page in ecs.get_paginator("list_clusters").paginate():
            for cluster in ecs.describe_clusters(clusters=page["clusterArns"])["clusters"]:
                if end_services:
                    _delete_services(ecs, cluster["clusterName"])
                stopped += _stop_tasks(ecs, cluster, deadline_s)
    return before if end_services else stopped  # `stopped` lacks the tasks that stop because their service is deleted


def _delete_services(ecs: Any, cluster: str) -> None:
    for page in ecs.get_paginator("list_services").paginate(cluster=cluster):
        for arn in page["serviceArns"]:
            ecs.delete_service(cluster=cluster, service=arn, force=True)


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
    """Return all regions, the region of the endpoint first. ListTasks returns only tasks of one region."""
    from botocore.session import get_session

    return [endpoint.region, *(name for name in get_session().get_available_regions("ecs") if name != endpoint.region)]


def _wait(ecs: Any, cluster: str, ids: list[str], deadline_s: float) -> None:
    while ids:
        with long_poll(LONG_POLL_S):  # the server responds when these tasks have stopped, or after LONG_POLL_S
            found = tasks.describe(ecs, ids[: tasks.DESCRIBE_MAX], cluster)
        ended = {tasks.id_of(task) for task in found if tasks.is_stopped(task)}
        ids = [task_id for task_id in ids if task_id not in ended]
        if ids and time.monotonic() > deadline_s:
            left = f"{count(len(ids), 'task')} did not stop within {STOP_TASKS_S:.0f} s ({ids[0]}, ...)"
            raise CliError(f"{left}. Corral is still running.")
