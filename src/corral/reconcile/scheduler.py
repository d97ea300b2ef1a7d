"""The scheduler, which is the reconciler `pool`. It gives the free capacity of a pool to the claims of the pool.

The scheduler runs when capacity becomes free, when an instance joins the pool, or when a claim is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from types import ModuleType

from corral.core.transactions import Tx
from corral.decide.placement.place import serve
from corral.fleet import instances
from corral.fleet.shares import look_again, update_allowances, update_line
from corral.model.placement import INSTANCE, JOB, TASK, Claim, Placement
from corral.reconcile.preemptions import make_room, return_to_line
from corral.services.ecs import pauses
from corral.services.ecs.launch import fetch_roaming
from corral.store import Store

Grant = Callable[[Tx[Store], Claim, Placement], None]
GRANTS_MAX = 100  # the most claims that one call serves: about 5 ms of work
JOB_COST = 5  # a job, or a node of a multi-node job, counts as this many claims, because its start writes more rows


@cache
def _batch(module: str) -> ModuleType:
    """Import a module of Batch only when a job waits, so that a server without jobs does not load it."""
    return import_module(f"corral.services.batch.{module}")


# Kind of claim → the function that gives the capacity to such a claim. `_serve` adds the function for jobs.
GRANTS: dict[str, Grant] = {TASK: pauses.grant, INSTANCE: instances.grant}


def reconcile_pool(tx: Tx[Store], pool_name: str) -> None:
    """Serve the claims of a pool. If a job that waits in this pool prefers other pools, serve those pools first.

    A job queue has an ordered list of compute environments. A job prefers the pool of an environment that is earlier in this list.
    """
    if tx.settings.launches.paused_until_s > tx.now_s:
        tx.due(f"pool:{pool_name}", tx.settings.launches.paused_until_s)
        return
    left = GRANTS_MAX
    order: dict[str, None] = {}
    _visit(tx, pool_name, order, set())
    for name in order:
        left = _serve(tx, name, left)
        if left <= 0:
            tx.due(f"pool:{pool_name}", tx.now_s)
            return


def reconcile_allowances(tx: Tx[Store], _: str) -> None:
    """Look again at what the limits of owners allow, because an owner holds less, or because time has passed."""
    update_allowances(tx)
    instances.mark_providers(tx)
    lines = tx.store.job_lines.all().values()
    if lines:
        _batch("waiting_jobs").mark_environments(tx, {(line.key.region, line.queue) for line in lines})


def _serve(tx: Tx[Store], pool_name: str, left: int) -> int:
    """Serve at most `left` claims of a pool. Return how many more claims this call of the reconciler may serve."""
    if not tx.store.job_lines.in_pool(pool_name):
        return _grant(tx, pool_name, left, GRANTS)
    dispatch = _batch("dispatch")
    _batch("line_claims").rank_claims(tx, pool_name)
    try:
        return tx.attempt(
            lambda: _grant(tx, pool_name, left, {**GRANTS, JOB: partial(dispatch.grant, pool=pool_name, fails_job=False)})
        )
    except dispatch.REFUSALS:  # the launch of a job was refused: serve the pool again, and let only this job fail
        return _grant(tx, pool_name, left, {**GRANTS, JOB: partial(dispatch.grant, pool=pool_name, fails_job=True)})


def _grant(tx: Tx[Store], pool_name: str, left: int, grants: Mapping[str, Grant]) -> int:
    if tx.store.tasks.with_pause or tx.store.tasks.turn_lines.has_tasks(pool_name):
        return_to_line(tx, pool_name)
    update_line(tx, pool_name)
    while left > 0:
        for claim, placement in serve(tx.store.fleet.pool(pool_name), tx.now_s):
            grants[claim.kind](tx, claim, placement)
            update_line(tx, pool_name)
            left -= JOB_COST * (len(placement.nodes) or 1) if claim.kind == JOB else 1
            if left <= 0:
                break
        if left > 0 and not fetch_roaming(tx, pool_name):
            look_again(tx, pool_name)
            make_room(tx, pool_name)
            break
        left -= 1  # `fetch_roaming` has moved a claim to this pool from another pool, which counts as one claim
    return left


def _visit(tx: Tx[Store], pool_name: str, order: dict[str, None], seen: set[str]) -> None:
    """Add a pool to `order`. Before this pool, add the pools that its waiting jobs prefer, and so on."""
    seen.add(pool_name)
    for name in sorted(tx.store.job_lines.pools_before(pool_name) - seen):
        if name not in seen:
            _visit(tx, name, order, seen)
    order[pool_name] = None
