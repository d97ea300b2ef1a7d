"""Consumable resources: quantities that jobs use, for example licences. Other modules of Batch find a resource with this module.

A job starts only if the quantities that it needs are available. When an attempt of the job ends, a REPLENISHABLE resource gets the
quantity back. The total of a NON_REPLENISHABLE resource becomes smaller instead. A resource is stored as a JSON document. The
quantity in use is not in the document: `store/job_holdings.py` computes it from the running jobs. `resource_requests.py` has the
operations.
"""

from __future__ import annotations

from functools import lru_cache

import orjson
from msgspec import Struct

from corral.core.transactions import Tx
from corral.services.batch.names import RESOURCE, SERVICE, short
from corral.store import Store

REPLENISHABLE, NON_REPLENISHABLE = "REPLENISHABLE", "NON_REPLENISHABLE"
RESOURCES_CACHED_MAX = 1024


class ConsumableResource(Struct, frozen=True):
    name: str
    arn: str
    total: int
    replenishable: bool


def find_resource(tx: Tx[Store], region: str, given: str) -> ConsumableResource | None:
    """Return the resource with this name or ARN, or None if it does not exist. The parsed document is cached."""
    name = short(RESOURCE, region, given)
    text = tx.store.stored.text(SERVICE, RESOURCE, region, name) if name else None
    return _read(text) if text is not None else None


def consume(tx: Tx[Store], region: str, name: str, quantity: int) -> None:
    """Lower the total of a NON_REPLENISHABLE resource after an attempt has used it. Do nothing if the resource was deleted."""
    document = tx.store.stored.get(SERVICE, RESOURCE, region, name)
    if document is not None and document["resourceType"] == NON_REPLENISHABLE:
        total = max(0, document["totalQuantity"] - quantity)
        tx.store.stored.change(SERVICE, RESOURCE, region, name, {**document, "totalQuantity": total})


@lru_cache(maxsize=RESOURCES_CACHED_MAX)
def _read(text: str) -> ConsumableResource:
    document = orjson.loads(text)
    return ConsumableResource(
        name=document["consumableResourceName"],
        arn=document["consumableResourceArn"],
        total=document["totalQuantity"],
        replenishable=document["resourceType"] == REPLENISHABLE,
    )
