"""Attributes of a queue: the settable attributes, their valid values and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.model.numbers import whole_number
from corral.model.queue import Queue
from corral.model.sqs_limits import (
    DELAY_MAX_S,
    KMS_REUSE_MAX_S,
    KMS_REUSE_MIN_S,
    MESSAGE_MAX_BYTES,
    MESSAGE_MIN_BYTES,
    RECEIVE_COUNT_MAX,
    RETENTION_MAX_S,
    RETENTION_MIN_S,
    SOURCE_QUEUES_MAX,
    VISIBILITY_MAX_S,
    WAIT_MAX_S,
)
from corral.services.sqs.errors import InvalidAttributeName, InvalidAttributeValue, invalid
from corral.services.sqs.queue_names import arn_of, now_ms, queue_with_arn, wall_ms
from corral.store import Store

RANGES = {
    "DelaySeconds": (0, DELAY_MAX_S),
    "MaximumMessageSize": (MESSAGE_MIN_BYTES, MESSAGE_MAX_BYTES),
    "MessageRetentionPeriod": (RETENTION_MIN_S, RETENTION_MAX_S),
    "ReceiveMessageWaitTimeSeconds": (0, WAIT_MAX_S),
    "VisibilityTimeout": (0, VISIBILITY_MAX_S),
    "KmsDataKeyReusePeriodSeconds": (KMS_REUSE_MIN_S, KMS_REUSE_MAX_S),
}
CHOICES = {
    "ContentBasedDeduplication": ("true", "false"),
    "DeduplicationScope": ("messageGroup", "queue"),
    "FifoQueue": ("true",),
    "FifoThroughputLimit": ("perMessageGroupId", "perQueue"),
    "SqsManagedSseEnabled": ("true", "false"),
}
BOOLEANS = frozenset({"ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled"})  # `True` means `true`
FIFO_ONLY = frozenset({"ContentBasedDeduplication", "DeduplicationScope", "FifoQueue", "FifoThroughputLimit"})
POLICIES = frozenset({"Policy", "RedrivePolicy", "RedriveAllowPolicy"})
SETTABLE = frozenset({*RANGES, *CHOICES, *POLICIES, "KmsMasterKeyId"})
DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": str(MESSAGE_MAX_BYTES),
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
}
FIFO_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoQueue": "true",
    "FifoThroughputLimit": "perQueue",
}
COMPUTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
PERMISSIONS = ("allowAll", "denyAll", "byQueue")


def normal_attributes(given: Mapping[str, str]) -> dict[str, str]:
    """The given attributes as they are stored and shown: booleans in lower case, and maxReceiveCount as a number."""
    found = {name: value.lower() if name in BOOLEANS else value for name, value in given.items()}
    redrive = _json_object(found.get("RedrivePolicy") or "")
    if redrive is not None and isinstance(most := redrive.get("maxReceiveCount"), str):
        found["RedrivePolicy"] = orjson.dumps(
            {**redrive, "maxReceiveCount": whole_number(most, RECEIVE_COUNT_MAX) or most}
        ).decode()
    return found


def initial_attributes(given: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    """The attributes of a new queue. Encryption settings are stored but have no effect."""
    encrypted = {"SqsManagedSseEnabled": "true"}
    if given.get("KmsMasterKeyId"):
        encrypted = {"SqsManagedSseEnabled": "false", "KmsDataKeyReusePeriodSeconds": "300"}
    return {**DEFAULTS, **(FIFO_DEFAULTS if fifo else {}), **encrypted, **_without_empty(given)}


def changed_attributes(queue: Queue, given: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a queue after SetQueueAttributes. An empty policy or KMS key removes the attribute."""
    if given.get("KmsMasterKeyId"):
        given = {"SqsManagedSseEnabled": "false", **given}
    merged = {**queue.attributes, **given}
    if given.get("SqsManagedSseEnabled") == "true" and merged.get("KmsMasterKeyId"):
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
        )
    return _without_empty(merged)


def _without_empty(attributes: Mapping[str, str]) -> dict[str, str]:
    removable = POLICIES | {"KmsMasterKeyId"}
    return {name: value for name, value in attributes.items() if value or name not in removable}


def check_attributes(tx: Tx[Store], given: Mapping[str, str], *, fifo: bool, arn: str) -> None:
    """Raise the error that AWS would raise for these attributes. `arn` is the ARN of the queue."""
    for name, value in given.items():
        if name not in SETTABLE or (name in FIFO_ONLY and not fifo):
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
        if name in RANGES:
            least, most = RANGES[name]
            number = whole_number(value, most)
            if number is None or number < least:
                raise InvalidAttributeValue(f"Invalid value for the parameter {name}.")
        elif name in CHOICES and value not in CHOICES[name]:
            raise InvalidAttributeValue(f"Invalid value for the parameter {name}.")
    if policy := given.get("Policy"):
        _check_policy(policy)
    if policy := given.get("RedrivePolicy"):
        _check_redrive(tx, policy, fifo=fifo, arn=arn)
    if policy := given.get("RedriveAllowPolicy"):
        _check_redrive_allow(policy)


def check_throughput(attributes: Mapping[str, str]) -> None:
    if attributes.get("FifoThroughputLimit") == "perMessageGroupId" and attributes.get("DeduplicationScope") != "messageGroup":
        raise InvalidAttributeValue(
            "Invalid value for the parameter FifoThroughputLimit. "
            "Reason: perMessageGroupId is allowed only when the value for DeduplicationScope is messageGroup."
        )


def _check_policy(text: str) -> None:
    policy = _json_object(text)
    statements = policy.get("Statement") if policy is not None else None
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list) or not statements or not all(isinstance(each, dict) for each in statements):
        raise InvalidAttributeValue("Invalid value for the parameter Policy.")
    if any(each.get("Effect") not in ("Allow", "Deny") for each in statements):
        raise InvalidAttributeValue("Invalid value for the parameter Policy. Reason: Effect must be Allow or Deny.")


def _check_redrive(tx: Tx[Store], text: str, *, fifo: bool, arn: str) -> None:
    policy = _json_object(text)
    if policy is None:
        raise invalid(text, "RedrivePolicy", "Redrive policy is not a valid JSON map.")
    target_arn, most = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    if not target_arn:
        raise invalid(text, "RedrivePolicy", "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
    if most is None:
        raise invalid(text, "RedrivePolicy", "Redrive policy does not contain mandatory attribute: maxReceiveCount.")
    if isinstance(most, bool) or not whole_number(str(most), RECEIVE_COUNT_MAX):
        raise invalid(
            text,
            "RedrivePolicy",
            f"Invalid value for maxReceiveCount: {most}, valid values are from 1 to {RECEIVE_COUNT_MAX} both inclusive.",
        )
    parts = str(target_arn).split(":")
    if len(parts) != 6 or parts[:1] + parts[2:3] != ["arn", "sqs"]:
        raise invalid(text, "RedrivePolicy", "Invalid value for deadLetterTargetArn.")
    target = queue_with_arn(tx, target_arn)
    if target is None or target.region != arn.split(":")[3]:
        raise invalid(text, "RedrivePolicy", "Dead letter target does not exist.")
    if target.is_fifo != fifo:
        raise invalid(text, "RedrivePolicy", "Dead-letter queue must be same type of queue as the source.")
    if (refusal := _source_refusal(target, arn)) is not None:
        raise invalid(text, "RedrivePolicy", refusal)


def _source_refusal(target: Queue, source_arn: str) -> str | None:
    """Why the RedriveAllowPolicy of a dead-letter queue refuses this source queue; None if it allows the source queue."""
    policy = orjson.loads(target.attributes.get("RedriveAllowPolicy") or "{}")
    permission = policy.get("redrivePermission", "allowAll")
    if permission == "denyAll" or (permission == "byQueue" and source_arn not in policy.get("sourceQueueArns", [])):
        return f"The dead-letter queue's RedriveAllowPolicy ({permission}) does not allow this source queue."
    return None


def _check_redrive_allow(text: str) -> None:
    policy = _json_object(text)
    if policy is None or policy.get("redrivePermission") not in PERMISSIONS:
        raise _invalid_allow_policy(text, f"redrivePermission must be one of {', '.join(PERMISSIONS)}.")
    sources = policy.get("sourceQueueArns")
    if (policy["redrivePermission"] == "byQueue") != (sources is not None):
        raise _invalid_allow_policy(text, "sourceQueueArns is required with redrivePermission byQueue and not allowed without it.")
    if sources is not None and not (isinstance(sources, list) and 1 <= len(sources) <= SOURCE_QUEUES_MAX):
        raise _invalid_allow_policy(text, f"sourceQueueArns must have 1 to {SOURCE_QUEUES_MAX} ARNs.")


def _invalid_allow_policy(text: str, reason: str) -> ApiError:
    return invalid(text, "RedriveAllowPolicy", reason)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def attribute_values(tx: Tx[Store], queue: Queue, names: list[str]) -> dict[str, str]:
    """The requested attributes that the queue has. Some of them are computed, such as message counts."""
    wanted = set(names)
    found = dict(queue.attributes)
    if "All" in wanted or not wanted.isdisjoint(COMPUTED):
        counts = tx.store.queues.counts(queue, now_ms(tx))
        found |= {
            "QueueArn": arn_of(tx, queue),
            "ApproximateNumberOfMessages": str(counts.visible),
            "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
            "CreatedTimestamp": str(int(wall_ms(tx.steps, queue.created_ms)) // 1000),
            "LastModifiedTimestamp": str(int(wall_ms(tx.steps, queue.modified_ms)) // 1000),
        }
    return found if "All" in wanted else {name: value for name, value in found.items() if name in wanted}
