"""Choose which free GPUs of a slot a task gets.

GPUs are close to each other if data travels fast between them, for example over NVLink. The chosen GPUs are close to each other. Of
the sets of GPUs that are equally close, the choice takes the set that leaves the other free GPUs closest to each other, for the
next task.

A task can also share one GPU with other tasks: it gets a part of the memory of this GPU. The choice fills GPUs that are already
shared, so that other GPUs stay idle for tasks that need whole GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from corral.model.placement import Links, Slot
from corral.model.task import ALL_GPUS, Demand

EXACT_MAX = 2_000  # if there are at most this many possible sets of GPUs, all are compared
SEEDS_MAX = 8  # otherwise `_grown` builds two sets from each of at most this many free GPUs


def gpus_for(slot: Slot, demand: Demand) -> tuple[str, ...]:
    """Choose the GPUs of a slot for a demand. The caller has checked that the slot has them."""
    if not demand.gpu_memory_mib:
        return choose_gpus(slot, demand.gpus)
    chosen = shared_gpu(slot, demand.gpu_memory_mib)
    assert chosen is not None, "the slot has no GPU with enough memory"
    return (chosen,)


def shared_gpu(slot: Slot, memory_mib: int) -> str | None:
    """Choose the GPU on which a task gets this much memory. Return None if no GPU of the slot has so much memory left.

    If shared GPUs have enough memory left, choose the one with the least memory left. Otherwise choose an idle GPU: the smallest
    that has enough memory. If several idle GPUs have this size, choose the one that leaves the others closest to each other.
    """
    in_use = fullest_shared(slot, memory_mib)
    if in_use is not None:
        return in_use[1]
    large = [gpu_id for gpu_id in slot.gpus if slot.gpu_memory.get(gpu_id, 0) >= memory_mib]
    least_mib = min([slot.gpu_memory[gpu_id] for gpu_id in large], default=0)
    suited = [gpu_id for gpu_id in large if slot.gpu_memory[gpu_id] == least_mib]
    return closest_gpus(slot, suited, 1)[0] if suited else None


def fullest_shared(slot: Slot, memory_mib: int) -> tuple[int, str] | None:
    """Return (memory left, id) of the shared GPU with the least memory left, among those with enough. Return None without one."""
    suited = [(left_mib, slot.positions[gpu_id], gpu_id) for gpu_id, left_mib in slot.shared.items() if left_mib >= memory_mib]
    if not suited:
        return None
    left_mib, _, gpu_id = min(suited)
    return left_mib, gpu_id


def most_gpu_memory(slot: Slot) -> int:
    """Return the most memory that a task can get on one GPU of the slot now."""
    return max([*slot.shared.values(), *(slot.gpu_memory.get(gpu_id, 0) for gpu_id in slot.gpus)], default=0)


def choose_gpus(slot: Slot, count: int) -> tuple[str, ...]:
    """Choose `count` free GPUs of a slot. The caller has checked that the slot has that many."""
    if count == ALL_GPUS:
        return tuple(slot.gpus)
    if slot.links is None:
        return tuple(slot.gpus[:count])
    return closest_gpus(slot, slot.gpus, count)


def closest_gpus(slot: Slot | None, gpu_ids: Sequence[str], count: int) -> tuple[str, ...]:
    """Choose `count` of the given GPUs of a slot, so that they are close to each other."""
    if slot is None or slot.links is None or not 0 < count < len(gpu_ids):
        return tuple(gpu_ids[:count])
    by_position = {slot.positions[gpu_id]: gpu_id for gpu_id in gpu_ids}
    return tuple(by_position[at] for at in closest_set(tuple(sorted(by_position)), count, slot.links))


def split_gpus(slot: Slot | None, gpu_ids: Sequence[str], counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Split GPUs into shares of these `counts`. The GPUs of one share are close to each other. The largest share chooses first."""
    left = list(gpu_ids)
    shares: dict[int, tuple[str, ...]] = {}
    by_size = sorted(range(len(counts)), key=lambda at: -counts[at])
    for at in range(len(counts)) if slot is None or slot.links is None else by_size:
        shares[at] = closest_gpus(slot, left, counts[at])
        left = [gpu_id for gpu_id in left if gpu_id not in shares[at]]
    return [shares[at] for at in range(len(counts))]


@lru_cache(maxsize=4096)  # many hosts have the same links and the same free GPUs
def closest_set(free: tuple[int, ...], count: int, links: Links) -> tuple[int, ...]:
    """Return the set of `count` free devices that have the smallest total distance to each other.

    A device is the index of a GPU in `links`. If several sets are equally close, prefer the set that leaves the other free devices
    closest to each other. So a group of linked devices is not split without need. If several sets are still equal, take the first.
    The result is exact if there are at most EXACT_MAX possible sets. Otherwise the result is the best of the first `count` free
    devices and the sets that `_grown` builds.
    """
    # The total distance of each device to all other free devices. Among equally close sets, the set with the largest sum of these
    # distances leaves the other devices closest to each other.
    apart = {at: sum(links[at][other] for other in free) for at in free}
    sets: Iterable[tuple[int, ...]]
    if comb(len(free), count) <= EXACT_MAX:
        sets = combinations(free, count)
    else:
        seeds = free[:: -(-len(free) // SEEDS_MAX)]
        sets = [free[:count], *(_grown(seed, apart, count, links, sign) for seed in seeds for sign in (1, -1))]
    return min(sets, key=lambda chosen: (_inside(chosen, links), -sum(apart[at] for at in chosen), chosen))


def _inside(chosen: Sequence[int], links: Links) -> int:
    total = 0
    for number, at in enumerate(chosen):
        row = links[at]
        for other in chosen[:number]:
            total += row[other]
    return total


def _grown(seed: int, apart: Mapping[int, int], count: int, links: Links, sign: int) -> tuple[int, ...]:
    """Build a set from one device by repeatedly adding the device that is closest to the set.

    If several devices are equally close, the `sign` 1 takes the device with the smallest total distance to all free devices. The
    `sign` -1 takes the device with the largest.
    """
    added = {at: links[seed][at] for at in apart if at != seed}
    chosen = [seed]
    while len(chosen) < count:
        nearest = min(added, key=lambda at: (added[at], sign * apart[at], at))
        del added[nearest]
        chosen.append(nearest)
        row = links[nearest]
        for at in added:
            added[at] += row[at]
    return tuple(sorted(chosen))
