"""Placements per second on simulated hosts: the decision alone, and through the whole core with its durable rows.

The decision neither waits nor writes, so its rate is per second of CPU, which a busy machine does not spoil. Through the
core the rate is per second of the wall clock, and growth is judged by CPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from itertools import islice
from random import Random

from rows import Bench, Row
from simulated import GPUS_PER_HOST, simulated

from corral.core.undo_log import UndoLog
from corral.decide.placement.place import place, serve
from corral.model.instance import host_pool
from corral.model.placement import TASK, Claim, Placement, Slot, claim_rank
from corral.model.task import Demand, PlacementRules
from corral.store.fleet import Fleet

POOL = host_pool("default")
HOSTS = (100, 1_000, 10_000)
BUDGET_PER_S = 10_000.0
GROWTH_MAX = 1.5  # a search in a sorted list of 10,000 takes a little longer than in one of 100
EQUAL_HOST = (GPUS_PER_HOST, 96 * 1024, 2_000_000)  # GPUs, CPU units, MiB
CHUNK = 100
CYCLES_MAX_S = 3.0
REFUSALS_MAX = 10  # then the fleet counts as full
GROWTH_NOTE = "the design says that it must not grow; this limit is the benchmark's own"
Placed = tuple[str, tuple[str, ...], Demand]


def rows(bench: Bench) -> list[Row]:
    return [
        *_kinds(bench, "equal hosts", _equal, BUDGET_PER_S),
        *_kinds(bench, "hosts of random sizes", _random_sizes, None),
        *_with_rules(bench),
        *_waiting(bench),
        *_through_core(bench),
        *_core_waiting(bench),
    ]


# --- the decision alone -----------------------------------------------------------------------------------------------


def _kinds(bench: Bench, kind: str, sizes: object, budget: float | None) -> list[Row]:
    count = bench.size(20_000, 4_000)
    per_s = {hosts: _fill_rate(sizes(hosts), count, mixed=budget is None) for hosts in HOSTS}  # type: ignore[operator]
    found = [
        Row(f"placement alone, {hosts:,} {kind}", rate, "/s", budget=budget if hosts == HOSTS[-1] else None,
            note=f"{1e6 / rate:.0f} µs each")
        for hosts, rate in per_s.items()
    ]  # fmt: skip
    growth = per_s[HOSTS[0]] / per_s[HOSTS[-1]]
    return [*found, Row(f"placement alone, {kind}: cost on 10,000 ÷ on 100", growth, "×", budget=GROWTH_MAX, note=GROWTH_NOTE)]


def _equal(hosts: int) -> list[tuple[int, int, int]]:
    return [EQUAL_HOST] * hosts


def _random_sizes(hosts: int) -> list[tuple[int, int, int]]:
    rng = Random(hosts)
    return [(rng.choice((1, 2, 4, 8)), rng.randrange(4, 193) * 1024, rng.randrange(16_000, 2_000_000)) for _ in range(hosts)]


def _demands(count: int, *, mixed: bool) -> list[Demand]:
    if not mixed:
        return [Demand(1, 1024, 6)] * count
    rng = Random(count)
    return [Demand(rng.choice((1, 1, 1, 2, 4)), rng.randrange(1, 9) * 512, rng.randrange(6, 16_000)) for _ in range(count)]


def _fleet(sizes: Sequence[tuple[int, int, int]]) -> Fleet:
    fleet = Fleet(UndoLog())
    for number, (gpus, cpu_units, memory_mib) in enumerate(sizes):
        positions = {f"GPU-{number:08x}-{at}": at for at in range(gpus)}
        total = Demand(gpus, cpu_units, memory_mib)
        fleet.put_slot(POOL, Slot(f"{number:032x}", total, cpu_units, memory_mib, list(positions), positions))
    fleet.undo_log.commit()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as the server does after its start: a collection does not read the index again
    gc.set_threshold(10_000, 50, 100)
    return fleet


def _fill_rate(sizes: Sequence[tuple[int, int, int]], count: int, *, mixed: bool) -> float:
    """Place and take, `count` in all; when a fleet is nearly full it is emptied, which is not timed."""
    fleet, demands, done, seconds = _fleet(sizes), _demands(count, mixed=mixed), 0, 0.0
    total_gpus = fleet.pool(POOL).total_gpus
    placed: list[Placed] = []
    while done < count:
        began = time.process_time()
        while done < count and fleet.pool(POOL).free_gpus > total_gpus // 4:
            for demand in demands[done : done + CHUNK]:
                _place(fleet, demand, placed)
            done += CHUNK
            fleet.undo_log.commit()
        seconds += time.process_time() - began
        while placed:
            _give(fleet, placed.pop())
        fleet.undo_log.commit()
    return done / seconds


def _place(fleet: Fleet, demand: Demand, placed: list[Placed]) -> None:
    found = place(fleet.pool(POOL), demand)
    if isinstance(found, Placement):  # else it is a refusal, which costs too
        fleet.take(POOL, found.slot_id, found.gpu_ids, demand.cpu_units, demand.memory_mib)
        placed.append((found.slot_id, found.gpu_ids, demand))


def _give(fleet: Fleet, placed: Placed) -> None:
    slot_id, gpu_ids, demand = placed
    fleet.give(POOL, slot_id, gpu_ids, demand.cpu_units, demand.memory_mib)


# --- with placement rules ---------------------------------------------------------------------------------------------

SCOPE = "us-east-1/default"
GROUP = f"{SCOPE}/family:bench"
RULES = {
    "memberOf": PlacementRules(SCOPE, ("attribute:half == 1 and attribute:ecs.os-type =~ lin.*",)),
    "spread over hosts": PlacementRules(SCOPE, strategy=(("spread", "instanceId"),), group=GROUP),
    "spread over racks, then binpack": PlacementRules(
        SCOPE, strategy=(("spread", "attribute:rack"), ("binpack", "memory")), group=GROUP
    ),
    "random": PlacementRules(SCOPE, strategy=(("random", ""),)),
    "distinctInstance": PlacementRules(SCOPE, distinct=True, group=GROUP, depends_on_tasks=True),
}


def _with_rules(bench: Bench) -> list[Row]:
    """Placed, taken and counted as the store does; the first task of each kind, which looks at every host, is a row of its own."""
    found, count = [], bench.size(20_000, 4_000)
    for name, rules in RULES.items():
        costs = {hosts: _rules_cost_s(hosts, count, rules) for hosts in HOSTS}
        found += [
            Row(
                f"placement with {name}, {hosts:,} equal hosts",
                1 / each_s,
                "/s",
                note=f"{each_s * 1e6:.0f} µs each; the first {first_s * 1e3:.1f} ms",
            )
            for hosts, (each_s, first_s) in costs.items()
        ]
        growth = costs[HOSTS[-1]][0] / costs[HOSTS[0]][0]
        found.append(Row(f"placement with {name}: cost on 10,000 ÷ on 100", growth, "×", note="should grow at most mildly"))
    return found


def _rules_cost_s(hosts: int, count: int, rules: PlacementRules) -> tuple[float, float]:
    """CPU seconds (a task, the first task). A fleet that is half full, or has a task on each host, is emptied, not timed."""
    fleet, demand, done, seconds = _fleet(_equal(hosts)), Demand(1, 1024, 6, rules), 0, 0.0
    pool = fleet.pool(POOL)
    for number, slot in enumerate(pool.slots()):
        slot.attributes = {"half": str(number % 2), "ecs.os-type": "linux", "rack": str(number // 40)}
    began = time.process_time()
    place(pool, demand, seed="first")
    first_s = time.process_time() - began
    placed: list[Placed] = []
    while done < count:
        portion = min(count - done, hosts if rules.distinct else hosts * GPUS_PER_HOST // 4)
        began = time.process_time()
        for number in range(portion):
            found = place(pool, demand, seed=str(number))
            assert isinstance(found, Placement)
            fleet.take(POOL, found.slot_id, found.gpu_ids, demand.cpu_units, demand.memory_mib, GROUP)
            placed.append((found.slot_id, found.gpu_ids, demand))
        fleet.undo_log.commit()
        seconds, done = seconds + time.process_time() - began, done + portion
        while placed:
            fleet.count(POOL, placed[-1][0], GROUP, -1, 0, -1)
            _give(fleet, placed.pop())
        place(pool, demand, seed="empty")  # what was given back is looked at here
        fleet.undo_log.commit()
    return seconds / done, first_s


# --- a full fleet with a line before it -------------------------------------------------------------------------------


def _waiting(bench: Bench) -> list[Row]:
    found, cycles, line = [], bench.size(1_000, 100), bench.size(10_000, 2_000)
    for kind, sizes, mixed in (("equal hosts", _equal, False), ("hosts of random sizes", _random_sizes, True)):
        per_s = {hosts: _cycle_rate(sizes(hosts), cycles, line, mixed=mixed) for hosts in HOSTS}
        found += [
            Row(f"release and grant, line of {line:,} claims, {hosts:,} {kind}", rate, "/s", note=f"{1e6 / rate:.0f} µs each")
            for hosts, rate in per_s.items()
        ]
        growth = per_s[HOSTS[0]] / per_s[HOSTS[-1]]
        found.append(Row(f"release and grant, {kind}: cost on 10,000 ÷ on 100", growth, "×", budget=GROWTH_MAX, note=GROWTH_NOTE))
    return found


def _cycle_rate(sizes: Sequence[tuple[int, int, int]], cycles: int, line: int, *, mixed: bool) -> float:
    """Fill the fleet, let claims wait, then again and again: one task ends, and the claims that fit are served."""
    fleet, placed, rng = _fleet(sizes), [], Random(1)
    refusals = 0
    for demand in _demands(2 * sum(size[0] for size in sizes), mixed=mixed):
        before = len(placed)
        _place(fleet, demand, placed)
        refusals += len(placed) == before
        if refusals >= REFUSALS_MAX:
            break
    for number, demand in enumerate(_kinds_of_demands(line, mixed=mixed)):
        fleet.add_claim(POOL, Claim(claim_rank(float(number)), TASK, f"{number:032x}", demand))
    fleet.undo_log.commit()
    began, done = time.process_time(), 0
    while done < cycles and time.process_time() < began + CYCLES_MAX_S:
        done += 1
        at = rng.randrange(len(placed))
        placed[at], placed[-1] = placed[-1], placed[at]
        _give(fleet, placed.pop())
        _serve(fleet, placed)
        fleet.undo_log.commit()
    return done / (time.process_time() - began)


def _kinds_of_demands(line: int, *, mixed: bool) -> list[Demand]:
    """Equal asks stand in one line; a real queue has some dozens of kinds."""
    kinds = _demands(30, mixed=mixed)
    return [kinds[number % len(kinds)] for number in range(line)]


def _serve(fleet: Fleet, placed: list[Placed]) -> None:
    for claim, found in serve(fleet.pool(POOL), 0.0):
        fleet.remove_claim(POOL, claim)
        fleet.take(POOL, found.slot_id, found.gpu_ids, claim.demand.cpu_units, claim.demand.memory_mib)
        placed.append((found.slot_id, found.gpu_ids, claim.demand))


# --- through the core -------------------------------------------------------------------------------------------------


def _through_core(bench: Bench) -> list[Row]:
    counts = HOSTS[: 2 if bench.quick else 3]
    cost_s = {hosts: _core_cost_s(bench, hosts, bench.size(4_000, 500)) for hosts in counts}
    found = [
        Row(f"RunTask through the core (durable), {hosts:,} equal hosts", 1 / wall_s, "/s", note=f"CPU {cpu_s * 1e6:.0f} µs a task")
        for hosts, (wall_s, cpu_s) in cost_s.items()
    ]
    growth = cost_s[counts[-1]][1] / cost_s[counts[0]][1]
    what = f"RunTask through the core: CPU on {counts[-1]:,} ÷ on 100"
    return [*found, Row(what, growth, "×", budget=GROWTH_MAX, note=GROWTH_NOTE)]


def _core_cost_s(bench: Bench, hosts: int, count: int) -> tuple[float, float]:
    """Seconds (wall, CPU) a task, with a GPU each; no more at a time than there are GPUs."""
    wall_s, cpu_s, left = 0.0, 0.0, count
    with simulated(bench, "core") as core:
        core.join(_equal(hosts))
        core.register("one", 1)
        while left:
            portion = min(left, hosts * GPUS_PER_HOST // 2)
            began, cpu = time.perf_counter(), time.process_time()
            core.run_tasks("one", portion)
            wall_s, cpu_s = wall_s + time.perf_counter() - began, cpu_s + time.process_time() - cpu
            left -= portion
            for at in range(0, len(core.placed), 200):
                core.end(core.placed[at : at + 200])
            core.placed.clear()
    return wall_s / count, cpu_s / count


def _core_waiting(bench: Bench) -> list[Row]:
    """A full fleet of 100 hosts with tasks waiting: each end of a task places the next, with all rows."""
    gpus, line, cycles = HOSTS[0] * GPUS_PER_HOST, bench.size(4_000, 500), bench.size(2_000, 300)
    with simulated(bench, "line") as core:
        core.join(_equal(HOSTS[0]))
        core.register("one", 1)
        core.run_tasks("one", gpus)
        began = time.perf_counter()
        core.run_tasks("one", line)
        queued_per_s = line / (time.perf_counter() - began)
        ends, began = iter(list(core.placed)), time.perf_counter()
        for _ in range(cycles // CHUNK):
            batch = list(islice(ends, CHUNK))
            core.end(batch)
            ends = iter([*ends, *core.placed[-CHUNK:]])
        per_s = cycles / (time.perf_counter() - began)
    return [
        Row(f"RunTask through the core (durable) into a line of {line:,}, fleet full", queued_per_s, "/s"),
        Row("task ends, next one placed, through the core (durable)", per_s, "/s", note=f"{1e6 / per_s:.0f} µs a task"),
    ]
