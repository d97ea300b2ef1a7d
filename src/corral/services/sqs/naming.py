"""Names, addresses and errors that all of SQS shares."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.queue import Queue, queue_arn
from corral.services.caller import Caller
from corral.store import Store

InvalidAddress = api_error("InvalidAddress")
InvalidAttributeName = api_error("InvalidAttributeName")
InvalidAttributeValue = api_error("InvalidAttributeValue")
InvalidMessageContents = api_error("InvalidMessageContents")
InvalidParameterValue = api_error("InvalidParameterValue")
MessageNotInflight = api_error("MessageNotInflight")
MissingParameter = api_error("MissingParameter")
OverLimit = api_error("OverLimit", 403)
PurgeQueueInProgress = api_error("PurgeQueueInProgress", 403)
QueueDoesNotExist = api_error("QueueDoesNotExist")
QueueNameExists = api_error("QueueNameExists")
ReceiptHandleIsInvalid = api_error("ReceiptHandleIsInvalid", 404)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
UnsupportedOperation = api_error("UnsupportedOperation")

FIFO = ".fifo"
IN_FLIGHT_MAX = 120_000  # of one queue
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
QUEUE_ARN = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{12}):([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")


def check_name(name: str, *, fifo: bool) -> None:
    if fifo:
        if not (name.endswith(FIFO) and len(name) <= 80 and QUEUE_NAME.fullmatch(name.removesuffix(FIFO))):
            raise InvalidParameterValue(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
                "must end with .fifo suffix and be 1 to 80 in length."
            )
    elif not QUEUE_NAME.fullmatch(name):
        raise InvalidParameterValue("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")


def queue_at(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Queue:
    """The queue that a request's QueueUrl names. Its host does not matter: it is wherever the client found us."""
    account, _, name = params["QueueUrl"].rstrip("/").rpartition("/")
    if not account:
        raise InvalidAddress(f"The address {params['QueueUrl']} is not valid for this endpoint.")
    queue = tx.store.queues.queue(caller.region, name) if account.endswith(caller.account) else None
    if queue is None:
        raise QueueDoesNotExist("The specified queue does not exist.")
    return queue


def queue_with_arn(tx: Tx[Store], arn: str) -> Queue | None:
    """Of any region: None when there is none of this account."""
    found = QUEUE_ARN.fullmatch(arn)
    if found is None or found[2] != tx.settings.account:
        return None
    return tx.store.queues.queue(found[1], found[3])


def arn_of(tx: Tx[Any], queue: Queue) -> str:
    return queue_arn(queue.region, tx.settings.account, queue.name)


def url_of(tx: Tx[Any], caller: Caller, name: str) -> str:
    """With the host that the client used: some libraries go on asking where this points to."""
    return f"{caller.endpoint_url or tx.settings.endpoint_url}/{caller.account}/{name}"


def now_ms(tx: Tx[Any]) -> int:
    return round(tx.now_s * 1000)


def wakes(queue: Queue) -> str:
    """What those wait for who wait for a message of this queue."""
    return f"queue:{queue.id}"


def invalid(value: object, parameter: str, reason: str) -> ApiError:
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")
