"""SendMessage and SendMessageBatch, and functions that add messages to a queue.

Other services, such as S3's notifications, send messages with `deliver`. Message move tasks use `put_all`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from corral.access.caller import Caller
from corral.access.roles import user_id
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import AccessRequest, PolicyDecision, PolicyError, evaluate, read_policy, service_principal
from corral.model.queue import MessageDraft, Queue
from corral.model.sqs_limits import BATCH_MAX_BYTES, DEDUPLICATION_MS, DELAY_MAX_S, FIFO_ID_MAX_CHARACTERS
from corral.services.sqs import errors
from corral.services.sqs.batches import BatchEntry, batch_results, check_ids, failure
from corral.services.sqs.message_content import (
    TRACE_HEADER,
    MessageAttributes,
    attributes_size,
    body_digest,
    check_attributes,
    check_body,
    digest,
    dump_attributes,
    trace_header,
)
from corral.services.sqs.queue_names import now_ms, queue_at, queue_with_arn, wait_key
from corral.store import Store

FIFO_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]" + f"{{1,{FIFO_ID_MAX_CHARACTERS}}}")


def send_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    draft, response = _draft(tx, queue, params, user_id(tx, caller))
    return _sent(queue, response, *put(tx, queue, [draft])[0])


def send_message_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries = queue_at(tx, params, caller), params["Entries"]
    check_ids(entries)
    if queue.is_fifo:
        for entry in entries:  # one entry without its ids fails the whole request
            _check_fifo_ids(queue, entry.get("MessageGroupId"), entry.get("MessageDeduplicationId"))
    _check_size(sum(len(entry["MessageBody"].encode("utf-8", "surrogatepass")) for entry in entries))
    sender, good, failed = user_id(tx, caller), list[tuple[BatchEntry, MessageDraft, dict[str, Any]]](), []
    for entry in entries:
        try:
            good.append((entry, *_draft(tx, queue, entry, sender)))
        except ApiError as error:
            failed.append(failure(entry, error))
    _check_size(sum(draft.bytes for _, draft, _ in good))  # this size includes message attributes
    sent = put(tx, queue, [draft for _, draft, _ in good]) if good else []
    successful = [{"Id": entry["Id"], **_sent(queue, response, *ids)} for (entry, _, response), ids in zip(good, sent)]
    return batch_results(successful, failed)


def _check_size(size: int) -> None:
    if size > BATCH_MAX_BYTES:
        raise errors.BatchRequestTooLong(
            f"Batch requests cannot be longer than {BATCH_MAX_BYTES} bytes. You have sent {size} bytes."
        )


def _draft(tx: Tx[Store], queue: Queue, params: dict[str, Any], sender: str) -> tuple[MessageDraft, dict[str, Any]]:
    """The message to store, and the response members that describe it."""
    body, attributes = params["MessageBody"], params.get("MessageAttributes")
    system_attributes = params.get("MessageSystemAttributes")
    check_body(body)
    data = body.encode()
    response, size, stored, trace = {"MD5OfMessageBody": body_digest(data)}, len(data), None, None
    if attributes:
        check_attributes(attributes)
        size += attributes_size(attributes)
        stored = dump_attributes(attributes)
        response["MD5OfMessageAttributes"] = digest(attributes)
    if system_attributes:
        trace = trace_header(system_attributes)
        response["MD5OfMessageSystemAttributes"] = digest({TRACE_HEADER: system_attributes[TRACE_HEADER]})
    if size > queue.message_max_bytes:
        reason = f"Message must be shorter than {queue.message_max_bytes} bytes."
        raise errors.InvalidParameterValue(f"One or more parameters are invalid. Reason: {reason}")
    delay_ms, group_id, deduplication_id = _delay_ms(queue, params), None, None
    if queue.is_fifo or "MessageGroupId" in params or "MessageDeduplicationId" in params:
        group_id, deduplication_id = _fifo_ids(queue, params)
        deduplication_id = deduplication_id_for(queue, body, deduplication_id, group_id)
    return MessageDraft(tx.ids.uuid(), body, size, sender, delay_ms, group_id, deduplication_id, trace, None, stored), response


def _sent(queue: Queue, response: dict[str, Any], message_id: str, id: int) -> dict[str, Any]:
    response["MessageId"] = message_id
    if queue.is_fifo:
        response["SequenceNumber"] = sequence_number(id)
    return response


def _delay_ms(queue: Queue, params: dict[str, Any]) -> int:
    delay_s = params.get("DelaySeconds")
    if delay_s is None:
        return queue.delay_ms
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise errors.invalid(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}.")
    if queue.is_fifo and delay_s:
        raise errors.invalid(delay_s, "DelaySeconds", errors.NOT_FOR_THIS_TYPE)
    return queue.delay_ms if queue.is_fifo else 1000 * int(delay_s)


def _fifo_ids(queue: Queue, params: dict[str, Any]) -> tuple[str | None, str | None]:
    """Group id and deduplication id of a message. On a standard queue, a group id is allowed: it names a tenant (fair queues)."""
    group_id, deduplication_id = params.get("MessageGroupId"), params.get("MessageDeduplicationId")
    if deduplication_id is not None and not queue.is_fifo:
        raise errors.invalid(deduplication_id, "MessageDeduplicationId", errors.NOT_FOR_THIS_TYPE)
    for value, parameter in ((group_id, "MessageGroupId"), (deduplication_id, "MessageDeduplicationId")):
        if value is not None and not FIFO_ID.fullmatch(value):
            reason = (
                f"{parameter} can only include alphanumeric and punctuation characters. 1 to {FIFO_ID_MAX_CHARACTERS} in length."
            )
            raise errors.invalid(value, parameter, reason)
    return group_id, deduplication_id


# Functions that add messages to a queue


def service_may_send(queue: Queue, arn: str, service: str, source_arn: str, account: str) -> bool:
    """Whether the policy of a queue allows an AWS service, such as s3.amazonaws.com, to send messages for a resource."""
    context = {"aws:sourcearn": (source_arn,), "aws:sourceaccount": (account,)}
    try:
        policy = read_policy(queue.attributes.get("Policy", ""))
    except PolicyError:  # the queue has no policy, or the policy is not valid
        return False
    return evaluate(policy, AccessRequest(service_principal(service), "sqs:SendMessage", arn, context)) is PolicyDecision.ALLOWED


def deliver(
    tx: Tx[Store],
    queue: Queue | str,
    body: str,
    *,
    sender: str,
    group_id: str | None = None,
    deduplication_id: str | None = None,
    attributes: MessageAttributes | None = None,
) -> str:
    """Send a message for another service, and return its MessageId. `queue` is a queue or its ARN.

    The caller must first check that the queue's policy allows this (`service_may_send`). A FIFO queue needs a `group_id`.
    """
    found = queue_with_arn(tx, queue) if isinstance(queue, str) else queue
    if found is None:
        raise errors.no_such_queue()
    draft = MessageDraft(
        tx.ids.uuid(),
        body,
        len(body.encode()) + attributes_size(attributes or {}),
        sender,
        delay_ms=found.delay_ms,
        group_id=group_id,
        deduplication_id=deduplication_id_for(found, body, deduplication_id, group_id),
        attributes=dump_attributes(attributes or {}),
    )
    return put(tx, found, [draft])[0][0]


def deduplication_id_for(queue: Queue, body: str, given: str | None, group_id: str | None) -> str | None:
    """The deduplication id of a message; None on a standard queue."""
    if not queue.is_fifo:
        return None
    _check_fifo_ids(queue, group_id, given)
    return sha256(body.encode()).hexdigest() if given is None else given


def _check_fifo_ids(queue: Queue, group_id: str | None, deduplication_id: str | None) -> None:
    if not group_id:
        raise errors.MissingParameter("The request must contain the parameter MessageGroupId.")
    if deduplication_id is None and queue.attributes.get("ContentBasedDeduplication") != "true":
        raise errors.InvalidParameterValue(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        )


def put(tx: Tx[Store], queue: Queue, drafts: Sequence[MessageDraft]) -> list[tuple[str, int]]:
    """Add messages to a queue in the given order. Returns (MessageId, id in the store) for each message.

    A duplicate on a FIFO queue is not added: the result has the ids of the earlier message.
    """
    ids = tx.store.queues.new_ids(tx.now_s, len(drafts))
    if not queue.is_fifo:
        put_all(tx, queue, drafts, ids)
        return [(draft.message_id, id) for draft, id in zip(drafts, ids)]
    store, at_ms, fresh, results = tx.store.queues, now_ms(tx), list[tuple[MessageDraft, int]](), list[tuple[str, int]]()
    for draft, id in zip(drafts, ids):
        assert draft.group_id is not None and draft.deduplication_id is not None
        scope = draft.group_id if queue.attributes.get("DeduplicationScope") == "messageGroup" else ""
        before = store.sent_before(queue.deduplication_owner, scope, draft.deduplication_id, at_ms)
        if before is None:
            owner, expires_ms = queue.deduplication_owner, at_ms + DEDUPLICATION_MS
            store.remember_sent(owner, scope, draft.deduplication_id, draft.message_id, id, expires_ms)
            fresh.append((draft, id))
        results.append(before or (draft.message_id, id))
    if fresh:
        tx.due("duplicates:", tx.now_s + DEDUPLICATION_MS / 1000)
        put_all(tx, queue, [draft for draft, _ in fresh], [id for _, id in fresh])
    return results


def put_all(tx: Tx[Store], queue: Queue, drafts: Sequence[MessageDraft], ids: Sequence[int]) -> None:
    """Add messages to a queue without checking for duplicates."""
    store, at_ms = tx.store.queues, now_ms(tx)
    was_empty = store.put(queue, drafts, ids, at_ms)
    if queue.is_fifo:
        store.open_groups(queue, drafts, at_ms)
    if was_empty:  # otherwise the retention of the oldest message is already scheduled
        tx.due(f"retention:{queue.id}", tx.now_s + queue.retention_ms / 1000)
    for delay_ms in {draft.delay_ms for draft in drafts}:
        if delay_ms:
            tx.changes_at(wait_key(queue), (at_ms + delay_ms) / 1000)
        else:
            tx.changed(wait_key(queue))


def sequence_number(id: int) -> str:
    return f"1{id:019d}"
