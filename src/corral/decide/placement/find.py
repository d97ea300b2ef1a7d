"""The best placement of one demand, next to a reservation."""

from __future__ import annotations

from math import inf

from corral.decide.placement.backfill import place_before
from corral.decide.placement.gpu_choice import gpus_for
from corral.decide.placement.slot_fit import best_fit, covers, is_open, unkept_part
from corral.decide.placement.strategies import first_choice, names_gpu_model, usable_part
from corral.model.placement import Placement, Pool, Reservation
from corral.model.task import Demand


def find(pool: Pool, demand: Demand, reservation: Reservation | None, seed: str = "", ends_at_s: float = inf) -> Placement | None:
    """Choose the slot and the GPUs of a demand. A reserved slot counts only for a demand that ends before it is needed.

    The strategy `random` derives its choice from `seed`.
    """
    if demand.own_gpus:
        return _place_back(pool, demand)
    if demand.nodes:
        from corral.decide.placement.multi_node import place_together

        together = place_together(pool, demand, reservation)
        return None if together is None or any(_takes_kept(each, reservation) for each in together.nodes) else together
    slot_id = best_fit(pool, demand, reservation) if demand.rules is None else _preferred(pool, demand, reservation, seed)
    if slot_id is not None:
        slot = unkept_part(pool.slot(slot_id), reservation)
        return Placement(slot_id, gpus_for(slot if slot.gpu_models is None else usable_part(slot, demand), demand))
    if reservation is None or reservation.opening is None:
        return None
    before = place_before(pool, demand, reservation.opening, ends_at_s)
    return None if before is None or _takes_kept(before, reservation) else before


def _place_back(pool: Pool, demand: Demand) -> Placement | None:
    """Return the placement of a paused task if all its GPUs are free. It also continues on a host that is draining."""
    assert demand.rules is not None
    slot_id, gpu_ids = demand.rules.slot_id, demand.own_gpus
    if slot_id not in pool:
        return None
    slot = pool.slot(slot_id)
    return Placement(slot_id, gpu_ids) if slot.connected and set(slot.gpus) >= set(gpu_ids) else None


def _takes_kept(placement: Placement, reservation: Reservation | None) -> bool:
    kept = reservation.kept.get(placement.slot_id) if reservation is not None else None
    return kept is not None and not kept.isdisjoint(placement.gpu_ids)


def _preferred(pool: Pool, demand: Demand, reservation: Reservation | None, seed: str) -> str | None:
    """Return the slot that the placement rules of the demand prefer."""
    reserved = 0 if reservation is None else len(reservation.wanted)
    return first_choice(pool, demand, seed, lambda slot_id: is_open(pool, slot_id, demand, reservation), reserved)


def could_hold(pool: Pool, demand: Demand) -> bool:
    """Whether the demand would fit on an empty slot of the pool. The nodes of a multi-node job may use several slots."""
    if demand.nodes:
        from corral.decide.placement.multi_node import could_hold_together  # imported here, because few jobs have several nodes

        return could_hold_together(pool, demand)
    if names_gpu_model(demand.rules):
        return any(covers(usable_part(slot, demand).whole, demand) for slot in pool.slots())
    return any(covers(total, demand) for total in pool.totals())
