"""The line of many owners: placing with 1,000 owners and 100,000 waiting claims, next to one owner with as many.

As in `bench/placing.py`, tasks end one after the other, and the claims that fit are served, in CPU seconds. As in the server, each
end and each grant changes the use of an owner, and with several owners also its level. The two fleets take turns in short chunks,
and the median chunk counts, because other programs on the machine also slow down CPU seconds.
"""

from __future__ import annotations

import time
from random import Random
from statistics import median

from placing import POOL, Placed, _demands, _fleet, _give, _random_sizes
from rows import Bench, Row

from corral.decide.placement.place import place, serve
from corral.decide.shares import decay_of, line_level, use_after
from corral.model.job_line import ShareUse
from corral.model.placement import TASK, Claim, Placement, claim_rank

HOSTS = 100
KINDS = (1, 30)  # of demands
RATIO_MAX = 1.5
CHUNK = 100
WARM_UP = 2_500  # cycles after which most owners have used GPUs
HALF_LIFE_S = 7 * 86_400.0
STEP_S = 1.0  # the time between two ends of tasks


def rows(bench: Bench) -> list[Row]:
    claims, owners, cycles = bench.size(100_000, 10_000), bench.size(1_000, 100), bench.size(4_000, 500)
    found = []
    for kinds in KINDS:
        what = f"release and grant, line of {claims:,} claims of {kinds} kind{'s' * (kinds > 1)}"
        lines = {count: _Line(claims, count, kinds) for count in (1, owners)}
        chunks: dict[int, list[float]] = {count: [] for count in lines}
        for line in lines.values():
            line.cost_s(WARM_UP)
        for _ in range(cycles // CHUNK):
            for count, line in lines.items():
                chunks[count].append(line.cost_s(CHUNK))
        cost_s = {count: median(found_s) for count, found_s in chunks.items()}
        found += [
            Row(f"{what}, {count:,} owner{'s' * (count > 1)}", 1 / each_s, "/s", note=f"{each_s * 1e6:.0f} µs each")
            for count, each_s in cost_s.items()
        ]
        ratio = cost_s[owners] / cost_s[1]
        found.append(Row(f"{what}: cost with {owners:,} owners ÷ with one", ratio, "×", budget=RATIO_MAX))
    return found


class _Line:
    """A full fleet, and the claims that wait for it."""

    def __init__(self, claims: int, owners: int, kinds: int) -> None:
        self._fleet, self._rng, self._now_s = _fleet(_random_sizes(HOSTS)), Random(1), 0.0
        self._owners = [f"user/u{number}" for number in range(owners)]
        self._uses = dict.fromkeys(self._owners, ShareUse())
        self._decay_s = decay_of(HALF_LIFE_S)
        self._placed: list[tuple[Placed, str]] = []
        self._stored: dict[str, Claim] = {}
        demands = _demands(30, mixed=True)[:kinds]
        refusals = 0
        while refusals < 10 * kinds:
            demand, owner = self._rng.choice(demands), self._rng.choice(self._owners)
            found = place(self._fleet.pool(POOL), demand)
            if isinstance(found, Placement):
                self._take(found, demand, owner)
            else:
                refusals += 1
        for number in range(claims):
            claim = Claim(
                claim_rank(float(number)), TASK, f"{number:032x}", demands[number % kinds], owner=self._rng.choice(self._owners)
            )
            self._stored[claim.id] = claim
            self._fleet.add_claim(POOL, claim)
        self._fleet.undo_log.commit()

    def cost_s(self, cycles: int) -> float:
        """Return the CPU seconds of one end of a task and the grants that follow."""
        began = time.process_time()
        for _ in range(cycles):
            self._cycle()
        return (time.process_time() - began) / cycles

    def _cycle(self) -> None:
        self._now_s += STEP_S
        at = self._rng.randrange(len(self._placed))
        self._placed[at], self._placed[-1] = self._placed[-1], self._placed[at]
        placed, owner = self._placed.pop()
        _give(self._fleet, placed)
        self._hold(owner, -placed[2].gpus)
        for claim, found in serve(self._fleet.pool(POOL), self._now_s):
            self._fleet.remove_claim(POOL, self._stored[claim.id])
            self._take(found, claim.demand, claim.owner)
        self._fleet.undo_log.commit()

    def _take(self, found: Placement, demand: object, owner: str) -> None:
        self._fleet.take(POOL, found.slot_id, found.gpu_ids, demand.cpu_units, demand.memory_mib)  # type: ignore[attr-defined]
        self._placed.append(((found.slot_id, found.gpu_ids, demand), owner))  # type: ignore[arg-type]
        self._hold(owner, demand.gpus)  # type: ignore[attr-defined]

    def _hold(self, owner: str, change: int) -> None:
        use = self._uses[owner] = use_after(self._uses[owner], change, self._now_s, self._decay_s)
        if len(self._owners) > 1:
            self._fleet.set_level(owner, line_level(use, 1.0, self._decay_s, self._now_s))
