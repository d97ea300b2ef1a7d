"""ReceiveMessage: what is there now, or a wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import md5
from typing import Any

from corral.core import Tx, Wait
from corral.model.queue import Message, Queue, sent_at_ms
from corral.services.caller import Caller
from corral.services.sqs.contents import chosen, digest, unpacked
from corral.services.sqs.delivery import DEDUPLICATION_MS, sequence_number
from corral.services.sqs.naming import (
    IN_FLIGHT_MAX,
    OverLimit,
    arn_of,
    invalid,
    now_ms,
    queue_at,
    queue_with_arn,
    wakes,
)
from corral.services.sqs.receipts import handle_of
from corral.store import Store
from corral.store.messages import ANSWER_MAX_BYTES

CLEARED_AT_ONCE = 100  # messages that are too old or dead letters and stand in the way: about 5 ms of work


@dataclass(frozen=True, slots=True)
class Asked:
    count: int
    until_ms: int  # what is received is in flight so long
    task_id: str | None


def receive_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, store, at_ms = queue_at(tx, params, caller), tx.store.queues, now_ms(tx)
    asked, wait_s = _asked(params, queue, caller, at_ms), _wait_s(params, queue)
    names = _system_names(params)
    received, cleared = _received_before(tx, queue, params, asked), 0
    full = store.counts(queue, at_ms).in_flight >= IN_FLIGHT_MAX
    while not received and not full and cleared < CLEARED_AT_ONCE:
        received, now_cleared = _from_groups(tx, queue, asked) if queue.is_fifo else _from_queue(tx, queue, asked)
        if not now_cleared:
            break
        cleared += now_cleared
    if not received:
        if full and not wait_s and not queue.is_fifo:
            raise OverLimit(f"Too many messages are in flight: a queue has at most {IN_FLIGHT_MAX}.")
        if wait_s and not tx.final:
            again_s = tx.now_s if cleared >= CLEARED_AT_ONCE else _next_visible_s(tx, queue)
            raise Wait([wakes(queue)], tx.now_s + wait_s, again_s=again_s, in_turn=True, keep=cleared > 0)
        store.count_empty_receive(queue.pile, at_ms)
        return {}
    tx.changes_at(wakes(queue), asked.until_ms / 1000)
    if queue.is_fifo and (attempt_id := params.get("ReceiveRequestAttemptId")):
        given = [(message.id, message.receives) for message in received]
        store.remember_received(queue, attempt_id, given, at_ms + DEDUPLICATION_MS)
        tx.due("duplicates:", (at_ms + DEDUPLICATION_MS) / 1000)
    wanted = params.get("MessageAttributeNames", [])
    return {"Messages": [_shown(queue, message, names, wanted) for message in received]}


def _asked(params: dict[str, Any], queue: Queue, caller: Caller, at_ms: int) -> Asked:
    count, visibility_s = params.get("MaxNumberOfMessages", 1), params.get("VisibilityTimeout")
    until_ms = at_ms + (queue.visibility_ms if visibility_s is None else 1000 * visibility_s)
    return Asked(count, until_ms, caller.task_id)


def _wait_s(params: dict[str, Any], queue: Queue) -> int:
    wait_s: int | None = params.get("WaitTimeSeconds")
    return queue.wait_s if wait_s is None else wait_s


def _system_names(params: dict[str, Any]) -> frozenset[str]:
    """AttributeNames is the older name of MessageSystemAttributeNames."""
    return frozenset(params.get("MessageSystemAttributeNames", ())) | frozenset(params.get("AttributeNames", ()))


def _from_queue(tx: Tx[Store], queue: Queue, asked: Asked) -> tuple[list[Message], int]:
    """Messages of a standard queue; and how many others stood in the way, and are gone now."""
    store, at_ms = tx.store.queues, now_ms(tx)
    found = store.candidates(queue, asked.count, at_ms)
    live, cleared = _cleared(tx, queue, found)
    return (store.take(queue, live, at_ms, asked.until_ms, asked.task_id) if live else []), cleared


def _from_groups(tx: Tx[Store], queue: Queue, asked: Asked) -> tuple[list[Message], int]:
    """Messages of a FIFO queue: as many as there are of the group that has waited longest, then of the next one."""
    store, at_ms = tx.store.queues, now_ms(tx)
    received: list[Message] = []
    cleared = 0
    for group in store.ready_groups(queue, asked.count, at_ms):
        found = store.heads(queue, group, asked.count - len(received), at_ms)
        live, of_group = _cleared(tx, queue, found)
        if live:
            received += store.take(queue, live, at_ms, asked.until_ms, asked.task_id)
        store.settle_group(queue.pile, group, at_ms)
        cleared += of_group
        if len(received) == asked.count or sum(message.bytes for message in received) > ANSWER_MAX_BYTES:
            break
    return received, cleared


def _cleared(tx: Tx[Store], queue: Queue, found: list[Message]) -> tuple[list[Message], int]:
    """Those that may be received. Others are deleted, being too old, or go where dead letters go; and how many these were."""
    at_ms, most = now_ms(tx), queue.receives_max
    oldest = queue.oldest_kept_id(at_ms)
    if all(message.id >= oldest and (most is None or message.receives < most) for message in found):
        return found, 0
    target = queue_with_arn(tx, queue.dead_letters_arn) if queue.dead_letters_arn else None
    live, expired, dead = list[Message](), list[int](), 0
    for message in found:
        if message.id < oldest:
            expired.append(message.id)
        elif target is not None and most is not None and message.receives >= most:
            _bury(tx, queue, target, message)
            dead += 1
        else:
            live.append(message)
    tx.store.queues.drop(queue.pile, expired, at_ms)
    return live, len(expired) + dead


def _bury(tx: Tx[Store], queue: Queue, target: Queue, message: Message) -> None:
    """A dead letter of a standard queue stays as old as it is; that of a FIFO queue comes last in its group there."""
    store, at_ms = tx.store.queues, now_ms(tx)
    id = store.new_ids(tx.now_s, 1)[0] if queue.is_fifo else message.id
    store.bury(queue, target, message, arn_of(tx, queue), id, at_ms)
    if message.group_id is not None and target.is_fifo:
        store.settle_group(target.pile, message.group_id, at_ms)
    tx.due(f"retention:{target.id}", (sent_at_ms(id) + target.retention_ms) / 1000)
    tx.changed(wakes(target))


def _received_before(tx: Tx[Store], queue: Queue, params: dict[str, Any], asked: Asked) -> list[Message]:
    """What an attempt with the same id got, if nothing has happened to it since: whoever lost the answer gets it again."""
    attempt_id = params.get("ReceiveRequestAttemptId")
    if attempt_id is None:
        return []
    if not queue.is_fifo:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid(attempt_id, "ReceiveRequestAttemptId", reason)
    store, at_ms = tx.store.queues, now_ms(tx)
    given = store.received_before(queue, attempt_id, at_ms)
    found = store.in_flight(queue, given, at_ms) if given else []
    if not given or len(found) != len(given):
        return []
    for message in found:
        store.show_from(queue.pile, message.id, asked.until_ms, at_ms)
    for group in dict.fromkeys(message.group_id for message in found):
        assert group is not None
        store.settle_group(queue.pile, group, at_ms)
    return found


def _next_visible_s(tx: Tx[Store], queue: Queue) -> float | None:
    """When time alone brings the next message."""
    store, at_ms = tx.store.queues, now_ms(tx)
    found = store.next_ready_ms(queue, at_ms) if queue.is_fifo else store.next_visible_ms(queue, at_ms)
    return None if found is None else found / 1000


def _shown(queue: Queue, message: Message, names: frozenset[str], wanted: list[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "MessageId": message.message_id,
        "ReceiptHandle": handle_of(queue, message.id, message.receives),
        "MD5OfBody": md5(message.body.encode(), usedforsecurity=False).hexdigest(),
        "Body": message.body,
    }
    if names and (attributes := _system_attributes(queue, message, names)):
        shown["Attributes"] = attributes
    if wanted and message.attributes and (picked := chosen(unpacked(message.attributes), wanted)):
        shown["MessageAttributes"] = picked
        shown["MD5OfMessageAttributes"] = digest(picked)
    return shown


def _system_attributes(queue: Queue, message: Message, names: frozenset[str]) -> dict[str, str]:
    found = {
        "SenderId": message.sender,
        "SentTimestamp": str(message.sent_ms),
        "ApproximateReceiveCount": str(message.receives_before + message.receives),
        "ApproximateFirstReceiveTimestamp": str(message.first_received_ms),
        "SequenceNumber": sequence_number(message.id) if queue.is_fifo else None,
        "MessageDeduplicationId": message.deduplication_id,
        "MessageGroupId": message.group_id,
        "AWSTraceHeader": message.trace,
        "DeadLetterQueueSourceArn": message.source_arn,
    }
    return {name: value for name, value in found.items() if value is not None and ("All" in names or name in names)}
