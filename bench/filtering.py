"""FilterLogEvents over millions of events: how fast it looks through them, in how much memory, and what others feel of it."""

from __future__ import annotations

import argparse
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
from client import Caller, Wire, signed
from local import Local
from rows import Bench, Row, percentile

from corral.telemetry import LogStore

GROUP = "/bench/filtering"
STREAMS = 100
EVENTS = 10_000_000
ROUNDS = 100
PADDING = " and so on" * 100  # of the long stream's events: a million of them are a gibibyte
OTHERS_BUDGET_MS = 50.0
RESTED_S = 3.0  # the others alone, before the search
PATTERNS = (  # and how much of the time is searched: nothing can be dropped unseen before fields are counted
    ("a rare term", '"CUDA error"', 1.0),
    ("no such term, and one not wanted", "nowhere -step", 1.0),
    ("a regular expression", "%error [0-9]+$%", 1.0),
    ("a JSON selector", '{ $.level = "fatal" }', 1.0),
    ("fields", "[..., key=mem, value>79.5, unit]", 0.05),
)
SPAN_MS = 19 * 3_600_000
EVERYTHING_PAGES = 100


@dataclass(slots=True)
class Others:
    """Small requests one after the other while something else goes on, and the server's memory meanwhile."""

    local: Local
    times_s: dict[str, list[float]] = field(default_factory=dict)
    peak_mb: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        wire = Wire(self.local.port)
        own = {"logGroupName": GROUP, "logStreamName": "others", "logEvents": [{"timestamp": _now_ms(), "message": "still here"}]}
        asked = {
            "ListTasks": signed(self.local.port, "ecs", "ListTasks", {}),
            "DescribeTasks": signed(self.local.port, "ecs", "DescribeTasks", {"tasks": ["0" * 32]}),
            "PutLogEvents": signed(self.local.port, "logs", "PutLogEvents", own),
        }
        while not self.stopping.is_set():
            for name, request in asked.items():
                began = time.perf_counter()
                wire.ask(request)
                self.times_s.setdefault(name, []).append(time.perf_counter() - began)
            self.peak_mb = max(self.peak_mb, machine.rss_mb(self.local.pids["server"]))
            time.sleep(0.002)  # people and programs that ask, not a load of their own
        wire.close()


def rows(bench: Bench) -> list[Row]:
    return _rows(bench, bench.size(EVENTS, 300_000))


def _rows(bench: Bench, events: int) -> list[Row]:
    home = bench.fresh("filtering")
    local = Local(home / "data", "none")
    built_s, size_mb = _build(local.data, events)
    local.launch()
    try:
        local.wait_ready()
        return [*_measured(local, events, f"; built in {built_s:.0f} s, {size_mb:,.0f} MB"), *_ends(local)]
    finally:
        local.stop()
        shutil.rmtree(home, ignore_errors=True)


def _measured(local: Local, events: int, note: str) -> list[Row]:
    found: list[Row] = []
    with _others(local) as rested:
        time.sleep(RESTED_S)
    busy = Others(local)
    for name, pattern, share in PATTERNS:
        with _others(local, busy):
            matched, pages, seconds, longest_s = _search(local, pattern, share)
        what = f"events/s: FilterLogEvents over {events * share:,.0f} in {STREAMS} streams, {name}"
        said = f"{seconds:.1f} s, {pages} pages, the longest {1e3 * longest_s:.0f} ms, {matched:,} found; {pattern}{note}"
        found.append(Row(what, events * share / seconds, "/s", note=said))
        note = ""
    with _others(local, busy):
        matched, pages, seconds, longest_s = _search(local, "", 1.0, EVERYTHING_PAGES)
    what, said = "events/s: FilterLogEvents without a pattern", f"{pages} pages, the longest {1e3 * longest_s:.0f} ms"
    found.append(Row(what, matched / seconds, "/s", note=said))
    at_rest = rested.peak_mb
    found.append(Row("memory of the server (RSS), the most during FilterLogEvents", busy.peak_mb, "MB", at_rest, "before"))
    for name, times_s in busy.times_s.items():
        alone, times_ms = [1e3 * time_s for time_s in rested.times_s[name]], [1e3 * time_s for time_s in times_s]
        for label, value, peer in (
            ("p99", percentile(times_ms, 99), percentile(alone, 99)),
            ("worst", max(times_ms), max(alone)),
        ):
            said = f"of {len(times_ms):,}; p50 {percentile(times_ms, 50):.1f} ms"
            found.append(
                Row(f"{name} during FilterLogEvents, {label}", value, "ms", peer, "without it", OTHERS_BUDGET_MS, note=said)
            )
    return found


def _ends(local: Local) -> list[Row]:
    """Both ends and the middle of one long stream."""
    found, call = [], Caller(local.port)
    stream = {"logGroupName": GROUP, "logStreamName": "long"}
    [shown] = call("logs", "DescribeLogStreams", logGroupName=GROUP, logStreamNamePrefix="long")["logStreams"]
    middle_ms = (shown["firstEventTimestamp"] + shown["lastEventTimestamp"]) // 2
    for name, asked in (
        ("head", {"startFromHead": True}),
        ("tail", {}),
        ("middle", {"startFromHead": True, "startTime": middle_ms}),
    ):
        times_ms = []
        for _ in range(20):
            began = time.perf_counter()
            page = call("logs", "GetLogEvents", **stream, **asked, limit=100)["events"]
            times_ms.append(1e3 * (time.perf_counter() - began))
            assert len(page) == 100
        size = int(shown["uploadSequenceToken"])
        what = f"GetLogEvents, 100 events from the {name} of a stream of {size:,}, p50"
        found.append(Row(what, percentile(times_ms, 50), "ms", note=f"the longest {max(times_ms):.1f} ms"))
    call.close()
    return found


def _search(local: Local, pattern: str, share: float, pages_max: int | None = None) -> tuple[int, int, float, float]:
    """(found, pages, seconds, the longest page) of a paginator's way through the first part of the time."""
    call = Caller(local.port)
    [shown] = call("logs", "DescribeLogStreams", logGroupName=GROUP, logStreamNamePrefix="long")["logStreams"]
    asked: dict[str, Any] = {"logGroupName": GROUP, "filterPattern": pattern}
    if share < 1:
        asked["endTime"] = shown["firstEventTimestamp"] + round(share * SPAN_MS)
    began = time.perf_counter()
    found, pages, longest_s = 0, 0, 0.0
    while True:
        page_began = time.perf_counter()
        page = call("logs", "FilterLogEvents", **asked)
        longest_s = max(longest_s, time.perf_counter() - page_began)
        found, pages = found + len(page["events"]), pages + 1
        if "nextToken" not in page or pages == pages_max:
            call.close()
            return found, pages, time.perf_counter() - began, longest_s
        asked["nextToken"] = page["nextToken"]


@contextmanager
def _others(local: Local, others: Others | None = None) -> Iterator[Others]:
    others = others or Others(local)
    others.stopping.clear()
    thread = threading.Thread(target=others.run)
    thread.start()
    try:
        yield others
    finally:
        others.stopping.set()
        thread.join()


def _build(data: Path, events: int) -> tuple[float, float]:
    """The log's file with so many events, a tenth of them in one long stream, all streams side by side; (seconds, MB) it took."""
    began = time.perf_counter()
    data.mkdir(parents=True)
    store = LogStore(data / "logs.db")
    store.execute("PRAGMA synchronous=OFF")
    since_ms, each = _now_ms() - 20 * 3_600_000, max(1, events // ROUNDS // 1000)
    store.begin()
    store.add_group("us-east-1", GROUP, {}, since_ms, "root")
    group = store.group("us-east-1", GROUP)
    assert group is not None
    shares = {"long": 100 * each} | {f"worker/{number:03d}": 9 * each for number in range(STREAMS - 1)}
    shares["worker/000"] += 9 * each  # to make it even
    for name in [*shares, "others"]:
        store.add_stream(group.id, name, since_ms, "root")
    round_ms, number = SPAN_MS // ROUNDS, 0
    for turn in range(ROUNDS):
        for name, count in shares.items():
            stream = store.stream("us-east-1", GROUP, name)
            assert stream is not None
            at_ms, padding = since_ms + turn * round_ms, PADDING * (name == "long")
            batch = [(at_ms + at * round_ms // count, _message(number + at) + padding) for at in range(count)]
            store.append(stream, batch, since_ms)
            number += count
        store.commit()
        store.begin()
    store.commit()
    store.close()
    with open(data / "logs.db", "rb") as written:
        os.fsync(written.fileno())  # now, and not in the first checkpoint of the server
    return time.perf_counter() - began, (data / "logs.db").stat().st_size / 1e6


def _message(number: int) -> str:
    """As programs print it, now and then something else."""
    if number % 100_003 == 7:
        return f"CUDA error {number} in kernel launch"
    if number % 50 == 0:
        return f'{{"level": "info", "step": {number}, "loss": 0.{number % 1000:03d}, "host": "node{number % 7}"}}'
    return f"step {number:08d} loss 0.{number % 100_000:05d} lr 0.000300 tokens/s {number % 200_000} mem {number % 800 / 10} GiB"


def _now_ms() -> int:
    return int(time.time() * 1000)


def main() -> None:
    """`bench/filtering.py [EVENTS]` alone: another number of events than the ten million of `bench/run.py`."""
    import tempfile

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("events", nargs="?", type=int, default=1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-", dir=machine.real_disk()))
    try:
        for row in _rows(Bench(folder), parser.parse_args().events):
            print(" | ".join(row.cells()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
