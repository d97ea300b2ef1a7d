"""Attacks on logs and metrics, and what they cost other callers.

    python bench/attack_telemetry.py [SECONDS] [noisy|emf|search|none]...

Each attack runs for some seconds against its own Corral. Meanwhile one client calls DescribeTasks, PutMetricData, PutLogEvents,
GetLogEvents and GetMetricData in turn, and a task prints a line each second. The output has the p50, p99 and maximum of these
calls, the server's memory, the disk space of output files and databases, and how long the server stays busy afterwards.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import Corral

SECONDS = 20.0
SERIES = 20_000
PERIODS = {"StartTime": 0, "EndTime": 2_000_000_000}
Attack = Callable[[Corral, threading.Event], None]


def noisy(corral: Corral, over: threading.Event) -> None:
    """Two tasks that print as fast as they can."""
    ecs = corral.client("ecs")
    register(ecs, "noisy", ["sh", "-c", "exec yes"])
    tasks = [ecs.run_task(taskDefinition="noisy")["tasks"][0]["taskArn"] for _ in range(2)]
    over.wait()
    for task in tasks:
        ecs.stop_task(task=task)


def emf(corral: Corral, over: threading.Event) -> None:
    """Lines of 60 KB that declare a hundred metrics in hundreds of dimension sets, all of them new."""
    logs = corral.client("logs")
    logs.create_log_stream(logGroupName="/attack", logStreamName="emf")
    names, number = [f"m{n}" for n in range(100)], 0
    while not over.is_set():
        number += 1
        keys = [f"k{n}" for n in range(1500)]
        directive = {"Namespace": "Attack", "Dimensions": [[key] for key in keys], "Metrics": [{"Name": name} for name in names]}
        body = {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}}
        line = json.dumps({**body, **dict.fromkeys(names, 1), **{key: f"{key}-{number}" for key in keys}})
        with suppress(Exception):
            logs.put_log_events(
                logGroupName="/attack",
                logStreamName="emf",
                logEvents=[{"timestamp": int(time.time() * 1000), "message": line} for _ in range(8)],
            )


def make_series(corral: Corral) -> None:
    cloudwatch = corral.client("cloudwatch")
    for at in range(0, SERIES, 1000):
        data = [
            {"MetricName": f"cpu{n}", "Value": 1, "Dimensions": [{"Name": "host", "Value": str(n)}]} for n in range(at, at + 1000)
        ]
        cloudwatch.put_metric_data(Namespace="Fleet", MetricData=data)


def search(corral: Corral, over: threading.Event) -> None:
    """Clients that ask for a hundred searches over 20,000 series and leave after two seconds."""
    queries = [{"Id": f"e{n}", "Expression": f"SEARCH('{{Fleet, host}} cpu{n} OR x{n}', 'Sum', 60)"} for n in range(100)]

    def leave() -> None:
        impatient = corral.client("cloudwatch", read_timeout=2)
        while not over.is_set():
            with suppress(Exception):
                impatient.get_metric_data(MetricDataQueries=queries, **PERIODS)

    clients = [threading.Thread(target=leave) for _ in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def none(corral: Corral, over: threading.Event) -> None:
    over.wait()


ATTACKS: dict[str, Attack] = {"none": none, "noisy": noisy, "emf": emf, "search": search}


def register(ecs: Any, family: str, command: list[str]) -> None:
    options = {"awslogs-group": "/attack", "awslogs-region": "us-east-1", "awslogs-stream-prefix": family}
    container = {"name": "main", "image": "corral/host", "memory": 64, "command": command}
    container["logConfiguration"] = {"logDriver": "awslogs", "options": options}
    ecs.register_task_definition(family=family, containerDefinitions=[container])


def normal_calls(corral: Corral) -> list[Callable[[], Any]]:
    ecs, logs, cloudwatch = (corral.client(name) for name in ("ecs", "logs", "cloudwatch"))
    logs.create_log_group(logGroupName="/attack")
    logs.create_log_stream(logGroupName="/attack", logStreamName="normal")
    register(ecs, "ticker", ["sh", "-c", "while :; do date +%s.%N; sleep 1; done"])
    task = ecs.run_task(taskDefinition="ticker")["tasks"][0]["taskArn"]
    stat = {"Metric": {"Namespace": "Normal", "MetricName": "calls"}, "Period": 60, "Stat": "Sum"}
    return [
        lambda: ecs.describe_tasks(tasks=[task]),
        lambda: cloudwatch.put_metric_data(Namespace="Normal", MetricData=[{"MetricName": "calls", "Value": 1}]),
        lambda: logs.put_log_events(
            logGroupName="/attack", logStreamName="normal", logEvents=[{"timestamp": int(time.time() * 1000), "message": "x"}]
        ),
        lambda: logs.get_log_events(logGroupName="/attack", logStreamName="normal", limit=10),
        lambda: cloudwatch.get_metric_data(MetricDataQueries=[{"Id": "a", "MetricStat": stat}], **PERIODS),
    ]


def ticker_delay_s(corral: Corral) -> float:
    """The largest delay between a line of the ticker and its arrival in the log."""
    logs = corral.client("logs")
    streams = logs.describe_log_streams(logGroupName="/attack", logStreamNamePrefix="ticker")["logStreams"]
    events = logs.get_log_events(logGroupName="/attack", logStreamName=streams[0]["logStreamName"], startFromHead=True)["events"]
    return max((event["ingestionTime"] / 1000 - float(event["message"]) for event in events), default=float("nan"))


def memory_mib(pid: int) -> tuple[int, int]:
    """(now, peak)"""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return tuple(int(fields[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def disk_mib(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found += path.lstat().st_blocks * 512 if path.is_file() else 0
    return found // 2**20


def run(name: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corral = Corral(Path(folder) / "data").start()
        try:
            if name == "search":
                make_series(corral)
            calls, over = normal_calls(corral), threading.Event()
            attack = threading.Thread(target=ATTACKS[name], args=(corral, over))
            attack.start()
            took: list[float] = []
            slowest = [0.0] * len(calls)
            disk, began = 0, time.monotonic()
            while time.monotonic() < began + seconds:
                for number, call in enumerate(calls):
                    at = time.perf_counter()
                    call()
                    took.append(time.perf_counter() - at)
                    slowest[number] = max(slowest[number], took[-1])
                disk = max(disk, disk_mib(corral.data / "node" / "output"))
                time.sleep(0.02)
            delay_s = ticker_delay_s(corral)
            over.set()
            attack.join()
            pid = json.loads((corral.data / "server.json").read_text())["pid"]
            ended, busy_s = time.monotonic(), 0.0
            while time.monotonic() < ended + 60:
                before = cpu_s(pid)
                time.sleep(0.5)
                if cpu_s(pid) - before < 0.1:
                    busy_s = time.monotonic() - ended - 0.5
                    break
            took.sort()
            now, peak = memory_mib(pid)
            p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
            databases = disk_mib(corral.data) - disk_mib(corral.data / "node")
            print(
                f"{name:7} {len(took):5} calls: p50 {p50 * 1e3:6.1f} ms, p99 {p99 * 1e3:7.1f} ms, max {took[-1] * 1e3:8.1f} ms; "
                f"server {now} MiB now, {peak} at most; output files {disk} MiB at most, databases {databases} MiB; "
                f"slowest of each call {' '.join(f'{each * 1e3:.0f}' for each in slowest)} ms; "
                f"log of another task up to {delay_s:.1f} s late; busy for {busy_s:.1f} s afterwards",
                flush=True,
            )
        finally:
            corral.clear()


if __name__ == "__main__":
    words = sys.argv[1:]
    seconds = float(words.pop(0)) if words and words[0].replace(".", "").isdigit() else SECONDS
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for word in words or ATTACKS:
        run(word, seconds)
