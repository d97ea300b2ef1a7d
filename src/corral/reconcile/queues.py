"""Reconcilers of SQS queues.

They delete the messages of deleted and purged queues, expired messages and expired deduplication ids, and they continue message
move tasks. Each call handles a limited number of rows, because the deletion of a million messages at once would delay requests. A
pile is the set of messages of a queue. A purge gives the queue a new, empty pile.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import messages_gone
from corral.model.queue import MessageDraft, MoveTask, Queue
from corral.services.sqs.move_tasks import RUNNING
from corral.services.sqs.queue_names import now_ms, queue_with_arn, wait_key
from corral.services.sqs.send_message import put_all
from corral.store import Store

ROWS_MAX = 250  # the most rows that one call deletes: about 5 ms of work
MOVED_MAX = 100  # the most messages that one call moves: about 5 ms of work
# The shortest time until rows that have not expired yet are checked again. So rows that expire one after the other are deleted
# together. Requests ignore expired rows.
PAUSE_S = 1.0


def clear_piles(tx: Tx[Store], _: str) -> None:
    """Delete the next messages of purged and deleted queues. Schedule the next call if more are left."""
    if tx.store.queues.clear_pile(ROWS_MAX):
        tx.due("piles:", tx.now_s)


def expire_messages(tx: Tx[Store], queue_id: str) -> None:
    """Delete messages that are older than the retention of their queue.

    While a queue has messages, this reconciler is scheduled for the time when the oldest of them expires.
    """
    store, at_ms = tx.store.queues, now_ms(tx)
    queue = store.queue_numbered(int(queue_id))
    if queue is None:
        return
    expired = store.expired(queue, at_ms, ROWS_MAX)
    dropped = store.drop(queue.pile, expired, at_ms)
    for group in dropped.groups:
        store.update_group(queue.pile, group, at_ms)
    messages_gone(tx, dropped.tasks)
    oldest_ms = store.oldest_ms(queue.pile)
    if oldest_ms is not None:
        due_s = (oldest_ms + queue.retention_ms + 1) / 1000
        tx.due(f"retention:{queue.id}", max(due_s, tx.now_s if expired else tx.now_s + PAUSE_S))


def forget_duplicates(tx: Tx[Store], _: str) -> None:
    """Delete expired deduplication ids and expired receive attempts of FIFO queues."""
    store = tx.store.queues
    dropped = store.forget_duplicates(now_ms(tx), ROWS_MAX)
    next_ms = store.next_forgotten_ms()
    if next_ms is not None:
        tx.due("duplicates:", tx.now_s if dropped >= ROWS_MAX else max(next_ms / 1000, tx.now_s + PAUSE_S))


def move_messages(tx: Tx[Store], task_id: str) -> None:
    """Move as many messages as the rate of the move task allows now. Schedule the next call until no message is left."""
    store, task = tx.store.queues, tx.store.queues.move_task(task_id)
    if task is None or task.status != RUNNING:
        return
    source = store.queue_numbered(task.source)
    assert source is not None, "deleting a queue also deletes its move tasks"
    allowed = MOVED_MAX
    if task.per_s is not None:
        elapsed_s = max(0.0, tx.now_s - task.started_ms / 1000)
        allowed = min(allowed, int(elapsed_s * task.per_s) + 1 - task.moved)
    moved, failure = _move_some(tx, source, task, allowed) if allowed > 0 else (0, None)
    task = replace(task, moved=task.moved + moved)
    if failure is not None:
        store.change_move_task(replace(task, status="FAILED", failure=failure))
    elif allowed > 0 and moved == 0:
        store.change_move_task(replace(task, status="COMPLETED"))
    else:
        store.change_move_task(task)
        next_s = tx.now_s if task.per_s is None else task.started_ms / 1000 + task.moved / task.per_s
        tx.due(f"moves:{task.id}", max(next_s, tx.now_s))


def _move_some(tx: Tx[Store], source: Queue, task: MoveTask, limit: int) -> tuple[int, str | None]:
    """Move at most `limit` messages. Return the number of moved messages, and the reason if a move has failed, otherwise None.

    A moved message is a new message with a new id, and its age begins again at zero.
    """
    store, at_ms = tx.store.queues, now_ms(tx)
    if source.is_fifo:
        groups = store.ready_groups(source, limit, at_ms)
        found = store.first_of_group(source, groups[0], limit, at_ms) if groups else []
    else:
        found = store.candidates(source, limit, at_ms)
    moved, failure = 0, None
    for message in found:
        arn = task.destination_arn or message.source_arn
        if arn is None:
            failure = "CouldNotDetermineMessageSource"
            break
        target = queue_with_arn(tx, arn)
        if target is None or target.is_fifo != source.is_fifo:
            failure = "AWS.SimpleQueueService.NonExistentQueue"
            break
        for group in store.drop(source.pile, [message.id], at_ms).groups:
            store.update_group(source.pile, group, at_ms)
        draft = MessageDraft(
            message_id=tx.ids.uuid(),
            body=message.body,
            bytes=message.bytes,
            sender=message.sender,
            group_id=message.group_id,
            deduplication_id=message.deduplication_id,
            trace=message.trace,
            attributes=message.attributes,
        )
        put_all(tx, target, [draft], store.new_ids(tx.now_s, 1))
        moved += 1
    if moved:
        tx.changed(wait_key(source))
    return moved, failure
