"""The operations of consumable resources: create, update, delete, describe and list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import INT64_MAX
from corral.operations.stored_resources import Params
from corral.services.batch.consumable_resources import NON_REPLENISHABLE, REPLENISHABLE
from corral.services.batch.errors import EXISTS, ClientException, missing, refused
from corral.services.batch.names import (
    PAGES,
    RESOURCE,
    SERVICE,
    arn,
    check_name,
    checked_tags,
    listed,
    milliseconds,
    short,
)
from corral.services.batch.waiting_jobs import resource_changed
from corral.store import Store
from corral.store.stored_resources import Document

RESOURCES_MAX = 50_000  # per region; this is also AWS's quota for an account
FILTER_VALUES_MAX = 100
NAME_FILTER = "CONSUMABLE_RESOURCE_NAME"
TOKEN_VALID_S = 8 * 3600.0
TOKENS_MAX = 100  # client tokens that Corral remembers for each resource


def create_consumable_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name, tags = check_name("consumableResourceName", params["consumableResourceName"]), checked_tags(params)
    kind = params.get("resourceType", REPLENISHABLE)
    if kind not in (REPLENISHABLE, NON_REPLENISHABLE):
        raise refused("resourceType", kind, f"it must be {REPLENISHABLE} or {NON_REPLENISHABLE}.")
    document: Document = {
        "consumableResourceName": name,
        "consumableResourceArn": arn(caller.account, caller.region, f"{RESOURCE}/{name}"),
        "totalQuantity": _checked(params.get("totalQuantity", 0)),
        "resourceType": kind,
        "createdAt": milliseconds(tx.now_s),
        "tags": tags,
    }
    if tx.store.stored.count(SERVICE, RESOURCE, caller.region) >= RESOURCES_MAX:
        raise ClientException(f"A region can have at most {RESOURCES_MAX} consumable resources: delete one first.")
    if not tx.store.stored.add(SERVICE, RESOURCE, caller.region, name, document, tx.now_s, caller.owner):
        raise ClientException(EXISTS)
    return {member: document[member] for member in ("consumableResourceName", "consumableResourceArn")}


def update_consumable_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change the total quantity. If a client repeats a request with the same clientToken, the repetition changes nothing."""
    document = _existing(tx, caller, params["consumableResource"])
    operation, quantity = params.get("operation", "SET"), _checked(params.get("quantity", 0))
    total: int = document["totalQuantity"]
    if operation not in ("SET", "ADD", "REMOVE"):
        raise refused("operation", operation, "it must be SET, ADD or REMOVE.")
    tokens = {key: at_s for key, at_s in document.get("_tokens", {}).items() if at_s > tx.now_s - TOKEN_VALID_S}
    token = params.get("clientToken")
    used = token is not None and f"{operation} {quantity} {token}" in tokens
    if "quantity" in params and not used:
        total = _checked({"SET": quantity, "ADD": total + quantity, "REMOVE": total - quantity}[operation])
        if token is not None:
            tokens[f"{operation} {quantity} {token}"] = tx.now_s
        remembered = dict(sorted(tokens.items(), key=lambda each: each[1])[-TOKENS_MAX:])
        changed = {**document, "totalQuantity": total, "_tokens": remembered}
        tx.store.stored.change(SERVICE, RESOURCE, caller.region, document["consumableResourceName"], changed)
        resource_changed(tx, caller.region, document["consumableResourceName"])
    return {
        "consumableResourceName": document["consumableResourceName"],
        "consumableResourceArn": document["consumableResourceArn"],
        "totalQuantity": total,
    }


def delete_consumable_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    document = _existing(tx, caller, params["consumableResource"])
    tx.store.stored.drop(SERVICE, RESOURCE, caller.region, document["consumableResourceName"])
    resource_changed(tx, caller.region, document["consumableResourceName"])
    return {}


def describe_consumable_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    document = _existing(tx, caller, params["consumableResource"])
    summary = _summary(tx, caller, document)
    return {
        **summary,
        "availableQuantity": max(0, summary["totalQuantity"] - summary["inUseQuantity"]),
        "createdAt": document["createdAt"],
        "tags": document["tags"],
    }


def list_consumable_resources(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    matches = name_filter(params.get("filters", []), (NAME_FILTER,))[NAME_FILTER]
    found, more = PAGES.page(params, listed(tx, caller, RESOURCE, lambda each: matches(each["consumableResourceName"])))
    return {"consumableResources": [_summary(tx, caller, document) for document in found], **more}


def name_filter(filters: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Callable[[str], bool]]:
    """Return a function for each filter name. The function tells whether a text matches one of the filter's values, ignoring case.

    A value that ends with an asterisk matches each text that begins with the part before the asterisk. If the request does not
    contain the filter, every text matches.
    """
    given: dict[str, list[str]] = {}
    for each in filters:
        if each.get("name") not in names:
            raise refused("filters.name", each.get("name", ""), f"it must be {' or '.join(names)}.")
        given.setdefault(each["name"], []).extend(value.lower() for value in each.get("values", ()))
    for name, values in given.items():
        if not 1 <= len(values) <= FILTER_VALUES_MAX:
            raise ClientException(f"The filter {name} must have 1 to {FILTER_VALUES_MAX} values: it has {len(values)}.")

    def matcher(values: list[str] | None) -> Callable[[str], bool]:
        if values is None:
            return lambda text: True
        exact = frozenset(values)
        prefixes = tuple(value[:-1] for value in values if value.endswith("*"))
        return lambda text: text.lower() in exact or text.lower().startswith(prefixes)

    return {name: matcher(given.get(name)) for name in names}


def _summary(tx: Tx[Store], caller: Caller, document: Document) -> Document:
    members = ("consumableResourceArn", "consumableResourceName", "totalQuantity", "resourceType")
    in_use = tx.store.job_holdings.in_use(caller.region, document["consumableResourceName"])
    return {**{member: document[member] for member in members}, "inUseQuantity": in_use}


def _checked(quantity: int) -> int:
    if not 0 <= quantity <= INT64_MAX:
        raise refused("quantity", quantity, f"the total quantity must be between 0 and {INT64_MAX}.")
    return quantity


def _existing(tx: Tx[Store], caller: Caller, given: str) -> Document:
    name = short(RESOURCE, caller.region, given)
    document = tx.store.stored.get(SERVICE, RESOURCE, caller.region, name) if name else None
    if document is None:
        raise missing(RESOURCE, given)
    return document
