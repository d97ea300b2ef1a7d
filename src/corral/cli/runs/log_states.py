"""Asks Corral (DescribeLogStates) which logs are not complete, and reports it.

The output of a task that prints much reaches its log later than the end of the task. If the task prints more than the limits of
Corral allow (docs/logs.md), the log lacks a part of the output. AWS has no such page. There, the state of a log is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.printing.errors import CliError, connection_failed
from corral.cli.printing.output import print_message

STREAMS_MAX = 100  # the most streams in one request


class TaskLogStream(NamedTuple):
    container: str
    region: str | None
    group: str
    name: str


class LogState(NamedTuple):
    unstored: int  # how many bytes the task has printed that are not stored yet
    dropped: int  # how many bytes of output were dropped

    def described(self) -> dict[str, int]:
        return {"unstoredBytes": self.unstored, "droppedBytes": self.dropped}


def log_states(endpoint: Endpoint, streams: Iterable[TaskLogStream]) -> dict[TaskLogStream, LogState]:
    """Return the states of logs. A log that does not exist is left out. If the server cannot tell the states, return nothing."""
    if is_aws(endpoint):
        return {}
    groups: dict[tuple[str, str], list[TaskLogStream]] = {}
    for stream in streams:
        region = stream.region or client(endpoint, "logs").meta.region_name
        groups.setdefault((region, stream.group), []).append(stream)
    states = {}
    for (region, group), members in groups.items():
        left = iter(members)
        while part := list(islice(left, STREAMS_MAX)):
            for stream, found in zip(part, _request(endpoint, region, group, part)):
                if found["unstoredBytes"] is not None:
                    states[stream] = LogState(found["unstoredBytes"], found["droppedBytes"])
    return states


def _request(endpoint: Endpoint, region: str, group: str, streams: Sequence[TaskLogStream]) -> list[dict[str, Any]]:
    asked = {"group": group, "streams": [stream.name for stream in streams]}
    try:
        return list(call(endpoint, "DescribeLogStates", asked, region=region)[0]["logs"])
    except CliError as error:
        if connection_failed(error):
            raise
        return []  # the server is not Corral, or this caller may not call the operation


def report_dropped(name: str, state: LogState | None) -> None:
    if state is not None and state.dropped:
        print_message(
            f"{state.dropped:,} bytes of the output of {name} were dropped: it printed more than its log can store. "
            "Lines in the log mark the places."
        )


def report_unstored(name: str, state: LogState | None, advice: str = "") -> None:
    if state is not None and state.unstored:
        print_message(f"the log of {name} is not complete: {state.unstored:,} bytes of output are not stored yet{advice}")
