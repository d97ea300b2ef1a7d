"""A real server and real boto3 against a model, with random calls. `tests/queues` has the effects of time."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from harness import Corral
from sqs_calls import counts

NUMBERS = count()
GROUPS = st.sampled_from("ab")


def machine(corral: Corral) -> type[RuleBasedStateMachine]:
    sqs = corral.client("sqs")

    class Queueing(RuleBasedStateMachine):
        @initialize(fifo=st.booleans())
        def begin(self, fifo: bool) -> None:
            self.fifo = fifo
            name, attributes = f"q{next(NUMBERS)}", {"VisibilityTimeout": "43200"}
            if fifo:
                name, attributes = f"{name}.fifo", attributes | {"FifoQueue": "true"}
            self.queue = {"QueueUrl": sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]}
            self.waiting: list[tuple[str, str]] = []  # (body, group), in the order of the queue
            self.in_flight: dict[str, tuple[str, str]] = {}  # handle → (body, group)
            self.sent: dict[str, str] = {}  # body → group
            self.spent: list[str] = []  # handles of deleted messages

        def params(self, group: str) -> dict[str, Any]:
            body = f"m{next(NUMBERS)}"
            self.sent[body] = group
            self.waiting.append((body, group))
            return {"MessageBody": body, **({"MessageGroupId": group, "MessageDeduplicationId": body} if self.fifo else {})}

        @rule(group=GROUPS)
        def send(self, group: str) -> None:
            sqs.send_message(**self.queue, **self.params(group))

        @rule(groups=st.lists(GROUPS, min_size=1, max_size=10))
        def send_batch(self, groups: list[str]) -> None:
            entries = [{"Id": str(at), **self.params(group)} for at, group in enumerate(groups)]
            assert len(sqs.send_message_batch(**self.queue, Entries=entries)["Successful"]) == len(entries)

        @precondition(lambda self: self.fifo and self.sent)
        @rule(data=st.data())
        def send_again(self, data: st.DataObject) -> None:
            body = data.draw(st.sampled_from(sorted(self.sent)))
            sqs.send_message(
                **self.queue, MessageBody=body, MessageDeduplicationId=body, MessageGroupId=self.sent[body]
            )  # a duplicate is dropped

        def is_locked(self, body: str, group: str) -> bool:
            """Whether an earlier message of the group is in flight."""
            return any(other == group and _number(sent) < _number(body) for sent, other in self.in_flight.values())

        @rule(most=st.integers(1, 10))
        def receive(self, most: int) -> None:
            messages = sqs.receive_message(**self.queue, MaxNumberOfMessages=most).get("Messages", [])
            free = [each for each in self.waiting if not (self.fifo and self.is_locked(*each))]
            assert len(messages) == min(most, len(free))
            for message in messages:
                given = (message["Body"], self.sent[message["Body"]])
                if self.fifo:
                    assert given == next(each for each in self.waiting if each[1] == given[1]), "the order of its group"
                assert given in free
                self.waiting.remove(given)
                self.in_flight[message["ReceiptHandle"]] = given

        @precondition(lambda self: self.in_flight)
        @rule(data=st.data(), size=st.integers(1, 10))
        def delete(self, data: st.DataObject, size: int) -> None:
            handles = data.draw(st.lists(st.sampled_from(sorted(self.in_flight)), min_size=1, max_size=size, unique=True))
            if size == 1:
                sqs.delete_message(**self.queue, ReceiptHandle=handles[0])
            else:
                entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
                assert sqs.delete_message_batch(**self.queue, Entries=entries).get("Failed") is None
            for handle in handles:
                del self.in_flight[handle]
            self.spent += handles

        @precondition(lambda self: self.spent)
        @rule(data=st.data())
        def delete_again(self, data: st.DataObject) -> None:
            sqs.delete_message(**self.queue, ReceiptHandle=data.draw(st.sampled_from(self.spent)))

        @precondition(lambda self: self.in_flight)
        @rule(data=st.data())
        def give_back(self, data: st.DataObject) -> None:
            handle = data.draw(st.sampled_from(sorted(self.in_flight)))
            sqs.change_message_visibility(**self.queue, ReceiptHandle=handle, VisibilityTimeout=0)
            body, group = self.in_flight.pop(handle)
            # In a FIFO queue the message keeps its position.
            at = next((at for at, (other, _) in enumerate(self.waiting) if self.fifo and _number(other) > _number(body)), None)
            self.waiting.insert(len(self.waiting) if at is None else at, (body, group))

        @invariant()
        def both_count_the_same(self) -> None:
            if hasattr(self, "queue"):
                assert counts(sqs, self.queue["QueueUrl"]) == (len(self.waiting), len(self.in_flight), 0)

        def teardown(self) -> None:
            if hasattr(self, "queue"):
                sqs.delete_queue(**self.queue)

    return Queueing


def _number(body: str) -> int:
    return int(body[1:])


@pytest.mark.timeout(120)
def test_the_server_behaves_like_the_model(corral: Corral) -> None:
    checks = settings(max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine(corral), settings=checks)
