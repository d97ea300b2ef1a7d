"""Many hosts on one server: simulated agents with 8 GPUs each, over real TLS connections through the door.

    python bench/hosts.py [--busy 256] [--idle 1000] [--seconds 20] [--cores 0,1,2-3]

Busy hosts sample their GPUs every second, and some of them get orders to start runs. First no alarm watches them, then
one does. Idle hosts send heartbeats, and samples of idle GPUs. Then the door is killed, and all hosts reconnect at
once. The agents are in a process of their own. Without --cores, server, door and agents share the cores of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import msgspec
import uvloop
from botocore.config import Config

from corral.core.clock import WallClock
from corral.model.agent_protocol import (
    HEARTBEAT_S,
    IDLE_HEARTBEAT_S,
    IDLE_SAMPLES_S,
    CollectedSamples,
    Hello,
    HostOptions,
    Report,
    ToAgent,
)
from corral.model.gpu import GpuDevice
from corral.model.gpu_metrics import GpuSample
from corral.model.joined_host import JoinedHost
from corral.model.run import Observed
from corral.node.heartbeat import heartbeat_at
from corral.node.joined_host import _new_key, _signing_request
from corral.node.link import Link
from corral.node.server_access import AGENT, SERVER_NAME, context, keep_alive
from corral.server.door.authority import Authority, read_request
from corral.store import Store

GPUS = 8
ORDERS_PER_S = 10.0
_MESSAGES = msgspec.json.Decoder(ToAgent)
TICKS = os.sysconf("SC_CLK_TCK")
LANE_ROW = re.compile(r'corral_lane_batch_duration_seconds_bucket\{lane="(\w+)",le="([^"]+)"\} (\S+)')


def host_id(number: int) -> str:
    return f"{number:032x}"


def prepare(data: Path, hosts: int) -> None:
    """Create the authority, and the certificates and rows of all hosts, before the server starts."""
    (data / "door").mkdir(mode=0o700)
    now_s = WallClock().now_s()
    authority = Authority(data / "door", now_s)
    keys = data.parent / "keys"
    keys.mkdir()
    (keys / "host.key").write_bytes(_new_key())
    (keys / "authority.pem").write_text(authority.pem)
    request = read_request(_signing_request(keys))
    store = Store(data / "state.db")
    store.begin()
    for number in range(hosts):
        issued = authority.issue_host(request, host_id(number), now_s, 86_400.0)
        (keys / f"{number}.pem").write_text(issued.pem)
        store.joined_hosts.put(
            JoinedHost(host_id(number), f"host{number}", str(number), "", issued.serial, "", "", "", "", "", now_s)
        )
    store.commit()
    store.close()


class Agent:
    """A simulated agent: it reports GPUs, and ends the runs that it should start at once, or when it should stop them."""

    def __init__(self, number: int, door: tuple[str, int], keys: Path, *, busy: bool, keeps_runs: bool = False) -> None:
        self._number = number
        self._keeps_runs = keeps_runs
        self._door = door
        self._tls = context(AGENT, None, (keys / "authority.pem").read_text())
        self._tls.load_cert_chain(keys / f"{number}.pem", keys / "host.key")
        self._busy = busy
        self.welcome_at_s = 0.0
        self.got: dict[str, float] = {}  # task id → when its order arrived
        self._runs: list[Observed] = []
        self._at_once = True
        self._acked = asyncio.Event()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        wait_s = 0.02
        while True:
            try:
                await self._serve()
                wait_s = 0.02
            except (OSError, ssl.SSLError):
                pass
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, 5.0)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        plain = socket.socket()
        plain.setblocking(False)
        keep_alive(plain)
        try:
            await asyncio.wait_for(loop.sock_connect(plain, self._door), 3.0)
            _, link = await loop.create_connection(
                Link, sock=plain, ssl=self._tls, server_hostname=SERVER_NAME, ssl_handshake_timeout=10.0
            )
        except BaseException:
            plain.close()
            raise
        gpus = [GpuDevice(f"GPU-{self._number}-{at}", at, "NVIDIA H100", 81_559, True) for at in range(GPUS)]
        link.send_message(
            {"hello": Hello("", "boot", "", 65_536, 524_288, gpus, [], HostOptions(gpus=f"sim:{GPUS}", runtime="process"))}
        )
        reporting: asyncio.Task[None] | None = None
        try:
            while (message := await link.receive()) is not None:
                decoded = _MESSAGES.decode(message[1])
                if decoded.welcome is not None:
                    self.welcome_at_s = time.monotonic()
                    reporting = asyncio.create_task(self._report(link))
                elif decoded.ack is not None:
                    self._acked.set()
                elif decoded.samples_at_once is not None:
                    self._at_once = decoded.samples_at_once
                elif decoded.orders is not None:
                    at_s, now_s = time.monotonic(), WallClock().now_s()
                    for spec in decoded.orders.start:
                        self.got[spec.task_id] = at_s
                        ended = Observed(spec.run_id, 1, now_s, now_s, 0)
                        self._runs.append(Observed(spec.run_id, 1, now_s) if self._keeps_runs else ended)
                    self._runs += [Observed(run_id, 1, now_s, now_s, 143) for run_id in decoded.orders.stop]
                    self._wake.set()
        finally:
            self.welcome_at_s = 0.0
            if reporting is not None:
                reporting.cancel()

    async def _report(self, link: Link) -> None:
        """Sample once a second, and report as `node/agent.py` does."""
        sampled, idle_samples_at_s = list[tuple[float, list[GpuSample]]](), 0.0
        reported_at_s, clock = time.monotonic() - random.uniform(0, HEARTBEAT_S if self._busy else IDLE_HEARTBEAT_S), WallClock()
        while True:
            now_s, idle_due = time.monotonic(), not self._busy and time.monotonic() >= idle_samples_at_s
            if self._busy or idle_due:
                sampled.append((now_s, self._samples()))
            due_s = heartbeat_at(reported_at_s, clock, has_runs=self._busy)
            if self._runs or (self._busy and self._at_once) or now_s >= due_s:
                runs, self._runs = self._runs, []
                idle_samples_at_s = now_s + IDLE_SAMPLES_S if idle_due else idle_samples_at_s
                *earlier, (_, last) = sampled or [(now_s, [])]
                collected = [CollectedSamples(now_s - at_s, samples) for at_s, samples in earlier]
                reported_at_s, sampled = now_s, []
                due_s = heartbeat_at(reported_at_s, clock, has_runs=self._busy)
                self._acked.clear()
                link.send_message({"report": Report(runs=runs, gpus=last, earlier=collected)})
                await self._acked.wait()
            if not self._runs:
                self._wake.clear()
                try:
                    async with asyncio.timeout(1.0 if self._busy else due_s - time.monotonic()):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _samples(self) -> list[GpuSample]:
        """The samples of GPUs, in the precision of NVML."""
        percent, memory_mib, power_w = (random.randint(50, 100), 40_000, 400) if self._busy else (0, 3, 70)
        return [
            GpuSample(
                f"GPU-{self._number}-{at}", percent, memory_mib, power_w + random.randint(0, 9_999) / 1000, random.randint(30, 60)
            )
            for at in range(GPUS)
        ]


async def agents(count: int, door: int, keys: Path, *, busy: bool, keeps_runs: bool) -> None:
    """The process of the agents. It answers commands on standard input with lines of JSON."""
    made = [Agent(number, ("127.0.0.1", door), keys, busy=busy, keeps_runs=keeps_runs) for number in range(count)]
    running = [asyncio.create_task(each.run()) for each in made]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "connected":
            print(json.dumps(sum(each.welcome_at_s > 0 for each in made)), flush=True)
        elif line.strip() == "orders":
            print(json.dumps({task: at_s for each in made for task, at_s in each.got.items()}), flush=True)
    for each in running:
        each.cancel()


class AgentProcess:
    def __init__(self, count: int, door: int, keys: Path, *, busy: bool, keeps_runs: bool = False) -> None:
        command = [sys.executable, __file__, "--agents", str(count), "--door", str(door), "--keys", str(keys)]
        command += ["--are-busy"] * busy + ["--keep-runs"] * keeps_runs
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._count = count

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait_connected(self, within_s: float = 120.0) -> float:
        began_s = time.monotonic()
        while (found := self.ask("connected")) < self._count:
            if time.monotonic() > began_s + within_s:
                sys.exit(f"only {found} of {self._count} hosts are connected")
            time.sleep(0.05)
        return time.monotonic() - began_s

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def door_pid(data: Path) -> int:
    return int((data / "door" / "lock").read_text())


def pin(pid: int, cores: set[int]) -> None:
    """Let all threads of a process run on these cores only."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


class Used:
    """The CPU time that the server and the door have used since a moment. On a loaded machine, it says more than the time."""

    def __init__(self, server_pid: int, data: Path) -> None:
        self._server_pid = server_pid
        self._data = data
        self._before = cpu_s(server_pid), {door_pid(data): cpu_s(door_pid(data))}

    def __str__(self) -> str:
        door = door_pid(self._data)
        of_server, of_door = cpu_s(self._server_pid) - self._before[0], cpu_s(door) - self._before[1].get(door, 0.0)
        return f"CPU time: server {of_server:.1f} s, door {of_door:.1f} s"


def measure(server_pid: int, data: Path, seconds: float) -> tuple[float, float]:
    """Return how much of a core the server and the door use."""
    before = cpu_s(server_pid), cpu_s(door_pid(data))
    time.sleep(seconds)
    return (cpu_s(server_pid) - before[0]) / seconds, (cpu_s(door_pid(data)) - before[1]) / seconds


def prepared(client: Callable[[str], Any]) -> Any:
    ecs = client("ecs")
    definition = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 16,
                  "resourceRequirements": [{"type": "GPU", "value": "1"}]}  # fmt: skip
    ecs.create_cluster(clusterName="default")  # metrics of GPUs are published in regions with a cluster
    ecs.register_task_definition(family="bench", containerDefinitions=[definition])
    return ecs


def orders(ecs: Any, process: AgentProcess, data: Path, seconds: float) -> str:
    """Start tasks. Return how long the requests took, the orders from the request to the host, and the server's transactions."""
    sent: dict[str, float] = {}
    answered: list[float] = []
    before = transactions(data)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        [task] = ecs.run_task(taskDefinition="bench")["tasks"]
        sent[task["taskArn"].rpartition("/")[2]] = began_s
        answered.append((time.monotonic() - began_s) * 1000)
        time.sleep(max(0.0, began_s + 1 / ORDERS_PER_S - time.monotonic()))
    time.sleep(1.0)
    got = process.ask("orders")
    missing = [task for task in sent if task not in got]
    if missing:
        print(f"{len(missing)} of {len(sent)} orders did not arrive", file=sys.stderr)
    held_ms = [
        f"{lane} {1000 * next((limit_s for limit_s in now if now[limit_s] - before[lane][limit_s] >= 0.99 * total), 0):g} ms"
        for lane, now in transactions(data).items()
        if (total := max(now.values()) - max(before[lane].values()))
    ]
    return (
        f"{percentiles(answered)} to the response of RunTask, "
        f"{percentiles([(got[task] - at_s) * 1000 for task, at_s in sent.items() if task in got])} to the host; "
        f"99 % of the transactions of the server are below: {', '.join(held_ms)}"
    )


def percentiles(times_ms: list[float]) -> str:
    times_ms = sorted(times_ms)
    return f"p50 {times_ms[len(times_ms) // 2]:.1f}, p99 {times_ms[int(len(times_ms) * 0.99)]:.1f} ms"


def transactions(data: Path) -> dict[str, dict[float, float]]:
    """Return the number of transactions of each lane by their greatest duration."""
    words = [sys.executable, "-m", "corral", "metrics", "--data", str(data)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[float, float]] = {}
    for lane, limit_s, count in LANE_ROW.findall(text):
        found.setdefault(lane, {})[float(limit_s)] = float(count)
    return found


def alarm(client: Callable[[str], Any]) -> None:
    """Watch the load of the cluster, so that all hosts report their samples at once."""
    client("cloudwatch").put_metric_alarm(
        AlarmName="bench", Namespace="Corral/GPU", MetricName="DCGM_FI_DEV_GPU_UTIL",
        Dimensions=[{"Name": "ClusterName", "Value": "default"}], Statistic="Average", Period=60, EvaluationPeriods=3,
        Threshold=200.0, ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", type=int, default=256)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cores", help="pin the server, the door and the agents: FIRST,SECOND,THIRD; each is a core, or FROM-TO")
    parser.add_argument("--agents", type=int)
    parser.add_argument("--door", type=int)
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--are-busy", action="store_true")
    parser.add_argument("--keep-runs", action="store_true")
    given = parser.parse_args()
    if given.agents is not None:
        uvloop.run(agents(given.agents, given.door, given.keys, busy=given.are_busy, keeps_runs=given.keep_runs))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        prepare(data, max(given.busy, given.idle))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            door = probe.getsockname()[1]
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "corral.server", "--data", str(data), "--port", "0", "--gpus", "none",
                   "--runtime", "process",
                   "--door", f"127.0.0.1:{door}", "--ready-fd", str(writer)]  # fmt: skip
        server = subprocess.Popen(command, pass_fds=(writer,), stdout=subprocess.DEVNULL)
        os.close(writer)
        with open(reader) as ready:
            url = json.loads(ready.readline())["url"]
        keys = json.loads((data / "credentials.json").read_text())
        try:
            client = partial(
                boto3.client, region_name="us-east-1", endpoint_url=url, aws_access_key_id=keys["access_key"],
                aws_secret_access_key=keys["secret_key"], config=Config(retries={"max_attempts": 0}),
            )  # fmt: skip
            ecs = prepared(client)
            cores = [
                set(range(int(each.split("-")[0]), int(each.split("-")[-1]) + 1)) for each in (given.cores or "").split(",") if each
            ]

            def pin_all() -> None:
                for pid, of_process in zip((server.pid, door_pid(data), os.getpid()), cores, strict=False):
                    pin(pid, of_process)  # the processes of the agents inherit the cores of this one

            pin_all()
            alone = memory_mib(server.pid), memory_mib(door_pid(data))
            busy = AgentProcess(given.busy, door, Path(folder) / "keys", busy=True)
            took_s = busy.wait_connected()
            print(f"{given.busy} hosts connected at once: {took_s:.1f} s")
            time.sleep(5.0)
            of_server, of_door = measure(server.pid, data, given.seconds)
            print(f"{given.busy} busy hosts: server {of_server:.1%} of a core, door {of_door:.1%}")
            print(f"orders with them: {orders(ecs, busy, data, given.seconds)}")
            alarm(client)
            time.sleep(5.0)
            of_server, of_door = measure(server.pid, data, given.seconds)
            print(f"{given.busy} busy hosts, an alarm watches: server {of_server:.1%} of a core, door {of_door:.1%}")
            print(f"orders with them: {orders(ecs, busy, data, given.seconds)}")
            client("cloudwatch").delete_alarms(AlarmNames=["bench"])
            busy.end()
            used = Used(server.pid, data)
            idle = AgentProcess(given.idle, door, Path(folder) / "keys", busy=False)
            took_s = idle.wait_connected()
            print(f"{given.idle} hosts connected at once: {took_s:.1f} s; {used}")
            time.sleep(15.0)  # the first samples create series and rows
            of_server, of_door = measure(server.pid, data, max(given.seconds, IDLE_SAMPLES_S))
            print(f"{given.idle} idle hosts: server {of_server:.1%} of a core, door {of_door:.1%}")
            now = memory_mib(server.pid), memory_mib(door_pid(data))
            kib = [(after - before) * 1024 / given.idle for before, after in zip(alone, now, strict=True)]
            print(f"memory per host: server {kib[0]:.0f} KiB, door {kib[1]:.0f} KiB")
            used, killed, killed_at_s = Used(server.pid, data), door_pid(data), time.monotonic()
            os.kill(killed, signal.SIGKILL)
            while door_pid(data) == killed:
                time.sleep(0.01)
            pin_all()
            idle.wait_connected()
            print(f"{given.idle} hosts reconnected after the door was killed: {time.monotonic() - killed_at_s:.1f} s; {used}")
            idle.end()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
