"""`bench/attack.py [NAME…] [--seconds N]`: attack a Corral under normal load, and print what other callers notice.

Each attack runs in a process of its own. Meanwhile four callers with valid credentials send requests at a steady pace. The table
has the 99th percentile of their latency, counted from the time at which a request was due, the connections that the kernel has
dropped because too many waited (for any server of this machine), the memory of the server, and how long after the attack the memory
takes to return to normal.

To add an attack, write a function of an `Arena` that attacks until `arena.is_over()`, and list it in ATTACKS.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import cycle
from pathlib import Path

import machine
from client import Caller, Unanswered, Wire, head, signed
from local import Local, corral
from rich.console import Console
from rich.table import Table
from rows import Bench, percentile

SECONDS = 60.0
BEFORE_S = 5.0
AFTER_MAX_S = 10.0
CALLERS, PACE_S = 4, 0.02  # 200 requests a second
P99_MAX_MS, MEMORY_MAX_MB = 250.0, 300.0
RETURNED_MB = 40.0  # memory is back to normal when it is at most this much larger than before
MIB = 1024 * 1024
FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, slots=True)
class Arena:
    """What an attack knows: the port, a valid access key id without its secret, and when to stop."""

    port: int
    until: float

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


# --- attacks ----------------------------------------------------------------------------------------------------------


def gzip_forms(arena: Arena, known_key: bool) -> None:
    """15 KB each, which become 16 MB of escapes when they are decompressed."""
    body = gzip.compress(escapes(), 9)
    repeat(arena, _form(arena, body, known_key, {"content-encoding": "gzip"}) + body, 8)


def plain_forms(arena: Arena, known_key: bool) -> None:
    """16 MB of escapes each."""
    body = escapes()
    repeat(arena, _form(arena, body, known_key, {}) + body, 4)


def large_bodies(arena: Arena) -> None:
    """100 connections, each of which sends 16 MB under a known access key id."""
    body = bytes(16 * MIB)
    _pump(arena, [_form(arena, body, True, {}) + body] * 100)


def slow_heads(arena: Arena) -> None:
    """3,000 connections with heads of 60 KB that never end."""
    start = b"GET / HTTP/1.1\r\nhost: x\r\n" + (b"x: " + b"y" * 6_000 + b"\r\n") * 10
    _hold(arena, 3_000, start, b"x: y\r\n")


def slow_bodies(arena: Arena) -> None:
    """300 connections that send a body byte by byte under a known access key id."""
    _hold(arena, 300, _form(arena, bytes(MIB), True, {}), b"x")


def silent_connections(arena: Arena) -> None:
    """6,000 connections that send nothing."""
    _hold(arena, 6_000, b"", b"")


Attacks = dict[str, Callable[[Arena], None]]
ATTACKS: Attacks = {
    "gzip forms, unsigned": partial(gzip_forms, known_key=False),
    "gzip forms, wrong signature": partial(gzip_forms, known_key=True),
    "16 MB forms, unsigned": partial(plain_forms, known_key=False),
    "16 MB forms, wrong signature": partial(plain_forms, known_key=True),
    "100 bodies of 16 MB at a time": large_bodies,
    "3,000 slow heads": slow_heads,
    "300 slow bodies": slow_bodies,
    "6,000 silent connections": silent_connections,
}


@cache
def escapes() -> bytes:
    return b"Action=GetCallerIdentity&Version=2011-06-15&A=" + b"%41" * 5_500_000


def _form(arena: Arena, body: bytes, known_key: bool, headers: dict[str, str]) -> bytes:
    """The head of a form: without a signature, or with one that is wrong. It states no hash, so the server must read the body."""
    if not known_key:
        lines = [f"{name}: {value}" for name, value in {**FORM, **headers}.items()]
        lines = ["POST / HTTP/1.1", "host: x", f"content-length: {len(body)}", *lines]
        return "\r\n".join([*lines, "", ""]).encode()
    right = head(arena.port, "sts", "POST", "/", {**FORM, **headers}, body).decode()
    lines = [line for line in right.split("\r\n") if not line.startswith("x-amz-content-sha256")]
    return "\r\n".join(lines).replace("x-amz-content-sha256;", "").encode()


def repeat(arena: Arena, request: bytes, connections: int) -> None:
    """Send a request again and again, on several connections."""

    def one() -> None:
        while not arena.is_over():
            with suppress(OSError, Unanswered):
                wire = Wire(arena.port)
                while not arena.is_over():
                    wire.send(request)
                    while wire.receive() is None:
                        pass

    threads = [threading.Thread(target=one, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, arena.until - time.monotonic()) + 1)


def _pump(arena: Arena, requests: list[bytes]) -> None:
    """Send each request on its own connection, all at the same time, and start again when one is answered or refused."""
    with selectors.DefaultSelector() as ready:

        def begin(request: bytes) -> None:
            connection = arena.connect()
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, [memoryview(request), 0])

        for request in requests:
            begin(request)
        while not arena.is_over():
            for key, events in ready.select(0.5):
                connection, (request, sent) = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE and sent < len(request):
                        key.data[1] += connection.send(request[sent : sent + MIB])
                        if key.data[1] == len(request):
                            ready.modify(connection, selectors.EVENT_READ, key.data)
                    if not events & selectors.EVENT_READ:
                        continue
                    connection.recv(65536)
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                ready.unregister(connection)
                connection.close()
                begin(request.obj)


def _hold(arena: Arena, count: int, start: bytes, drop: bytes) -> None:
    """Keep so many connections open, and send a few bytes on each from time to time."""
    held: list[socket.socket] = []
    for turn in cycle(range(10)):
        while len(held) < count and not arena.is_over():
            try:
                connection = arena.connect()
                connection.setblocking(False)
                connection.send(start)
                held.append(connection)
            except OSError:
                break
        if arena.is_over():
            return
        if turn == 0:
            held = [connection for connection in held if _drip(connection, drop)]
        time.sleep(0.1)


def _drip(connection: socket.socket, drop: bytes) -> bool:
    """Send a few bytes; False if the server has closed the connection."""
    try:
        if drop:
            connection.send(drop)
        return bool(connection.recv(65536))
    except BlockingIOError:
        return True
    except OSError:
        return False


# --- callers and figures ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Figures:
    times_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    memory_mb: float = 0.0  # the largest


class Load:
    """Four callers, each with a connection of its own, until `stop`."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._stopping = threading.Event()
        self.figures = Figures()
        call = Caller(local.port)
        queue = call("sqs", "CreateQueue", QueueName="attacked")["QueueUrl"]
        call.close()
        port = local.port
        self._requests = [
            signed(port, "sts", "GetCallerIdentity", {}),
            signed(port, "ecs", "ListTasks", {}),
            signed(port, "sqs", "SendMessage", {"QueueUrl": queue, "MessageBody": "x"}),
            signed(port, "sqs", "ReceiveMessage", {"QueueUrl": queue}),
        ]
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for thread in [*self._threads, threading.Thread(target=self._watch, daemon=True)]:
            thread.start()

    def during(self, seconds: float) -> Figures:
        """The figures of the time that begins now."""
        self.figures = figures = Figures()
        time.sleep(seconds)
        return figures

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        wire, requests = Wire(self._local.port), cycle(self._requests[number:] + self._requests[:number])
        due = time.perf_counter() + PACE_S * number / CALLERS
        while not self._stopping.is_set():
            time.sleep(max(0.0, due - time.perf_counter()))
            figures = self.figures
            try:
                wire.ask(next(requests))
                figures.times_s.append(time.perf_counter() - due)
            except (OSError, Unanswered) as error:
                figures.failures.append(str(error))
                with suppress(OSError):
                    wire = Wire(self._local.port)
            due = max(due + PACE_S, time.perf_counter() - 1.0)

    def _watch(self) -> None:
        while not self._stopping.wait(0.05):
            self.figures.memory_mb = max(self.figures.memory_mb, machine.rss_mb(self._local.pids["server"]))


def run(bench: Bench, attacks: Attacks, seconds: float, p99_max_ms: float, others: type[Load]) -> Iterator[list[str]]:
    """One line of the table for each attack."""
    for name, attack in attacks.items():
        with corral(bench, "attacked", "none") as local:
            load = others(local)
            try:
                yield [name, *_attacked(local, load, attack, seconds, p99_max_ms)]
            finally:
                load.stop()


def _attacked(local: Local, load: Load, attack: Callable[[Arena], None], seconds: float, p99_max_ms: float) -> list[str]:
    before, dropped = load.during(BEFORE_S), machine.dropped_connections()
    arena = Arena(local.port, time.monotonic() + seconds)
    process = multiprocessing.get_context("fork").Process(target=attack, args=(arena,), daemon=True)
    process.start()
    attacked = load.during(seconds)
    process.join(2)
    if process.is_alive():
        process.terminate()
    process.join()
    dropped = machine.dropped_connections() - dropped
    ended, normal_mb = time.monotonic(), before.memory_mb + RETURNED_MB
    while (used_mb := machine.rss_mb(local.pids["server"])) > normal_mb and time.monotonic() < ended + AFTER_MAX_S:
        time.sleep(0.1)
    took_s = time.monotonic() - ended
    after = load.during(2.0)
    p99_ms = _p99_ms(attacked)
    is_good = p99_ms < p99_max_ms and attacked.memory_mb < MEMORY_MAX_MB and used_mb <= normal_mb
    is_good = is_good and not attacked.failures and not dropped
    return [
        f"{_p99_ms(before):.1f}",
        f"{p99_ms:.1f}",
        f"{max(attacked.times_s, default=float('inf')) * 1e3:.0f}",
        f"{_p99_ms(after):.1f}",
        f"{len(attacked.times_s)}, {len(attacked.failures)} failed",
        str(dropped),
        f"{before.memory_mb:.0f} → {attacked.memory_mb:.0f} → {used_mb:.0f}",
        f"{took_s:.1f} s" if used_mb <= normal_mb else f"not within {AFTER_MAX_S:.0f} s",
        "yes" if is_good else "NO",
    ]


def _p99_ms(figures: Figures) -> float:
    """Infinite if hardly any request was answered."""
    return percentile(figures.times_s, 99) * 1e3 if len(figures.times_s) >= 2 else float("inf")


HEADINGS = (
    "attack", "p99 before, ms", "p99, ms", "max, ms", "p99 after, ms", "requests of others", "connections dropped", "memory, MB",
    "memory normal after", f"p99 below its limit, memory < {MEMORY_MAX_MB:.0f} MB",
)  # fmt: skip


def main(attacks: Attacks, p99_max_ms: float = P99_MAX_MS, others: type[Load] = Load) -> int:
    """Run the attacks that the command line names, and print what `others` noticed."""
    os.environ.pop("CORRAL_ACCESS_KEY", None)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"parts of the names of attacks: {', '.join(attacks)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each attack")
    options = parser.parse_args()
    wanted = {name: attacks[name] for name in attacks if not options.names or any(part in name for part in options.names)}
    bench = Bench(Path(tempfile.mkdtemp(prefix="corral-attack-", dir=machine.real_disk())), quick=False)
    table = Table(*HEADINGS)
    try:
        for line in run(bench, wanted, options.seconds, p99_max_ms, others):
            table.add_row(*line)
            print("  ".join(line), flush=True)
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return int(any(line == "NO" for line in table.columns[-1].cells))


if __name__ == "__main__":
    sys.exit(main(ATTACKS))
