"""What queues no longer need goes, some at a time: purged messages, old ones, and the memory of what was sent."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store

ROWS_MAX = 250  # about 5 ms of work
PAUSE_S = 1.0  # between two looks at what ends one by one; nobody sees it meanwhile


def clear_piles(tx: Tx[Store], _: str) -> None:
    """What purged and deleted queues held: a million messages must not stall anybody."""
    if tx.store.queues.clear_pile(ROWS_MAX):
        tx.due("piles:", tx.now_s)


def expire_messages(tx: Tx[Store], queue_id: str) -> None:
    """Messages past their queue's retention. As long as a queue has messages, this looks again when the oldest is due."""
    store, now_ms = tx.store.queues, round(tx.now_s * 1000)
    queue = store.queue_numbered(int(queue_id))
    if queue is None:
        return
    expired = store.expired(queue, now_ms, ROWS_MAX)
    for group in store.drop(queue.pile, expired, now_ms):
        store.settle_group(queue.pile, group, now_ms)
    oldest_ms = store.oldest_ms(queue.pile)
    if oldest_ms is not None:
        due_s = (oldest_ms + queue.retention_ms + 1) / 1000
        tx.due(f"retention:{queue.id}", max(due_s, tx.now_s if expired else tx.now_s + PAUSE_S))


def forget_duplicates(tx: Tx[Store], _: str) -> None:
    """What FIFO queues were sent and gave out minutes ago."""
    store = tx.store.queues
    dropped = store.forget_duplicates(round(tx.now_s * 1000), ROWS_MAX)
    next_ms = store.next_forgotten_ms()
    if next_ms is not None:
        tx.due("duplicates:", tx.now_s if dropped >= ROWS_MAX else max(next_ms / 1000, tx.now_s + PAUSE_S))
