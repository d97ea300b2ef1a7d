"""Receipt handles, and the operations that need a handle: DeleteMessage, ChangeMessageVisibility, and their batches.

The messages of a queue are its pile. A purge gives the queue a new, empty pile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import mark_leaving, messages_gone
from corral.model.queue import Queue
from corral.model.sqs_limits import IN_FLIGHT_MAX, VISIBILITY_MAX_S
from corral.services.sqs.batches import BatchEntry, check_ids, run_batch
from corral.services.sqs.errors import InvalidParameterValue, MessageNotInflight, ReceiptHandleIsInvalid, invalid
from corral.services.sqs.queue_names import now_ms, queue_at, wait_key
from corral.store import Store

HANDLE = struct.Struct(">qqqI")  # queue id, pile id, message id, receive count
NO_QUEUE = (1 << 64) - 1


class Receipt(NamedTuple):
    pile: int
    id: int
    receives: int


def handle_of(queue: Queue, id: int, receives: int) -> str:
    return HANDLE.pack(queue.id, queue.pile, id, receives).hex()


def receipt_of(queue: Queue, handle: str) -> Receipt:
    """Decode a handle. If the pile in the handle is not the current pile of the queue, a purge has deleted the message."""
    try:
        queue_id, pile, id, receives = HANDLE.unpack(bytes.fromhex(handle))
    except (ValueError, struct.error):
        queue_id = NO_QUEUE
    if queue_id != queue.id:
        raise ReceiptHandleIsInvalid(f'The input receipt handle "{handle}" is not a valid receipt handle.')
    return Receipt(pile, id, receives)


def delete_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    _delete(tx, queue, [_to_delete(tx, queue, params["ReceiptHandle"])])
    return {}


def delete_message_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries, ids = queue_at(tx, params, caller), params["Entries"], list[int | None]()
    check_ids(entries)

    def delete(entry: BatchEntry) -> BatchEntry:
        ids.append(_to_delete(tx, queue, entry["ReceiptHandle"]))
        return {}

    response = run_batch(entries, delete)
    _delete(tx, queue, ids)
    return response


def change_message_visibility(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _change(tx, queue_at(tx, params, caller), params["ReceiptHandle"], params["VisibilityTimeout"])
    return {}


def change_message_visibility_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries = queue_at(tx, params, caller), params["Entries"]
    check_ids(entries)

    def change(entry: BatchEntry) -> BatchEntry:
        _change(tx, queue, entry["ReceiptHandle"], entry.get("VisibilityTimeout", queue.visibility_ms // 1000))
        return {}

    return run_batch(entries, change)


def delete_received(tx: Tx[Store], queue: Queue, handles: Iterable[str]) -> None:
    """Delete messages that another service has received. Ignore a handle that is not valid any more."""
    ids = list[int | None]()
    for handle in handles:
        with suppress(ApiError):
            ids.append(_to_delete(tx, queue, handle))
    _delete(tx, queue, ids)


def return_received(tx: Tx[Store], queue: Queue, handles: Iterable[str]) -> None:
    """Make messages visible that another service has received. Ignore a message that is not in flight, or was received again."""
    for handle in handles:
        with suppress(ApiError):  # the queue was deleted, and another one has its name
            receipt = receipt_of(queue, handle)
            state = tx.store.queues.message_state(receipt.pile, receipt.id) if receipt.pile == queue.pile else None
            if state is not None and state.receives == receipt.receives and state.is_in_flight(now_ms(tx)):
                _change(tx, queue, handle, 0)


def _to_delete(tx: Tx[Store], queue: Queue, handle: str) -> int | None:
    """The id of the message to delete; None if the message no longer exists.

    A standard queue accepts every handle of the message, even if another consumer has received the message since. A FIFO queue
    accepts only the latest handle, and only while the message is in flight.
    """
    receipt = receipt_of(queue, handle)
    if receipt.pile != queue.pile:
        return None
    if queue.is_fifo:
        state = tx.store.queues.message_state(receipt.pile, receipt.id)
        if state is None:
            return None
        if state.receives != receipt.receives or not state.is_in_flight(now_ms(tx)):
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
    return receipt.id


def _delete(tx: Tx[Store], queue: Queue, ids: list[int | None]) -> None:
    store, at_ms, existing = tx.store.queues, now_ms(tx), [id for id in ids if id is not None]
    store.count_deleted(queue.pile, len(ids), at_ms)
    if store.counts(queue, at_ms).in_flight >= IN_FLIGHT_MAX:
        tx.changed(wait_key(queue))  # the limit of messages in flight allows another receive now
    dropped = store.drop(queue.pile, existing, at_ms)
    for group in dropped.groups:
        store.update_group(queue.pile, group, at_ms)
        tx.changed(wait_key(queue))  # the next message of the group can be received now
    messages_gone(tx, dropped.tasks)


def _change(tx: Tx[Store], queue: Queue, handle: str, timeout_s: int) -> None:
    """Change when a message becomes visible. A standard queue accepts every handle of the message, at any time."""
    if not 0 <= timeout_s <= VISIBILITY_MAX_S:
        raise invalid(timeout_s, "VisibilityTimeout", f"Must be between 0 and {VISIBILITY_MAX_S}, if provided.")
    receipt, store, at_ms = receipt_of(queue, handle), tx.store.queues, now_ms(tx)
    state = store.message_state(receipt.pile, receipt.id) if receipt.pile == queue.pile else None
    if state is None or (queue.is_fifo and state.receives != receipt.receives):
        raise invalid(handle, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change.")
    if queue.is_fifo and not state.is_in_flight(at_ms):
        raise MessageNotInflight(f"The message referred to by {handle} isn't in flight.")
    until_ms = at_ms + 1000 * timeout_s
    if state.received_ms is not None and until_ms > state.received_ms + 1000 * VISIBILITY_MAX_S:
        raise InvalidParameterValue(f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_MAX_S} seconds]")
    store.set_visible_from(receipt.pile, receipt.id, until_ms, at_ms)
    if state.group_id is not None:
        store.update_group(receipt.pile, state.group_id, at_ms)
    if state.task_id is not None:
        mark_leaving(tx, state.task_id)
    if timeout_s:
        tx.changes_at(wait_key(queue), until_ms / 1000)
    else:
        tx.changed(wait_key(queue))
