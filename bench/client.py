"""A client that costs little: requests are signed by hand, sent as bytes, and answers are only counted."""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import socket
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlencode

from rows import percentile

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "AKIABENCHBENCHBENCH1", "bench-secret-bench-secret-bench-secret-1"
ANSWER_MAX_S = 70.0
JSON = {  # service: the prefix of its targets, the version of its JSON, the name it signs with
    "ecr": ("AmazonEC2ContainerRegistry_V20150921", "1.1", "ecr"),
    "ecs": ("AmazonEC2ContainerServiceV20141113", "1.1", "ecs"),
    "logs": ("Logs_20140328", "1.1", "logs"),
    "sqs": ("AmazonSQS", "1.0", "sqs"),
    "cloudwatch": ("GraniteServiceVersion20100801", "1.0", "monitoring"),
    "corral": ("Corral", "1.1", "corral"),
    "ssm": ("AmazonSSM", "1.1", "ssm"),
    "secretsmanager": ("secretsmanager", "1.1", "secretsmanager"),
    "application-autoscaling": ("AnyScaleFrontendService", "1.1", "application-autoscaling"),
}
QUERY = {
    "sts": "2011-06-15",
    "autoscaling": "2011-01-01",
    "ec2": "2016-11-15",
    "cloudformation": "2010-05-15",
    "iam": "2010-05-08",
    "sns": "2010-03-31",
}  # service: the version of its API
REST = {"batch": "/v1/"}  # service: the path before the name of the operation in lower case
RECEIVE_BYTES = 256 * 1024
UNSIGNED = "UNSIGNED-PAYLOAD"


class Unanswered(Exception):
    """The server hung up, kept silent, or refused."""


def signed(port: int, service: str, operation: str, params: Mapping[str, Any], wait_s: float = 0, seen: int | None = None) -> bytes:
    """A request as it goes over the wire; it may be sent again and again for fifteen minutes.

    For a service with the query protocol, `params` has flat names such as `Tags.member.1.Key`.
    """
    unsigned = {"X-Corral-Wait": str(wait_s)} if wait_s else {}
    if seen is not None:
        unsigned["X-Corral-Seen"] = str(seen)
    if service in JSON:
        target, version, name = JSON[service]
        headers = {"content-type": f"application/x-amz-json-{version}", "x-amz-target": f"{target}.{operation}"}
        body = json.dumps(params).encode()
        return head(port, name, "POST", "/", headers, body, unsigned=unsigned) + body
    if service in REST:
        body = json.dumps(params).encode()
        path = REST[service] + operation.lower()
        return head(port, service, "POST", path, {"content-type": "application/json"}, body, unsigned=unsigned) + body
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    body = urlencode({"Action": operation, "Version": QUERY[service], **params}).encode()
    return head(port, service, "POST", "/", headers, body, unsigned=unsigned) + body


def head(
    port: int, name: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, sha256: str = "",
    length: int = -1, unsigned: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """Everything before the body. A caller that passes `sha256` and `length` need not pass the body. The query is not quoted."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    payload = sha256 or hashlib.sha256(body).hexdigest()
    signs = {**headers, "host": f"127.0.0.1:{port}", "x-amz-content-sha256": payload, "x-amz-date": date}
    names = ";".join(sorted(signs))
    lines = "".join(f"{key}:{signs[key]}\n" for key in sorted(signs))
    resource, _, query = path.partition("?")
    pairs = "&".join(sorted(pair if "=" in pair else f"{pair}=" for pair in query.split("&") if pair))
    canonical = f"{method}\n{resource}\n{pairs}\n{lines}\n{names}\n{payload}"
    scope = f"{date[:8]}/{REGION}/{name}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(_key(date[:8], name), text.encode(), hashlib.sha256).hexdigest()
    by = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
    sent = {**signs, "authorization": by, "content-length": str(len(body) if length < 0 else length), **(unsigned or {})}
    rest = "\r\n".join(f"{key}: {value}" for key, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{rest}\r\n\r\n".encode()


@cache
def _key(day: str, name: str) -> bytes:
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (day, REGION, name, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class Wire:
    """One connection, kept as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect()
        self._pieces: list[bytes] = []
        self._missing = -1  # bytes of the answer that are still to come; -1 before its length is known
        self._head = 0
        self.status = 0

    def _connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_MAX_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closes = False  # the server hangs up after this answer, as moto's does

    def send(self, request: bytes) -> None:
        if self.closes:
            self.socket.close()
            self._connect()
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
            head = data[: self._head].lower()
            self.closes = b"\r\nconnection: close\r\n" in head
            at = head.find(b"content-length: ")
            self._missing = self._head + (int(data[at + 16 : data.find(b"\r", at)]) if at >= 0 else 0)
            self._pieces = []
        self._pieces.append(data)
        self._missing -= len(data)
        return None if self._missing else b"".join(self._pieces)[self._head :]

    def ask(self, request: bytes) -> bytes:
        """Send, and wait for the body of the answer; a refusal is raised."""
        self.send(request)
        while (body := self.receive()) is None:
            pass
        if not 200 <= self.status < 300:
            raise Unanswered(f"{self.status}: {body[:300]!r}")
        return body

    def close(self) -> None:
        self.socket.close()


class Caller:
    """Signed calls one after the other, for what is not timed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire = Wire(port)

    def __call__(self, service: str, operation: str, wait_s: float = 0, seen: int | None = None, **params: Any) -> Any:
        body = self._wire.ask(signed(self._port, service, operation, params, wait_s, seen))
        return json.loads(body) if body and (service in JSON or service in REST) else body

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


Conversation = Generator[bytes, bytes, None]  # requests out, the bodies of their answers in


def replay(port: int, requests: Iterable[bytes], connections: int, for_s: float = 1e9, *, keep: bool = False) -> Outcome:
    """Send requests, one in flight on each connection, until there are none left or the time is up."""
    todo = iter(requests)

    def next_one() -> Conversation:
        for request in todo:  # noqa: UP028 - `yield from` would send the answers on to a plain iterator
            yield request

    return converse(port, [next_one() for _ in range(connections)], for_s, keep=keep)


def converse(port: int, conversations: Sequence[Conversation], for_s: float = 1e9, *, keep: bool = False) -> Outcome:
    """Each conversation on a connection of its own, until it ends or the time is up."""
    outcome, poll = Outcome(), select.epoll()
    talks = [(Wire(port), talk) for talk in conversations]
    try:
        _exchange(talks, poll, for_s, outcome, keep)
    finally:
        poll.close()
        for wire, _ in talks:
            wire.close()
    return outcome


def _exchange(talks: Sequence[tuple[Wire, Conversation]], poll: select.epoll, for_s: float, outcome: Outcome, keep: bool) -> None:
    cpu, began = time.process_time(), time.perf_counter()
    until, talking = began + for_s, {}
    for wire, talk in talks:
        if (request := next(talk, None)) is not None:
            poll.register(wire.socket, select.EPOLLIN)
            talking[wire.socket.fileno()] = (wire, talk, time.perf_counter())
            wire.send(request)
    while talking:
        ready = poll.poll(ANSWER_MAX_S)
        if not ready:
            raise Unanswered(f"no answer in {ANSWER_MAX_S} s")
        for fd, _ in ready:
            wire, talk, sent_at = talking[fd]
            body = wire.receive()
            if body is None:
                continue
            now = time.perf_counter()
            _count(outcome, wire, body, now - sent_at, keep)
            del talking[fd]
            if now < until and (request := _next(talk, body)) is not None:
                is_new = wire.closes
                wire.send(request)
                if is_new:
                    poll.register(wire.socket, select.EPOLLIN)
                talking[wire.socket.fileno()] = (wire, talk, now)
            else:
                poll.unregister(fd)
    outcome.seconds, outcome.client_cpu_s = time.perf_counter() - began, time.process_time() - cpu


def _next(talk: Conversation, body: bytes) -> bytes | None:
    try:
        return talk.send(body)
    except StopIteration:
        return None


def _count(outcome: Outcome, wire: Wire, body: bytes, took_s: float, keep: bool) -> None:
    if not 200 <= wire.status < 300:
        raise Unanswered(f"{wire.status}: {body[:300]!r}")
    outcome.answers += 1
    outcome.times_s.append(took_s)
    outcome.body_bytes = len(body)
    if keep:
        outcome.bodies.append(body)
