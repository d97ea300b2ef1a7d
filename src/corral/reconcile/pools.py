"""Pools of capacity, the scheduler: released capacity, a new slot or a new claim wakes a pool, and its claims are served."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from corral.core import Tx
from corral.decide.place import serve
from corral.model.placement import INSTANCE, TASK, Claim, Placement
from corral.services import instances
from corral.services.ecs import orders
from corral.store import Store

GRANTS_MAX = 100  # about 5 ms of work; the rest follows in the next batch

GRANTS: dict[str, Callable[[Tx[Store], Claim, Placement], None]] = {TASK: orders.grant, INSTANCE: instances.grant}  # by kind


def look_at_pool(tx: Tx[Store], pool_name: str) -> None:
    granted = 0
    for claim, placement in islice(serve(tx.store.fleet.pool(pool_name)), GRANTS_MAX):
        GRANTS[claim.kind](tx, claim, placement)
        granted += 1
    if granted == GRANTS_MAX:
        tx.due(f"pool:{pool_name}", tx.now_s)
