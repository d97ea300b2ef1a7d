"""SQS: messages sent, received and deleted, alone and in batches of ten, at three depths; compared with moto and Redis lists."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from client import Caller, replay, signed
from local import corral
from peers import moto, redis
from rows import Bench, Row

CONNECTIONS = 8
BATCH = 10
BODY = "x" * 200
GOAL_PER_S = 5_000.0  # in batches, at any depth
STEPS = ("send", "receive", "delete")


@dataclass(frozen=True, slots=True)
class Way:
    """How fast messages went, step by step."""

    count: int
    seconds: tuple[float, float, float]

    @property
    def per_s(self) -> float:
        return self.count / sum(self.seconds)

    def steps(self) -> str:
        return ", ".join(f"{name} {self.count / seconds:,.0f}" for name, seconds in zip(STEPS, self.seconds))


def rows(bench: Bench) -> list[Row]:
    depths = (10, 1_000) if bench.quick else (10, 10_000, 1_000_000)
    count = bench.size(10_000, 1_000)
    with corral(bench, "queues", "none") as local:
        ours = {(depth, size): way for depth, size, way in _ways(local.port, depths, count // 5, count)}
    with moto() as port:
        theirs = {(depth, size): way for depth, size, way in _ways(port, (10, bench.size(1_000, 100)), 100, 200)}
    with redis(bench) as port:
        floors = {size: _redis_way(port, size, count if size > 1 else count // 5) for size in (1, BATCH)}
    found = []
    for (depth, size), way in ours.items():
        peer = theirs[10, size]  # its best: it gets slower with every message
        deep = theirs[max(key[0] for key in theirs), size]
        note = f"{way.steps()}; moto at {max(key[0] for key in theirs):,} messages {deep.per_s:,.0f}/s"
        manner = "one by one" if size == 1 else f"in batches of {size}"
        what = f"SQS messages/s sent, received and deleted, {manner}, {depth:,} deep"
        found.append(Row(what, way.per_s, "/s", peer.per_s, "moto, 10 deep", GOAL_PER_S if size > 1 else None, note))
        if depth == depths[1]:
            floor = floors[size]
            found.append(Row(what, way.per_s, "/s", floor.per_s, "Redis lists, appendfsync always", note=f"Redis: {floor.steps()}"))
    return found


def _ways(port: int, depths: tuple[int, ...], alone: int, batched: int) -> Iterator[tuple[int, int, Way]]:
    """(depth, messages in a request, how it went), with that many messages in the queue throughout."""
    call, filled = Caller(port), 0
    url = call("sqs", "CreateQueue", QueueName="bench")["QueueUrl"]
    for depth in depths:
        replay(port, iter([_send(port, url, BATCH)] * ((depth - filled) // BATCH)), CONNECTIONS)
        filled = depth
        yield depth, 1, _way(port, url, 1, alone)
        yield depth, BATCH, _way(port, url, BATCH, batched)
    call.close()


def _way(port: int, url: str, size: int, count: int) -> Way:
    """Send, then receive, then delete as many messages."""
    requests = count // size
    sent = replay(port, iter([_send(port, url, size)] * requests), CONNECTIONS)
    asked = {"QueueUrl": url, "MaxNumberOfMessages": size, "VisibilityTimeout": 3600}
    received = replay(port, iter([signed(port, "sqs", "ReceiveMessage", asked)] * requests), CONNECTIONS, keep=True)
    handles = [[message["ReceiptHandle"] for message in json.loads(body)["Messages"]] for body in received.bodies]
    if sum(map(len, handles)) != count:
        raise RuntimeError(f"{sum(map(len, handles))} of {count} messages came")
    deleted = replay(port, iter([_delete(port, url, some) for some in handles]), CONNECTIONS)
    return Way(count, (sent.seconds, received.seconds, deleted.seconds))


def _send(port: int, url: str, size: int) -> bytes:
    if size == 1:
        return signed(port, "sqs", "SendMessage", {"QueueUrl": url, "MessageBody": BODY})
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(size)]
    return signed(port, "sqs", "SendMessageBatch", {"QueueUrl": url, "Entries": entries})


def _delete(port: int, url: str, handles: list[str]) -> bytes:
    if len(handles) == 1:
        return signed(port, "sqs", "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handles[0]})
    entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
    return signed(port, "sqs", "DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})


def _redis_way(port: int, size: int, count: int) -> Way:
    """The usual safe way with lists: push, move to a list of what is being worked on, remove from there."""
    steps = (
        (_command("LPUSH", "bench", BODY), 1),
        (_command("LMOVE", "bench", "working", "RIGHT", "LEFT"), 2),
        (_command("LREM", "working", "1", BODY), 1),
    )
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    seconds = []
    for command, lines in steps:
        began = perf_counter()
        for _ in range(count // size // CONNECTIONS):
            for connection in sockets:
                connection.sendall(command * size)
            for connection in sockets:
                left = lines * size
                while left > 0:
                    left -= connection.recv(65536).count(b"\r\n")
        seconds.append(perf_counter() - began)
    for connection in sockets:
        connection.close()
    return Way(count // size // CONNECTIONS * size * CONNECTIONS, (seconds[0], seconds[1], seconds[2]))


def _command(*words: str) -> bytes:
    return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()
