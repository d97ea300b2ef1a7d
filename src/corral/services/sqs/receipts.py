"""Receipt handles: which message, and which receive of it."""

from __future__ import annotations

import struct
from typing import NamedTuple

from corral.model.queue import Queue
from corral.services.sqs.naming import ReceiptHandleIsInvalid

FORM = struct.Struct(">QQQI")
UNUSED = (1 << 64) - 1


class Receipt(NamedTuple):
    pile: int
    id: int
    receives: int


def handle_of(queue: Queue, id: int, receives: int) -> str:
    return FORM.pack(queue.id, queue.pile, id, receives).hex()


def receipt_of(queue: Queue, handle: str) -> Receipt:
    """The pile may be one that the queue had before it was purged: then the message is gone."""
    try:
        of_queue, pile, id, receives = FORM.unpack(bytes.fromhex(handle))
    except (ValueError, struct.error):
        of_queue = UNUSED
    if of_queue != queue.id:
        raise ReceiptHandleIsInvalid(f'The input receipt handle "{handle}" is not a valid receipt handle.')
    return Receipt(pile, id, receives)
