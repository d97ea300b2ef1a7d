"""Which GPUs of a slot a task is given: those that are close to each other, and whose loss hurts the rest least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

from corral.model.placement import Links, Slot
from corral.model.task import ALL_GPUS

EXACT_MAX = 2_000  # sets to look at: any number of 12 devices, 4 of 16, 2 of 63
SEEDS_MAX = 8  # otherwise a set is grown from each of so many devices, twice


def choose_gpus(slot: Slot, count: int) -> tuple[str, ...]:
    """The GPUs of a slot that has as many free."""
    if count == ALL_GPUS:
        return tuple(slot.gpus)
    if slot.links is None:
        return tuple(slot.gpus[:count])
    return closest_gpus(slot, slot.gpus, count)


def closest_gpus(slot: Slot | None, gpu_ids: Sequence[str], count: int) -> tuple[str, ...]:
    """So many of these GPUs of a slot."""
    if slot is None or slot.links is None or not 0 < count < len(gpu_ids):
        return tuple(gpu_ids[:count])
    by_position = {slot.positions[gpu_id]: gpu_id for gpu_id in gpu_ids}
    return tuple(by_position[at] for at in closest_set(tuple(sorted(by_position)), count, slot.links))


def split_gpus(slot: Slot | None, gpu_ids: Sequence[str], counts: Sequence[int]) -> list[tuple[str, ...]]:
    """Split a set so that each share is close in itself; the largest share is chosen first."""
    left = list(gpu_ids)
    shares: dict[int, tuple[str, ...]] = {}
    by_size = sorted(range(len(counts)), key=lambda at: -counts[at])
    for at in range(len(counts)) if slot is None or slot.links is None else by_size:
        shares[at] = closest_gpus(slot, left, counts[at])
        left = [gpu_id for gpu_id in left if gpu_id not in shares[at]]
    return [shares[at] for at in range(len(counts))]


@lru_cache(maxsize=4096)  # hosts are alike, and so is what is free of them
def closest_set(free: tuple[int, ...], count: int, links: Links) -> tuple[int, ...]:
    """The set with the least distance between its members.

    Of equally close sets it takes the one that leaves the other free devices closest together, so that islands are not
    broken; of those the first. Exact where there are few sets, else grown step by step, and never worse than the first free.
    """
    # How far each is from all others: with equal distances inside, taking what is far leaves what is close.
    apart = {at: sum(links[at][other] for other in free) for at in free}
    sets: Iterable[tuple[int, ...]]
    if comb(len(free), count) <= EXACT_MAX:
        sets = combinations(free, count)
    else:
        seeds = free[:: -(-len(free) // SEEDS_MAX)]
        sets = [free[:count], *(_grown(seed, apart, count, links, way) for seed in seeds for way in (1, -1))]
    return min(sets, key=lambda chosen: (_inside(chosen, links), -sum(apart[at] for at in chosen), chosen))


def _inside(chosen: Sequence[int], links: Links) -> int:
    total = 0
    for number, at in enumerate(chosen):
        row = links[at]
        for other in chosen[:number]:
            total += row[other]
    return total


def _grown(seed: int, apart: Mapping[int, int], count: int, links: Links, way: int) -> tuple[int, ...]:
    """From one device on, always the one that is closest to those taken; of equal ones the least apart from all, or the most."""
    added = {at: links[seed][at] for at in apart if at != seed}
    chosen = [seed]
    while len(chosen) < count:
        nearest = min(added, key=lambda at: (added[at], way * apart[at], at))
        del added[nearest]
        chosen.append(nearest)
        row = links[nearest]
        for at in added:
            added[at] += row[at]
    return tuple(sorted(chosen))
