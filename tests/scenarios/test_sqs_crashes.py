"""kill -9 of the server under load on queues: no acknowledged message is lost, no deleted one returns, order and visibility hold.

`CORRAL_MESSAGES=100000 CORRAL_KILLS=20` makes it a long run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from eventually import eventually
from harness import Corral
from raw_sqs import RawSqs, Unanswered

MESSAGES = int(os.environ.get("CORRAL_MESSAGES", "3000"))
KILLS = int(os.environ.get("CORRAL_KILLS", "3"))
VISIBILITY_S = 4
GROUPS = 8
ACCOUNT = "123456789012"
STANDARD, FIFO = f"http://any/{ACCOUNT}/load", f"http://any/{ACCOUNT}/load.fifo"


@dataclass
class Seen:
    """The history of one message, as its clients know it. Times are those of the client's clock."""

    sent: bool = False  # acknowledged
    received: list[tuple[float, float]] = field(default_factory=list)  # (time of the request, time of the response)
    delete_asked: float | None = None
    deleted: float | None = None  # acknowledged at


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[str, Seen] = {}
        self.wrong: list[str] = []
        self.deleted = 0

    def of(self, body: str) -> Seen:
        return self.messages.setdefault(body, Seen())

    def note_sent(self, bodies: list[str]) -> None:
        with self.lock:
            for body in bodies:
                self.of(body).sent = True

    def note_received(self, bodies: list[str], asked: float, answered: float, *, fifo: bool) -> None:
        with self.lock:
            for body in bodies:
                seen = self.of(body)
                if seen.deleted is not None and asked > seen.deleted:
                    self.wrong.append(f"{body} was deleted, and came back")
                if seen.received and seen.delete_asked is None:
                    before_asked, before_answered = seen.received[-1]
                    if asked > before_answered and answered < before_asked + VISIBILITY_S:
                        self.wrong.append(f"{body} was received again within its visibility timeout")
                seen.received.append((asked, answered))
            if fifo:
                self._check_order(bodies)

    def _check_order(self, bodies: list[str]) -> None:
        """Each earlier message of the group has been deleted or is in the same response."""
        with_it: set[str] = set()
        for body in bodies:
            _, group, number = body.split(":")
            before = f"f:{group}:{int(number) - 1}"
            if int(number) and before not in with_it and self.of(before).delete_asked is None:
                self.wrong.append(f"{body} was received before {before} was deleted")
            with_it.add(body)

    def note_delete(self, bodies: list[str], at: float, *, acknowledged: bool) -> None:
        with self.lock:
            for body in bodies:
                seen = self.of(body)
                if not acknowledged:
                    seen.delete_asked = seen.delete_asked or at
                elif seen.deleted is None:
                    seen.deleted = at
                    self.deleted += 1


class Load:
    def __init__(self, corral: Corral) -> None:
        self.corral, self.ledger = corral, Ledger()
        self.up, self.over = threading.Event(), threading.Event()
        self.up.set()

    def until_answered(self, ask: Callable[[], Any]) -> Any:
        while True:
            self.up.wait(60)
            try:
                return ask()
            except Unanswered:
                if self.over.is_set():
                    return None

    def produce_standard(self) -> None:
        """Send batches. One whose response is lost is not retried: its messages may exist or not."""
        sqs, bodies = RawSqs(self.corral), (f"s:{number}" for number in range(MESSAGES // 2))
        while batch := list(islice(bodies, 10)):
            entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(batch)]
            self.up.wait(60)
            try:
                answer = sqs("SendMessageBatch", QueueUrl=STANDARD, Entries=entries)
            except Unanswered:
                continue
            assert not answer.get("Failed")
            self.ledger.note_sent(batch)

    def produce_fifo(self) -> None:
        """Send batches. One whose response is lost is retried with the same deduplication ids."""
        sqs = RawSqs(self.corral)
        bodies = (f"f:{number % GROUPS}:{number // GROUPS}" for number in range(MESSAGES // 2))
        while batch := list(islice(bodies, 10)):
            entries = [
                {"Id": str(at), "MessageBody": body, "MessageGroupId": body.split(":")[1], "MessageDeduplicationId": body}
                for at, body in enumerate(batch)
            ]
            answer = self.until_answered(lambda entries=entries: sqs("SendMessageBatch", QueueUrl=FIFO, Entries=entries))
            assert not answer.get("Failed")
            self.ledger.note_sent(batch)

    def consume(self, url: str) -> None:
        sqs, fifo, rng = RawSqs(self.corral), url == FIFO, random.Random(url)

        def receive() -> tuple[float, list[dict[str, str]]]:
            asked = time.monotonic()
            answer = sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            return asked, answer.get("Messages", [])

        while not self.over.is_set():
            asked, received = self.until_answered(receive) or (0.0, [])
            if not received:
                continue
            handles = {message["Body"]: message["ReceiptHandle"] for message in received}
            self.ledger.note_received(list(handles), asked, time.monotonic(), fifo=fifo)
            if rng.random() < 0.02:
                continue  # a worker that fails: its messages become visible again
            self.ledger.note_delete(list(handles), time.monotonic(), acknowledged=False)
            entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles.values())]
            try:
                done = sqs("DeleteMessageBatch", QueueUrl=url, Entries=entries)
            except Unanswered:
                continue
            gone = [body for at, body in enumerate(handles) if any(entry["Id"] == str(at) for entry in done["Successful"])]
            self.ledger.note_delete(gone, time.monotonic(), acknowledged=True)


def test_kills_under_load(own_corral) -> None:
    corral: Corral = own_corral().start()
    sqs = corral.client("sqs")
    sqs.create_queue(QueueName="load", Attributes={"VisibilityTimeout": str(VISIBILITY_S)})
    sqs.create_queue(QueueName="load.fifo", Attributes={"FifoQueue": "true", "VisibilityTimeout": str(VISIBILITY_S)})
    load = Load(corral)
    producers = [threading.Thread(target=target, daemon=True) for target in (load.produce_standard, load.produce_fifo)]
    consumers = [threading.Thread(target=load.consume, args=(url,), daemon=True) for url in (STANDARD, FIFO) for _ in range(2)]
    for thread in producers + consumers:
        thread.start()
    for kill in range(KILLS):
        wanted = (kill + 1) * MESSAGES // (KILLS + 4)
        eventually(lambda wanted=wanted: load.ledger.deleted >= wanted, f"{wanted} messages are deleted", 60)
        load.up.clear()
        corral.kill("corral.server")
        corral.start()
        load.up.set()
    for thread in producers:
        thread.join(120)
        assert not thread.is_alive()

    def left() -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"] for url in (STANDARD, FIFO)]
        return sum(int(each[name]) for each in found for name in names)

    eventually(lambda: not left(), "every message is received", 120)
    load.over.set()
    for thread in consumers:
        thread.join(60)
    ledger = load.ledger
    assert not ledger.wrong, ledger.wrong[:10]
    lost = [body for body, seen in ledger.messages.items() if seen.sent and not seen.received]
    assert not lost, f"{len(lost)} acknowledged messages were lost: {lost[:10]}"
    fifo = [seen for body, seen in ledger.messages.items() if body.startswith("f:")]
    assert len(fifo) == MESSAGES // 2 and all(seen.sent and seen.received for seen in fifo)
    assert sum(seen.sent for seen in ledger.messages.values()) > MESSAGES * 0.8
