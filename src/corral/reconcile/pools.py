"""Pools of capacity, the scheduler: a release, a new host or a new claim wakes a pool, and its claims are served."""

from __future__ import annotations

from itertools import islice

from corral.core import Tx
from corral.decide.place import serve
from corral.services.ecs.starting import grant
from corral.store import Store

GRANTS_MAX = 100  # about 5 ms of work; the rest follows in the next batch


def look_at_pool(tx: Tx[Store], pool_name: str) -> None:
    granted = 0
    for claim, placement in islice(serve(tx.store.fleet.pool(pool_name)), GRANTS_MAX):
        grant(tx, claim, placement)
        granted += 1
    if granted == GRANTS_MAX:
        tx.due(f"pool:{pool_name}", tx.now_s)
