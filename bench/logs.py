"""Log events per second, durable before they are answered, and pages read back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import repeat

import machine
from client import Caller, Outcome, replay, signed
from local import Local, corral
from rows import Bench, Row

GROUP = "/bench/logs"
STREAMS = 8
MESSAGE = "step 01234567 loss 0.123456 lr 0.000300 tokens/s 123456 gpu 97% mem 61.2 GiB"  # as programs print it
PAGE_EVENTS = 10_000


def rows(bench: Bench) -> list[Row]:
    found: list[Row] = []
    floor = 1e3 / machine.fsync_ms(bench.folder)
    with corral(bench, "logs", "none") as local:
        call = Caller(local.port)
        call("logs", "CreateLogGroup", logGroupName=GROUP)
        for number in range(STREAMS):
            call("logs", "CreateLogStream", logGroupName=GROUP, logStreamName=f"s{number}")
        for events, connections, full, quick in ((1, 1, 2_000, 300), (1, 8, 4_000, 500), (100, 8, 1_000, 100), (10_000, 2, 40, 6)):
            outcome, cpu_s = _timed(local, _puts(local, events, bench.size(full, quick)), connections)
            what = f"PutLogEvents, batches of {events:,} from {connections} connection{'s' * (connections > 1)}"
            note = f"{outcome.per_s * events:,.0f} events/s; {outcome.note(cpu_s)}"
            found.append(Row(f"batches/s: {what}", outcome.per_s, "/s", floor, "4 KiB + fdatasync", note=note))
        call("logs", "CreateLogStream", logGroupName=GROUP, logStreamName="page")
        call("logs", "PutLogEvents", logGroupName=GROUP, logStreamName="page", logEvents=_events(PAGE_EVENTS, 0))
        page = call("logs", "GetLogEvents", logGroupName=GROUP, logStreamName="page", startFromHead=True)["events"]
        assert len(page) == PAGE_EVENTS, f"a page of {len(page)} events"
        asked = {"logGroupName": GROUP, "logStreamName": "page", "startFromHead": True}
        request = signed(local.port, "logs", "GetLogEvents", asked)
        outcome, cpu_s = _timed(local, repeat(request, bench.size(60, 10)), 2)
        what = f"pages/s: GetLogEvents, {PAGE_EVENTS:,} events"
        found.append(Row(what, outcome.per_s, "/s", note=f"{outcome.per_s * PAGE_EVENTS:,.0f} events/s; {outcome.note(cpu_s)}"))
        call.close()
    return found


def _timed(local: Local, requests: Iterable[bytes], connections: int) -> tuple[Outcome, float]:
    before = local.cpu_s()["server"]
    outcome = replay(local.port, requests, connections)
    return outcome, local.cpu_s()["server"] - before


def _puts(local: Local, events: int, count: int) -> list[bytes]:
    """Signed beforehand, stream by stream in turn, each batch later than the one before, as a program's output is."""
    return [
        signed(local.port, "logs", "PutLogEvents",
               {"logGroupName": GROUP, "logStreamName": f"s{at % STREAMS}", "logEvents": _events(events, at // STREAMS * events)})
        for at in range(count)
    ]  # fmt: skip


def _events(count: int, first: int) -> list[dict[str, object]]:
    """Events a millisecond apart, the first one that many after the start of the last hour."""
    since_ms = int(time.time() - 3600) * 1000 + first
    return [{"timestamp": since_ms + number, "message": MESSAGE} for number in range(count)]
