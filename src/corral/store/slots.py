"""Indexes of slots by their free resources.

`GroupIndex` has slots with the same number of free GPUs. `SlotIndex` has any set of slots, for example all slots of a pool.
`SelectionIndex` has the slots that certain placement rules allow, in the order in which the rules prefer them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from corral.model.placement import CompiledRules, Slot

WANTED_MAX = 8  # the number of different amounts for which a selection keeps its parts sorted
FreeShape = tuple[int, int]  # (free memory, free CPU), or (free CPU, free memory) in an index that sorts by CPU
SpreadValues = tuple[str | int, ...]  # a slot's value for each spread strategy, such as its instance id
FreeAmounts = tuple[int, int, int]  # free (GPUs, memory, CPU)


class GroupIndex:
    """Slots with the same number of free GPUs (implements `model.placement.SlotGroup`).

    A shape is an amount of free memory and CPU. The shapes are sorted, and so are the ids of the slots with one shape.
    """

    def __init__(self, gpus: int, *, by_cpu: bool = False) -> None:
        self.gpus = gpus
        self._by_cpu = by_cpu
        self._ids: dict[FreeShape, list[str]] = {}
        self.shapes: list[FreeShape] = []
        self._seconds: list[int] = []  # the second element of each shape, sorted

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterator[Sequence[str]]:
        first, second = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        if self._seconds[-1] >= second:
            for at in range(bisect_left(self.shapes, (first, -1)), len(self.shapes)):
                if self.shapes[at][1] >= second:
                    yield self._ids[self.shapes[at]]

    def first_shape(self, memory_mib: int, cpu_units: int) -> FreeShape | None:
        """Return the first shape of `fitting`. Return None if no slot has this much free."""
        first, second = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        if self._seconds[-1] >= second:
            for at in range(bisect_left(self.shapes, (first, -1)), len(self.shapes)):
                if self.shapes[at][1] >= second:
                    return self.shapes[at]
        return None

    def with_shape(self, shape: FreeShape) -> Sequence[str]:
        return self._ids[shape]

    def roomiest(self) -> Iterator[str]:
        for shape in reversed(self.shapes):
            yield from self._ids[shape]

    def add(self, slot_id: str, memory_mib: int, cpu_units: int) -> None:
        shape = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        ids = self._ids.get(shape)
        if ids is None:
            self._ids[shape] = [slot_id]
            insort(self.shapes, shape)
            insort(self._seconds, shape[1])
        else:
            insort(ids, slot_id)

    def remove(self, slot_id: str, memory_mib: int, cpu_units: int) -> bool:
        """Remove a slot. Returns False if the group has no slots left."""
        shape = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        ids = self._ids[shape]
        del ids[bisect_left(ids, slot_id)]
        if not ids:
            del self._ids[shape]
            del self.shapes[bisect_left(self.shapes, shape)]
            del self._seconds[bisect_left(self._seconds, shape[1])]
        return bool(self.shapes)

    def snapshot(self) -> list[tuple[FreeShape, tuple[str, ...]]]:
        return [(shape, tuple(self._ids[shape])) for shape in self.shapes]


class SlotIndex:
    """Slots sorted by free GPUs, then by free memory and CPU (implements `model.placement.SpreadPart`).

    With `by_cpu`, CPU is compared before memory. `sample`, for the placement strategy `random`, can be called only with `drawn`.
    """

    def __init__(self, *, by_cpu: bool = False, drawn: bool = False) -> None:
        self._by_cpu = by_cpu
        self._groups: dict[int, GroupIndex] = {}  # empty groups are not removed, because they are soon used again
        self._in_order: list[GroupIndex] = []  # the groups that are not empty, sorted by free GPUs
        self._gpus: list[int] = []  # the free GPUs of each of these groups
        self._size = 0
        self._ids: list[str] | None = [] if drawn else None  # in any order; only for `sample`
        self._places: dict[str, int] = {}  # slot id → index in `_ids`

    def groups(self, min_gpus: int = 0) -> list[GroupIndex]:
        return self._in_order[bisect_left(self._gpus, min_gpus) :]

    def first_fitting(self, wanted: FreeAmounts, *, packs: bool) -> tuple[FreeShape, Sequence[str]] | None:
        """Return the slots that fit best, which all have the same shape, and this shape. Return None if no slot fits.

        The slots with the fewest free GPUs fit best. With `packs`, the slots with the smallest shape fit best.
        """
        best: tuple[FreeShape, GroupIndex] | None = None
        for group in self.groups(wanted[0]):
            shape = group.first_shape(wanted[1], wanted[2])
            if shape is not None and (best is None or shape < best[0]):
                best = shape, group
                if not packs:
                    break
        return None if best is None else (best[0], best[1].with_shape(best[0]))

    def __len__(self) -> int:
        return self._size

    def sample(self, number: int) -> str:
        assert self._ids is not None
        return self._ids[number]

    def add(self, slot_id: str, gpus: int, memory_mib: int, cpu_units: int) -> None:
        group = self._groups.get(gpus)
        if group is None or not group.shapes:
            group = self._open(gpus)
        group.add(slot_id, memory_mib, cpu_units)
        self._size += 1
        if self._ids is not None:
            self._places[slot_id] = len(self._ids)
            self._ids.append(slot_id)

    def remove(self, slot_id: str, gpus: int, memory_mib: int, cpu_units: int) -> bool:
        """Remove a slot. Returns False if the index has no slots left."""
        if not self._groups[gpus].remove(slot_id, memory_mib, cpu_units):
            self._close(gpus)
        self._size -= 1
        if self._ids is not None:
            at, last = self._places.pop(slot_id), self._ids.pop()
            if last != slot_id:
                self._ids[at] = last
                self._places[last] = at
        return self._size > 0

    def move(self, slot_id: str, before: FreeAmounts, after: FreeAmounts) -> None:
        """Update the index after a change of a slot's free resources."""
        gpus, memory_mib, cpu_units = before
        if not self._groups[gpus].remove(slot_id, memory_mib, cpu_units):
            self._close(gpus)
        gpus, memory_mib, cpu_units = after
        group = self._groups.get(gpus)
        if group is None or not group.shapes:
            group = self._open(gpus)
        group.add(slot_id, memory_mib, cpu_units)

    def _open(self, gpus: int) -> GroupIndex:
        """Return the group that gets its first slot."""
        group = self._groups.get(gpus)
        if group is None:
            group = self._groups[gpus] = GroupIndex(gpus, by_cpu=self._by_cpu)
        insort(self._gpus, gpus)
        self._in_order.insert(bisect_left(self._gpus, gpus), group)
        return group

    def _close(self, gpus: int) -> None:
        """Remove a group that has no slots left from the order."""
        at = bisect_left(self._gpus, gpus)
        del self._gpus[at]
        del self._in_order[at]


class SortedParts:
    """The parts of a selection that have certain free amounts, in the order in which the rules prefer them.

    The part with the fewest tasks is first. With `CompiledRules.packs`, the part with the smallest shape is first among parts with
    equal numbers of tasks.
    """

    def __init__(self, parts: Iterable[SpreadValues]) -> None:
        self.changed: dict[SpreadValues, None] = dict.fromkeys(parts)  # the parts that `SelectionIndex` must sort again
        self._order: list[tuple[tuple[int, ...], FreeShape | tuple[()], SpreadValues]] = []
        self._entries: dict[SpreadValues, tuple[tuple[int, ...], FreeShape | tuple[()], SpreadValues]] = {}
        self._ids: dict[SpreadValues, Sequence[str]] = {}  # part → its slots that fit best

    def first(self) -> Sequence[str]:
        """Return the slots that fit best in the first part. Return () if no slot fits."""
        return self._ids[self._order[0][2]] if self._order else ()

    def drop(self, part: SpreadValues) -> None:
        entry = self._entries.pop(part, None)
        if entry is not None:
            del self._order[bisect_left(self._order, entry)]
            del self._ids[part]

    def add(self, part: SpreadValues, rank: tuple[int, ...], shape: FreeShape | tuple[()], ids: Sequence[str]) -> None:
        entry = self._entries[part] = rank, shape, part
        insort(self._order, entry)
        self._ids[part] = ids


class SelectionIndex:
    """The slots that placement rules allow (implements `model.placement.Selection`).

    Before each use, `PoolIndex` calls `refresh` for the slots that have changed. Slots with equal spread values form a part. The
    parts are sorted by the number of tasks on slots with these values: the part with the fewest tasks is first. Only tasks of the
    task group `CompiledRules.group` are counted.
    """

    def __init__(self, compiled: CompiledRules) -> None:
        self.compiled = compiled
        self.seen = -1  # the number of the pool's changes that this index has applied
        self.allowed = 0
        self._all = SlotIndex()
        self._plain = not (compiled.spreads or compiled.by_cpu or compiled.drawn)
        self._slots: dict[str, tuple[SpreadValues, FreeAmounts]] = {}
        self._parts: dict[SpreadValues, SlotIndex] = {}
        self._ranks: dict[SpreadValues, tuple[int, ...]] = {}
        self._order: list[tuple[tuple[int, ...], SpreadValues]] = []
        self._shares: dict[str, tuple[SpreadValues, int]] = {}  # slot id → spread values, number of tasks of the task group
        self._sums: list[dict[str | int, int]] = [{} for _ in compiled.spreads]  # per spread: value → tasks of the task group
        self._having: list[dict[str | int, dict[SpreadValues, None]]] = [{} for _ in compiled.spreads]  # per spread: value → parts
        self._sorted: dict[FreeAmounts, SortedParts] = {}  # the parts that have these amounts free; the last used is last

    def groups(self, min_gpus: int = 0) -> list[GroupIndex]:
        return self._all.groups(min_gpus)

    def in_order(self) -> Iterable[Sequence[SlotIndex]]:
        if self._plain:
            return ((self._all,),)
        return ([self._parts[key] for _, key in equal] for _, equal in groupby(self._order, key=itemgetter(0)))

    def first_fitting(self, wanted: FreeAmounts) -> Sequence[str]:
        """Return the slots that fit best in the first part with such slots. All of them have the same free resources.

        Return () if no slot has the wanted amounts free. Only the parts that have changed since the last call are read.
        """
        if self._plain:
            found = self._all.first_fitting(wanted, packs=self.compiled.packs)
            return () if found is None else found[1]
        parts = self._sorted.pop(wanted, None)
        if parts is None:
            parts = SortedParts(self._parts)
            if len(self._sorted) >= WANTED_MAX:
                del self._sorted[next(iter(self._sorted))]
        self._sorted[wanted] = parts
        for key in parts.changed:
            parts.drop(key)
            part = self._parts.get(key)
            found = part.first_fitting(wanted, packs=self.compiled.packs) if part is not None else None
            if found is not None:
                parts.add(key, self._ranks[key], found[0] if self.compiled.packs else (), found[1])
        parts.changed.clear()
        return parts.first()

    def refresh(self, slot_id: str, slot: Slot | None) -> None:
        """Apply the change of a slot. `slot` is None if the slot was removed."""
        self._drop(slot_id)
        values = self._values(slot) if slot is not None else ()
        self._share(slot_id, values, slot.tasks.get(self.compiled.group, 0) if slot is not None else 0)
        if slot is not None and slot.takes_tasks and self.compiled.allows(slot):
            self._add(slot, values)

    def _values(self, slot: Slot) -> SpreadValues:
        count = slot.tasks.get(self.compiled.group, 0)
        return tuple(count if value_of is None else value_of(slot) for value_of in self.compiled.spreads)

    def _add(self, slot: Slot, key: SpreadValues) -> None:
        free = len(slot.gpus), slot.memory_mib, slot.cpu_units
        self._slots[slot.id] = key, free
        self.allowed += 1
        self._all.add(slot.id, *free)
        if self._plain:
            return
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = SlotIndex(by_cpu=self.compiled.by_cpu, drawn=self.compiled.drawn)
            for having, value in zip(self._having, key):
                having.setdefault(value, {})[key] = None
            self._rank(key)
        part.add(slot.id, *free)
        if self._sorted:
            self._note_change(key)

    def _drop(self, slot_id: str) -> None:
        key, free = self._slots.pop(slot_id, (None, (0, 0, 0)))
        if key is None:
            return
        self.allowed -= 1
        self._all.remove(slot_id, *free)
        if self._plain:
            return
        if self._sorted:
            self._note_change(key)
        if self._parts[key].remove(slot_id, *free):
            return
        del self._parts[key]
        del self._order[bisect_left(self._order, (self._ranks.pop(key), key))]
        for having, value in zip(self._having, key):
            del having[value][key]

    def _share(self, slot_id: str, values: SpreadValues, count: int) -> None:
        """Update the number of tasks on slots with this slot's spread values. Slots that the rules do not allow count too."""
        if not self.compiled.spreads:
            return
        before, there = self._shares.pop(slot_id, ((), 0))
        if count:
            self._shares[slot_id] = values, count
        if (before, there) == (values, count):
            return
        moved: dict[SpreadValues, None] = {}
        for at, value_of in enumerate(self.compiled.spreads):
            if value_of is not None:  # None means a spread over slots: each slot has its own count, so no sum is needed
                sums = self._sums[at]
                for old, less in ((before[at], -there),) if there else ():
                    sums[old] += less
                    moved |= self._having[at].get(old, {})
                for new in (values[at],) if count else ():
                    sums[new] = sums.get(new, 0) + count
                    moved |= self._having[at].get(new, {})
        for key in moved:
            self._rank(key)

    def _rank(self, key: SpreadValues) -> None:
        rank = tuple(
            int(value) if value_of is None else sums.get(value, 0)
            for value, value_of, sums in zip(key, self.compiled.spreads, self._sums)
        )
        before = self._ranks.get(key)
        if before != rank:
            if before is not None:
                del self._order[bisect_left(self._order, (before, key))]
            insort(self._order, (rank, key))
            self._ranks[key] = rank
            self._note_change(key)

    def _note_change(self, key: SpreadValues) -> None:
        for parts in self._sorted.values():
            parts.changed[key] = None
