"""The process that sends the notifications of detached runs: `python -m corral.cli.runs.notify_process FOLDER DATA`.

FOLDER contains records. A record is a file with the notifications and the tasks of a run. `corral run --detach --notify` stores a
record, and starts the process unless it already runs. So does a `corral run --notify` that exits before its task has stopped. There
is one such process per user and endpoint, not one per run. It asks the server every few seconds whether the tasks have stopped, and
ends when it has sent all notifications. It survives restarts of the server. DATA is the data folder of the server. If DATA is
empty, the environment names the endpoint.

Neither the server nor its agent sends the notifications, for two reasons. Commands, notify-send and mail need the environment of
the user (the session bus, the display, the PATH). And commands and URLs can contain secrets, which should not be stored with the
task, where every client can read them. This process also works with AWS.

The records are in `~/.local/state/corral/notify/ENDPOINT/TASK.json`, readable only by the user. ENDPOINT is a digest of the
settings that choose the server. `notify.log` contains the output of the commands. If the process is killed, the records stay, and
the next `corral up` or `corral run --detach --notify` starts the process again. Then a notification can arrive twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import Endpoint, client, endpoint_of_folder, long_poll
from corral.cli.printing.errors import TIMED_OUT
from corral.cli.printing.output import print_message
from corral.cli.runs import tasks
from corral.cli.runs.notification import EndedRun, end_notice, send_all

POLL_S = 5.0  # the server delays its response for this time, unless all tasks have stopped
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
THREADS = 8
LOG_MAX_BYTES = 1_000_000
LOST = "the server has no record of the task any more"


def notify_later(served: str, run: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Store the notifications of a run, and start the process that sends them.

    `served` is the data folder of the server. If it is empty, the environment names the endpoint. `run` has the notifications, the
    name, the cluster and the tasks.
    """
    chosen = {variable: value for variable, value in environment.items() if variable.startswith("AWS_")} if not served else {}
    folder = _folder(served, chosen, environment)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _store(folder / f"{run['tasks'][0]}.json", {**run, "folder": os.getcwd(), "environment": dict(environment)})
    if _is_unlocked(folder):
        _start(folder, served, environment)


def resume_notifications(data: DataFolder) -> None:
    """Start the process again if records for this server are left, for example after a restart of the machine."""
    folder = records_of(data)
    if next(folder.glob("*.json"), None) is not None and _is_unlocked(folder):
        _start(folder, str(data.path), os.environ)


def records_of(data: DataFolder) -> Path:
    """Return the folder with the records for the server of a data folder."""
    return _folder(str(data.path), {}, os.environ)


def _folder(served: str, chosen: Mapping[str, str], environment: Mapping[str, str]) -> Path:
    """Return the folder with the records for one endpoint.

    `served` is the data folder of the server. If `served` is empty, the variables `chosen` name the endpoint.
    """
    identity = hashlib.sha256(json.dumps([served, chosen], sort_keys=True).encode()).hexdigest()[:16]
    return _state_folder(environment) / identity


def _store(path: Path, record: dict[str, Any]) -> None:
    """Write a record under another name first, so that a process that is killed leaves no partial record."""
    fresh = path.with_suffix(".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file)
    fresh.rename(path)


def _state_folder(environment: Mapping[str, str]) -> Path:
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "corral" / "notify"


def _is_unlocked(folder: Path) -> bool:
    held = _lock(folder)
    if held is not None:
        os.close(held)
    return held is not None


def _lock(folder: Path) -> int | None:
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _start(folder: Path, served: str, environment: Mapping[str, str]) -> None:
    log = folder / "notify.log"
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
    command = [sys.executable, "-P", "-m", "corral.cli.runs.notify_process", str(folder), served]
    with open(log, "ab") as output:
        subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


# the process


def serve(folder: Path, data: DataFolder | None) -> None:
    """Send notifications until no record is left."""
    with ThreadPoolExecutor(THREADS) as threads:
        while _records(folder) and (held := _lock(folder)) is not None:
            _send_until_empty(folder, data, threads)
            os.close(held)  # then read the records again: a client that has stored a record meanwhile has started no process


def _send_until_empty(folder: Path, data: DataFolder | None, threads: ThreadPoolExecutor) -> None:
    sending: dict[Path, Future[None]] = {}
    retry_s = RETRY_FIRST_S
    while records := _records(folder):
        sending = {path: future for path, future in sending.items() if not future.done()}
        waiting = {path: record for path, record in records.items() if path not in sending}
        if not waiting:
            time.sleep(RETRY_FIRST_S)
            continue
        try:
            ecs = client(endpoint_of_folder(data) if data is not None else Endpoint(), "ecs")
            for path, end in _ended(ecs, waiting):
                sending[path] = threads.submit(_send, path, waiting[path], end)
            retry_s = RETRY_FIRST_S
        except Exception as error:  # the server is down or restarting
            print_message(f"the tasks cannot be described: {error}")
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_MAX_S)


def _records(folder: Path) -> dict[Path, dict[str, Any]]:
    records = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(FileNotFoundError):
            try:
                records[path] = json.loads(path.read_text())
            except ValueError:
                path.unlink()
    return records


def _ended(ecs: Any, records: Mapping[Path, dict[str, Any]]) -> Iterator[tuple[Path, EndedRun]]:
    """Yield the path of each record whose tasks have all stopped, and the end of its run.

    Wait a few seconds for each cluster with unfinished tasks. Tasks that the server no longer describes count as stopped. If a task
    was requeued, store the task that replaces it in the record.
    """
    for cluster in sorted({record["cluster"] for record in records.values()}):
        of_cluster = {path: record for path, record in records.items() if record["cluster"] == cluster}
        ids = [task_id for record in of_cluster.values() for task_id in record["tasks"]]
        began_s = time.monotonic()
        with long_poll(POLL_S):
            described = {tasks.id_of(task): task for task in tasks.describe(ecs, ids, cluster)}
        if not all(task_id in described and tasks.is_stopped(described[task_id]) for task_id in ids):
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))  # AWS has no long polls
        for path, record in of_cluster.items():
            known = [described[task_id] for task_id in record["tasks"] if task_id in described]
            successors = {tasks.id_of(task): after for task in known if (after := tasks.tag_value(task, tasks.REQUEUED_TAG))}
            if successors:
                _store(path, {**record, "tasks": [successors.get(task_id, task_id) for task_id in record["tasks"]]})
            elif not known:
                yield path, EndedRun(record["name"], record["tasks"], None, LOST, 0)
            elif all(tasks.is_stopped(task) for task in known):
                yield path, end_notice(record["name"], known, _exit_code(ecs, known))


def _exit_code(ecs: Any, ended: Sequence[dict[str, Any]]) -> int | None:
    """Return the first exit code that is not 0. If there is none, return 0, or None if a task has no exit code."""
    codes = []
    for task in ended:
        definition = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
        codes.append(TIMED_OUT if tasks.reached_time_limit(task) else tasks.exit_code(definition, task))
    return next((code for code in codes if code), None if None in codes else 0)


def _send(path: Path, record: dict[str, Any], end: EndedRun) -> None:
    """Send the notifications of a run, then delete its record."""
    try:
        send_all(record["notifications"], end, record["environment"], record["folder"], print_message)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    _records_folder, _data = sys.argv[1:]
    serve(Path(_records_folder), DataFolder(Path(_data), chosen=True) if _data else None)
