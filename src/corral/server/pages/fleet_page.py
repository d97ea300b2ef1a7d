"""The page `/_corral/fleet` for `corral fleet`: when messages arrived in an empty queue, and which tasks hold messages.

SQS does not report these facts. The server has the arrivals, and the time when each task first received a message, only in memory.
So it knows none from before its start, and it keeps only the latest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.core.transactions import Tx
from corral.store import Store


def fleet_page(tx: Tx[Store], region: str, queue_name: str, task_ids: Sequence[str]) -> dict[str, Any]:
    """Return the arrivals of messages in the empty queue, and for each task its first receive and the messages that it holds."""
    queues = tx.store.queues
    queue = queues.queue(region, queue_name)
    held = queues.held_by_each(task_ids, round(tx.now_s * 1000))
    return {
        "wakes": [{"atMs": at_ms, "sender": sender} for at_ms, sender in queues.wakes(queue.pile)] if queue is not None else [],
        "tasks": {
            task_id: {
                "firstReceiveMs": queues.first_receive_ms(task_id),
                "held": sum(each.messages for each in held.get(task_id, ())),
                "leaving": task_id in tx.store.tasks.leaving,
            }
            for task_id in task_ids
        },
    }
