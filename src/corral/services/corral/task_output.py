"""The output of tasks: how much of it the logs do not have yet, and the files in which the host keeps it.

A task that prints much can stop before its whole output is stored in its log (`node/report_builder.py`). A client that must read
the whole log reads it until `unstoredBytes` is 0.
"""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.corral.errors import InvalidRequestException
from corral.store import Store
from corral.telemetry import LogStore

TASK_ID = re.compile("[0-9a-f]{32}")


def describe_log_states(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = []
    for name in params["streams"]:
        unstored, dropped = tx.store.missing_bytes(caller.region, params["group"], name) or (None, None)
        found.append({"name": name, "unstoredBytes": unstored, "droppedBytes": dropped})
    return {"logs": found}


def list_output_files(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the files in which the host keeps the output of a task (`node/kept_outputs.py`)."""
    if not TASK_ID.fullmatch(params["task"]):
        raise InvalidRequestException(f"task {params['task'][:300]} is not a task id: pass 32 hexadecimal digits.")
    return {"files": tx.settings.server.output_files(params["task"])}
