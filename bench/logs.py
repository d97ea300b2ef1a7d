"""Log events per second, durable before they are answered; the output of a task until its log is complete; pages read back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat

import machine
from client import Caller, Outcome, Unanswered, replay, signed
from local import GROUP as TASKS_GROUP
from local import Local, corral, register
from rows import Bench, Row

GROUP = "/bench/logs"
STREAMS = 8
MESSAGE = "step 01234567 loss 0.123456 lr 0.000300 tokens/s 123456 gpu 97% mem 61.2 GiB"  # as programs print it
PAGE_EVENTS = 10_000
PRINTED = 300_000  # lines of a task
PRINTED_MIN = 0.8  # of the events per second of PutLogEvents
PRINTED_MAX_S = 60.0


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
        found.append(_printed(call, bench.size(PRINTED, PRINTED // 10), outcome.per_s * events))
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


def _printed(call: Caller, lines: int, put_per_s: float) -> Row:
    """The lines of a task per second, from the end of the task until the last line is in its log."""
    register(call, "printing", ["sh", "-c", f"seq 1 {lines}"], logs=True)
    task_id = call("ecs", "RunTask", taskDefinition="printing")["tasks"][0]["taskArn"].rpartition("/")[2]
    where = {"logGroupName": TASKS_GROUP, "logStreamName": f"bench/main/{task_id}", "limit": 1, "startFromHead": False}
    until = time.monotonic() + PRINTED_MAX_S
    while time.monotonic() < until:
        with suppress(Unanswered):  # the stream does not exist yet
            last = call("logs", "GetLogEvents", **where)["events"]
            if last and last[0]["message"] == str(lines):
                break
        time.sleep(0.005)
    complete_s = time.time()
    ended_s = call("ecs", "DescribeTasks", tasks=[task_id])["tasks"][0]["executionStoppedAt"]
    took_s = complete_s - ended_s
    what = f"lines/s: the output of a task, {lines:,} short lines, from its end until the log is complete"
    return Row(what, lines / took_s, "/s", put_per_s, "PutLogEvents", PRINTED_MIN * put_per_s, note=f"{took_s:.2f} s")


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
