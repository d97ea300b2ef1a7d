"""The choice of GPUs of a slot: GPUs that are close to each other, and that leave the other free GPUs close together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from corral.model.placement import Links, Slot
from corral.model.task import ALL_GPUS

EXACT_MAX = 2_000  # sets that are compared one by one: any number of 12 devices, 4 of 16, 2 of 63
SEEDS_MAX = 8  # with more sets, sets are grown from at most this many devices, twice from each


def choose_gpus(slot: Slot, count: int) -> tuple[str, ...]:
    """GPUs of a slot, which must have `count` free GPUs."""
    if count == ALL_GPUS:
        return tuple(slot.gpus)
    if slot.links is None:
        return tuple(slot.gpus[:count])
    return closest_gpus(slot, slot.gpus, count)


def closest_gpus(slot: Slot | None, gpu_ids: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` of the given GPUs of a slot, close to each other."""
    if slot is None or slot.links is None or not 0 < count < len(gpu_ids):
        return tuple(gpu_ids[:count])
    by_position = {slot.positions[gpu_id]: gpu_id for gpu_id in gpu_ids}
    return tuple(by_position[at] for at in closest_set(tuple(sorted(by_position)), count, slot.links))


def split_gpus(slot: Slot | None, gpu_ids: Sequence[str], counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Split GPUs into shares so that the GPUs of each share are close to each other. The largest share is chosen first."""
    left = list(gpu_ids)
    shares: dict[int, tuple[str, ...]] = {}
    by_size = sorted(range(len(counts)), key=lambda at: -counts[at])
    for at in range(len(counts)) if slot is None or slot.links is None else by_size:
        shares[at] = closest_gpus(slot, left, counts[at])
        left = [gpu_id for gpu_id in left if gpu_id not in shares[at]]
    return [shares[at] for at in range(len(counts))]


@lru_cache(maxsize=4096)  # many hosts have the same links and the same free GPUs
def closest_set(free: tuple[int, ...], count: int, links: Links) -> tuple[int, ...]:
    """The set of devices with the least total distance between its members.

    Of equally close sets it is the set that leaves the other free devices closest together, so that groups of linked devices stay
    whole; of those, the first. The result is exact if there are few sets. Otherwise sets are grown step by step, and the result is
    never worse than the first free devices.
    """
    # The distance of each device to all others: among equally close sets, taking distant devices leaves close ones.
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
    """Grow a set from one device: add the device closest to the set; on a tie, the least distant from all others, or the most."""
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
