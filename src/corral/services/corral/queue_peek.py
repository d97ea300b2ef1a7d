"""A look at the messages of a queue that changes nothing of them, which SQS does not have."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.queue import QueueMessage
from corral.services.corral.errors import InvalidRequestException, QueueNotFoundException
from corral.services.sqs.message_content import load_attributes
from corral.store import Store

MESSAGES_MAX = 10


def peek_messages(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    count, name = params.get("maxMessages", MESSAGES_MAX), queue_name(params["queue"])
    if not 1 <= count <= MESSAGES_MAX:
        raise InvalidRequestException(f"maxMessages {count} is not valid: pass 1 to {MESSAGES_MAX}.")
    queue = tx.store.queues.queue(caller.region, name)
    if queue is None:
        raise QueueNotFoundException(
            f"There is no queue {name[:100]} in {caller.region}: `corral aws sqs list-queues` lists the queues."
        )
    now_ms = round(tx.now_s * 1000)
    return {"messages": [_message(each, now_ms) for each in tx.store.queues.peek(queue, count, now_ms)]}


def queue_name(given: str) -> str:
    """Return the name of a queue, of which the name or the URL is given."""
    return given.rstrip("/").rpartition("/")[2]


def _message(message: QueueMessage, now_ms: int) -> dict[str, Any]:
    later_ms = message.visible_ms if message.visible_ms is not None and message.visible_ms > now_ms else None
    attributes = load_attributes(message.attributes) if message.attributes else {}
    return {
        "messageId": message.message_id,
        "body": message.body,
        "bytes": message.bytes,
        "state": "visible" if later_ms is None else "inFlight" if message.receives else "delayed",
        "sentAtS": message.sent_ms / 1000,
        "visibleAtS": later_ms / 1000 if later_ms is not None else None,
        "receives": message.receives_before + message.receives,
        "sender": message.sender,
        "messageGroupId": message.group_id,
        "attributes": {name: _attribute(each) for name, each in attributes.items()},
    }


def _attribute(value: dict[str, Any]) -> dict[str, Any]:
    binary = value.get("BinaryValue")
    return {"type": value["DataType"], "text": value.get("StringValue"), "bytes": len(binary) if binary is not None else None}
