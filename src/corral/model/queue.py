"""A queue and its messages (SQS). `sqs_limits.py` has the limits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

ID_STEP = 1024  # number of message ids for each microsecond
OWNERS_STEP = 1 << 20  # number of owners of deduplication ids for each millisecond


class Queue(Struct, frozen=True, dict=True):  # dict=True: cached_property needs a __dict__ for its values
    """A row of the table of queues. Values that are derived from attributes are cached, because each request reads them."""

    id: int
    region: str
    name: str
    pile: int  # the id of the set of its messages; a purge gives the queue a new, empty set
    created_ms: int
    modified_ms: int
    purged_ms: int | None
    owner: str  # see `model/principal.py`
    attributes: Mapping[str, str]
    tags: Mapping[str, str]

    @cached_property
    def is_fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @cached_property
    def delay_ms(self) -> int:
        return 1000 * int(self.attributes["DelaySeconds"])

    @cached_property
    def visibility_ms(self) -> int:
        return 1000 * int(self.attributes["VisibilityTimeout"])

    @cached_property
    def retention_ms(self) -> int:
        return 1000 * int(self.attributes["MessageRetentionPeriod"])

    @cached_property
    def wait_s(self) -> int:
        return int(self.attributes["ReceiveMessageWaitTimeSeconds"])

    @cached_property
    def message_max_bytes(self) -> int:
        return int(self.attributes["MaximumMessageSize"])

    @cached_property
    def receives_max(self) -> int | None:
        """After this number of receives, a message moves to the dead-letter queue. None means no limit."""
        policy = self.attributes.get("RedrivePolicy")
        return int(orjson.loads(policy)["maxReceiveCount"]) if policy else None

    @cached_property
    def dead_letters_arn(self) -> str | None:
        return dead_letters_arn(self.attributes)

    @cached_property
    def deduplication_owner(self) -> int:
        """The owner of the queue's deduplication ids. A purge changes it, so the ids from before the purge are forgotten."""
        return self.id if self.purged_ms is None else self.purged_ms * OWNERS_STEP + self.id % OWNERS_STEP

    @cached_property
    def policy(self) -> dict[str, Any] | None:
        """The parsed access policy. None if the queue has none."""
        text = self.attributes.get("Policy")
        return orjson.loads(text) if text else None

    def oldest_kept_id(self, now_ms: int) -> int:
        """Return the smallest id that is still within the queue's retention period. Messages with smaller ids have expired."""
        return id_at(now_ms - self.retention_ms)


def dead_letters_arn(attributes: Mapping[str, str]) -> str | None:
    policy = attributes.get("RedrivePolicy")
    return str(orjson.loads(policy)["deadLetterTargetArn"]) if policy else None


def queue_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


def id_at(at_ms: int) -> int:
    """Return the smallest id of a message that is sent at this time."""
    return at_ms * 1000 * ID_STEP


def sent_at_ms(id: int) -> int:
    """Return when the message with this id was sent."""
    return id // (1000 * ID_STEP)


class MessageDraft(NamedTuple):
    """A message to add to a queue. It is a tuple because thousands are created each second, and tuples are fast to create."""

    message_id: str  # MessageId in the API
    body: str
    bytes: int  # total size of the body and the attributes
    sender: str
    delay_ms: int = 0
    group_id: str | None = None
    deduplication_id: str | None = None
    trace: str | None = None
    source_arn: str | None = None
    attributes: str | None = None  # JSON


class QueueMessage(NamedTuple):
    """A stored message of a queue. It is a tuple because thousands are read each second, and tuples are fast to create."""

    id: int
    visible_ms: int | None  # see `MessageState`
    receives: int  # how often the message was received since it came to this queue
    receives_before: int  # how often it was received in the queues from which it was moved
    first_received_ms: int | None
    message_id: str
    sent_ms: int
    sender: str
    group_id: str | None
    deduplication_id: str | None
    trace: str | None
    source_arn: str | None
    attributes: str | None  # JSON
    bytes: int
    body: str


class MessageState(NamedTuple):
    """The part of a message that changes with each receive (table `place`)."""

    visible_ms: int | None  # the message is hidden until this time; None: a message of a FIFO queue that was never hidden
    receives: int
    received_ms: int | None
    group_id: str | None  # only in a FIFO queue
    task_id: str | None  # the task that received it last

    def is_in_flight(self, now_ms: int) -> bool:
        """Whether a message that was received is in flight. Do not call this for a message that was never received."""
        return self.visible_ms is not None and self.visible_ms > now_ms


class Counts(Struct, frozen=True):
    """The number of messages of a queue in each state."""

    visible: int
    in_flight: int
    delayed: int


class QueueActivity(Struct, frozen=True):
    """The data for a queue's CloudWatch metrics: its current counts, and the number of events since the last report."""

    region: str
    name: str
    visible: int
    in_flight: int
    delayed: int
    oldest_age_s: float
    sent: int
    sent_bytes: int
    received: int
    deleted: int
    empty_receives: int


class MoveTask(Struct, frozen=True):
    """A message move task: it moves the messages of a dead-letter queue to other queues."""

    id: str
    source: int
    source_arn: str
    destination_arn: str | None  # None: each message returns to its source queue
    per_s: int | None
    status: str
    to_move: int
    moved: int
    started_ms: int
    failure: str | None
