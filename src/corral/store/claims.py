"""SQL of the claims of tasks and instance launches. `store/job_lines.py` has the third kind of claims, those of Batch jobs.

A row has the pool of the claim and its rank. The fleet index (`store/fleet.py`) has all claims in memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import partial
from heapq import merge

import orjson

from corral.core.database import Database
from corral.model.instance import cluster_of_pool, is_host_pool
from corral.model.placement import Claim
from corral.model.task import Demand, demand_to_return
from corral.store.fleet import Fleet
from corral.store.owner_lines import UNUSED
from corral.store.task_rows import pause_of, placement_rules_of

CLAIMS = (  # every claim with the resources that it needs
    "SELECT claim.number, claim.pool, rank, kind, claim.id, task.gpus, task.cpu_units, task.memory_mib, task.rules, "
    "task.gpu_memory_mib, roams, longest, claim.owner, task.pause, task.instance_id, task.region || '/' || task.cluster "
    "FROM claim JOIN task ON task.id = claim.id WHERE kind = 'task' UNION ALL "
    "SELECT claim.number, claim.pool, rank, kind, claim.id, instance.gpus, 0, 0, NULL, 0, roams, NULL, claim.owner, "
    "NULL, NULL, NULL "
    "FROM claim JOIN instance ON instance.id = claim.id WHERE kind = 'instance'"
)


class Claims:
    """The claims of tasks and instance launches in the state store. They are also in memory."""

    def __init__(self, database: Database, fleet: Fleet, of_writer: Claims | None) -> None:
        """A reader passes the claims of the writer. It sees them as they are now, and not as they were at its snapshot."""
        self._database = database
        self._fleet = fleet
        # Kind and id → number of the row, pool, claim.
        self._waiting: dict[tuple[str, str], tuple[int, str, Claim]] = {} if of_writer is None else of_writer._waiting
        self._last_number = 0  # of the rows; each new claim gets the next number
        self.roaming: dict[str, list[Claim]] = {}  # pool → its claims that may move to another pool, by rank

    def rebuild(self) -> None:
        self._last_number = self._database.execute("SELECT coalesce(max(number), 0) FROM claim").fetchone()[0]
        for row in self._database.execute(CLAIMS).fetchall():
            number, pool, rank, kind, id, gpus, cpu_units, memory_mib, rules, gpu_memory_mib, roams, longest_s, owner, *paused = row
            demand = Demand(gpus, cpu_units, memory_mib, placement_rules_of(rules), (), gpu_memory_mib)
            pause, slot_id, scope = paused
            if pause is not None and slot_id is not None:  # the task is placed already, and waits to continue
                demand = demand_to_return(scope, slot_id, pause_of(pause).gpu_ids)
            claim = Claim(tuple(orjson.loads(rank)), kind, id, demand, longest_s, owner)
            self._fleet.add_claim(pool, claim)
            self._waiting[kind, id] = number, pool, claim
            if roams:
                self._roam(pool, claim)

    def add(self, pool: str, claim: Claim, *, roams: bool = False) -> None:
        key = claim.kind, claim.id
        assert key not in self._waiting, f"{claim.kind} {claim.id} has a claim already"
        self._last_number = number = self._last_number + 1
        row = number, *key, pool, orjson.dumps(claim.rank).decode(), roams, claim.longest_s, claim.owner
        self._database.insert_later("INSERT INTO claim (number, kind, id, pool, rank, roams, longest, owner)", row)
        if roams:
            self._roam(pool, claim)
            self._database.undo_log.on_rollback(partial(self._stop_roaming, pool, claim))
        self._fleet.add_claim(pool, claim)
        self._waiting[key] = number, pool, claim
        self._database.undo_log.on_rollback(partial(self._waiting.pop, key))

    def remove(self, kind: str, id: str) -> None:
        """Delete a claim that was granted or withdrawn."""
        key = kind, id
        number, pool, claim = waiting = self._waiting.pop(key)
        self._database.execute("DELETE FROM claim WHERE number = ?", (number,))
        if self.roaming and self._stop_roaming(pool, claim):
            self._database.undo_log.on_rollback(partial(self._roam, pool, claim))
        self._fleet.remove_claim(pool, claim)
        self._database.undo_log.on_rollback(partial(self._waiting.__setitem__, key, waiting))

    def change(self, claim: Claim, after: Claim) -> None:
        """Change the rank, the demand or the time limit of a claim. Its rank decides whether it is served earlier or later."""
        pool, roams = self._waiting[claim.kind, claim.id][1], self.roams(claim.kind, claim.id)
        self.remove(claim.kind, claim.id)
        self.add(pool, after, roams=roams)

    def move(self, claim: Claim, pool: str) -> None:
        """Move a claim that roams to another pool. It keeps its rank."""
        self.remove(claim.kind, claim.id)
        self.add(pool, claim, roams=True)

    def roams(self, kind: str, id: str) -> bool:
        """Whether a claim may move to another pool."""
        _, pool, claim = self._waiting.get((kind, id), (0, "", None))
        roaming = self.roaming.get(pool, [])
        at = bisect_left(roaming, claim) if claim is not None else len(roaming)
        return at < len(roaming) and roaming[at] == claim

    def roaming_to(self, pool: str) -> Iterator[tuple[Claim, str]]:
        """Yield the claims of other pools that may move to this pool, by rank, each with its pool.

        Claims of tasks move between the pools of their cluster, and claims of instances between the pools of hosts. Some of the
        claims of these pools may not move: the caller checks them.
        """
        found, levels = merge(*[[(claim, name) for claim in claims] for name, claims in self._related(pool)]), self._fleet.levels
        if not levels:
            return found
        return iter(sorted(found, key=lambda each: (each[0].rank[0], levels.get(each[0].owner, UNUSED), *each[0].rank[2:])))

    def may_come(self, pool: str) -> bool:
        """Whether other pools have claims that may move to this pool."""
        return bool(self.roaming) and any(True for _ in self._related(pool))

    def _related(self, pool: str) -> Iterator[tuple[str, list[Claim]]]:
        for name, claims in self.roaming.items():
            both_hosts = is_host_pool(pool) and is_host_pool(name)
            if name != pool and (both_hosts or cluster_of_pool(name) == cluster_of_pool(pool)):
                yield name, claims

    def _roam(self, pool: str, claim: Claim) -> None:
        insort(self.roaming.setdefault(pool, []), claim)

    def _stop_roaming(self, pool: str, claim: Claim) -> bool:
        roaming = self.roaming.get(pool, [])
        at = bisect_left(roaming, claim)
        found = at < len(roaming) and roaming[at].id == claim.id
        if found:
            del roaming[at]
            if not roaming:
                del self.roaming[pool]
        return found

    def get(self, kind: str, id: str) -> Claim | None:
        found = self._waiting.get((kind, id))
        return None if found is None else found[2]

    def pool_of(self, kind: str, id: str) -> str | None:
        """Return the pool in which a task or an instance launch waits. Return None if it has no claim."""
        found = self._waiting.get((kind, id))
        return None if found is None else found[1]
