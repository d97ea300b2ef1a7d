"""Newcomers: tasks and instances that take capacity at once, because it is free and no waiting claim may use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from corral.core.transactions import Tx
from corral.decide.placement.find import could_hold
from corral.decide.placement.place import place_newcomer, room_for_newcomer
from corral.decide.placement.reservations import standing_reservation
from corral.fleet.shares import must_wait, update_line, why_limited
from corral.model.placement import Placement, Unplaceable
from corral.model.task import Demand
from corral.store import Store


def find_room(
    tx: Tx[Store], pools: tuple[str, ...], owner: str, demand: Demand, *, seed: str = "", longest_s: float | None = None
) -> tuple[str, Placement | None]:
    """Return the first pool that has room now, and the placement. Without room, return the pool in which the claim waits."""
    if must_wait(tx, pools, owner, demand):
        return waiting_pool(tx, pools, demand), None
    for name in pools:
        _update(tx, name)
        room = room_for_newcomer(tx.store.fleet.pool(name), demand, tx.now_s, seed=seed, longest_s=longest_s)
        if room is not None:
            return name, room
    return waiting_pool(tx, pools, demand), None


def place_now(
    tx: Tx[Store], pools: tuple[str, ...], owner: str, demand: Demand, *, seed: str = "", longest_s: float | None = None
) -> tuple[str, Placement | Unplaceable]:
    """Return the first pool that has room now, and the placement, for a newcomer that cannot wait.

    Without room, return a pool and why it has no room: the first pool that has slots, or a later one if only that could hold the
    newcomer.
    """
    if must_wait(tx, pools, owner, demand):
        return pools[0], Unplaceable("GPU" if demand.gpus else "MEMORY", why_limited(tx, pools[0], owner, demand))
    refused: tuple[str, Unplaceable] | None = None
    for name in pools:
        _update(tx, name)
        pool = tx.store.fleet.pool(name)
        if len(pool):
            found = place_newcomer(pool, demand, tx.now_s, seed=seed, longest_s=longest_s)
            if isinstance(found, Placement):
                return name, found
            if refused is None or (could_hold(pool, demand) and not could_hold(tx.store.fleet.pool(refused[0]), demand)):
                refused = name, found
    first = pools[0]
    return refused or (first, place_newcomer(tx.store.fleet.pool(first), demand, tx.now_s, seed=seed, longest_s=longest_s))


def _update(tx: Tx[Store], pool_name: str) -> None:
    if tx.store.fleet.pool(pool_name).has_claims():
        update_line(tx, pool_name)


def waiting_pool(tx: Tx[Store], pools: tuple[str, ...], demand: Demand) -> str:
    """Return the pool in which a claim waits: the first pool that could hold it, or else the last pool."""
    if len(pools) == 1:
        return pools[0]
    return next((name for name in pools if could_hold(tx.store.fleet.pool(name), demand)), pools[-1])


@contextmanager
def taking_capacity(tx: Tx[Store], pool_name: str) -> Iterator[None]:
    """Take capacity of a pool in the body, outside the scheduler. Run the scheduler afterwards if a reservation has moved.

    The oldest claim reserves the slot that lacks least. After a newcomer has taken capacity, this can be another slot. Then a
    younger claim may use the slot that was reserved before.
    """
    pool = tx.store.fleet.pool(pool_name)
    before = standing_reservation(pool) if pool.has_claims() else None
    yield
    if before is not None and standing_reservation(pool) != before:
        tx.mark(f"pool:{pool_name}")
