"""The scheduler. It gives free capacity to claims. A claim is a task or an instance that waits for capacity in a pool.

The scheduler runs when capacity becomes free, when an instance joins the pool, or when a claim is added.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from corral.core import Tx
from corral.decide.placement import serve
from corral.model.placement import INSTANCE, TASK, Claim, Placement
from corral.services import instances
from corral.services.ecs.launch import fetch_roaming
from corral.services.ecs.task_progress import place_waiting_task
from corral.store import Store

GRANTS_MAX = 100  # claims per batch: about 5 ms of work

# Kind of claim → the function that gives the capacity to such a claim.
GRANTS: dict[str, Callable[[Tx[Store], Claim, Placement], None]] = {TASK: place_waiting_task, INSTANCE: instances.grant}


def reconcile_pool(tx: Tx[Store], pool_name: str) -> None:
    left = GRANTS_MAX
    while left > 0:
        for claim, placement in islice(serve(tx.store.fleet.pool(pool_name)), left):
            GRANTS[claim.kind](tx, claim, placement)
            left -= 1
        if left and not fetch_roaming(tx, pool_name):
            return
        left -= 1  # moving a claim from another pool counts like a grant
    tx.due(f"pool:{pool_name}", tx.now_s)
