"""SQS against a model: both get the same random calls on a virtual clock and must return the same results.

Receives, timeouts, dead letters, retention, purges, refused commands, full disks and restarts occur in any order. Long polls wait
at the same time: each must receive what the model predicts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corral.core.errors import ApiError
from corral.store.queue_counters import QueueCounters
from examples import examples
from memory_files import MEMORY
from queues.queue_world import ACCOUNT, REGION, World

TIMEOUT_S, RETENTION_S, RECEIVES_MAX = 20, 300, 2
GROUPS = st.sampled_from("abc")


@dataclass
class Message:
    body: str
    group: str
    sent_s: float
    visible_s: float
    receives: int = 0
    buried: bool = False

    def in_flight(self, now_s: float) -> bool:
        return self.receives > 0 and self.visible_s > now_s


@dataclass
class Model:
    """A queue and its dead letters, the oldest first."""

    fifo: bool
    messages: list[Message] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def expire(self, now_s: float) -> None:
        self.messages = [message for message in self.messages if now_s - message.sent_s <= RETENTION_S]

    def available(self, now_s: float) -> list[Message]:
        """Messages in any order that keeps the order of each group."""
        if not self.fifo:
            return [message for message in self.messages if message.visible_s <= now_s]
        locked, found = set(), []
        for message in self.messages:
            if message.group not in locked:
                if message.visible_s > now_s:
                    locked.add(message.group)  # it is delayed or in flight, so the messages after it must wait
                else:
                    found.append(message)
        return found

    def bury(self, message: Message) -> None:
        self.messages.remove(message)
        self.dead.append(message.body)

    def counts(self, now_s: float) -> tuple[int, int, int]:
        in_flight = sum(message.in_flight(now_s) for message in self.messages)
        delayed = sum(message.receives == 0 and message.visible_s > now_s for message in self.messages)
        return len(self.messages) - in_flight - delayed, in_flight, delayed


class Queueing(RuleBasedStateMachine):
    @initialize(fifo=st.booleans())
    def begin(self, fifo: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.world, self.model = World(self.folder / "state.db"), Model(fifo)
        suffix = ".fifo" if fifo else ""
        more = {"ContentBasedDeduplication": "true"} if fifo else {}
        self.grave = self.world.queue(f"grave{suffix}", **more, MessageRetentionPeriod=1_209_600)
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:grave{suffix}", "maxReceiveCount": RECEIVES_MAX}
        self.url = self.world.queue(
            f"q{suffix}", **more, VisibilityTimeout=TIMEOUT_S, MessageRetentionPeriod=RETENTION_S, RedrivePolicy=json.dumps(policy)
        )
        self.number = 0
        self.handles: list[tuple[str, Message, int]] = []  # handle, message, which receive of it
        self.purged_s = 0.0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @property
    def now_s(self) -> float:
        return round(self.world.clock.now_s(), 3)

    def made(self, group: str, delay_s: int) -> tuple[dict[str, Any], Message]:
        self.number += 1
        body = f"{self.number}"
        params: dict[str, Any] = {"MessageBody": body}
        if self.model.fifo:
            return {**params, "MessageGroupId": group}, Message(body, group, self.now_s, self.now_s)
        return {**params, "DelaySeconds": delay_s}, Message(body, "", self.now_s, self.now_s + delay_s)

    @rule(group=GROUPS, delay_s=st.sampled_from((0, 0, 0, 7)))
    def send(self, group: str, delay_s: int) -> None:
        params, message = self.made(group, delay_s)
        self.world.call("SendMessage", QueueUrl=self.url, **params)
        self.model.messages.append(message)

    @rule(of=st.lists(st.tuples(GROUPS, st.sampled_from((0, 0, 7))), min_size=1, max_size=10))
    def send_batch(self, of: list[tuple[str, int]]) -> None:
        made = [self.made(group, delay_s) for group, delay_s in of]
        entries = [{"Id": str(at), **params} for at, (params, _) in enumerate(made)]
        answer = self.world.call("SendMessageBatch", QueueUrl=self.url, Entries=entries)
        assert (len(answer["Successful"]), answer.get("Failed")) == (len(made), None)
        self.model.messages += [message for _, message in made]

    @rule(count=st.integers(1, 10), timeout_s=st.sampled_from((None, None, 0, 3, 50)))
    def receive(self, count: int, timeout_s: int | None) -> None:
        self.model.expire(self.now_s)
        given = {} if timeout_s is None else {"VisibilityTimeout": timeout_s}
        answer = self.world.call("ReceiveMessage", QueueUrl=self.url, MaxNumberOfMessages=count, **given)
        self.taken(answer, count, TIMEOUT_S if timeout_s is None else timeout_s)

    def taken(self, answer: dict[str, Any], count: int, timeout_s: int) -> None:
        available = self.model.available(self.now_s)
        live = [message for message in available if message.receives < RECEIVES_MAX]
        got = {message["Body"]: message["ReceiptHandle"] for message in answer.get("Messages", [])}
        received = [message for message in available if message.body in got]
        assert len(received) == len(got) <= count, "it gave what was not there"
        assert all(message.receives < RECEIVES_MAX for message in received), "it gave a dead letter"
        assert got or not live, "it gave nothing, though something was there"
        for group in {message.group for message in received} if self.model.fifo else ():
            order = [body for body in got if next(m for m in received if m.body == body).group == group]
            first = [message.body for message in live if message.group == group][: len(order)]
            assert order == first, "a group's order was not kept"
        if len(got) < count:  # expired messages and dead letters have been removed
            waiting = {message.body for message in live} - set(got)
            assert not waiting or len(live) < len(available), "it could have given more"
        for message in received:
            message.receives += 1
            message.visible_s = self.now_s + timeout_s
            self.handles.append((got[message.body], message, message.receives))
        buried = set(self.dead_bodies()) - set(self.model.dead)
        for message in [message for message in self.model.messages if message.body in buried]:
            assert message.receives >= RECEIVES_MAX and message in available, "it buried a living one"
            self.model.bury(message)

    def dead_bodies(self) -> list[str]:
        rows = self.world.store.execute(
            "SELECT body FROM place JOIN message ON message.id = place.id JOIN queue ON queue.pile = place.pile "
            "WHERE queue.name LIKE 'grave%' ORDER BY message.id"
        )
        return [body for (body,) in rows]

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        handle, message, receives = data.draw(st.sampled_from(self.handles))
        there = message in self.model.messages
        fresh = there and message.in_flight(self.now_s) and message.receives == receives
        try:
            self.world.call("DeleteMessage", QueueUrl=self.url, ReceiptHandle=handle)
        except ApiError as error:
            assert self.model.fifo and there and not fresh and "expired" in error.message
            return
        assert not (self.model.fifo and there and not fresh)
        if there:
            self.model.messages.remove(message)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), timeout_s=st.sampled_from((0, 0, 10, 60)))
    def change_visibility(self, data: Any, timeout_s: int) -> None:
        handle, message, receives = data.draw(st.sampled_from(self.handles))
        fresh = message in self.model.messages
        if self.model.fifo:  # a standard queue accepts every handle of a message that exists
            fresh = fresh and message.in_flight(self.now_s) and message.receives == receives
        params = {"QueueUrl": self.url, "ReceiptHandle": handle, "VisibilityTimeout": timeout_s}
        try:
            self.world.call("ChangeMessageVisibility", **params)
        except ApiError:
            assert not fresh
            return
        assert fresh
        message.visible_s = self.now_s + timeout_s

    @rule(seconds=st.sampled_from((0.5, 3, 7, 20, 100, 301)))
    def time_goes_by(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.world.advance(1.1)  # expired messages are deleted within a second
        self.model.expire(self.now_s)

    @rule(count=st.integers(1, 3), group=GROUPS, later_s=st.sampled_from((0, 0, 4)))
    def poll(self, count: int, group: str, later_s: int) -> None:
        """A long poll of an empty queue returns the next message."""
        self.world.advance(60)  # all messages in flight or delayed are visible again
        self.world.advance(1.1)
        self.model.expire(self.now_s)
        while self.model.available(self.now_s):
            self.receive(10, None)
        asked = self.world.ask("ReceiveMessage", QueueUrl=self.url, WaitTimeSeconds=15, MaxNumberOfMessages=count)
        assert asked.answer is None
        locked = {message.group for message in self.model.messages}
        self.send(group, 0 if self.model.fifo else later_s)
        if self.model.fifo and group in locked:
            assert asked.answer is None
            asked.gone = True
            return
        if not self.model.fifo and later_s:
            assert asked.answer is None
            self.world.advance(later_s)
        assert asked.answer is not None
        self.taken(asked.answer, count, TIMEOUT_S)

    @rule()
    def purge(self) -> None:
        try:
            self.world.call("PurgeQueue", QueueUrl=self.url)
        except ApiError as error:
            assert error.code == "PurgeQueueInProgress" and self.now_s - self.purged_s < 60
            return
        assert self.now_s - self.purged_s >= 60
        self.purged_s, self.model.messages = self.now_s, []

    @rule(data=st.data())
    def nothing_of_a_failed_commit_stays(self, data: Any) -> None:
        self.world.store.full = True
        do = data.draw(st.sampled_from(("SendMessage", "ReceiveMessage", "PurgeQueue")))
        params: dict[str, Any] = self.made("a", 0)[0] if do == "SendMessage" else {}
        try:
            self.world.call(do, QueueUrl=self.url, **params)
        except ApiError as error:
            assert error.code in ("ServiceUnavailable", "PurgeQueueInProgress")
        else:
            raise AssertionError("a full disk took it")
        finally:
            self.world.store.full = False

    @rule()
    def reopen(self) -> None:
        self.world.reopen()

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "world"):
            return
        self.model.expire(self.now_s)
        queues = self.world.store.queues
        for pile in list(queues.counters):
            anew = QueueCounters(self.world.store)
            anew.rebuild()
            now_ms = round(self.now_s * 1000)
            assert queues.counters.of(pile, now_ms).counts == anew.of(pile, now_ms).counts
        assert sorted(self.dead_bodies()) == sorted(self.model.dead)
        kept = self.world.counts(self.url)
        assert kept == self.model.counts(self.now_s)


TestQueueing = Queueing.TestCase
TestQueueing.settings = settings(max_examples=examples(25, usual=15), stateful_step_count=40, deadline=None)
