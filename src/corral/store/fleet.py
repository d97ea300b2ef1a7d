"""The free capacity of every pool and the line of claims before it: derived from the rows, kept in memory.

Every change is journaled with its inverse, so that a command that fails takes its changes with it, as its savepoint
does with the rows. The index is rebuilt at start and after a failed commit; `Fleet.picture` lets a test compare it with
a rebuilt one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from corral.model.placement import Claim, Slot
from corral.model.task import ALL_GPUS, Ask

Rest = tuple[int, int]  # free memory, free cpu


class SlotGroup:
    """Slots with equally many free GPUs: what `model.placement.Group` promises. Ids and shapes are kept sorted."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self._ids: dict[Rest, list[str]] = {}
        self._rests: list[Rest] = []
        self._cpus: list[int] = []  # of the rests

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterator[Sequence[str]]:
        if self._cpus[-1] >= cpu_units:
            for at in range(bisect_left(self._rests, (memory_mib, -1)), len(self._rests)):
                if self._rests[at][1] >= cpu_units:
                    yield self._ids[self._rests[at]]

    def roomiest(self) -> Iterator[str]:
        for rest in reversed(self._rests):
            yield from self._ids[rest]

    def add(self, slot: Slot) -> None:
        rest = (slot.memory_mib, slot.cpu_units)
        ids = self._ids.get(rest)
        if ids is None:
            self._ids[rest] = [slot.id]
            insort(self._rests, rest)
            insort(self._cpus, rest[1])
        else:
            insort(ids, slot.id)

    def remove(self, slot: Slot) -> bool:
        """False when none is left."""
        rest = (slot.memory_mib, slot.cpu_units)
        ids = self._ids[rest]
        del ids[bisect_left(ids, slot.id)]
        if not ids:
            del self._ids[rest]
            del self._rests[bisect_left(self._rests, rest)]
            del self._cpus[bisect_left(self._cpus, rest[1])]
        return bool(self._rests)

    def picture(self) -> list[tuple[Rest, tuple[str, ...]]]:
        return [(rest, tuple(self._ids[rest])) for rest in self._rests]


class PoolIndex:
    """What is free in one pool, so arranged that a decision looks at kinds of slots, not at slots.

    It is what `model.placement.Pool` promises to a decision.
    """

    def __init__(self) -> None:
        self.free_gpus = 0
        self.total_gpus = 0
        self.connected = 0
        self._slots: dict[str, Slot] = {}
        self._totals: dict[Ask, int] = {}
        self._groups: dict[int, SlotGroup] = {}  # of the connected slots, by free GPUs
        self._by_held: dict[tuple[int, int], SlotGroup] | None = None  # by held GPUs and size; kept once somebody asked for ALL
        self._withheld: dict[str, dict[str, str]] = {}  # slots with GPUs that are kept away
        self._lines: dict[Ask, list[tuple[float, str]]] = {}  # claims with equal asks, oldest first

    def groups(self, min_gpus: int = 0) -> list[SlotGroup]:
        if min_gpus == ALL_GPUS:
            return [group for (held, _), group in sorted(self._held_groups().items(), key=_first) if not held]
        return [self._groups[gpus] for gpus in sorted(self._groups) if gpus >= min_gpus]

    def groups_by_held(self) -> list[SlotGroup]:
        return [group for _, group in sorted(self._held_groups().items(), key=_first)]

    def withheld(self) -> list[str]:
        return [reason for slot_id in sorted(self._withheld) for reason in self._withheld[slot_id].values()]

    def slot(self, slot_id: str) -> Slot:
        return self._slots[slot_id]

    def slots(self) -> Iterable[Slot]:
        return self._slots.values()

    def totals(self) -> Iterable[Ask]:
        return self._totals

    def heads(self) -> list[Claim]:
        return sorted(Claim(*line[0], ask) for ask, line in self._lines.items())

    def head(self, ask: Ask) -> Claim | None:
        line = self._lines.get(ask)
        return Claim(*line[0], ask) if line else None

    def waiting(self) -> int:
        return sum(len(line) for line in self._lines.values())

    # Changes; only Fleet calls these, and keeps their inverses.

    def put(self, slot: Slot) -> None:
        self._slots[slot.id] = slot
        self._totals[slot.total] = self._totals.get(slot.total, 0) + 1
        if slot.withheld:
            self._withheld[slot.id] = slot.withheld
        self._list(slot)

    def remove(self, slot_id: str) -> None:
        slot = self._slots.pop(slot_id)
        self._unlist(slot)
        self._withheld.pop(slot_id, None)
        self._totals[slot.total] -= 1
        if not self._totals[slot.total]:
            del self._totals[slot.total]

    def change(self, slot_id: str, gpu_ids: Sequence[str], cpu_units: int, memory_mib: int, *, back: bool) -> None:
        """Take from a slot, or give back to it."""
        slot = self._slots[slot_id]
        self._unlist(slot)
        if back:
            # A GPU that its host no longer shows is given back to nobody.
            slot.gpus = sorted({*slot.gpus, *(gpu for gpu in gpu_ids if gpu in slot.positions)}, key=slot.positions.__getitem__)
            slot.cpu_units += cpu_units
            slot.memory_mib += memory_mib
        else:
            slot.gpus = [gpu for gpu in slot.gpus if gpu not in gpu_ids]
            slot.cpu_units -= cpu_units
            slot.memory_mib -= memory_mib
        self._list(slot)

    def join_line(self, claim: Claim) -> None:
        insort(self._lines.setdefault(claim.ask, []), (claim.since_s, claim.task_id))

    def leave_line(self, claim: Claim) -> None:
        line = self._lines[claim.ask]
        del line[bisect_left(line, (claim.since_s, claim.task_id))]
        if not line:
            del self._lines[claim.ask]

    def _list(self, slot: Slot) -> None:
        if not slot.connected:
            return
        self.connected += 1
        self.free_gpus += len(slot.gpus)
        self.total_gpus += slot.total.gpus
        group = self._groups.get(len(slot.gpus))
        if group is None:
            group = self._groups[len(slot.gpus)] = SlotGroup(len(slot.gpus))
        group.add(slot)
        if self._by_held is not None and slot.total.gpus:
            self._list_by_held(slot, self._by_held)

    def _unlist(self, slot: Slot) -> None:
        if not slot.connected:
            return
        self.connected -= 1
        self.free_gpus -= len(slot.gpus)
        self.total_gpus -= slot.total.gpus
        if not self._groups[len(slot.gpus)].remove(slot):
            del self._groups[len(slot.gpus)]
        if self._by_held is not None and slot.total.gpus:
            key = _held_and_size(slot)
            if not self._by_held[key].remove(slot):
                del self._by_held[key]

    # Few ask for all GPUs of a host, so what they look at is made when the first one does.

    def _held_groups(self) -> dict[tuple[int, int], SlotGroup]:
        if self._by_held is None:
            self._by_held = {}
            for slot in self._slots.values():
                if slot.connected and slot.total.gpus:
                    self._list_by_held(slot, self._by_held)
        return self._by_held

    @staticmethod
    def _list_by_held(slot: Slot, groups: dict[tuple[int, int], SlotGroup]) -> None:
        key = _held_and_size(slot)
        group = groups.get(key)
        if group is None:
            group = groups[key] = SlotGroup(len(slot.gpus))
        group.add(slot)


def _held_and_size(slot: Slot) -> tuple[int, int]:
    return slot.total.gpus - len(slot.gpus), slot.total.gpus


def _first(item: tuple[tuple[int, int], SlotGroup]) -> tuple[int, int]:
    return item[0]


class Fleet:
    """All pools, with the journal that takes changes back."""

    def __init__(self) -> None:
        self._pools: dict[str, PoolIndex] = {}
        self._undo: list[Callable[[], None]] = []

    def pool(self, name: str) -> PoolIndex:
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = PoolIndex()
        return found

    def put_slot(self, pool_name: str, slot: Slot) -> None:
        """Add a slot, or change its size, its GPUs or whether it is connected."""
        pool = self.pool(pool_name)
        before = pool._slots.get(slot.id)
        if before is not None:
            pool.remove(slot.id)
        pool.put(slot)
        self._undo.append(partial(self._put_back, pool, slot.id, before))

    def take(self, pool_name: str, slot_id: str, gpu_ids: Sequence[str], cpu_units: int, memory_mib: int) -> None:
        pool = self.pool(pool_name)
        pool.change(slot_id, gpu_ids, cpu_units, memory_mib, back=False)
        self._undo.append(partial(pool.change, slot_id, gpu_ids, cpu_units, memory_mib, back=True))

    def give(self, pool_name: str, slot_id: str, gpu_ids: Sequence[str], cpu_units: int, memory_mib: int) -> None:
        pool = self.pool(pool_name)
        pool.change(slot_id, gpu_ids, cpu_units, memory_mib, back=True)
        self._undo.append(partial(pool.change, slot_id, gpu_ids, cpu_units, memory_mib, back=False))

    def join_line(self, pool_name: str, claim: Claim) -> None:
        pool = self.pool(pool_name)
        pool.join_line(claim)
        self._undo.append(partial(pool.leave_line, claim))

    def leave_line(self, pool_name: str, claim: Claim) -> None:
        pool = self.pool(pool_name)
        pool.leave_line(claim)
        self._undo.append(partial(pool.join_line, claim))

    def mark(self) -> int:
        """Where the journal stands; a later `undo_to` takes back what came after."""
        return len(self._undo)

    def undo_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()

    def committed(self) -> None:
        self._undo.clear()

    def picture(self) -> dict[str, Any]:
        """All that the index says, in plain values."""
        return {
            name: {
                "slots": {slot.id: (slot.total, slot.free(), tuple(slot.gpus), slot.connected) for slot in pool.slots()},
                "groups": {group.gpus: group.picture() for group in pool.groups()},
                "by held": [(group.gpus, group.picture()) for group in pool.groups_by_held()],
                "GPUs": {slot.id: (slot.positions, slot.links, slot.withheld) for slot in pool.slots()},
                "withheld": pool.withheld(),
                "claims": {ask: tuple(line) for ask, line in pool._lines.items()},
                "sums": (pool.free_gpus, pool.total_gpus, pool.connected, dict(pool._totals)),
            }
            for name, pool in sorted(self._pools.items())
            if pool._slots or pool._lines
        }

    @staticmethod
    def _put_back(pool: PoolIndex, slot_id: str, before: Slot | None) -> None:
        pool.remove(slot_id)
        if before is not None:
            pool.put(before)
