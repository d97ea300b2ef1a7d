"""A small simulation of a pool: tasks end, claims arrive, and the scheduler serves them, with or without time limits.

The fleet index and the scheduler are the real ones. Tasks with a time limit run exactly as long as their limit. Without backfill,
the same tasks run as long, but the index does not know their time limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from corral.decide.placement import serve, standing_reservation
from corral.journal import Journal
from corral.model.placement import TASK, Claim, Ending, Placement, Slot
from corral.model.task import Demand
from corral.store.fleet import Fleet, PoolIndex

POOL = "hosts"
MEMORY = 8


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
    return Slot(f"h{number}", Demand(gpus, 0, MEMORY), 0, MEMORY, list(positions), positions)


class Simulation:
    def __init__(self, sizes: Sequence[int], *, backfill: bool) -> None:
        self.fleet = Fleet(Journal())
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
        held = {gpu for _, other in self._running.values() for gpu in other.gpu_ids}
        assert not held & set(placement.gpu_ids), "a GPU was given twice"
        self.fleet.take(POOL, placement.slot_id, placement.gpu_ids, 0, work.demand.memory_mib)
        if work.limited and self.backfill:
            ending = Ending(work.id, self.now_s + work.lasts_s, placement.gpu_ids, 0, work.demand.memory_mib)
            self.fleet.put_ending(POOL, placement.slot_id, ending)
        self._running[work.id] = work, placement
        self.starts[work.id] = self.now_s
        heappush(self._ends, (self.now_s + work.lasts_s, work.id))

    def start_on(self, number: int, work: Work) -> None:
        """Start a task on a host if it fits there."""
        slot = self.pool.slot(f"h{number}")
        if len(slot.gpus) >= work.demand.gpus and slot.memory_mib >= work.demand.memory_mib:
            self.start(work, Placement(slot.id, tuple(slot.gpus[: work.demand.gpus])))

    def _end(self, work_id: str) -> None:
        work, placement = self._running.pop(work_id)
        self.fleet.give(POOL, placement.slot_id, placement.gpu_ids, 0, work.demand.memory_mib)
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
                self.fleet.join_line(POOL, work.claim)
            for claim, placement in serve(self.pool, self.now_s):
                self.fleet.leave_line(POOL, claim)
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
