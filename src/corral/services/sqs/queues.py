"""Operations on queues: create, find, list, configure, purge, delete, tags and permissions."""

from __future__ import annotations

from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import messages_gone
from corral.model.queue import Queue, queue_arn
from corral.model.sqs_limits import PAGE_MAX, PURGE_INTERVAL_S
from corral.operations.pagination import Pagination, names
from corral.operations.tags import TagRules
from corral.services.sqs import errors
from corral.services.sqs.queue_attributes import (
    attribute_values,
    changed_attributes,
    check_attributes,
    check_throughput,
    initial_attributes,
    normal_attributes,
)
from corral.services.sqs.queue_names import arn_of, check_name, creation_key, now_ms, queue_at, url_of, wait_key
from corral.store import Store

PAGES = Pagination(errors.InvalidParameterValue, "MaxResults", "NextToken", "NextToken", default=PAGE_MAX, only_with_limit=True)
TAG_RULES = TagRules(errors.InvalidParameterValue, texts={"count": "Too many tags: a queue has at most {max}."}, any_character=True)


def create_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a queue. If it exists with the same attributes, return it. The name of a deleted queue can be reused at once."""
    name, given, tags = params["QueueName"], normal_attributes(params.get("Attributes", {})), params.get("tags", {})
    fifo = given.get("FifoQueue") == "true"
    check_name(name, fifo=fifo)
    TAG_RULES.check(tags)
    check_attributes(tx, given, fifo=fifo, arn=queue_arn(caller.region, caller.account, name))
    attributes = initial_attributes(given, fifo=fifo)
    check_throughput(attributes)
    existing = tx.store.queues.queue(caller.region, name)
    if existing is None:
        tx.store.queues.add_queue(caller.region, name, attributes, tags, now_ms(tx), caller.owner)
        tx.changed(creation_key(queue_arn(caller.region, caller.account, name)))
    else:
        for attribute, value in given.items():
            if existing.attributes.get(attribute, "") != value:
                raise errors.QueueNameExists(
                    f"A queue already exists with the same name and a different value for attribute {attribute}"
                )
    return {"QueueUrl": url_of(tx, caller, name)}


def delete_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    tx.store.queues.drop_queue(queue)
    messages_gone(tx, tx.store.tasks.leaving)
    tx.due("piles:", tx.now_s)
    tx.changed(wait_key(queue))  # long polls of this queue end with QueueDoesNotExist
    return {}


def get_queue_url(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    owned = params.get("QueueOwnerAWSAccountId", caller.account) == caller.account
    queue = tx.store.queues.queue(caller.region, params["QueueName"]) if owned else None
    if queue is None:
        raise errors.no_such_queue()
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
    found = attribute_values(tx, queue_at(tx, params, caller), params.get("AttributeNames", []))
    return {"Attributes": found} if found else {}


def set_queue_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, given = queue_at(tx, params, caller), normal_attributes(params["Attributes"])
    if "FifoQueue" in given and not queue.is_fifo:
        raise errors.InvalidAttributeValue(
            "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
        )
    check_attributes(tx, given, fifo=queue.is_fifo, arn=arn_of(tx, queue))
    attributes = changed_attributes(queue, given)
    check_throughput(attributes)
    tx.store.queues.set_attributes(queue, attributes, now_ms(tx))
    if "MessageRetentionPeriod" in given:
        tx.due(f"retention:{queue.id}", tx.now_s)
    return {}


def purge_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    if queue.purged_ms is not None and now_ms(tx) - 1000 * PURGE_INTERVAL_S < queue.purged_ms <= now_ms(tx):
        raise errors.PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {queue.name} is allowed every {PURGE_INTERVAL_S} seconds."
        )
    tx.store.queues.purge_queue(queue, now_ms(tx))
    messages_gone(tx, tx.store.tasks.leaving)
    tx.due("piles:", tx.now_s)
    return {}


# Tags


def tag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    TAG_RULES.check(params["Tags"])
    tx.store.queues.set_tags(queue, TAG_RULES.merge(queue.tags, params["Tags"]))
    return {}


def untag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    tx.store.queues.set_tags(queue, TAG_RULES.remove(queue.tags, params["TagKeys"]))
    return {}


def list_queue_tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    return {"Tags": dict(queue.tags)} if queue.tags else {}


# Permissions. A permission is a statement in the queue's policy. The Sid of the statement is the label of the permission.


def add_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, label, accounts, actions = queue_at(tx, params, caller), params["Label"], params["AWSAccountIds"], params["Actions"]
    arn = arn_of(tx, queue)
    policy = queue.policy or {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    statements = _statements(policy)
    if any(statement.get("Sid") == label for statement in statements):
        raise errors.invalid(label, "Label", "Already exists.")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_many([f"SQS:{action}" for action in actions]),
        "Resource": arn,
    }
    _set_policy(tx, queue, {**policy, "Statement": [*statements, statement]})
    return {}


def remove_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, label = queue_at(tx, params, caller), params["Label"]
    policy = queue.policy or {}
    statements = _statements(policy)
    left = [statement for statement in statements if statement.get("Sid") != label]
    if len(left) == len(statements):
        raise errors.invalid(label, "Label", "can't find label.")
    _set_policy(tx, queue, {**policy, "Statement": left} if left else None)
    return {}


def _statements(policy: dict[str, Any]) -> list[dict[str, Any]]:
    statements = policy.get("Statement", [])
    return statements if isinstance(statements, list) else [statements]


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _set_policy(tx: Tx[Store], queue: Queue, policy: dict[str, Any] | None) -> None:
    attributes = {name: value for name, value in queue.attributes.items() if name != "Policy"}
    if policy is not None:
        attributes["Policy"] = orjson.dumps(policy).decode()
    tx.store.queues.set_attributes(queue, attributes, now_ms(tx))
