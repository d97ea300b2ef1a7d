"""The index of one pool: its free capacity, and the claims that wait for it.

Peers are the claims of a pool that have equal demands and equal time limits. `store/waiting_lines.py` has their order, and
`store/fleet.py` the indexes of all pools.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from corral.model.limits import Allowance
from corral.model.placement import Claim, CompiledRules, Ending, Shares, Slot
from corral.model.task import ALL_GPUS, Demand, PlacementRules
from corral.store.owner_lines import Peers
from corral.store.slots import FreeAmounts, GroupIndex, SelectionIndex, SlotIndex
from corral.store.waiting_lines import DemandAndLimit, WaitingLines

CHANGES_KEPT_MIN = 1_000  # a pool remembers this many changes of slots, and two more for each of its slots
# A selection has the slots of a pool that certain placement rules allow. If the number of selections times the number of slots of
# the pool exceeds this number, the least recently used selection is evicted.
SELECTED_MAX = 500_000
T = TypeVar("T")
MISSING: Any = object()
DERIVED_MAX = 1_000  # values that a pool keeps until it changes


class PoolIndex:
    """The free capacity of one pool (implements `model.placement.Pool`).

    Slots with the same number of free GPUs form a group (`GroupIndex`). Placement compares groups, so that its cost does not grow
    with the number of slots.
    """

    def __init__(self, levels: Mapping[str, float] | None = None, allowances: Mapping[str, Allowance] | None = None) -> None:
        """Levels and allowances are those of all owners, which `store/fleet.py` changes."""
        self.free_gpus = 0
        self.total_gpus = 0
        self.connected = 0
        self.peers_depending_on_tasks = 0
        self.peers_with_limits = 0
        self.shown_cluster = ""
        self._slots: dict[str, Slot] = {}
        self._of_host: dict[str, dict[str, None]] = {}  # host id → its slots
        self._crowded: dict[str, None] = {}  # the hosts that have several slots
        self._sharing: dict[str, None] = {}  # the slots that have GPUs which tasks share
        self._totals: dict[Demand, int] = {}  # size of a slot → the number of slots of this size
        self._index = SlotIndex()  # the slots that accept tasks
        self._by_held: dict[tuple[int, int], GroupIndex] | None = None  # (leased GPUs, all GPUs) → slots; None before the first use
        self._withheld: dict[str, dict[str, str]] = {}  # slot id → GPU id → why tasks cannot get this GPU
        shared = {} if levels is None else levels, {} if allowances is None else allowances
        self.waiting_lines = WaitingLines(*shared, self._count_peers, self.most_gpus)
        self._peers = self.waiting_lines.peers
        self._endings: dict[str, list[Ending]] = {}  # slot id → its tasks with a time limit; the first limit to end is first
        self._selections: dict[PlacementRules, SelectionIndex] = {}  # the most recently used selection is last
        self._changes: list[str] = []  # ids of changed slots; before each use, a selection applies the changes that it has missed
        self._forgotten = 0  # the number of older changes, which are no longer in `_changes`
        self._derived: dict[Any, Any] = {}
        self._version = 0  # of `waiting_lines`, for which `_derived` and `_copy` are up to date
        self._copy: PoolCopy | None = None  # the last copy; None if the pool has changed since
        self._copied: set[str] = set()  # ids of slots that copies may share: such a slot is replaced before it changes

    def derived(self, key: Any, compute: Callable[[], T]) -> T:
        if self._version != self.waiting_lines.version:
            self._follow_lines()
        found: T = self._derived.get(key, MISSING)
        if found is MISSING:
            found = compute()
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            self._derived[key] = found
        return found

    def groups(self, min_gpus: int = 0) -> list[GroupIndex]:
        if min_gpus == ALL_GPUS:
            return [group for (held, _), group in sorted(self._held_groups().items(), key=_first) if not held]
        return self._index.groups(min_gpus)

    def selection(self, rules: PlacementRules, compile_rules: Callable[[], CompiledRules]) -> SelectionIndex:
        found = self._selections.pop(rules, None)
        if found is None:
            found = SelectionIndex(compile_rules())
            while self._selections and (len(self._selections) + 1) * len(self._slots) > SELECTED_MAX:
                del self._selections[next(iter(self._selections))]
        missed = self._forgotten + len(self._changes) - found.seen
        if found.seen < self._forgotten or missed > len(self._slots):
            found = SelectionIndex(found.compiled)
            for slot in self._slots.values():
                found.refresh(slot.id, slot)
        else:
            for slot_id in dict.fromkeys(self._changes[len(self._changes) - missed :]):
                found.refresh(slot_id, self._slots.get(slot_id))
        found.seen = self._forgotten + len(self._changes)
        self._selections[rules] = found
        return found

    def groups_by_held(self) -> list[GroupIndex]:
        return [group for _, group in sorted(self._held_groups().items(), key=_first)]

    def crowded_hosts(self) -> Iterator[Collection[str]]:
        return (self._of_host[host] for host in self._crowded)

    def sharing(self) -> Collection[str]:
        return self._sharing

    def withheld(self) -> list[str]:
        return [reason for slot_id in sorted(self._withheld) for reason in self._withheld[slot_id].values()]

    def slot(self, slot_id: str) -> Slot:
        return self._slots[slot_id]

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot_id: str) -> bool:
        return slot_id in self._slots

    def slots(self) -> Iterable[Slot]:
        return self._slots.values()

    def totals(self) -> Iterable[Demand]:
        return self._totals

    def most_gpus(self) -> int:
        """Return the number of GPUs of the largest slot."""
        return max([each.gpus for each in self._totals], default=0)

    def sizes(self) -> Iterable[tuple[Demand, int]]:
        return self._totals.items()

    def has_claims(self) -> bool:
        return bool(self._peers)

    def heads(self) -> list[Claim]:
        lines = self.waiting_lines
        if self._version != lines.version:
            self._follow_lines()
        found: list[Claim] | None = self._derived.get("heads")
        if found is None:
            if len(lines.owners) > 1:
                lines.find_firsts()
            heads = [peers.first or lines.first_of(peers) for peers in self._peers.values()]
            found = self._derived["heads"] = sorted(filter(None, heads))
            lines.reach = found[-1].rank if found else ()
        return found

    def turns(self) -> Iterator[Claim]:
        lines = self.waiting_lines
        return lines.turns(self._turns) if len(lines.owners) > 1 else self._turns(())

    def _turns(self, passed: Collection[Peers]) -> Iterator[Claim]:
        """Yield the heads in order, except those of the peers in `passed`."""
        lines, heads = self.waiting_lines, self.heads()[:]  # sorted, so it is a heap
        if passed:
            heads = [claim for claim in heads if self._peers[_peers_key(claim)] not in passed]
        version, may_differ = lines.version, False  # `may_differ`: a change may have replaced claims in `heads`
        while heads:
            claim = heads[0]
            if may_differ:
                current = self.first_peer(claim)
                if current is not claim:  # its peers have another head, or it has another rank
                    if current is not None:
                        heapreplace(heads, current)
                    else:
                        heappop(heads)
                    continue
            heappop(heads)
            yield claim
            if lines.version != version:
                version, may_differ = lines.version, bool(heads)
                if (successor := self.first_peer(claim)) is not None and successor is not claim:
                    heappush(heads, successor)

    def first_peer(self, claim: Claim) -> Claim | None:
        peers = self._peers.get(claim[3] if claim[4] is None else (claim[3], claim[4]))
        return None if peers is None else peers.first or self.waiting_lines.first_of(peers)

    def head(self, demand: Demand) -> Claim | None:
        if not self.peers_with_limits:
            peers = self._peers.get(demand)
            return None if peers is None else peers.first or self.waiting_lines.first_of(peers)
        return min([head for head in self.heads() if head.demand == demand], default=None)

    def waiting_demands(self) -> list[tuple[Demand, int, Claim]]:
        found: dict[Demand, tuple[Demand, int, Claim]] = {}
        for demand, count, first in self.waiting_lines.open_counts():
            _, others, other = found.get(demand, (demand, 0, first))
            found[demand] = demand, others + count, min(first, other)
        return list(found.values())

    def waiting(self) -> int:
        return self.waiting_lines.count()

    def ranked(self, claim: Claim) -> Claim:
        return claim if len(self.waiting_lines.owners) < 2 else self.waiting_lines.ranked(claim)

    def is_open(self, claim: Claim) -> bool:
        return self.waiting_lines.is_open(claim)

    def in_order(self) -> Iterator[Claim]:
        return self.waiting_lines.in_order()

    def place_in_line(self, claim: Claim) -> int:
        return 1 + self.waiting_lines.place(claim)

    def slots_with_endings(self) -> Collection[str]:
        return self._endings.keys()

    def endings(self, slot_id: str) -> Sequence[Ending]:
        return self._endings.get(slot_id, ())

    def copy(self) -> PoolCopy:
        """Return a copy that never changes. If the pool has not changed since the last call, return the same copy again."""
        if self._version != self.waiting_lines.version:
            self._follow_lines()
        if self._copy is None:
            self._copy = PoolCopy(self)
            self._copied = set(self._slots)
        return self._copy

    # Changes. Only Fleet calls these methods, and registers the inverse of each change.

    def _unshared(self, slot: Slot) -> Slot:
        """Replace a slot that copies may share, because it is about to change."""
        self._copied.remove(slot.id)
        slot = self._slots[slot.id] = replace(slot, gpus=slot.gpus[:], tasks=slot.tasks.copy(), shared=slot.shared.copy())
        return slot

    def _follow_lines(self) -> None:
        self._version = self.waiting_lines.version
        self.forget_names()

    def forget_names(self) -> None:
        self._derived.clear()
        self._copy = None

    def show_cluster(self, name: str) -> None:
        self.shown_cluster = name
        self.forget_names()

    def put(self, slot: Slot) -> None:
        self._derived.clear()
        self._copy = None
        self._slots[slot.id] = slot
        self.waiting_lines.lend(slot.lender, 1)
        of_host = self._of_host.setdefault(slot.host, {})
        of_host[slot.id] = None
        if len(of_host) > 1:
            self._crowded[slot.host] = None
        self._totals[slot.whole] = self._totals.get(slot.whole, 0) + 1
        if slot.withheld:
            self._withheld[slot.id] = slot.withheld
        if slot.shared:
            self._sharing[slot.id] = None
        self._list(slot)

    def remove(self, slot_id: str) -> None:
        self._derived.clear()
        self._copy = None
        self._copied.add(slot_id)  # the slot may come back, or another with the same lists
        slot = self._slots.pop(slot_id)
        self.waiting_lines.lend(slot.lender, -1)
        of_host = self._of_host[slot.host]
        del of_host[slot_id]
        if len(of_host) < 2:
            self._crowded.pop(slot.host, None)
        if not of_host:
            del self._of_host[slot.host]
        self._unlist(slot)
        self._withheld.pop(slot_id, None)
        self._sharing.pop(slot_id, None)
        if self._selections:
            self._note_change(slot_id)
        self._totals[slot.whole] -= 1
        if not self._totals[slot.whole]:
            del self._totals[slot.whole]

    def change(
        self,
        slot_id: str,
        gpu_ids: Sequence[str],
        cpu_units: int,
        memory_mib: int,
        group: str = "",
        shares: Shares = (),
        *,
        back: bool,
    ) -> None:
        """Take resources from a slot. With `back`, return them to the slot.

        If the task group `group` is given, also count one pending task of this group. With `back`, subtract it.
        """
        self._derived.clear()
        self._copy = None
        slot = self._slots[slot_id]
        if slot_id in self._copied:
            slot = self._unshared(slot)
        before = len(slot.gpus), slot.memory_mib, slot.cpu_units
        if back:
            for gpu_id in gpu_ids:
                if gpu_id in slot.positions and gpu_id not in slot.gpus:  # a GPU without a position is not available to tasks
                    insort(slot.gpus, gpu_id, key=slot.positions.__getitem__)
            slot.cpu_units += cpu_units
            slot.memory_mib += memory_mib
        else:
            if gpu_ids:
                slot.gpus = gpus = slot.gpus.copy()
                for gpu_id in gpu_ids:
                    if gpu_id in gpus:
                        gpus.remove(gpu_id)
            slot.cpu_units -= cpu_units
            slot.memory_mib -= memory_mib
        if shares:
            self._change_shares(slot, shares, back=back)
        if group:
            _count(slot, group, -1 if back else 1)
            slot.pending += -1 if back else 1
        if self._selections:
            self._note_change(slot_id)
        if slot.connected and not slot.draining:
            after = len(slot.gpus), slot.memory_mib, slot.cpu_units
            self.free_gpus += after[0] - before[0]
            self._index.move(slot_id, before, after)
            if self._by_held is not None and slot.total.gpus:
                self._unlist_by_held(slot, before, self._by_held)
                self._list_by_held(slot, self._by_held)

    def _change_shares(self, slot: Slot, shares: Shares, *, back: bool) -> None:
        """Take memory of GPUs that tasks share, or return it. A GPU is idle again when all its memory is returned."""
        for gpu_id, memory_mib in shares:
            if gpu_id not in slot.positions:  # a GPU without a position is not available to tasks
                continue
            left_mib = slot.shared.pop(gpu_id, slot.gpu_memory[gpu_id]) + (memory_mib if back else -memory_mib)
            if left_mib != slot.gpu_memory[gpu_id]:
                slot.shared[gpu_id] = left_mib
                slot.gpus = [idle for idle in slot.gpus if idle != gpu_id]
            elif gpu_id not in slot.gpus:
                insort(slot.gpus, gpu_id, key=slot.positions.__getitem__)
        if slot.shared:
            self._sharing[slot.id] = None
        else:
            self._sharing.pop(slot.id, None)

    def count(self, slot_id: str, group: str, tasks: int, running: int, pending: int) -> None:
        """Add to the counters of a slot: tasks of a task group with desired status RUNNING, running tasks, pending tasks."""
        self._derived.clear()
        self._copy = None
        slot = self._slots[slot_id]
        if slot_id in self._copied:
            slot = self._unshared(slot)
        slot.running += running
        slot.pending += pending
        if tasks:
            _count(slot, group, tasks)
        if self._selections:
            self._note_change(slot_id)

    def add_claim(self, claim: Claim) -> None:
        self._copy = None
        self.waiting_lines.add(claim)

    def remove_claim(self, claim: Claim) -> None:
        self._copy = None
        self.waiting_lines.remove(claim)

    def _count_peers(self, claim: Claim, change: int) -> None:
        if claim.longest_s is not None:
            self.peers_with_limits += change
        if claim.demand.rules is not None and claim.demand.rules.depends_on_tasks:
            self.peers_depending_on_tasks += change

    def put_ending(self, slot_id: str, ending: Ending) -> None:
        self._derived.clear()
        self._copy = None
        insort(self._endings.setdefault(slot_id, []), ending, key=_limit_at_s)

    def drop_ending(self, slot_id: str, task_id: str) -> Ending | None:
        """Remove the time limit of a task. Returns None if the task has none."""
        endings = self._endings.get(slot_id, [])
        at = next((at for at, ending in enumerate(endings) if ending.task_id == task_id), None)
        if at is None:
            return None
        self._derived.clear()
        self._copy = None
        dropped = endings.pop(at)
        if not endings:
            del self._endings[slot_id]
        return dropped

    def _list(self, slot: Slot) -> None:
        if self._selections:
            self._note_change(slot.id)
        if not slot.connected or slot.draining:
            return
        self.connected += 1
        self.free_gpus += len(slot.gpus)
        self.total_gpus += slot.whole.gpus
        self._index.add(slot.id, len(slot.gpus), slot.memory_mib, slot.cpu_units)
        if self._by_held is not None and slot.total.gpus:
            self._list_by_held(slot, self._by_held)

    def _unlist(self, slot: Slot) -> None:
        if not slot.connected or slot.draining:
            return
        self.connected -= 1
        self.free_gpus -= len(slot.gpus)
        self.total_gpus -= slot.whole.gpus
        self._index.remove(slot.id, len(slot.gpus), slot.memory_mib, slot.cpu_units)
        if self._by_held is not None and slot.total.gpus:
            self._unlist_by_held(slot, (len(slot.gpus), slot.memory_mib, slot.cpu_units), self._by_held)

    def _note_change(self, slot_id: str) -> None:
        self._changes.append(slot_id)
        if len(self._changes) > CHANGES_KEPT_MIN + 2 * len(self._slots):
            self._forgotten += len(self._changes)
            self._changes.clear()

    # Slots by leased GPUs. Only tasks that require all GPUs use this index, so it is built when the first such task arrives.

    def _held_groups(self) -> dict[tuple[int, int], GroupIndex]:
        if self._by_held is None:
            found: dict[tuple[int, int], GroupIndex] = {}
            for slot in self._slots.values():
                if slot.takes_tasks and slot.total.gpus:
                    self._list_by_held(slot, found)
            self._by_held = found  # only now, because several threads may use a copy
        return self._by_held

    @staticmethod
    def _list_by_held(slot: Slot, groups: dict[tuple[int, int], GroupIndex]) -> None:
        held_and_size = slot.total.gpus - len(slot.gpus), slot.total.gpus
        group = groups.get(held_and_size)
        if group is None:
            group = groups[held_and_size] = GroupIndex(len(slot.gpus))
        group.add(slot.id, slot.memory_mib, slot.cpu_units)

    @staticmethod
    def _unlist_by_held(slot: Slot, free: FreeAmounts, groups: dict[tuple[int, int], GroupIndex]) -> None:
        gpus, memory_mib, cpu_units = free
        held_and_size = slot.total.gpus - gpus, slot.total.gpus
        if not groups[held_and_size].remove(slot.id, memory_mib, cpu_units):
            del groups[held_and_size]


class PoolCopy(PoolIndex):
    """A copy of a pool for reader threads. It shares the slots with the pool. Its indexes of slots are built on first use."""

    def __init__(self, pool: PoolIndex) -> None:
        super().__init__()
        self.free_gpus, self.total_gpus, self.connected = pool.free_gpus, pool.total_gpus, pool.connected
        self.peers_depending_on_tasks, self.peers_with_limits = pool.peers_depending_on_tasks, pool.peers_with_limits
        self.shown_cluster = pool.shown_cluster
        self._slots, self._sharing, self._totals = dict(pool._slots), dict(pool._sharing), dict(pool._totals)
        self._withheld = dict(pool._withheld)
        self.waiting_lines = pool.waiting_lines.copy()
        self._peers = self.waiting_lines.peers
        self._endings = {slot_id: endings[:] for slot_id, endings in pool._endings.items()}
        self._is_indexed = False

    def groups(self, min_gpus: int = 0) -> list[GroupIndex]:
        if not self._is_indexed:
            index = SlotIndex()
            for slot in self._slots.values():
                if slot.takes_tasks:
                    index.add(slot.id, len(slot.gpus), slot.memory_mib, slot.cpu_units)
            self._index, self._is_indexed = index, True
        return super().groups(min_gpus)

    def crowded_hosts(self) -> Iterator[Collection[str]]:
        of_host: dict[str, list[str]] = {}
        for slot in self._slots.values():
            of_host.setdefault(slot.host, []).append(slot.id)
        return (slot_ids for slot_ids in of_host.values() if len(slot_ids) > 1)

    def selection(self, rules: PlacementRules, compile_rules: Callable[[], CompiledRules]) -> SelectionIndex:
        found = SelectionIndex(compile_rules())  # not kept, because threads cannot share a selection
        for slot in self._slots.values():
            found.refresh(slot.id, slot)
        return found


_limit_at_s = attrgetter("limit_at_s", "task_id")  # of an Ending
_first: Callable[[tuple[tuple[int, int], GroupIndex]], tuple[int, int]] = itemgetter(0)


def _peers_key(claim: Claim) -> DemandAndLimit:
    return claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s)


def _count(slot: Slot, group: str, tasks: int) -> None:
    count = slot.tasks.get(group, 0) + tasks
    if count:
        slot.tasks[group] = count
    else:
        del slot.tasks[group]
