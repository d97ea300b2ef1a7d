"""Putting messages on queues: what senders, other services and moves between queues share."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from corral.core import Tx
from corral.model.queue import Draft, Queue
from corral.services.sqs.naming import (
    InvalidParameterValue,
    MissingParameter,
    QueueDoesNotExist,
    now_ms,
    queue_with_arn,
    wakes,
)
from corral.store import Store

DEDUPLICATION_MS = 300_000


def deliver(
    tx: Tx[Store], queue: Queue | str, body: str, *, sender: str, group_id: str | None = None, deduplication_id: str | None = None
) -> str:
    """Put a message on a queue (or on the one with that ARN) for another service, and wake who waits for it; its MessageId.

    Whether the queue's policy allows it is for the caller to judge (`Queue.policy`). A FIFO queue wants a group.
    """
    found = queue_with_arn(tx, queue) if isinstance(queue, str) else queue
    if found is None:
        raise QueueDoesNotExist("The specified queue does not exist.")
    draft = Draft(
        tx.ids.uuid(),
        body,
        len(body.encode()),
        sender,
        delay_ms=found.delay_ms,
        group_id=group_id,
        deduplication_id=deduplication_id_for(found, body, deduplication_id, group_id),
    )
    return put(tx, found, [draft])[0][0]


def deduplication_id_for(queue: Queue, body: str, given: str | None, group_id: str | None) -> str | None:
    """By what a FIFO queue knows a message again."""
    if not queue.is_fifo:
        return None
    if not group_id:
        raise MissingParameter("The request must contain the parameter MessageGroupId.")
    if given is None:
        if queue.attributes.get("ContentBasedDeduplication") != "true":
            raise InvalidParameterValue(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
            )
        return sha256(body.encode()).hexdigest()
    return given


def put(tx: Tx[Store], queue: Queue, drafts: Sequence[Draft]) -> list[tuple[str, int]]:
    """Put messages on a queue, in this order; of each its message id and its number.

    One that a FIFO queue was sent before is not put again: it is the earlier one.
    """
    ids = tx.store.queues.new_ids(tx.now_s, len(drafts))
    if not queue.is_fifo:
        put_all(tx, queue, drafts, ids)
        return [(draft.message_id, id) for draft, id in zip(drafts, ids)]
    store, at_ms, fresh, answers = tx.store.queues, now_ms(tx), list[tuple[Draft, int]](), list[tuple[str, int]]()
    for draft, id in zip(drafts, ids):
        assert draft.group_id is not None and draft.deduplication_id is not None
        scope = draft.group_id if queue.attributes.get("DeduplicationScope") == "messageGroup" else ""
        before = store.sent_before(queue, scope, draft.deduplication_id, at_ms)
        if before is None:
            store.remember_sent(queue, scope, draft.deduplication_id, draft.message_id, id, at_ms + DEDUPLICATION_MS)
            fresh.append((draft, id))
        answers.append(before or (draft.message_id, id))
    if fresh:
        tx.due("duplicates:", tx.now_s + DEDUPLICATION_MS / 1000)
        put_all(tx, queue, [draft for draft, _ in fresh], [id for _, id in fresh])
    return answers


def put_all(tx: Tx[Store], queue: Queue, drafts: Sequence[Draft], ids: Sequence[int]) -> None:
    """The same, whether or not the queue was sent them before."""
    store, at_ms = tx.store.queues, now_ms(tx)
    was_empty = store.put(queue, drafts, ids, at_ms)
    if queue.is_fifo:
        store.open_groups(queue, drafts, at_ms)
    if was_empty:  # else somebody looks after the oldest already
        tx.due(f"retention:{queue.id}", tx.now_s + queue.retention_ms / 1000)
    for delay_ms in {draft.delay_ms for draft in drafts}:
        if delay_ms:
            tx.changes_at(wakes(queue), (at_ms + delay_ms) / 1000)
        else:
            tx.changed(wakes(queue))


def sequence_number(id: int) -> str:
    return f"1{id:019d}"
