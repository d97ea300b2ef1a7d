"""Consumable resources as other modules see them: quantities that jobs take, for example licences.

A job starts only if everything that it asks for is available. A REPLENISHABLE resource gets its quantity back when the attempt
ends. A NON_REPLENISHABLE resource does not: its total becomes smaller. A resource is a stored document. The quantity in use is not
in the document: `store/job_lines.py` derives it from the running attempts. `resource_requests.py` has the operations.
"""

from __future__ import annotations

from functools import lru_cache

import orjson
from msgspec import Struct

from corral.core import Tx
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
    """Return a resource by its name or ARN. The record is cached while its document is unchanged."""
    name = short(RESOURCE, region, given)
    text = tx.store.stored.text(SERVICE, RESOURCE, region, name) if name else None
    return _read(text) if text is not None else None


def consume(tx: Tx[Store], region: str, name: str, quantity: int) -> None:
    """Lower the total of a NON_REPLENISHABLE resource, after an attempt has used it. A deleted resource is no error."""
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
