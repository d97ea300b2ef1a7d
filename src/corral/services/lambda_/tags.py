"""Operations on the tags of functions and event source mappings."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.lambda_.event_source_mappings import find_mapping
from corral.services.lambda_.functions import TAG_RULES
from corral.services.lambda_.names import FUNCTION, MAPPING, SERVICE, find_function
from corral.store import Store
from corral.store.stored_resources import Document


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = _find(tx, params, caller)
    added = TAG_RULES.of_pairs(list(params["Tags"].items()))
    return _put(tx, caller, document, TAG_RULES.merge(document["_tags"], added))


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = _find(tx, params, caller)
    return _put(tx, caller, document, TAG_RULES.remove(document["_tags"], params["TagKeys"]))


def list_tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"Tags": _find(tx, params, caller)["_tags"]}


def _find(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Document:
    kind, _, name = params["Resource"].split(":", 5)[5].partition(":")
    return find_mapping(tx, caller, name) if kind == MAPPING else find_function(tx, caller, params, "Resource")


def _put(tx: Tx[Store], caller: Caller, document: Document, tags: dict[str, str]) -> dict[str, Any]:
    kind, name = (MAPPING, document["UUID"]) if "UUID" in document else (FUNCTION, document["FunctionName"])
    tx.store.stored.change(SERVICE, kind, caller.region, name, {**document, "_tags": tags})
    return {}
