"""ReceiveMessage: return visible messages. A long poll waits if there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.clock import WallSteps
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.fleet import leaving_tasks
from corral.fleet.leaving_tasks import messages_gone
from corral.model.queue import Queue, QueueMessage, sent_at_ms
from corral.model.sqs_limits import DEDUPLICATION_MS, IN_FLIGHT_MAX, RECEIVE_MAX_BYTES
from corral.services.sqs.errors import OverLimit
from corral.services.sqs.message_content import body_digest, digest, load_attributes, select_attributes
from corral.services.sqs.message_receipts import handle_of
from corral.services.sqs.queue_names import arn_of, now_ms, queue_at, queue_with_arn, wait_key, wall_ms
from corral.services.sqs.send_message import sequence_number
from corral.store import Store

SystemAttribute = Callable[
    [WallSteps, Queue, QueueMessage], str | None
]  # returns the value, or None if the message does not have it
CLEARED_MAX = 100  # the most expired messages and dead letters that one call removes, in about 5 ms; then other requests run


class ReceiveRequest(Struct, frozen=True):
    count: int
    until_ms: int  # the end of the visibility timeout
    task_id: str | None


def receive_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, store, at_ms = queue_at(tx, params, caller), tx.store.queues, now_ms(tx)
    request, wait_s = _receive_request(params, queue, caller, at_ms), _wait_s(params, queue)
    received, cleared = _received_before(tx, queue, params, request), 0
    if not received and caller.task_id is not None and leaving_tasks.receives_nothing(tx, caller.task_id):
        return _receive_nothing(tx, queue, caller.task_id, wait_s)
    if not received:
        received, cleared = take_messages(tx, queue, request)
    if not received:
        if not wait_s and not queue.is_fifo and _is_full(tx, queue):
            raise OverLimit(f"Too many messages are in flight: a queue has at most {IN_FLIGHT_MAX}.")
        if wait_s and not tx.final:
            again_s = tx.now_s if cleared >= CLEARED_MAX else next_visible_s(tx, queue)
            raise Wait([wait_key(queue)], tx.now_s + wait_s, again_s=again_s, in_turn=True, keep=cleared > 0)
        store.count_empty_receive(queue.pile, at_ms)
        return {}
    tx.changes_at(wait_key(queue), request.until_ms / 1000)
    if queue.is_fifo and (attempt_id := params.get("ReceiveRequestAttemptId")):
        given = [(message.id, message.receives) for message in received]
        store.remember_received(queue, attempt_id, given, at_ms + DEDUPLICATION_MS)
        tx.due("duplicates:", (at_ms + DEDUPLICATION_MS) / 1000)
    wanted, system = params.get("MessageAttributeNames", []), _requested_system_attributes(params)
    return {"Messages": [_response_of(tx, queue, message, system, wanted) for message in received]}


def take_messages(tx: Tx[Store], queue: Queue, request: ReceiveRequest) -> tuple[list[QueueMessage], int]:
    """Receive visible messages. Returns them, and how many expired messages and dead letters were removed."""
    received, cleared = list[QueueMessage](), 0
    while not received and cleared < CLEARED_MAX and not _is_full(tx, queue):
        received, now_cleared = _from_groups(tx, queue, request) if queue.is_fifo else _from_queue(tx, queue, request)
        if not now_cleared:
            break
        cleared += now_cleared
    return received, cleared


def _is_full(tx: Tx[Store], queue: Queue) -> bool:
    return tx.store.queues.counts(queue, now_ms(tx)).in_flight >= IN_FLIGHT_MAX


def _receive_nothing(tx: Tx[Store], queue: Queue, task_id: str, wait_s: int) -> dict[str, Any]:
    """Return no messages to a task that is chosen to stop. Its long poll waits, so that the task does not call again and again."""
    if wait_s and not tx.final:
        tx.changed(wait_key(queue))  # a message may have woken this long poll: let the message wake another long poll instead
        raise Wait([leaving_tasks.wait_key(task_id)], tx.now_s + wait_s, keep=True)
    tx.store.queues.count_empty_receive(queue.pile, now_ms(tx))
    return {}


def _receive_request(params: dict[str, Any], queue: Queue, caller: Caller, at_ms: int) -> ReceiveRequest:
    count, visibility_s = params.get("MaxNumberOfMessages", 1), params.get("VisibilityTimeout")
    until_ms = at_ms + (queue.visibility_ms if visibility_s is None else 1000 * visibility_s)
    return ReceiveRequest(count, until_ms, caller.task_id)


def _wait_s(params: dict[str, Any], queue: Queue) -> int:
    wait_s: int | None = params.get("WaitTimeSeconds")
    return queue.wait_s if wait_s is None else wait_s


def _requested_system_attributes(params: dict[str, Any]) -> list[tuple[str, SystemAttribute]]:
    """The requested system attributes. AttributeNames is the older name of MessageSystemAttributeNames."""
    names = frozenset(params.get("MessageSystemAttributeNames", ())) | frozenset(params.get("AttributeNames", ()))
    return [(name, read) for name, read in SYSTEM_ATTRIBUTES.items() if name in names or "All" in names] if names else []


def _from_queue(tx: Tx[Store], queue: Queue, request: ReceiveRequest) -> tuple[list[QueueMessage], int]:
    """Receive from a standard queue. Returns the messages, and how many expired messages and dead letters were removed."""
    store, at_ms = tx.store.queues, now_ms(tx)
    candidates = store.candidates(queue, request.count, at_ms)
    live, cleared = _clear(tx, queue, candidates)
    return (store.mark_received(queue, live, at_ms, request.until_ms, request.task_id) if live else []), cleared


def _from_groups(tx: Tx[Store], queue: Queue, request: ReceiveRequest) -> tuple[list[QueueMessage], int]:
    """Receive from a FIFO queue. Returns the messages, and how many expired messages and dead letters were removed.

    The group that has waited longest is served first, then the next group.
    """
    store, at_ms = tx.store.queues, now_ms(tx)
    received: list[QueueMessage] = []
    cleared = 0
    for group in store.ready_groups(queue, request.count, at_ms):
        candidates = store.first_of_group(queue, group, request.count - len(received), at_ms)
        live, cleared_here = _clear(tx, queue, candidates)
        if live:
            received += store.mark_received(queue, live, at_ms, request.until_ms, request.task_id)
        store.update_group(queue.pile, group, at_ms)
        cleared += cleared_here
        if len(received) == request.count or sum(message.bytes for message in received) > RECEIVE_MAX_BYTES:
            break
    return received, cleared


def _clear(tx: Tx[Store], queue: Queue, candidates: list[QueueMessage]) -> tuple[list[QueueMessage], int]:
    """Delete expired messages, and move dead letters to the dead-letter queue.

    Returns the other messages, and how many messages were deleted or moved.
    """
    at_ms, most = now_ms(tx), queue.receives_max
    oldest = queue.oldest_kept_id(at_ms)
    if all(message.id >= oldest and (most is None or message.receives < most) for message in candidates):
        return candidates, 0
    target = queue_with_arn(tx, queue.dead_letters_arn) if queue.dead_letters_arn else None
    live, expired, dead = list[QueueMessage](), list[int](), 0
    for message in candidates:
        if message.id < oldest:
            expired.append(message.id)
        elif target is not None and most is not None and message.receives >= most:
            _move_to_dead_letters(tx, queue, target, message)
            dead += 1
        else:
            live.append(message)
    messages_gone(tx, tx.store.queues.drop(queue.pile, expired, at_ms).tasks)
    return live, len(expired) + dead


def _move_to_dead_letters(tx: Tx[Store], queue: Queue, target: Queue, message: QueueMessage) -> None:
    """Move a message to the dead-letter queue.

    In a standard queue, the message keeps its age. In a FIFO queue, it gets a new id and becomes the last message of its group.
    """
    store, at_ms = tx.store.queues, now_ms(tx)
    id = store.new_ids(tx.now_s, 1)[0] if queue.is_fifo else message.id
    store.move_to_dead_letters(queue, target, message, arn_of(tx, queue), id, at_ms)
    if message.group_id is not None and target.is_fifo:
        store.update_group(target.pile, message.group_id, at_ms)
    tx.due(f"retention:{target.id}", (sent_at_ms(id) + target.retention_ms) / 1000)
    tx.changed(wait_key(target))


def _received_before(tx: Tx[Store], queue: Queue, params: dict[str, Any], request: ReceiveRequest) -> list[QueueMessage]:
    """The messages that an earlier request with the same ReceiveRequestAttemptId returned, for a client that lost the response.

    The result is empty if one of these messages was deleted, was received again, or has become visible.
    """
    attempt_id = params.get("ReceiveRequestAttemptId")
    if attempt_id is None or not queue.is_fifo:  # SQS ignores it for a standard queue
        return []
    store, at_ms = tx.store.queues, now_ms(tx)
    given = store.received_before(queue, attempt_id, at_ms)
    found = store.in_flight(queue, given, at_ms) if given else []
    if not given or len(found) != len(given):
        return []
    for message in found:
        store.set_visible_from(queue.pile, message.id, request.until_ms, at_ms)
    for group in dict.fromkeys(message.group_id for message in found):
        assert group is not None
        store.update_group(queue.pile, group, at_ms)
    return found


def next_visible_s(tx: Tx[Store], queue: Queue) -> float | None:
    """When a message next becomes visible because its delay or its visibility timeout ends; None if no message waits for this."""
    store, at_ms = tx.store.queues, now_ms(tx)
    found = store.next_ready_ms(queue, at_ms) if queue.is_fifo else store.next_visible_ms(queue, at_ms)
    return None if found is None else found / 1000


def message_response(tx: Tx[Store], queue: Queue, message: QueueMessage) -> dict[str, Any]:
    """Return a message as ReceiveMessage does if all attributes are requested."""
    return _response_of(tx, queue, message, list(SYSTEM_ATTRIBUTES.items()), ["All"])


def _response_of(
    tx: Tx[Store], queue: Queue, message: QueueMessage, system: list[tuple[str, SystemAttribute]], wanted: list[str]
) -> dict[str, Any]:
    response: dict[str, Any] = {
        "MessageId": message.message_id,
        "ReceiptHandle": handle_of(queue, message.id, message.receives),
        "MD5OfBody": body_digest(message.body.encode()),
        "Body": message.body,
    }
    if system and (attributes := {name: value for name, read in system if (value := read(tx.steps, queue, message)) is not None}):
        response["Attributes"] = attributes
    if wanted and message.attributes and (selected := select_attributes(load_attributes(message.attributes), wanted)):
        response["MessageAttributes"] = selected
        response["MD5OfMessageAttributes"] = digest(selected)
    return response


SYSTEM_ATTRIBUTES: dict[str, SystemAttribute] = {
    "SenderId": lambda steps, queue, message: message.sender,
    "SentTimestamp": lambda steps, queue, message: wall_ms(steps, message.sent_ms),
    "ApproximateReceiveCount": lambda steps, queue, message: str(message.receives_before + message.receives),
    "ApproximateFirstReceiveTimestamp": lambda steps, queue, message: wall_ms(steps, message.first_received_ms or 0),
    "SequenceNumber": lambda steps, queue, message: sequence_number(message.id) if queue.is_fifo else None,
    "MessageDeduplicationId": lambda steps, queue, message: message.deduplication_id,
    "MessageGroupId": lambda steps, queue, message: message.group_id,
    "AWSTraceHeader": lambda steps, queue, message: message.trace,
    "DeadLetterQueueSourceArn": lambda steps, queue, message: message.source_arn,
}
