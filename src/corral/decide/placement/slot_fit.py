"""Slot fit: whether a demand fits on a slot, and which slot fits best.

A reservation keeps the free resources of one or more slots for an older claim, which is served first.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.decide.placement.gpu_choice import fullest_shared, shared_gpu
from corral.decide.placement.strategies import names_gpu_model, select, usable_part
from corral.model.placement import FreeSlots, Pool, Reservation, Slot
from corral.model.task import ALL_GPUS, Demand


def best_fit(pool: Pool, demand: Demand, reservation: Reservation | None) -> str | None:
    """Return the slot with the fewest free GPUs, then with the least free memory, on which the demand fits, or None.

    Ignore the placement rules of the demand. Skip a reserved slot, unless `leaves_enough` is true.
    """
    if demand.gpu_memory_mib:
        return _best_shared_fit(pool, demand, reservation)
    for group in pool.groups(demand.gpus):
        for slot_ids in group.fitting(demand.memory_mib, demand.cpu_units):
            if reservation is None:
                return slot_ids[0]
            for slot_id in slot_ids[: len(reservation.wanted) + len(reservation.kept) + 1]:  # at least one of them is not reserved
                if _is_left(pool.slot(slot_id), demand, reservation):
                    return slot_id
    return None


def _best_shared_fit(pool: Pool, demand: Demand, reservation: Reservation | None) -> str | None:
    """Return the slot for a demand that shares a GPU, or None.

    Prefer the slot whose shared GPU has the least memory left, among the shared GPUs with enough memory left. If no shared GPU has
    enough, return the best fit among the slots with an idle GPU that has enough memory.
    """
    in_use: list[tuple[int, str]] = []
    for slot_id in pool.sharing():
        found = fullest_shared(pool.slot(slot_id), demand.gpu_memory_mib)
        if found is not None and pool.slot(slot_id).takes_tasks and is_open(pool, slot_id, demand, reservation):
            in_use.append((found[0], slot_id))
    if in_use:
        return min(in_use)[1]
    for group in pool.groups(1):
        for slot_ids in group.fitting(demand.memory_mib, demand.cpu_units):
            for slot_id in slot_ids:
                if is_open(pool, slot_id, demand, reservation):
                    return slot_id
    return None


def is_open(pool: Pool, slot_id: str, demand: Demand, reservation: Reservation | None) -> bool:
    """Whether the demand fits on a slot now, and either no older claim reserves the slot or `leaves_enough` is true."""
    slot = pool.slot(slot_id)
    if not (
        has_gpus(usable_part(slot, demand), demand) and slot.memory_mib >= demand.memory_mib and slot.cpu_units >= demand.cpu_units
    ):
        return False
    return reservation is None or _is_left(slot, demand, reservation)


def _is_left(slot: Slot, demand: Demand, reservation: Reservation) -> bool:
    """Whether a demand that fits on a slot takes nothing that is reserved for older claims."""
    older = reservation.wanted.get(slot.id)
    if older is not None and not leaves_enough(slot, demand, older):
        return False
    return slot.id not in reservation.kept or has_gpus(usable_part(unkept_part(slot, reservation), demand), demand)


def unkept_part(slot: Slot, reservation: Reservation | None) -> Slot:
    """Return a slot without the free GPUs for which older paused tasks wait."""
    kept = reservation.kept.get(slot.id) if reservation is not None else None
    return slot if kept is None else replace(slot, gpus=[gpu_id for gpu_id in slot.gpus if gpu_id not in kept])


def has_gpus(slot: Slot, demand: Demand) -> bool:
    if demand.gpu_memory_mib:
        return shared_gpu(slot, demand.gpu_memory_mib) is not None
    if demand.gpus == ALL_GPUS:
        return bool(slot.gpus) and len(slot.gpus) == slot.total.gpus
    return len(slot.gpus) >= demand.gpus


def leaves_enough(slot: Slot, demand: Demand, older: Demand) -> bool:
    """Whether a demand may use a reserved slot: it takes no GPU, CPU or memory that the older claim needs.

    A demand that needs no CPU takes no CPU from the older claim, and the same is true for memory. If a host has GPUs of two models,
    one demand can need GPUs of one model, and the other of the other model.
    """
    return (
        (demand.gpus == 0 or (slot.gpu_models is not None and _other_models(slot, demand, older)))
        and (not demand.cpu_units or slot.cpu_units - demand.cpu_units >= older.cpu_units)
        and (not demand.memory_mib or slot.memory_mib - demand.memory_mib >= older.memory_mib)
    )


def _other_models(slot: Slot, demand: Demand, older: Demand) -> bool:
    return usable_part(slot, demand).gpu_memory.keys().isdisjoint(usable_part(slot, older).gpu_memory)


def covers(total: Demand, demand: Demand) -> bool:
    """Whether a slot of this size has enough resources for the demand if no task runs on it."""
    return (
        total.gpus >= demand.least_gpus
        and total.memory_mib >= demand.memory_mib
        and total.cpu_units >= demand.cpu_units
        and total.gpu_memory_mib >= demand.gpu_memory_mib
    )


def allowed_slots(pool: Pool, demand: Demand) -> FreeSlots:
    return pool if demand.rules is None else select(pool, demand.rules)


def is_unsorted(demand: Demand) -> bool:
    """Whether each slot must be checked, because no index sorts the slots for such a demand."""
    if demand.rules is None:
        return bool(demand.gpu_memory_mib)
    return bool(demand.gpu_memory_mib) or demand.gpus == ALL_GPUS or names_gpu_model(demand.rules)


def gpu_needs(demand: Demand) -> Demand:
    """Return the GPUs of a demand without its CPU and memory."""
    return Demand(demand.gpus, gpu_memory_mib=demand.gpu_memory_mib)


def amounts(demand: Demand) -> str:
    """Describe a demand for a message, for example `1 GPU, 128 MiB`."""
    parts = []
    if demand.gpu_memory_mib:
        parts = [f"{demand.gpu_memory_mib} MiB of a shared GPU"]
    elif demand.gpus:
        parts = ["all GPUs of a host" if demand.gpus == ALL_GPUS else f"{demand.gpus} GPU{'s' * (demand.gpus != 1)}"]
    parts += [f"{demand.cpu_units} CPU units"] if demand.cpu_units else []
    parts += [f"{demand.memory_mib} MiB"] if demand.memory_mib else []
    return ", ".join(parts) or "a place"
