"""The web console in a real browser: a small server with 8 GPUs and 20 tasks, and 10,000 tasks and 1,000 GPUs on 125 hosts.

    python bench/console_scale.py [--tasks 10000] [--hosts 125] [--seconds 15] [--small]

The small server comes first, and --small measures only it. The hosts are the busy agents of `bench/hosts.py`: they sample their
GPUs every second, and report every five seconds. Then the overview is drawn. The page is timed by the clock of the browser. Its
own code is not changed: a script before it wraps `requestAnimationFrame`, in which the page draws, and a trace of the browser
has the tasks of its main thread, with their time and their CPU time. CPU time of the server is compared with the same server
without streams. Run it on a machine without other work, at best with four cores: hosts, browser and server run at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import machine
from botocore.config import Config
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rows import Row
from run import table_of

from hosts import GPUS, AgentProcess, cpu_s, prepare

PAINT_MAX_S, FILES_MAX_MS, UPDATE_MAX_MS, SCRIPT_MAX_MS, STREAMS_MAX_PERCENT = 1.0, 200.0, 100.0, 50.0, 5.0
STREAMS = 10
LINGER_S = 22.0  # after the last stream, the server notes changes a little longer
LOADS = 5
SMALL_GPUS, SMALL_TASKS = 8, 20
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)  # GPUs of the tasks, in turns
PER_CALL = 10
DEADLINE_S = 120.0
FRAMES_GAP_MS = 25.0
RENDERER, MAIN_TASK = "CrRendererMain", "ThreadControllerImpl::RunTask"

# What the page shows, by `performance.now()`: its heading, all GPUs and the waiting line, and every drawing.
WATCH = """(() => {
  const seen = (window.seen = { draws: [], heading: 0, full: 0 });
  const original = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = draw => original(time => {
    const begin = performance.now();
    draw(time);
    const drawn = performance.now();
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => seen.draws.push([begin, drawn, performance.now()]);  // after style, layout and paint
    port2.postMessage(0);
  });
  const look = () => {
    if (!seen.heading && document.querySelector('main h1')) seen.heading = performance.now();
    if (document.querySelectorAll('.gpus li').length >= GPUS && document.querySelector('[data-key=line] tbody tr')) {
      original(() => setTimeout(() => { seen.full = performance.now() }));
    } else setTimeout(look, 5);
  };
  document.addEventListener('DOMContentLoaded', look);
})()"""

Launch = Callable[[], Browser]


class Server:
    """A server with tasks."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "corral.server", "--data", str(data), "--port", "0", "--console-port", "0",
                   "--runtime", "process", *options, "--ready-fd", str(writer)]  # fmt: skip
        self.process = subprocess.Popen(command, pass_fds=(writer,), stdout=subprocess.DEVNULL)
        os.close(writer)
        with open(reader) as ready:
            self.url = json.loads(ready.readline())["url"]

    def client(self, service: str) -> Any:
        keys = json.loads((self.data / "credentials.json").read_text())
        return boto3.client(
            service, region_name="us-east-1", endpoint_url=self.url, aws_access_key_id=keys["access_key"],
            aws_secret_access_key=keys["secret_key"], config=Config(retries={"max_attempts": 0}),
        )  # fmt: skip

    def fill(self, tasks: int, sizes: Sequence[int]) -> None:
        """Run tasks until the GPUs are full and the others wait."""
        ecs = self.client("ecs")
        ecs.create_cluster(clusterName="default")
        for gpus in set(sizes):
            definition = {"name": "main", "image": "corral/host", "command": ["sleep", "100000"], "memory": 16,
                          "resourceRequirements": [{"type": "GPU", "value": str(gpus)}]}  # fmt: skip
            ecs.register_task_definition(family=f"train-{gpus}", containerDefinitions=[definition])
        for at in range(tasks // PER_CALL):
            answer = ecs.run_task(taskDefinition=f"train-{sizes[at % len(sizes)]}", count=PER_CALL)
            assert not answer["failures"], answer["failures"]

    def link(self) -> str:
        words = [sys.executable, "-m", "corral", "console", "--json", "--data", str(self.data)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return str(json.loads(done.stdout)["link"])

    def cpu(self, seconds: float) -> float:
        """Return how much of a core the server uses, in percent."""
        before = cpu_s(self.process.pid)
        time.sleep(seconds)
        return (cpu_s(self.process.pid) - before) / seconds * 100

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


class Cluster(Server):
    """A server with many simulated hosts."""

    def __init__(self, folder: Path, hosts: int) -> None:
        data, self.hosts = folder / "data", hosts
        data.mkdir(mode=0o700)
        prepare(data, hosts)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            door = probe.getsockname()[1]
        super().__init__(data, "--gpus", "none", "--door", f"127.0.0.1:{door}")
        self.agents = AgentProcess(hosts, door, folder / "keys", busy=True, keeps_runs=True)
        self.agents.wait_connected()

    def end(self) -> None:
        self.agents.end()
        super().end()


class Streams:
    """Event streams of pages that do not read anything after an event."""

    def __init__(self, link: str, count: int) -> None:
        url, _, code = link.partition("#")
        self._host, self._origin = url.removeprefix("http://").rstrip("/"), url.rstrip("/")
        begun = self._send("POST", "/session", {"code": code})
        secret = json.loads(begun.read())["secret"]
        cookie = str(begun.headers["set-cookie"]).partition(";")[0]
        topics = ["hosts", "gpus", "tasks", "jobs", "instances", "services", "groups", "queues", "alarms", "stacks"]
        self._secrets = {"cookie": cookie, "x-corral-console": secret}
        self._responses = [self._send("POST", "/changes", {"topics": topics, "after": None}) for _ in range(count)]
        self.events = 0

    def _send(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        headers = {"origin": self._origin, "sec-fetch-site": "same-origin", **getattr(self, "_secrets", {})}
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response

    def during(self, measure: Callable[[], float]) -> float:
        """Read the streams in another thread while `measure` runs, and return its result."""
        import threading

        over = threading.Event()
        thread = threading.Thread(target=self._read, args=(over,))
        thread.start()
        try:
            return measure()
        finally:
            over.set()
            thread.join()

    def _read(self, over: Any) -> None:
        selector = selectors.DefaultSelector()
        sockets = [response.fp.raw._sock for response in self._responses]  # type: ignore[union-attr]
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        while not over.is_set():
            for key, _ in selector.select(0.5):
                self.events += key.fileobj.recv(65_536).count(b"data: ")  # type: ignore[union-attr]

    def close(self) -> None:
        for response in self._responses:
            response.close()


def until(page: Page, condition: str) -> None:
    """Wait for a condition. `wait_for_function` needs `eval`, which the policy of the page forbids."""
    until_s = time.monotonic() + DEADLINE_S
    while not page.evaluate(condition):
        if time.monotonic() > until_s:
            shown = page.evaluate("[document.visibilityState, JSON.stringify(seen), document.body.innerText].join('\\n')")
            sys.exit(f"console_scale: {condition} did not come true in {DEADLINE_S:.0f} s on this page:\n{shown[:2000]}")
        page.wait_for_timeout(20)


def new_page(launch: Launch, gpus: int) -> Page:
    """Open a page in a browser of its own, which draws no other window and has no cached files."""
    page = launch().new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(DEADLINE_S * 1000)
    page.add_init_script(WATCH.replace("GPUS", str(gpus)))
    return page


def close(page: Page) -> None:
    browser = page.context.browser
    assert browser is not None
    browser.close()


class Watched(NamedTuple):
    """What the main thread of the page did for a while, in ms."""

    draws: list[list[float]]  # begin, end of the script, and end of the painting
    tasks: list[tuple[float, float]]  # time and CPU time

    def longest(self) -> str:
        cpu_ms, script_ms = max(cpu for _, cpu in self.tasks), max([0.0, *(drawn - begin for begin, drawn, _ in self.draws)])
        number = sum(took > SCRIPT_MAX_MS for took, _ in self.tasks)
        return f"{number} longer than 50 ms; most CPU time of one {cpu_ms:.0f} ms; longest script of a drawing {script_ms:.0f} ms"


class Opened(NamedTuple):
    """How long it took to open the overview, and the CPU time that this needed. On a busy machine, the CPU time says more."""

    painted_ms: float
    heading_ms: float
    full_ms: float  # until all GPUs and the waiting line are shown
    page_cpu_ms: float
    longest_cpu_ms: float  # of a task of the main thread
    server_cpu_ms: float


def traced(page: Page, act: Callable[[], None]) -> list[tuple[float, float]]:
    """Return the time and the CPU time of all tasks of the main thread while `act` runs, in ms."""
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["toplevel"])
    act()
    events = json.loads(browser.stop_tracing())["traceEvents"]
    main = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name" and each["args"]["name"] == RENDERER}
    return [
        (each["dur"] / 1000, each.get("tdur", 0) / 1000)
        for each in events
        if each["name"] == MAIN_TASK and each["ph"] == "X" and (each["pid"], each["tid"]) in main
    ]


def open_overview(page: Page, url: str, server_pid: int) -> Opened:
    def load() -> None:
        page.goto(url)
        until(page, "seen.full > 0")

    page.goto("about:blank")
    before_s = cpu_s(server_pid)
    cpu_ms = [cpu for _, cpu in traced(page, load)]
    used_ms = (cpu_s(server_pid) - before_s) * 1000
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    heading, full = page.evaluate("[seen.heading, seen.full]")
    return Opened(painted, heading, full, sum(cpu_ms), max(cpu_ms), used_ms)


def loading(server: Server, launch: Launch, name: str, gpus: int) -> list[Row]:
    """Open the overview by a link, in a new profile without cached files, and again in the same profile."""
    by_link, again = [], []
    for _ in range(LOADS):
        page = new_page(launch, gpus)
        link = server.link()
        by_link.append(open_overview(page, link, server.process.pid))
        again.append(open_overview(page, link.partition("#")[0], server.process.pid))
        close(page)
    rows = []
    for how, found in (("by a link, in a new profile", by_link), ("again", again)):
        middle = Opened(*(statistics.median(values) for values in zip(*found, strict=True)))
        note = f"worst of {len(found)}: {max(one.painted_ms for one in found):.0f} ms; heading after {middle.heading_ms:.0f} ms"
        rows.append(Row(f"{name}, opened {how}: first paint", middle.painted_ms, "ms", budget=FILES_MAX_MS, note=note))
        note = (
            f"worst: {max(one.full_ms for one in found):.0f} ms; CPU time: page {middle.page_cpu_ms:.0f} ms, its longest task "
            f"{middle.longest_cpu_ms:.0f} ms, server {middle.server_cpu_ms:.0f} ms"
        )
        what = f"{name}, opened {how}: {gpus:,} GPUs and the waiting line are shown"
        rows.append(Row(what, middle.full_ms / 1000, "s", budget=PAINT_MAX_S, note=note))
    return rows


def watch(page: Page, act: Callable[[], None]) -> Watched:
    page.evaluate("seen.draws = []")
    tasks = traced(page, act)
    return Watched(page.evaluate("seen.draws"), tasks)


def updates_of(draws: list[list[float]]) -> list[float]:
    """Return how long each update took, in ms: a large one is drawn in several frames, one after the other."""
    found: list[list[float]] = []
    for begin, _, end in sorted(draws):
        if found and begin < found[-1][1] + FRAMES_GAP_MS:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([begin, end])
    return sorted(end - begin for begin, end in found)


def scroll(page: Page, seconds: float) -> None:
    page.mouse.move(600, 500)
    until_s, step = time.monotonic() + seconds, 240
    while time.monotonic() < until_s:
        page.mouse.wheel(0, step)
        page.wait_for_timeout(30)
        at, height = page.evaluate("[scrollY, document.documentElement.scrollHeight - innerHeight]")
        step = 240 if at <= 0 else -240 if at >= height - 1 else step


def change_shown(cluster: Cluster, page: Page) -> list[float]:
    """Return how long it takes from the response of a call to the page that shows its change, in ms."""
    ecs, found = cluster.client("ecs"), []
    tasks = ecs.list_tasks(desiredStatus="RUNNING")["taskArns"][-6:]
    for arn in tasks:
        task = arn.rpartition("/")[2]
        page.evaluate("path => { location.hash = path }", f"#/tasks/default/{task}")
        state = page.locator("main .head .state")
        state.wait_for()
        page.evaluate("""() => { window.changed = 0; const look = () => {
            if (document.querySelector('main .head .state')?.textContent.includes('STOP')) changed = Date.now();
            else setTimeout(look, 2) }; look() }""")
        ecs.stop_task(task=arn)
        answered_ms = time.time() * 1000
        until(page, "changed > 0")
        found.append(max(0.0, page.evaluate("changed") - answered_ms))
    return found


def measured(cluster: Cluster, launch: Launch, seconds: float) -> list[Row]:
    gpus = cluster.hosts * GPUS
    time.sleep(5.0)
    before = cluster.cpu(seconds)
    streams = Streams(cluster.link(), STREAMS)
    time.sleep(2.0)
    with_streams = streams.during(partial(cluster.cpu, seconds))
    streams.close()
    rows = loading(cluster, launch, "overview", gpus)
    page = new_page(launch, gpus)
    open_overview(page, cluster.link(), cluster.process.pid)
    page.wait_for_timeout(3000)
    updates = watch(page, lambda: page.wait_for_timeout(seconds * 1000))
    while_open = cluster.cpu(seconds)
    scrolled = watch(page, lambda: scroll(page, seconds))
    page.evaluate("location.hash = '#/tasks'")
    page.locator("tbody tr").nth(100).wait_for()
    page.wait_for_timeout(2000)
    of_tasks = watch(page, lambda: scroll(page, seconds))
    shown = change_shown(cluster, page)
    close(page)
    time.sleep(LINGER_S)
    after = cluster.cpu(seconds)
    draws = updates_of(updates.draws)
    rows += [
        Row("overview: an update is drawn, median", statistics.median(draws), "ms", budget=UPDATE_MAX_MS,
            note=f"{len(draws)} updates in {seconds:.0f} s, worst {draws[-1]:.0f} ms; {updates.longest()}"),
        Row("task page: from the response of StopTask until the page shows it, median", statistics.median(shown), "ms",
            note=f"worst {max(shown):.0f} ms"),
    ]  # fmt: skip
    for name, seen in (("overview", scrolled), ("tasks", of_tasks)):
        longest = max(took for took, _ in seen.tasks)
        rows.append(
            Row(
                f"{name}: longest task of the main thread while scrolling", longest, "ms", budget=SCRIPT_MAX_MS, note=seen.longest()
            )
        )
    rows += [
        Row("server without streams", before, "% of a core"),
        Row(f"server with {STREAMS} event streams, more than without", with_streams - before, "% of a core",
            budget=STREAMS_MAX_PERCENT, note=f"{streams.events} events"),
        Row("server with one open overview, more than without", while_open - before, "% of a core"),
        Row(f"server {LINGER_S:.0f} s after the last page, more than before the first", after - before, "% of a core"),
    ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=125)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--small", action="store_true", help="measure the small server only")
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("console_scale: chromium is missing: `make test-packages` installs it")
    with tempfile.TemporaryDirectory(dir=machine.real_disk()) as folder, sync_playwright() as playwright:
        about = machine.described(Path(folder))
        launch = partial(
            playwright.chromium.launch,
            executable_path=chromium,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        rows = of_small(Path(folder) / "small", launch)
        if not given.small:
            rows += of_large(Path(folder), launch, given.hosts, given.tasks, given.seconds)
    Console(width=None if sys.stdout.isatty() else 200).print(table_of(rows))
    for name, value in about.items():
        print(f"{name}: {value}")


def of_small(data: Path, launch: Launch) -> list[Row]:
    data.mkdir(mode=0o700)
    server = Server(data, "--gpus", f"sim:{SMALL_GPUS}")
    try:
        server.fill(SMALL_TASKS, (1,))
        return loading(server, launch, f"{SMALL_GPUS} GPUs, {SMALL_TASKS} tasks", SMALL_GPUS)
    finally:
        subprocess.run([sys.executable, "-m", "corral", "down", "--stop-tasks", "--data", str(data)], check=True)


def of_large(folder: Path, launch: Launch, hosts: int, tasks: int, seconds: float) -> list[Row]:
    cluster = Cluster(folder, hosts)
    try:
        began_s = time.monotonic()
        cluster.fill(tasks, SIZES)
        print(f"{tasks:,} tasks on {hosts} hosts: {time.monotonic() - began_s:.0f} s")
        return measured(cluster, launch, seconds)
    finally:
        cluster.end()


if __name__ == "__main__":
    main()
