"""The pages `/_corral/logs` and `/_corral/outputs`: which logs are not complete, and which files have the output of a task.

`/_corral/logs` says how many bytes of each log are not stored yet, and how many were dropped.
A task that prints much can stop before its whole output is stored in its log (`node/report_builder.py`). A client that must read
the whole log reads it until `unstoredBytes` is 0. The body of the request has the members `region`, `group`, and `streams`, a list
of at most STREAMS_MAX names. The response has an entry for each name, in the same order. It is null if the stream does not exist.

`/_corral/outputs?task=ID` lists the files in which the host keeps the output of a task (`node/kept_outputs.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.telemetry import LogStore

STREAMS_MAX = 100
EXAMPLE = '{"region": "us-east-1", "group": "/corral/run", "streams": ["run/main/ID"]}'
TASK_ID = re.compile("[0-9a-f]{32}")
InvalidLogQuery = api_error("InvalidQuery", 400)


class LogQuery(msgspec.Struct, frozen=True):
    region: str
    group: str
    streams: list[str]


def log_states(body: bytes) -> Callable[[Tx[LogStore]], dict[str, Any]]:
    """Check the body of a request. Return a function that reads the content of the page."""
    try:
        query = msgspec.json.decode(body, type=LogQuery)
    except msgspec.DecodeError as error:
        raise InvalidLogQuery(f"The body is not valid ({error}): send a JSON document such as {EXAMPLE}.") from None
    if len(query.streams) > STREAMS_MAX:
        raise InvalidLogQuery(f"streams has {len(query.streams)} names: send at most {STREAMS_MAX}.")

    def read(tx: Tx[LogStore]) -> dict[str, Any]:
        found = [tx.store.missing_bytes(query.region, query.group, name) for name in query.streams]
        return {"logs": [{"unstoredBytes": each[0], "droppedBytes": each[1]} if each else None for each in found]}

    return read


def output_files(folder: Path, task_id: str | None) -> dict[str, Any]:
    """Return the files with the output of a task. The name of each file begins with the id of the task."""
    if task_id is None or not TASK_ID.fullmatch(task_id):
        raise InvalidLogQuery("task is missing or not a task id: pass 32 hexadecimal digits, as in /_corral/outputs?task=ID.")
    names = [f"{task_id}.log"]  # a task with one container, which is the usual case, needs no list of all files
    if not (folder / names[0]).exists():
        names = sorted(name for name in _names(folder) if name.startswith(task_id) and name.endswith(".log"))
    paths = [folder / name for name in names]
    return {"files": [{"path": str(path), "bytes": path.stat().st_size} for path in paths if path.exists()]}


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
