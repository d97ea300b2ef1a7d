"""The page `/_corral/logs`: how many bytes of each log are not stored yet, and how many were dropped.

A task that prints much can stop before its whole output is stored in its log (`node/report_builder.py`). A client that must read
the whole log reads it until `unstoredBytes` is 0. The body of the request has the members `region`, `group`, and `streams`, a list
of at most STREAMS_MAX names. The response has an entry for each name, in the same order. It is null if the stream does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from corral.core import Tx
from corral.errors import api_error
from corral.telemetry import LogStore

STREAMS_MAX = 100
EXAMPLE = '{"region": "us-east-1", "group": "/corral/run", "streams": ["run/main/ID"]}'
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
