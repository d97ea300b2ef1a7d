"""DeleteMessage and ChangeMessageVisibility, alone and in batches: what is done with a receipt handle."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.queue import Queue
from corral.services.caller import Caller
from corral.services.sqs.batches import Entry, check_ids, each_of
from corral.services.sqs.naming import (
    IN_FLIGHT_MAX,
    InvalidParameterValue,
    MessageNotInflight,
    invalid,
    now_ms,
    queue_at,
    wakes,
)
from corral.services.sqs.receipts import receipt_of
from corral.store import Store

VISIBILITY_MAX_S = 43_200


def delete_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    _delete(tx, queue, [_to_delete(tx, queue, params["ReceiptHandle"])])
    return {}


def delete_message_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries, doomed = queue_at(tx, params, caller), params["Entries"], list[int | None]()
    check_ids(entries)

    def delete(entry: Entry) -> Entry:
        doomed.append(_to_delete(tx, queue, entry["ReceiptHandle"]))
        return {}

    answer = each_of(entries, delete)
    _delete(tx, queue, doomed)
    return answer


def change_message_visibility(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _change(tx, queue_at(tx, params, caller), params["ReceiptHandle"], params["VisibilityTimeout"])
    return {}


def change_message_visibility_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries = queue_at(tx, params, caller), params["Entries"]
    check_ids(entries)

    def change(entry: Entry) -> Entry:
        _change(tx, queue, entry["ReceiptHandle"], entry.get("VisibilityTimeout", queue.visibility_ms // 1000))
        return {}

    return each_of(entries, change)


def _to_delete(tx: Tx[Store], queue: Queue, handle: str) -> int | None:
    """Which message; None when it is gone already.

    A standard queue deletes by any handle of the message, also when somebody else has received it since: what was said to be
    deleted does not come back. A FIFO queue wants the last one, and that the message is still in flight.
    """
    receipt = receipt_of(queue, handle)
    if receipt.pile != queue.pile:
        return None
    if queue.is_fifo:
        place = tx.store.queues.place(receipt.pile, receipt.id)
        if place is None:
            return None
        if place.receives != receipt.receives or not place.is_in_flight(now_ms(tx)):
            raise invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
    return receipt.id


def _delete(tx: Tx[Store], queue: Queue, ids: list[int | None]) -> None:
    store, at_ms, doomed = tx.store.queues, now_ms(tx), [id for id in ids if id is not None]
    store.count_deleted(queue.pile, len(ids), at_ms)
    if store.counts(queue, at_ms).in_flight >= IN_FLIGHT_MAX:
        tx.changed(wakes(queue))  # there is room for another
    for group in store.drop(queue.pile, doomed, at_ms):
        store.settle_group(queue.pile, group, at_ms)
        tx.changed(wakes(queue))  # the next of its group may be received


def _change(tx: Tx[Store], queue: Queue, handle: str, timeout_s: int) -> None:
    if not 0 <= timeout_s <= VISIBILITY_MAX_S:
        raise invalid(timeout_s, "VisibilityTimeout", f"Must be between 0 and {VISIBILITY_MAX_S}, if provided.")
    receipt, store, at_ms = receipt_of(queue, handle), tx.store.queues, now_ms(tx)
    place = store.place(receipt.pile, receipt.id) if receipt.pile == queue.pile else None
    if place is None or place.receives != receipt.receives:
        raise invalid(handle, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change.")
    if not place.is_in_flight(at_ms):
        raise MessageNotInflight(f"The message referred to by {handle} isn't in flight.")
    until_ms = at_ms + 1000 * timeout_s
    if place.received_ms is not None and until_ms > place.received_ms + 1000 * VISIBILITY_MAX_S:
        raise InvalidParameterValue(f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_MAX_S} seconds]")
    store.show_from(receipt.pile, receipt.id, until_ms, at_ms)
    if place.group_id is not None:
        store.settle_group(receipt.pile, place.group_id, at_ms)
    if timeout_s:
        tx.changes_at(wakes(queue), until_ms / 1000)
    else:
        tx.changed(wakes(queue))
