"""Tags of queues."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.sqs.naming import InvalidParameterValue, queue_at
from corral.services.tags import TagRules
from corral.store import Store

RULES = TagRules(InvalidParameterValue, texts={"count": "Too many tags: a queue has at most {max}."}, any_character=True)


def tag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    RULES.check(params["Tags"])
    tx.store.queues.set_tags(queue, RULES.merge(queue.tags, params["Tags"]))
    return {}


def untag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    tx.store.queues.set_tags(queue, RULES.remove(queue.tags, params["TagKeys"]))
    return {}


def list_queue_tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    return {"Tags": dict(queue.tags)} if queue.tags else {}
