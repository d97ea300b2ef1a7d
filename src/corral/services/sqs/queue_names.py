"""Names, URLs and ARNs of queues, and functions that find a queue by URL or ARN."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.clock import WallSteps
from corral.core.transactions import Tx
from corral.model.queue import Queue, queue_arn
from corral.model.sqs_limits import QUEUE_NAME_MAX_CHARACTERS
from corral.services.sqs.errors import InvalidParameterValue, no_such_queue
from corral.store import Store

FIFO = ".fifo"
NAME_PATTERN = f"[A-Za-z0-9_-]{{1,{QUEUE_NAME_MAX_CHARACTERS}}}"
QUEUE_NAME = re.compile(NAME_PATTERN)
QUEUE_ARN = re.compile(rf"arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{{12}}):({NAME_PATTERN}(?:\.fifo)?)")


def check_name(name: str, *, fifo: bool) -> None:
    if fifo:
        base = name.removesuffix(FIFO)
        if not (name.endswith(FIFO) and len(name) <= QUEUE_NAME_MAX_CHARACTERS and QUEUE_NAME.fullmatch(base)):
            raise InvalidParameterValue(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
                f"must end with .fifo suffix and be 1 to {QUEUE_NAME_MAX_CHARACTERS} in length."
            )
    elif not QUEUE_NAME.fullmatch(name):
        raise InvalidParameterValue(
            f"Can only include alphanumeric characters, hyphens, or underscores. 1 to {QUEUE_NAME_MAX_CHARACTERS} in length"
        )


def queue_at(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Queue:
    """The queue in a request's QueueUrl: a URL, or the name of a queue.

    The host name in the URL is ignored, because Corral can have several.
    """
    account, _, name = params["QueueUrl"].rstrip("/").rpartition("/")
    queue = tx.store.queues.queue(caller.region, name) if not account or account.endswith(caller.account) else None
    if queue is None:
        raise no_such_queue()
    return queue


def queue_with_arn(tx: Tx[Store], arn: str) -> Queue | None:
    """The queue with this ARN, in any region; None if the account does not have it."""
    found = QUEUE_ARN.fullmatch(arn)
    if found is None or found[2] != tx.settings.account:
        return None
    return tx.store.queues.queue(found[1], found[3])


def arn_of(tx: Tx[Any], queue: Queue) -> str:
    return queue_arn(queue.region, tx.settings.account, queue.name)


def url_of(tx: Tx[Any], caller: Caller, name: str) -> str:
    """The URL of a queue, with the host name that the client used. Some SDKs send later requests to this host name."""
    return f"{caller.endpoint_url or tx.settings.endpoint_url}/{caller.account}/{name}"


def now_ms(tx: Tx[Any]) -> int:
    return round(tx.now_s * 1000)


def wall_ms(steps: WallSteps, at_ms: int) -> str:
    """Return a stored time as responses show it."""
    return str(round(steps.wall_s(at_ms / 1000) * 1000))


def creation_key(arn: str) -> str:
    """The key that changes when a queue with this ARN is created."""
    return f"created:{arn}"


def wait_key(queue: Queue) -> str:
    """The key that long polls of this queue wait for. A handler passes it to `tx.changed` when a message may be visible now."""
    return f"queue:{queue.id}"
