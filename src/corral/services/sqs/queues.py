"""Queues: made, found, listed, changed, purged and deleted."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.queue import queue_arn
from corral.services.caller import Caller
from corral.services.pagination import Pagination, names
from corral.services.sqs.attributes import (
    changed_attributes,
    check_attributes,
    check_throughput,
    initial_attributes,
    shown_attributes,
)
from corral.services.sqs.naming import (
    InvalidAttributeValue,
    InvalidParameterValue,
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueNameExists,
    arn_of,
    check_name,
    now_ms,
    queue_at,
    url_of,
    wakes,
)
from corral.services.sqs.tags import RULES
from corral.store import Store

PAGES = Pagination(InvalidParameterValue, "MaxResults", "NextToken", "NextToken", default=1000, only_with_limit=True)
PURGE_EVERY_MS = 60_000


def create_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """A queue may be made anew as soon as it is deleted: nothing has to spread here first, as it has on AWS."""
    name, given, tags = params["QueueName"], params.get("Attributes", {}), params.get("tags", {})
    fifo = "FifoQueue" in given
    check_name(name, fifo=fifo)
    RULES.check(tags)
    check_attributes(tx, given, fifo=fifo, arn=queue_arn(caller.region, caller.account, name))
    attributes = initial_attributes(given, fifo=fifo)
    check_throughput(attributes)
    existing = tx.store.queues.queue(caller.region, name)
    if existing is None:
        tx.store.queues.add_queue(caller.region, name, attributes, tags, now_ms(tx))
    else:
        for attribute, value in given.items():
            if existing.attributes.get(attribute, "") != value:
                raise QueueNameExists(f"A queue already exists with the same name and a different value for attribute {attribute}")
    return {"QueueUrl": url_of(tx, caller, name)}


def delete_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    tx.store.queues.drop_queue(queue)
    tx.due("piles:", tx.now_s)
    tx.changed(wakes(queue))  # who waits for its messages hears that it is gone
    return {}


def get_queue_url(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    owned = params.get("QueueOwnerAWSAccountId", caller.account) == caller.account
    queue = tx.store.queues.queue(caller.region, params["QueueName"]) if owned else None
    if queue is None:
        raise QueueDoesNotExist("The specified queue does not exist.")
    return {"QueueUrl": url_of(tx, caller, queue.name)}


def list_queues(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix = params.get("QueueNamePrefix", "")
    page, token = PAGES.page(
        params, names(lambda after, limit: tx.store.queues.queue_names(caller.region, prefix=prefix, after=after, limit=limit))
    )
    return {"QueueUrls": [url_of(tx, caller, name) for name in page], **token} if page else {}


def list_dead_letter_source_queues(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    arn = arn_of(tx, queue_at(tx, params, caller))
    page, token = PAGES.page(
        params, names(lambda after, limit: tx.store.queues.dead_letter_sources(caller.region, arn, after, limit))
    )
    return {"queueUrls": [url_of(tx, caller, name) for name in page], **token}


def get_queue_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = shown_attributes(tx, queue_at(tx, params, caller), params.get("AttributeNames", []))
    return {"Attributes": found} if found else {}


def set_queue_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, given = queue_at(tx, params, caller), params["Attributes"]
    if "FifoQueue" in given and not queue.is_fifo:
        raise InvalidAttributeValue("Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.")
    check_attributes(tx, given, fifo=queue.is_fifo, arn=arn_of(tx, queue))
    attributes = changed_attributes(queue, given)
    check_throughput(attributes)
    tx.store.queues.set_attributes(queue, attributes, now_ms(tx))
    if "MessageRetentionPeriod" in given:
        tx.due(f"retention:{queue.id}", tx.now_s)
    return {}


def purge_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    if queue.purged_ms is not None and now_ms(tx) - PURGE_EVERY_MS < queue.purged_ms <= now_ms(tx):
        raise PurgeQueueInProgress(f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds.")
    tx.store.queues.purge_queue(queue, now_ms(tx))
    tx.due("piles:", tx.now_s)
    return {}
