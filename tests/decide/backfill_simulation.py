"""A small simulation of a pool: tasks end, claims arrive, and the scheduler serves them, with or without time limits.

The fleet index and the scheduler are the real ones. Tasks with a time limit run exactly as long as their limit. Without backfill,
the same tasks run as long, but the index does not know their time limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from corral.core.undo_log import UndoLog
from corral.decide.placement.gpu_choice import gpus_for
from corral.decide.placement.place import serve
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.slot_fit import has_gpus
from corral.model.placement import TASK, Claim, Ending, Placement, Shares, Slot
from corral.model.task import Demand
from corral.store.fleet import Fleet
from corral.store.pool_index import PoolIndex

POOL = "hosts"
MEMORY = 8
GPU_MEMORY = (10, 6)  # the memory of every first and every second GPU of a host


class Work(NamedTuple):
    """A task: what it needs, how long it runs, and whether this is also its time limit."""

    id: str
    demand: Demand
    lasts_s: float
    limited: bool
    arrives_s: float = 0.0

    @property
    def claim(self) -> Claim:
        return Claim((self.arrives_s,), TASK, self.id, self.demand, self.lasts_s if self.limited else None)


def host(number: int, gpus: int) -> Slot:
    positions = {f"h{number}-{at}": at for at in range(gpus)}
    memory = {gpu_id: GPU_MEMORY[at % 2] for gpu_id, at in positions.items()}
    total = Demand(gpus, 0, MEMORY, gpu_memory_mib=max(memory.values(), default=0))
    return Slot(f"h{number}", total, 0, MEMORY, list(positions), positions, gpu_memory=memory)


class Simulation:
    def __init__(self, sizes: Sequence[int], *, backfill: bool) -> None:
        self.fleet = Fleet(UndoLog())
        for number, gpus in enumerate(sizes):
            self.fleet.put_slot(POOL, host(number, gpus))
        self.backfill = backfill
        self.now_s = 0.0
        self.starts: dict[str, float] = {}
        self.promised_s: dict[str, float] = {}  # claim → when it can start at the latest, as was known when this became known
        self._ends: list[tuple[float, str]] = []
        self._running: dict[str, tuple[Work, Placement]] = {}
        self._waiting: dict[str, Work] = {}

    @property
    def pool(self) -> PoolIndex:
        return self.fleet.pool(POOL)

    def start(self, work: Work, placement: Placement) -> None:
        alone, shares = self._holds(work, placement)
        self.fleet.take(POOL, placement.slot_id, alone, 0, work.demand.memory_mib, shares=shares)
        if work.limited and self.backfill:
            ending = Ending(work.id, self.now_s + work.lasts_s, alone, 0, work.demand.memory_mib, shares)
            self.fleet.put_ending(POOL, placement.slot_id, ending)
        self._running[work.id] = work, placement
        self.starts[work.id] = self.now_s
        self._check_gpus()
        heappush(self._ends, (self.now_s + work.lasts_s, work.id))

    @staticmethod
    def _holds(work: Work, placement: Placement) -> tuple[tuple[str, ...], Shares]:
        """Return the GPUs that only this task has, and its memory on the GPU that it shares."""
        if not work.demand.gpu_memory_mib:
            return placement.gpu_ids, ()
        [gpu_id] = placement.gpu_ids
        return (), ((gpu_id, work.demand.gpu_memory_mib),)

    def _check_gpus(self) -> None:
        """A GPU has one task that has it alone, or tasks whose memory fits on it. The index of the fleet says the same."""
        alone: list[str] = []
        shared: dict[str, int] = {}
        for work, placement in self._running.values():
            whole, shares = self._holds(work, placement)
            alone += whole
            for gpu_id, memory_mib in shares:
                shared[gpu_id] = shared.get(gpu_id, 0) + memory_mib
        assert len(alone) == len(set(alone)), "a GPU was given twice"
        assert not set(alone) & shared.keys(), "a GPU was given to one task alone, and shared by others"
        for slot in self.pool.slots():
            assert set(slot.gpus) == slot.positions.keys() - set(alone) - shared.keys()
            here = {gpu_id: slot.gpu_memory[gpu_id] - used for gpu_id, used in shared.items() if gpu_id in slot.positions}
            assert slot.shared == here and min(here.values(), default=0) >= 0, "the memory of a GPU was given twice"

    def start_on(self, number: int, work: Work) -> None:
        """Start a task on a host if it fits there."""
        slot = self.pool.slot(f"h{number}")
        if has_gpus(slot, work.demand) and slot.memory_mib >= work.demand.memory_mib:
            self.start(work, Placement(slot.id, gpus_for(slot, work.demand)))

    def _end(self, work_id: str) -> None:
        work, placement = self._running.pop(work_id)
        alone, shares = self._holds(work, placement)
        self.fleet.give(POOL, placement.slot_id, alone, 0, work.demand.memory_mib, shares)
        self.fleet.drop_ending(POOL, placement.slot_id, work_id)

    def run(self, arriving: Sequence[Work]) -> None:
        """Run until nothing happens any more."""
        arrivals = [(work.arrives_s, work.id, work) for work in arriving]
        heapify(arrivals)
        while arrivals or self._ends:
            self.now_s = min([each[0][0] for each in (arrivals, self._ends) if each])
            while self._ends and self._ends[0][0] == self.now_s:
                self._end(heappop(self._ends)[1])
            while arrivals and arrivals[0][0] == self.now_s:
                work = heappop(arrivals)[2]
                self._waiting[work.id] = work
                self.fleet.add_claim(POOL, work.claim)
            for claim, placement in serve(self.pool, self.now_s):
                self.fleet.remove_claim(POOL, claim)
                self.start(self._waiting.pop(claim.id), placement)
            assert next(serve(self.pool, self.now_s), None) is None
            self._check_promise()

    def _check_promise(self) -> None:
        """The first claim that can reserve a slot starts at the time that was once promised to it, or before."""
        reservation = standing_reservation(self.pool)
        if reservation is not None and reservation.opening is not None:
            before_s = self.promised_s.setdefault(reservation.claim.id, reservation.opening.at_s)
            assert reservation.opening.at_s <= before_s, "the promised start became later"
            self.promised_s[reservation.claim.id] = reservation.opening.at_s
