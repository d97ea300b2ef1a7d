"""Tags of queues."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.sqs.naming import InvalidParameterValue, queue_at
from corral.store import Store

TAGS_MAX = 50
KEY_MAX_CHARACTERS = 128
VALUE_MAX_CHARACTERS = 256


def tag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    tags = {**queue.tags, **params["Tags"]}
    check_tags(tags)
    tx.store.queues.set_tags(queue, tags)
    return {}


def untag_queue(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue, keys = queue_at(tx, params, caller), params["TagKeys"]
    tx.store.queues.set_tags(queue, {key: value for key, value in queue.tags.items() if key not in keys})
    return {}


def list_queue_tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = queue_at(tx, params, caller)
    return {"Tags": dict(queue.tags)} if queue.tags else {}


def check_tags(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidParameterValue(f"Too many tags: a queue has at most {TAGS_MAX}.")
    for key, value in tags.items():
        if key.lower().startswith("aws:"):
            raise InvalidParameterValue(f"Tag keys can't start with the reserved prefix aws:, as '{key}' does.")
        if not 1 <= len(key) <= KEY_MAX_CHARACTERS or len(value) > VALUE_MAX_CHARACTERS:
            raise InvalidParameterValue(
                f"A tag's key has from 1 to {KEY_MAX_CHARACTERS} characters and its value up to {VALUE_MAX_CHARACTERS}: '{key}'."
            )
