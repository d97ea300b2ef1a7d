"""A client that costs little: requests are signed once, sent as bytes, and answers are only counted."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from rows import percentile

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "AKIABENCHBENCHBENCH1", "bench-secret-bench-secret-bench-secret-1"
ANSWER_MAX_S = 70.0
TARGETS = {"ecs": "AmazonEC2ContainerServiceV20141113", "logs": "Logs_20140328"}
RECEIVE_BYTES = 256 * 1024


class Unanswered(Exception):
    """The server hung up, kept silent, or refused."""


def signed(port: int, service: str, operation: str, params: Mapping[str, Any], wait_s: float = 0) -> bytes:
    """A request as it goes over the wire; it may be sent again and again for fifteen minutes."""
    headers = {"Content-Type": "application/x-amz-json-1.1"}
    if service in TARGETS:
        headers["X-Amz-Target"] = f"{TARGETS[service]}.{operation}"
        body = json.dumps(params).encode()
    else:
        headers["Content-Type"] = "application/x-www-form-urlencoded; charset=utf-8"
        body = f"Action={operation}&Version=2011-06-15".encode()
    request = AWSRequest("POST", f"http://127.0.0.1:{port}/", headers, body)
    SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), service, REGION).add_auth(request)
    extra = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))} | ({"X-Corral-Wait": str(wait_s)} if wait_s else {})
    lines = [f"{name}: {value}" for name, value in {**dict(request.headers.items()), **extra}.items()]
    return ("POST / HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + body


class Wire:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_MAX_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pieces: list[bytes] = []
        self._missing = -1  # bytes of the answer that are still to come; -1 before its length is known
        self._head = 0
        self.status = 0

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)
        self._pieces, self._missing = [], -1

    def receive(self) -> bytes | None:
        """One read; the body once the answer is complete."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Unanswered("the server hung up")
        if self._missing < 0:
            data = b"".join([*self._pieces, data])
            self._head = data.find(b"\r\n\r\n") + 4
            if self._head == 3:
                self._pieces = [data]
                return None
            self.status = int(data[9:12])
            at = data.find(b"content-length: ", 0, self._head)
            self._missing = self._head + int(data[at + 16 : data.find(b"\r", at)])
            self._pieces = []
        self._pieces.append(data)
        self._missing -= len(data)
        return None if self._missing else b"".join(self._pieces)[self._head :]

    def ask(self, request: bytes) -> bytes:
        """Send, and wait for the body of the answer; a refusal is raised."""
        self.send(request)
        while (body := self.receive()) is None:
            pass
        if self.status != 200:
            raise Unanswered(f"{self.status}: {body[:300]!r}")
        return body

    def close(self) -> None:
        self.socket.close()


class Caller:
    """Signed calls one after the other, for what is not timed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire = Wire(port)

    def __call__(self, service: str, operation: str, wait_s: float = 0, **params: Any) -> Any:
        body = self._wire.ask(signed(self._port, service, operation, params, wait_s))
        return json.loads(body) if body and service in TARGETS else body

    def close(self) -> None:
        self._wire.close()


@dataclass(slots=True)
class Outcome:
    answers: int = 0
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    times_s: list[float] = field(default_factory=list)  # of each answer, from its request
    bodies: list[bytes] = field(default_factory=list)
    body_bytes: int = 0  # of one answer

    @property
    def per_s(self) -> float:
        return self.answers / self.seconds

    def note(self, server_cpu_s: float | None = None) -> str:
        """Latency, and who was busy."""
        parts = [f"p50 {percentile(self.times_s, 50) * 1e3:.2f} ms", f"p95 {percentile(self.times_s, 95) * 1e3:.2f} ms"]
        if server_cpu_s is not None:
            parts.append(f"server CPU {server_cpu_s / self.answers * 1e6:.0f} µs each")
        return ", ".join([*parts, f"client CPU {self.client_cpu_s / self.seconds:.0%} of a core"])


def replay(port: int, requests: Iterable[bytes], connections: int, for_s: float = 1e9, *, keep: bool = False) -> Outcome:
    """Send requests, one in flight on each connection, until there are none left or the time is up."""
    todo, outcome = iter(requests), Outcome()
    wires = {wire.socket.fileno(): wire for wire in (Wire(port) for _ in range(connections))}
    poll = select.epoll()
    for fd in wires:
        poll.register(fd, select.EPOLLIN)
    try:
        _exchange(todo, wires, poll, for_s, outcome, keep)
    finally:
        poll.close()
        for wire in wires.values():
            wire.close()
    return outcome


def _exchange(
    todo: Iterator[bytes], wires: dict[int, Wire], poll: select.epoll, for_s: float, outcome: Outcome, keep: bool
) -> None:
    cpu, began = time.process_time(), time.perf_counter()
    until, sent_at = began + for_s, {}
    for fd, wire in wires.items():
        if (request := next(todo, None)) is not None:
            sent_at[fd] = time.perf_counter()
            wire.send(request)
    while sent_at:
        ready = poll.poll(ANSWER_MAX_S)
        if not ready:
            raise Unanswered(f"no answer in {ANSWER_MAX_S} s")
        for fd, _ in ready:
            wire = wires[fd]
            body = wire.receive()
            if body is None:
                continue
            now = time.perf_counter()
            _count(outcome, wire, body, now - sent_at.pop(fd), keep)
            if now < until and (request := next(todo, None)) is not None:
                sent_at[fd] = now
                wire.send(request)
    outcome.seconds, outcome.client_cpu_s = time.perf_counter() - began, time.process_time() - cpu


def _count(outcome: Outcome, wire: Wire, body: bytes, took_s: float, keep: bool) -> None:
    if wire.status != 200:
        raise Unanswered(f"{wire.status}: {body[:300]!r}")
    outcome.answers += 1
    outcome.times_s.append(took_s)
    outcome.body_bytes = len(body)
    if keep:
        outcome.bodies.append(body)
