"""AddPermission and RemovePermission: statements of the queue's policy, by their labels."""

from __future__ import annotations

from typing import Any

import orjson

from corral.core import Tx
from corral.model.queue import Queue
from corral.services.caller import Caller
from corral.services.sqs.naming import arn_of, invalid, now_ms, queue_at
from corral.store import Store


def add_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, label, accounts, actions = queue_at(tx, params, caller), params["Label"], params["AWSAccountIds"], params["Actions"]
    arn = arn_of(tx, queue)
    policy = queue.policy or {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    statements = _statements(policy)
    if any(statement.get("Sid") == label for statement in statements):
        raise invalid(label, "Label", "Already exists.")
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
        raise invalid(label, "Label", "can't find label.")
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
