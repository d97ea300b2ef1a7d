"""The fleet index: the free capacity of every pool, and the claims that wait for it. The index is derived from the rows.

Every change of the index registers its inverse in the store's undo log, for a rollback. Tests use `Fleet.snapshot` to compare the
index with an index that is built from the rows. Only the thread that writes the store may use the index. `Fleet.copy` makes a copy
for reader threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from corral.core.undo_log import UndoLog
from corral.model.instance import cluster_of_pool, is_host_pool
from corral.model.limits import Allowance
from corral.model.placement import JOB, Claim, Ending, Shares, Slot
from corral.store.owner_lines import UNUSED, Peers
from corral.store.pool_index import PoolIndex
from corral.store.waiting_lines import WaitingLines


class _Pools(dict[str, PoolIndex]):
    def __init__(self, levels: dict[str, float], allowances: dict[str, Allowance]) -> None:
        self._of_owners = levels, allowances
        self.lines: list[WaitingLines] = []  # of all pools

    def __missing__(self, name: str) -> PoolIndex:
        pool = self[name] = PoolIndex(*self._of_owners)
        pool.waiting_lines.is_of_hosts = is_host_pool(name)
        self.lines.append(pool.waiting_lines)
        return pool


class Fleet:
    def __init__(self, undo_log: UndoLog) -> None:
        # Owner → its level in the line (`decide/shares.py`). An owner without a level has used no GPU.
        self.levels: dict[str, float] = {}
        self.allowances: dict[str, Allowance] = {}  # owner → what its limits allow it to take now; missing: it has no such limit
        self._pools = _Pools(self.levels, self.allowances)
        self.pool: Callable[[str], PoolIndex] = self._pools.__getitem__
        self.undo_log = undo_log
        self._on_rollback = undo_log.on_rollback

    def copy(self) -> Fleet:
        """Return a copy for reader threads. Pools that have not changed since the last copy are not copied again."""
        found = Fleet(UndoLog())
        found._pools.update({name: pool.copy() for name, pool in self._pools.items()})
        return found

    def forget_names(self, pool_name: str) -> None:
        """Forget the derived values of a pool, because they can contain the name of a task, which a tag can change."""
        forget = self.pool(pool_name).forget_names
        forget()
        self._on_rollback(forget)

    def pools_with_claims(self) -> list[str]:
        return sorted(name for name, pool in self._pools.items() if pool.has_claims())

    def put_slot(self, pool_name: str, slot: Slot) -> None:
        """Add a slot, or replace it after a change of its size, GPUs or connection."""
        pool = self.pool(pool_name)
        before = pool._slots.get(slot.id)
        if before is not None:
            pool.remove(slot.id)
        pool.put(slot)
        self._on_rollback(partial(self._put_back, pool, slot.id, before))
        if before is None and len(pool) == 1:
            self._show_clusters()

    def drop_slot(self, pool_name: str, slot_id: str) -> None:
        """Remove a slot that has no tasks."""
        pool = self.pool(pool_name)
        before = pool.slot(slot_id)
        pool.remove(slot_id)
        self._on_rollback(partial(pool.put, before))
        if not len(pool):
            self._show_clusters()

    def _show_clusters(self) -> None:
        """Name the cluster of each pool of hosts in reasons, if there are several such pools."""
        pools = {name: pool for name, pool in self._pools.items() if is_host_pool(name) and len(pool)}
        for name, pool in self._pools.items():
            shown = cluster_of_pool(name) if name in pools and len(pools) > 1 else ""
            if pool.shown_cluster != shown:
                self._on_rollback(partial(pool.show_cluster, pool.shown_cluster))
                pool.show_cluster(shown)

    def take(
        self, pool_name: str, slot_id: str, gpu_ids: Sequence[str], cpu_units: int, memory_mib: int, group: str = "",
        shares: Shares = (),
    ) -> None:  # fmt: skip
        """Take resources from a slot for a task that becomes pending. If its task group `group` is given, count the task."""
        pool = self._pools[pool_name]
        pool.change(slot_id, gpu_ids, cpu_units, memory_mib, group, shares, back=False)
        self._on_rollback(partial(pool.change, slot_id, gpu_ids, cpu_units, memory_mib, group, shares, back=True))

    def give(
        self, pool_name: str, slot_id: str, gpu_ids: Sequence[str], cpu_units: int, memory_mib: int, shares: Shares = ()
    ) -> None:
        pool = self._pools[pool_name]
        pool.change(slot_id, gpu_ids, cpu_units, memory_mib, "", shares, back=True)
        self._on_rollback(partial(pool.change, slot_id, gpu_ids, cpu_units, memory_mib, "", shares, back=False))

    def count(self, pool_name: str, slot_id: str, group: str, tasks: int, running: int, pending: int) -> None:
        pool = self._pools[pool_name]
        pool.count(slot_id, group, tasks, running, pending)
        self._on_rollback(partial(pool.count, slot_id, group, -tasks, -running, -pending))

    def add_claim(self, pool_name: str, claim: Claim) -> None:
        pool = self.pool(pool_name)
        pool.add_claim(claim)
        self._on_rollback(partial(pool.remove_claim, claim))

    def remove_claim(self, pool_name: str, claim: Claim) -> None:
        pool = self.pool(pool_name)
        pool.remove_claim(claim)
        self._on_rollback(partial(pool.add_claim, claim))

    def set_level(self, owner: str, level: float | None) -> None:
        """Set the level of an owner, which moves its claims in all pools. With None, forget the level."""
        before = self.levels.get(owner)
        if level != before:
            self._set_level(owner, level)
            self._on_rollback(partial(self._set_level, owner, before))

    def _set_level(self, owner: str, level: float | None) -> None:
        if level is None:
            self.levels.pop(owner, None)
            level = UNUSED
        else:
            self.levels[owner] = level
        for lines in self._pools.lines:
            if owner in lines.owners:
                lines.reorder(owner, level)

    def set_allowance(self, owner: str, allowance: Allowance | None) -> list[str]:
        """Set what the limits of an owner allow it to take now. Return the pools in which it has claims, if this has changed."""
        before = self.allowances.get(owner)
        if allowance == before:
            return []
        self._set_allowance(owner, allowance)
        self._on_rollback(partial(self._set_allowance, owner, before))
        return [name for name, pool in self._pools.items() if owner in pool.waiting_lines.owners]

    def _set_allowance(self, owner: str, allowance: Allowance | None) -> None:
        if allowance is None:
            self.allowances.pop(owner, None)
        else:
            self.allowances[owner] = allowance
        for lines in self._pools.lines:
            lines.reopen(owner)

    def put_ending(self, pool_name: str, slot_id: str, ending: Ending) -> None:
        """Record the time limit of a placed task, or replace it after a change of the task."""
        pool = self.pool(pool_name)
        self.drop_ending(pool_name, slot_id, ending.task_id)
        pool.put_ending(slot_id, ending)
        self._on_rollback(partial(pool.drop_ending, slot_id, ending.task_id))

    def drop_ending(self, pool_name: str, slot_id: str, task_id: str) -> None:
        pool = self.pool(pool_name)
        dropped = pool.drop_ending(slot_id, task_id)
        if dropped is not None:
            self._on_rollback(partial(pool.put_ending, slot_id, dropped))

    def snapshot(self) -> dict[str, Any]:
        """The content of the index as values that tests can compare."""
        return {
            name: {
                "slots": {slot.id: to_builtins(slot) for slot in pool.slots()},
                "groups": {group.gpus: group.snapshot() for group in pool.groups()},
                "by held": [(group.gpus, group.snapshot()) for group in pool.groups_by_held()],
                "withheld": pool.withheld(),
                "sharing": sorted(pool.sharing()),
                # The ranks of job claims are left out: they depend on the time, so they are not in rows.
                "claims": {
                    key: sorted(claim._replace(rank=()) if claim.kind == JOB else claim for claim in _claims(peers))
                    for key, peers in pool.waiting_lines.peers.items()
                },
                "owners": {
                    owner: {priority: len(group.lines) for priority, group in groups.items()}
                    for owner, groups in pool.waiting_lines.owners.items()
                },
                "endings": {slot_id: list(endings) for slot_id, endings in pool._endings.items()},
                "sums": (pool.free_gpus, pool.total_gpus, pool.connected, dict(pool._totals)),
                "peers": (pool.peers_depending_on_tasks, pool.peers_with_limits),
            }
            for name, pool in sorted(self._pools.items())
            if pool._slots or pool.has_claims()
        }

    @staticmethod
    def _put_back(pool: PoolIndex, slot_id: str, before: Slot | None) -> None:
        pool.remove(slot_id)
        if before is not None:
            pool.put(before)


def _claims(peers: Peers) -> list[Claim]:
    return [claim for line in peers.lines.values() for claim in line.claims()]
