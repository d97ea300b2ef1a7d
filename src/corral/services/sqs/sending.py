"""SendMessage, alone and in batches."""

from __future__ import annotations

import re
from hashlib import md5
from typing import Any

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.queue import Draft, Queue
from corral.services.caller import Caller
from corral.services.sqs.batches import Entry, check_ids, failure
from corral.services.sqs.contents import TRACE_HEADER, check_attributes, check_body, digest, packed, size_of, trace_header
from corral.services.sqs.delivery import deduplication_id_for, put, sequence_number
from corral.services.sqs.naming import InvalidParameterValue, invalid, queue_at
from corral.services.sts import user_id
from corral.store import Store

BatchRequestTooLong = api_error("BatchRequestTooLong")

DELAY_MAX_S = 900
BATCH_MAX_BYTES = 1_048_576
FIFO_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")


def send_message(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    draft, answer = _draft(tx, queue, params, user_id(tx, caller))
    return _sent(queue, answer, *put(tx, queue, [draft])[0])


def send_message_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, entries = queue_at(tx, params, caller), params["Entries"]
    check_ids(entries)
    _check_size(sum(len(entry["MessageBody"].encode("utf-8", "surrogatepass")) for entry in entries))
    sender, good, failed = user_id(tx, caller), list[tuple[Entry, Draft, dict[str, Any]]](), []
    for entry in entries:
        try:
            good.append((entry, *_draft(tx, queue, entry, sender)))
        except ApiError as error:
            failed.append(failure(entry, error))
    _check_size(sum(draft.bytes for _, draft, _ in good))  # with their attributes
    sent = put(tx, queue, [draft for _, draft, _ in good]) if good else []
    return {
        "Successful": [{"Id": entry["Id"], **_sent(queue, answer, *ids)} for (entry, _, answer), ids in zip(good, sent)],
        "Failed": failed,
    }


def _check_size(size: int) -> None:
    if size > BATCH_MAX_BYTES:
        raise BatchRequestTooLong(f"Batch requests cannot be longer than {BATCH_MAX_BYTES} bytes. You have sent {size} bytes.")


def _draft(tx: Tx[Store], queue: Queue, params: dict[str, Any], sender: str) -> tuple[Draft, dict[str, Any]]:
    """The message as it will be put, and what the answer says of it."""
    body, attributes, of_system = params["MessageBody"], params.get("MessageAttributes"), params.get("MessageSystemAttributes")
    check_body(body)
    data = body.encode()
    answer, size, kept, trace = {"MD5OfMessageBody": md5(data, usedforsecurity=False).hexdigest()}, len(data), None, None
    if attributes:
        check_attributes(attributes)
        size += size_of(attributes)
        kept = packed(attributes)
        answer["MD5OfMessageAttributes"] = digest(attributes)
    if of_system:
        trace = trace_header(of_system)
        answer["MD5OfMessageSystemAttributes"] = digest({TRACE_HEADER: of_system[TRACE_HEADER]})
    if size > queue.message_max_bytes:
        reason = f"Message must be shorter than {queue.message_max_bytes} bytes."
        raise InvalidParameterValue(f"One or more parameters are invalid. Reason: {reason}")
    delay_ms, group_id, deduplication_id = _delay_ms(queue, params), None, None
    if queue.is_fifo or "MessageGroupId" in params or "MessageDeduplicationId" in params:
        group_id, deduplication_id = _fifo_ids(queue, params)
        deduplication_id = deduplication_id_for(queue, body, deduplication_id, group_id)
    return Draft(tx.ids.uuid(), body, size, sender, delay_ms, group_id, deduplication_id, trace, None, kept), answer


def _sent(queue: Queue, answer: dict[str, Any], message_id: str, id: int) -> dict[str, Any]:
    answer["MessageId"] = message_id
    if queue.is_fifo:
        answer["SequenceNumber"] = sequence_number(id)
    return answer


def _delay_ms(queue: Queue, params: dict[str, Any]) -> int:
    delay_s = params.get("DelaySeconds")
    if delay_s is None:
        return queue.delay_ms
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise invalid(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}.")
    if queue.is_fifo and delay_s:
        raise invalid(delay_s, "DelaySeconds", "The request include parameter that is not valid for this queue type.")
    return queue.delay_ms if queue.is_fifo else 1000 * int(delay_s)


def _fifo_ids(queue: Queue, params: dict[str, Any]) -> tuple[str | None, str | None]:
    """A standard queue keeps a group too: it names the tenant whom a message is for."""
    group_id, deduplication_id = params.get("MessageGroupId"), params.get("MessageDeduplicationId")
    if deduplication_id is not None and not queue.is_fifo:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid(deduplication_id, "MessageDeduplicationId", reason)
    for value, parameter in ((group_id, "MessageGroupId"), (deduplication_id, "MessageDeduplicationId")):
        if value is not None and not FIFO_ID.fullmatch(value):
            reason = f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
            raise invalid(value, parameter, reason)
    return group_id, deduplication_id
