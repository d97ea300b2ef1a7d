"""`corral down` stops the server. With --stop-tasks it also stops the tasks, and with --purge it also deletes the data."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, call, endpoint_of_folder, get_status
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, print_json, print_message, print_text
from corral.process.data_folder import CONFIGURATION, FILES, FOLDERS, account_work_folder, remove_account_work

GONE_S = 20.0
KILLED_S = 10.0
STOP_TASKS_S = 600.0
LOCK_POLL_S = 0.05
SILENT_S = 20.0  # a host that is SILENT when the command begins, or becomes so, may return for so long
STOP_POLL_S = 0.1
WAITING = "PROVISIONING"  # the state of a task that waits for capacity
PAUSE_S = 15.0  # if this command is killed, the server starts tasks again after this time


class StoppedTasks(NamedTuple):
    tasks: int = 0  # the tasks that were stopped
    services: int = 0  # services that will start tasks again
    jobs: int = 0  # Batch jobs that wait for capacity
    silent: Mapping[str, int] = MappingProxyType(
        {}
    )  # the tasks on hosts that do not respond; they stop when their host connects again


@click.command()
@data_option
@click.option("--stop-tasks", is_flag=True, help="First stop all tasks, also those of services, and wait until they have stopped.")
@click.option("--purge", is_flag=True, help="Stop all tasks, and delete all data of Corral except corral.toml. Asks first.")
@click.option("--yes", "-y", is_flag=True, help="With --purge: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def down(data: DataFolder, stop_tasks: bool, purge: bool, yes: bool, as_json: bool) -> None:
    """Stop Corral. Tasks keep running, and the next `corral up` collects their results.

    With --stop-tasks, nothing of Corral keeps running: all tasks are stopped, and no service, queue or waiting run starts another
    one. Services stay as they are declared: the next `corral up` starts their tasks again.
    """
    pid = data_folder.pid_of(data)
    if pid is None:
        if purge:
            raise CliError(
                f"--purge stops the tasks first, so Corral must be running. Start it with `{data_folder.start_command(data)}`."
            )
        _report(data, as_json, stopped=False)
        return
    if purge and not yes:
        _confirm(data)
    stop_tasks = stop_tasks or purge
    watch = os.pidfd_open(pid)  # a pidfd always refers to this process, even if another process gets its id later
    ended = _stop_all(endpoint_of_folder(data), purge=purge) if stop_tasks else StoppedTasks()
    left = Counter[str]() if stop_tasks else _unfinished(data)
    stop_server(data, pid, watch)
    if purge:
        end_node(data.path)
        delete_data(data.path)
    _report(data, as_json, stopped=True, left=left, ended=ended, purged=purge)


def stop_server(data: DataFolder, pid: int, watch: int | None = None, gone_s: float = GONE_S) -> None:
    """End the server of a data folder and wait until it has exited. Kill it after `gone_s`. `watch` is a pidfd of its process."""
    try:
        watch = os.pidfd_open(pid) if watch is None else watch
        if data_folder.pid_of(data) == pid:
            signal.pidfd_send_signal(watch, signal.SIGTERM)
    except ProcessLookupError:
        return  # the process has already exited
    if select.select([watch], [], [], gone_s)[0]:
        return
    print_message(f"process {pid} did not exit within {gone_s:g} s: `kill -9 {pid}` ends it, without losing data")
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(watch, signal.SIGKILL)
    if not select.select([watch], [], [], KILLED_S)[0]:
        raise CliError(f"process {pid} did not exit after `kill -9`: it waits for a disk or a device. Restart the machine.")


def _confirm(data: DataFolder) -> None:
    """Ask the user whether all data should be deleted. Without a terminal, the user cannot answer, so raise a CliError."""
    alive = count(_unfinished(data).total(), "task")
    print_message(f"--purge stops {alive}, and deletes stacks, queues, objects, images, logs and keys in {data.path}.")
    if not os.isatty(0):
        raise CliError("nothing was deleted. Add --yes to delete without a question.")
    click.confirm("Delete everything?", abort=True, err=True)


def end_node(folder: Path) -> None:
    """End the agent and the spawner of a server that has stopped."""
    for name in ("agent.lock", "spawner.lock"):
        _end_holder(folder / "node" / name)


def delete_data(folder: Path) -> None:
    """Delete the data of Corral, except corral.toml. Files in the folder that do not belong to Corral are kept."""
    if (node := folder / "node").exists():
        remove_account_work(account_work_folder(node))
    for name in FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in FILES - {CONFIGURATION}:
        (folder / name).unlink(missing_ok=True)


def _end_holder(lock: Path) -> None:
    """Send SIGTERM to the process that holds a lock, and wait until the process has released it. Kill it after GONE_S."""
    if not lock.exists():
        return
    began_s, sent = time.monotonic(), 0
    with lock.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            waited_s, pid = time.monotonic() - began_s, lock.read_text().strip()
            wanted = signal.SIGKILL if waited_s > GONE_S else signal.SIGTERM
            if wanted != sent and pid.isdigit():
                with suppress(ProcessLookupError):  # the process has just ended
                    os.kill(int(pid), wanted)
                sent = wanted
            if waited_s > GONE_S + KILLED_S:
                raise CliError(f"process {pid} still uses {lock.parent}. End it, then delete the folder.")
            time.sleep(LOCK_POLL_S)


def _report(
    data: DataFolder, as_json: bool, *, stopped: bool, left: Mapping[str, int] = MappingProxyType({}),
    ended: StoppedTasks | None = None, purged: bool = False,
) -> None:  # fmt: skip
    """Print what has stopped. `left` has the number of unfinished tasks by state."""
    ended = ended or StoppedTasks()
    total, waiting = sum(left.values()), left.get(WAITING, 0)
    if as_json:
        total = sum(ended.silent.values()) or total
        counts = {"tasksStopped": ended.tasks, "tasksLeft": total, "servicesLeft": ended.services, "jobsLeft": ended.jobs}
        print_json({"stopped": stopped, "data": str(data.path), **counts, "purged": purged})
        return
    if not stopped:
        print_text(f"Corral is not running on {data.path}.")
        return
    print_text(f"Corral on {data.path} is down.")
    if ended.tasks:
        print_text(f"{count(ended.tasks, 'task')} stopped.")
    if ended.silent:
        print_message(
            f"{_on_hosts(ended.silent)}: when it connects to the next `{data_folder.start_command(data)}`, they are stopped"
        )
    if purged:
        print_text(f"All data in {data.path} except corral.toml is deleted.")
    elif ended.services or ended.jobs:
        again = [count(number, name) for number, name in ((ended.services, "service"), (ended.jobs, "job")) if number]
        print_text(f"The next `{data_folder.start_command(data)}` starts tasks again for {' and '.join(again)}.")
    if alive := total - waiting:
        keeps = "keeps running" if alive == 1 else "keep running"
        print_text(f"{count(alive, 'task')} {keeps}; `{data_folder.start_command(data)}` collects the results.")
    if waiting:
        waits = "waits" if waiting == 1 else "wait"
        print_text(f"{count(waiting, 'task')} {waits}: no task starts before the next `{data_folder.start_command(data)}`.")


def _on_hosts(silent: Mapping[str, int]) -> str:
    tasks = [f"{count(number, 'task')} on {name}" for name, number in silent.items()]
    return f"{' and '.join(tasks)} did not stop, because the host does not respond"


def _unfinished(data: DataFolder) -> Counter[str]:
    """Count the tasks of all regions that have not stopped, by state. If the server does not respond, print a message."""
    try:
        return unfinished_tasks(endpoint_of_folder(data))
    except Exception as error:
        print_message(f"the tasks could not be counted: {error}")
        return Counter()


def unfinished_tasks(endpoint: Endpoint) -> Counter[str]:
    """Count the tasks of all regions that have not stopped, by state."""
    return Counter({state: number for state, number in get_status(endpoint)[0]["tasks"].items() if state != "STOPPED"})


def _stop_all(endpoint: Endpoint, *, purge: bool) -> StoppedTasks:
    """Stop all tasks of all regions, and wait until they have stopped. Until the server ends, it starts no task.

    If this fails or is interrupted, the server starts tasks again. Tasks on hosts that do not respond are not waited for, because
    they stop when their host connects again. With `purge`, no server would stop them then, so this fails.
    """
    ended, began_s = 0, time.monotonic()
    try:
        while True:
            page = call(endpoint, "StopAllTasks", {"pause": PAUSE_S, "reason": "corral down --stop-tasks"})[0]
            if page["stopped"]:
                print_message(f"stopping {count(page['stopped'], 'task')}")
            ended += page["stopped"]
            if not page["running"]:
                return StoppedTasks(ended, page["services"], page["jobs"])
            silent, waited_s = page["silent"], time.monotonic() - began_s
            if page["running"] == sum(silent.values()) and waited_s > SILENT_S:
                if not purge:
                    return StoppedTasks(ended, page["services"], page["jobs"], silent)
                raise CliError(
                    f"{_on_hosts(silent)}, so nothing was deleted: the server could not stop them later. Connect it, or give it "
                    f"up with `corral hosts forget {next(iter(silent))}`. Corral is still running, and starts tasks again."
                )
            if waited_s > STOP_TASKS_S:
                left = f"{count(page['running'], 'task')} did not stop within {STOP_TASKS_S:.0f} s"
                raise CliError(f"{left}: `corral ps` shows them. Corral is still running, and starts tasks again.")
            time.sleep(STOP_POLL_S)
    except BaseException as error:
        with suppress(Exception):
            call(endpoint, "StopAllTasks", {"pause": 0})
        if isinstance(error, KeyboardInterrupt):
            print_message("interrupted: Corral keeps running, and starts tasks again")
        raise
