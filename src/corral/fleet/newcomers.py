"""Newcomers: tasks and instances that take capacity at once, because it is free and no waiting claim may use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from corral.core.transactions import Tx
from corral.decide.placement.place import standing_reservation
from corral.store import Store


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
