"""Slots arranged by what is free of them: all of a pool's, or those that some rules allow, in the order that they want."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter

from corral.model.placement import Slot, Sorting

Rest = tuple[int, int]  # free memory, free cpu; or the other way round
Key = tuple[str | int, ...]  # values of a slot by which tasks are spread
Where = tuple[int, int, int]  # free GPUs, memory, cpu: where an index keeps a slot

_gpus = attrgetter("gpus")


class SlotGroup:
    """Slots with equally many free GPUs: what `model.placement.Group` promises. Ids and shapes are kept sorted."""

    def __init__(self, gpus: int, *, by_cpu: bool = False) -> None:
        self.gpus = gpus
        self._by_cpu = by_cpu
        self._ids: dict[Rest, list[str]] = {}
        self.rests: list[Rest] = []  # the shapes
        self._seconds: list[int] = []  # of the rests: CPU, unless they are sorted by that

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterator[Sequence[str]]:
        first, second = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        if self._seconds[-1] >= second:
            for at in range(bisect_left(self.rests, (first, -1)), len(self.rests)):
                if self.rests[at][1] >= second:
                    yield self._ids[self.rests[at]]

    def roomiest(self) -> Iterator[str]:
        for rest in reversed(self.rests):
            yield from self._ids[rest]

    def add(self, slot_id: str, memory_mib: int, cpu_units: int) -> None:
        rest = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        ids = self._ids.get(rest)
        if ids is None:
            self._ids[rest] = [slot_id]
            insort(self.rests, rest)
            insort(self._seconds, rest[1])
        else:
            insort(ids, slot_id)

    def remove(self, slot_id: str, memory_mib: int, cpu_units: int) -> bool:
        """False when none is left."""
        rest = (cpu_units, memory_mib) if self._by_cpu else (memory_mib, cpu_units)
        ids = self._ids[rest]
        del ids[bisect_left(ids, slot_id)]
        if not ids:
            del self._ids[rest]
            del self.rests[bisect_left(self.rests, rest)]
            del self._seconds[bisect_left(self._seconds, rest[1])]
        return bool(self.rests)

    def picture(self) -> list[tuple[Rest, tuple[str, ...]]]:
        return [(rest, tuple(self._ids[rest])) for rest in self.rests]


class SlotIndex:
    """Slots by free GPUs, then by what else is free: what `model.placement.Part` promises."""

    def __init__(self, *, by_cpu: bool = False, drawn: bool = False) -> None:
        self._by_cpu = by_cpu
        self._groups: dict[int, SlotGroup] = {}  # one that is empty stays: it is soon needed again
        self._in_order: list[SlotGroup] = []  # those with slots in them
        self._size = 0
        self._ids: list[str] | None = [] if drawn else None  # in no order
        self._places: dict[str, int] = {}  # in `_ids`

    def groups(self, min_gpus: int = 0) -> list[SlotGroup]:
        return self._in_order[bisect_left(self._in_order, min_gpus, key=_gpus) :]

    def __len__(self) -> int:
        return self._size

    def sample(self, number: int) -> str:
        assert self._ids is not None
        return self._ids[number]

    def add(self, slot_id: str, gpus: int, memory_mib: int, cpu_units: int) -> None:
        group = self._groups.get(gpus)
        if group is None:
            group = self._groups[gpus] = SlotGroup(gpus, by_cpu=self._by_cpu)
        if not group.rests:
            insort(self._in_order, group, key=_gpus)
        group.add(slot_id, memory_mib, cpu_units)
        self._size += 1
        if self._ids is not None:
            self._places[slot_id] = len(self._ids)
            self._ids.append(slot_id)

    def remove(self, slot_id: str, gpus: int, memory_mib: int, cpu_units: int) -> bool:
        """False when none is left."""
        if not self._groups[gpus].remove(slot_id, memory_mib, cpu_units):
            del self._in_order[bisect_left(self._in_order, gpus, key=_gpus)]
        self._size -= 1
        if self._ids is not None:
            at, last = self._places.pop(slot_id), self._ids.pop()
            if last != slot_id:
                self._ids[at] = last
                self._places[last] = at
        return self._size > 0


class SlotSelection:
    """The slots that some rules allow: what `model.placement.Selection` promises.

    It is derived from slots alone, one by one: `PoolIndex` tells it which of them have changed when it is next asked. A part
    holds the slots with equal values; what the group's tasks on those values are in number says where the part stands.
    """

    def __init__(self, sorting: Sorting) -> None:
        self.sorting = sorting
        self.seen = -1  # how many changes of the pool it knows of
        self.allowed = 0
        self._all = SlotIndex()
        self._plain = not (sorting.spreads or sorting.by_cpu or sorting.drawn)
        self._slots: dict[str, tuple[Key, Where]] = {}
        self._parts: dict[Key, SlotIndex] = {}
        self._ranks: dict[Key, tuple[int, ...]] = {}
        self._order: list[tuple[tuple[int, ...], Key]] = []
        self._shares: dict[str, tuple[Key, int]] = {}  # slots with tasks of the group: values, how many
        self._sums: list[dict[str | int, int]] = [{} for _ in sorting.spreads]  # the group's tasks by value
        self._having: list[dict[str | int, dict[Key, None]]] = [{} for _ in sorting.spreads]  # parts by value

    def groups(self, min_gpus: int = 0) -> list[SlotGroup]:
        return self._all.groups(min_gpus)

    def in_order(self) -> Iterable[Sequence[SlotIndex]]:
        if self._plain:
            return ((self._all,),)
        return ([self._parts[key] for _, key in equal] for _, equal in groupby(self._order, key=itemgetter(0)))

    def refresh(self, slot_id: str, slot: Slot | None) -> None:
        """A slot has changed, or is gone."""
        self._drop(slot_id)
        values = self._values(slot) if slot is not None else ()
        self._share(slot_id, values, slot.tasks.get(self.sorting.group, 0) if slot is not None else 0)
        if slot is not None and slot.takes_tasks and self.sorting.allows(slot):
            self._add(slot, values)

    def _values(self, slot: Slot) -> Key:
        count = slot.tasks.get(self.sorting.group, 0)
        return tuple(count if value_of is None else value_of(slot) for value_of in self.sorting.spreads)

    def _add(self, slot: Slot, key: Key) -> None:
        where = len(slot.gpus), slot.memory_mib, slot.cpu_units
        self._slots[slot.id] = key, where
        self.allowed += 1
        self._all.add(slot.id, *where)
        if self._plain:
            return
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = SlotIndex(by_cpu=self.sorting.by_cpu, drawn=self.sorting.drawn)
            for having, value in zip(self._having, key):
                having.setdefault(value, {})[key] = None
            self._rank(key)
        part.add(slot.id, *where)

    def _drop(self, slot_id: str) -> None:
        key, where = self._slots.pop(slot_id, (None, (0, 0, 0)))
        if key is None:
            return
        self.allowed -= 1
        self._all.remove(slot_id, *where)
        if self._plain or self._parts[key].remove(slot_id, *where):
            return
        del self._parts[key]
        del self._order[bisect_left(self._order, (self._ranks.pop(key), key))]
        for having, value in zip(self._having, key):
            del having[value][key]

    def _share(self, slot_id: str, values: Key, count: int) -> None:
        """How many tasks of the group are on this slot, and so on its values. A slot counts even if the rules do not allow it."""
        if not self.sorting.spreads:
            return
        before, there = self._shares.pop(slot_id, ((), 0))
        if count:
            self._shares[slot_id] = values, count
        if (before, there) == (values, count):
            return
        moved: dict[Key, None] = {}
        for at, value_of in enumerate(self.sorting.spreads):
            if value_of is not None:  # else the count itself is the value, and such parts stand where they stand
                sums = self._sums[at]
                for old, less in ((before[at], -there),) if there else ():
                    sums[old] += less
                    moved |= self._having[at].get(old, {})
                for new in (values[at],) if count else ():
                    sums[new] = sums.get(new, 0) + count
                    moved |= self._having[at].get(new, {})
        for key in moved:
            self._rank(key)

    def _rank(self, key: Key) -> None:
        rank = tuple(
            int(value) if value_of is None else sums.get(value, 0)
            for value, value_of, sums in zip(key, self.sorting.spreads, self._sums)
        )
        before = self._ranks.get(key)
        if before != rank:
            if before is not None:
                del self._order[bisect_left(self._order, (before, key))]
            insort(self._order, (rank, key))
            self._ranks[key] = rank
