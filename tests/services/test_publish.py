"""Publishing to many subscriptions: no transaction delivers more than others can wait for."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ServiceUnavailable
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import STATE
from corral.services.sns.publish import DELIVERED_MAX_BYTES, DELIVERIES_MAX, SIGNATURES_MAX
from corral.store import Store

ACCOUNT, REGION = "123456789012", "us-east-1"
CALLER = Caller(ACCOUNT, REGION, root_user(ACCOUNT))
POLICY = '{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}'


class World:
    """A topic with subscribed queues."""

    def __init__(self, queues: int, **topic: str) -> None:
        self.clock = VirtualClock()
        self.core = Core(Store(None), settings=Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE)
        suffix = ".fifo" if topic else ""
        self.topic = self.call("sns", "CreateTopic", Name=f"t{suffix}", Attributes=topic)["TopicArn"]
        self.urls = []
        for number in range(queues):
            name = f"q{number}{suffix}"
            attributes = {"Policy": POLICY, **({"FifoQueue": "true"} if topic else {})}
            self.urls.append(self.call("sqs", "CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"])
            arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
            self.call("sns", "Subscribe", TopicArn=self.topic, Protocol="sqs", Endpoint=arn)

    def ask(self, run: Any) -> Any:
        outcome = self.core.transact([Command(run, lambda _: None)])
        assert not outcome.faults
        [(_, answer)] = outcome.answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, service: str, operation: str, **params: object) -> Any:
        def run(tx: Tx[Store]) -> Any:
            return SERVICES[service].operations[operation](tx, params, CALLER)

        return self.ask(run)

    def counts(self) -> list[int]:
        """How many messages each queue has."""
        attributes = [self.call("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]) for url in self.urls]
        return [int(each["Attributes"]["ApproximateNumberOfMessages"]) for each in attributes]

    def publish(self, operation: str, **params: object) -> tuple[dict[str, Any], list[int]]:
        """Publish. Return the response, and the number of messages that each transaction has delivered."""
        steps = SERVICES["sns"].steps[operation]({"TopicArn": self.topic, **params}, CALLER)
        before, delivered, command = sum(self.counts()), list[int](), next(steps)
        while True:
            answer = self.ask(command)
            delivered.append(sum(self.counts()) - before)
            before += delivered[-1]
            try:
                command = steps.send(answer)
            except StopIteration as end:
                return end.value, delivered


def test_a_transaction_signs_a_few_messages_only() -> None:
    world = World(2)
    entries = [{"Id": str(number), "Message": str(number)} for number in range(2 * SIGNATURES_MAX)]
    response, delivered = world.publish("PublishBatch", PublishBatchRequestEntries=entries)
    assert len(response["Successful"]) == len(entries) and sum(delivered) == 2 * len(entries)
    assert len(delivered) > 1 and max(delivered) <= 2 * SIGNATURES_MAX and world.counts() == [len(entries)] * 2
    for url in world.urls:
        messages = world.call("sqs", "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        signatures = {json.loads(each["Body"])["Message"]: json.loads(each["Body"])["Signature"] for each in messages}
        assert len(set(signatures.values())) == len(entries) and all(signatures.values())


def test_a_message_for_many_queues_is_delivered_in_several_transactions() -> None:
    world = World(DELIVERIES_MAX + 10)
    response, delivered = world.publish("Publish", Message="x")
    assert delivered == [DELIVERIES_MAX, 10] and world.counts() == [1] * len(world.urls)
    assert response["MessageId"]
    entries = [{"Id": str(number), "Message": "x"} for number in range(3)]
    response, delivered = world.publish("PublishBatch", PublishBatchRequestEntries=entries)
    assert max(delivered) == DELIVERIES_MAX and world.counts() == [4] * len(world.urls)
    assert [each["Id"] for each in response["Successful"]] == ["0", "1", "2"]


def test_a_large_message_is_delivered_to_fewer_queues_at_a_time() -> None:
    size = 200_000
    world = World(2 * (DELIVERED_MAX_BYTES // size + 1))
    _, delivered = world.publish("Publish", Message="x" * size)
    assert delivered == [len(world.urls) // 2] * 2


def test_the_messages_of_a_fifo_topic_are_delivered_at_once_and_in_order() -> None:
    world = World(30, FifoTopic="true", ContentBasedDeduplication="true")
    entries = [{"Id": str(number), "Message": str(number), "MessageGroupId": "g"} for number in range(3)]
    _, delivered = world.publish("PublishBatch", PublishBatchRequestEntries=entries)
    assert delivered == [90]


def test_a_step_that_is_undone_and_run_again_loses_no_delivery() -> None:
    """For example, because it needs the key for signatures, which another thread creates."""
    world = World(DELIVERIES_MAX + 10)
    steps = SERVICES["sns"].steps["Publish"]({"TopicArn": world.topic, "Message": "x"}, CALLER)
    command = steps.send(world.ask(next(steps)))

    def undone(tx: Tx[Store]) -> None:
        command(tx)
        raise ServiceUnavailable("undone")

    with pytest.raises(ServiceUnavailable):
        world.ask(undone)
    with pytest.raises(StopIteration):
        steps.send(world.ask(command))
    assert world.counts() == [1] * len(world.urls)
