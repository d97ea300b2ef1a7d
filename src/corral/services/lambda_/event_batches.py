"""Batches of an event source mapping: Corral receives messages of its queue, invokes its function with them, and settles them.

A batch is a row until its messages are settled. The messages of a successful batch are deleted. Those of a failed batch become
visible again when their visibility timeout ends, and then move to the dead-letter queue if they were received too often. If Corral
ends while a function runs, the messages of its batch become visible at the next start. So no message is lost, and a function can
get a message more than once, as on AWS.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from typing import Any

import orjson

from corral.access.authorization import owner_may, role_may
from corral.access.permissions import Permission
from corral.core.transactions import Tx
from corral.decide.policies.event_filter import invokes
from corral.model.function import EventBatch, InvocationState
from corral.model.json_documents import read_json
from corral.model.queue import Queue, QueueMessage
from corral.services.lambda_.invocations import ROOM, enqueue, room, run_refusal
from corral.services.lambda_.names import FUNCTION, MAPPING, SERVICE, change_key, function_with_arn, region_of
from corral.services.sqs.message_receipts import delete_received, return_received
from corral.services.sqs.queue_names import creation_key, now_ms, queue_with_arn, wait_key
from corral.services.sqs.receive_message import ReceiveRequest, message_response, next_visible_s, take_messages
from corral.store import Store
from corral.store.stored_resources import Document

BATCHES_USUAL = 5  # the batches of a mapping without MaximumConcurrency that run at the same time; AWS also begins with five
MESSAGES_MAX = 1_000  # the most messages of a batch
EVENT_MAX_BYTES = 4 * 1024 * 1024  # a batch gets no further messages if its messages are larger together
ROUND_MESSAGES = 100  # after this number of messages, a later transaction continues
SETTLED_MAX = 10  # batches that one transaction settles
RETRY_S = 60.0  # how long a mapping waits if the role of its function has lost a permission
ACTIONS = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
NO_QUEUE = "PROBLEM: The queue does not exist."
NO_FUNCTION = "The function does not exist."


def lacking_permission(tx: Tx[Store], function: Document, arn: str) -> str | None:
    """Return AWS's error text for the first permission on a queue that the role of a function lacks, or the function's owner."""
    owner = tx.store.stored.owner(SERVICE, FUNCTION, region_of(function), function["FunctionName"])
    for action in ACTIONS:
        permission = Permission(f"sqs:{action}", arn)
        if not role_may(tx, function["Role"], permission):
            return f"The provided execution role does not have permissions to call {action} on SQS"
        if not owner_may(tx, owner, permission):
            return f"The function belongs to {owner}, who does not have permissions to call {action} on SQS"
    return None


def settle(tx: Tx[Store], name: str) -> None:
    """Delete or return the messages of batches whose invocations have ended."""
    batches = tx.store.event_batches.ended(name, SETTLED_MAX)
    for batch in batches:
        row, queue = tx.store.functions.get(batch.invocation), queue_with_arn(tx, batch.queue)
        if queue is not None and row is None:
            return_received(tx, queue, [handle for _, handle in batch.receipts])
        elif queue is not None and row is not None and row.state is InvocationState.SUCCEEDED:
            failed = _failed(tx, batch, row.result)
            delete_received(tx, queue, [handle for message_id, handle in batch.receipts if message_id not in failed])
        tx.store.functions.drop(batch.invocation)
        tx.store.event_batches.drop(batch)
    if len(batches) == SETTLED_MAX:
        tx.due(f"event-source:{name}", tx.now_s)


def _failed(tx: Tx[Store], batch: EventBatch, result: bytes) -> Collection[Any]:
    region, _, uuid = batch.mapping.partition("/")
    mapping = tx.store.stored.get(SERVICE, MAPPING, region, uuid)
    if mapping is None or not mapping["FunctionResponseTypes"]:
        return ()
    return reported_failures(result, [message_id for message_id, _ in batch.receipts])


def reported_failures(result: bytes, message_ids: list[str]) -> Collection[Any]:
    """Return the ids of the messages that a function reports as failed. If it reports an id that is not valid, all have failed."""
    try:
        response = read_json(result)
    except ValueError:
        return message_ids
    failures = response.get("batchItemFailures") if isinstance(response, dict) else response
    if not failures:
        return ()
    if not isinstance(response, dict) or not isinstance(failures, list):
        return message_ids
    items = [each.get("itemIdentifier") if isinstance(each, dict) else None for each in failures]
    return items if all(each in message_ids for each in items) else message_ids


def deliver(tx: Tx[Store], name: str, mapping: Document) -> str:
    """Invoke the function of a mapping with the visible messages of its queue. Return why this is impossible, or an empty text."""
    key, arn = f"event-source:{name}", mapping["EventSourceArn"]
    queue, function = queue_with_arn(tx, arn), function_with_arn(tx, mapping["FunctionArn"])
    if queue is None:
        tx.watch(key, [creation_key(arn)])
        return NO_QUEUE
    if why := NO_FUNCTION if function is None else run_refusal(tx, function):
        tx.watch(key, [change_key(mapping["FunctionArn"])])
        return f"PROBLEM: {why}"
    assert function is not None
    tx.watch(key, [wait_key(queue), ROOM])
    if (next_s := next_visible_s(tx, queue)) is not None:
        tx.due(key, next_s)
    if _begins_s(tx, queue, mapping) is None:
        return ""
    if lacking := lacking_permission(tx, function, arn):
        tx.due(key, tx.now_s + RETRY_S)
        return f"PROBLEM: {lacking}"
    _begin_batches(tx, name, mapping, function, queue)
    return ""


def _begins_s(tx: Tx[Store], queue: Queue, mapping: Document) -> float | None:
    """Return when the next batch begins: now, or at the end of the batching window. None: no message is visible."""
    at_ms, window_ms = now_ms(tx), 1000 * int(mapping["MaximumBatchingWindowInSeconds"])
    visible = tx.store.queues.counts(queue, at_ms).visible
    if not window_ms or visible >= mapping["BatchSize"]:
        return tx.now_s if visible else None
    first_ms = tx.store.queues.first_visible_ms(queue, at_ms)
    return None if first_ms is None else (first_ms + window_ms) / 1000


def _begin_batches(tx: Tx[Store], name: str, mapping: Document, function: Document, queue: Queue) -> None:
    key = f"event-source:{name}"
    concurrent = mapping.get("ScalingConfig", {}).get("MaximumConcurrency", BATCHES_USUAL)
    free, received = min(concurrent - tx.store.event_batches.count(name), room(tx)), 0
    while free > 0:
        begins_s = _begins_s(tx, queue, mapping)
        if begins_s is None:
            return
        if begins_s > tx.now_s or received >= ROUND_MESSAGES:
            tx.due(key, begins_s)
            return
        messages, cleared = _receive(tx, queue, min(mapping["BatchSize"], MESSAGES_MAX))
        if not messages:
            if cleared:
                tx.due(key, tx.now_s)
            return
        received += len(messages)
        free -= _begin_batch(tx, name, mapping, function, queue, messages)


def _receive(tx: Tx[Store], queue: Queue, count: int) -> tuple[list[QueueMessage], int]:
    """Receive messages. Return them, and how many expired messages and dead letters were removed."""
    until_ms, found, cleared, left_bytes = now_ms(tx) + queue.visibility_ms, list[QueueMessage](), 0, EVENT_MAX_BYTES
    while len(found) < count and left_bytes > 0:
        received, now_cleared = take_messages(tx, queue, ReceiveRequest(count - len(found), until_ms, None))
        cleared += now_cleared
        if not received:
            break
        found += received
        left_bytes -= sum(message.bytes for message in received)
    if found:
        tx.changes_at(wait_key(queue), until_ms / 1000)
    return found, cleared


def _begin_batch(
    tx: Tx[Store], name: str, mapping: Document, function: Document, queue: Queue, messages: list[QueueMessage]
) -> bool:
    """Invoke the function with the messages that meet the filter criteria, and delete the others. Return if it is invoked."""
    records = [_record(tx, mapping["EventSourceArn"], queue, message) for message in messages]
    patterns = [each["Pattern"] for each in mapping.get("FilterCriteria", {}).get("Filters", ())]
    if patterns:
        dropped = [record["receiptHandle"] for record in records if not invokes(patterns, record)]
        delete_received(tx, queue, dropped)
        records = [record for record in records if record["receiptHandle"] not in dropped]
    if not records:
        return False
    invocation = enqueue(tx, function, orjson.dumps({"Records": records}), is_async=False)
    receipts = [(record["messageId"], record["receiptHandle"]) for record in records]
    tx.store.event_batches.add(EventBatch(invocation, name, mapping["EventSourceArn"], receipts))
    return True


def _record(tx: Tx[Store], arn: str, queue: Queue, message: QueueMessage) -> dict[str, Any]:
    """Return a message as the event of a function has it."""
    given = message_response(tx, queue, message)
    attributes = given.get("MessageAttributes", {})
    return {
        "messageId": given["MessageId"],
        "receiptHandle": given["ReceiptHandle"],
        "body": given["Body"],
        "attributes": given["Attributes"],
        "messageAttributes": {each: _attribute(value) for each, value in attributes.items()},
        **({"md5OfMessageAttributes": given["MD5OfMessageAttributes"]} if attributes else {}),
        "md5OfBody": given["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": queue.region,
    }


def _attribute(given: dict[str, Any]) -> dict[str, Any]:
    value = {"stringValue": given["StringValue"]} if "StringValue" in given else {}
    if "BinaryValue" in given:
        value = {"binaryValue": b64encode(given["BinaryValue"]).decode()}
    return {**value, "stringListValues": [], "binaryListValues": [], "dataType": given["DataType"]}
