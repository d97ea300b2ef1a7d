"""SQL of instances, and the slots derived from them.

An instance that waits for GPUs has a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import orjson
from msgspec.structs import replace

from corral.core.database import Database, Row
from corral.model.allocation import is_allocation_cluster
from corral.model.gpu import GpuDevice
from corral.model.instance import MOVES, Instance, InstanceState, cluster_of_pool, host_instance_id
from corral.model.placement import INSTANCE, NO_ACCOUNTS, Claim, Ending, Placement, Rank, Slot
from corral.store.claims import Claims
from corral.store.fleet import Fleet
from corral.store.instance_slots import HOLD_PREFIX, holds_of, slot_of
from corral.store.instance_usage import InstanceUsage
from corral.store.owner_use import OwnerUses

COLUMNS = (
    "id, region, cluster, type, state, gpus, cpu_units, memory_mib, created_at, host_id, status, terminated_at, details, "
    "group_name, joins, launched_at, launch_reason, end_reason, owner"
)
# WITH_LIMIT is the condition for placed tasks that have a time limit, either their own or that of a Batch job (`Task.limit_s`), and
# that are not paused. LIMITS reads these tasks. LEASED_WITH_LIMIT reads the GPUs that they lease.
WITH_LIMIT = (
    "state IN ('PENDING', 'RUNNING') AND (time_limit IS NOT NULL OR json_extract(details, '$.attemptTimeout') IS NOT NULL) "
    "AND coalesce(json_extract(pause, '$.phase'), '') != 'paused'"
)
LIMITS = (
    "SELECT pool, instance_id, id, coalesce(started_at, placed_at) + coalesce(time_limit, json_extract(details, "
    f"'$.attemptTimeout')) + coalesce(json_extract(pause, '$.paused_s'), 0), cpu_units, memory_mib FROM task WHERE {WITH_LIMIT}"
)
LEASED_WITH_LIMIT = (
    "SELECT run.task_id, gpu_id, lease.memory_mib FROM lease JOIN run ON run.id = lease.run_id "
    f"WHERE run.task_id IN (SELECT id FROM task WHERE {WITH_LIMIT}) ORDER BY gpu_id, lease.memory_mib"
)
EC2_DIGITS = 17  # the number of hexadecimal digits of an id in EC2's form


class Instances:
    """The instances in the state store. The methods that change an instance, except `put_row`, also update its slot."""

    def __init__(self, database: Database, fleet: Fleet, claims: Claims, uses: OwnerUses) -> None:
        self._database = database
        self._fleet = fleet
        self._claims = claims
        self._uses = uses
        self.usage = InstanceUsage(database)
        self._live: dict[str, Instance] = {}  # a cache of all instances that are not terminated
        self._by_host: dict[str | None, dict[str, None]] = {}  # host → the ids of its instances; None: instances without a host
        self._host_clusters: dict[str, int] = {}  # cluster → the number of hosts that are in it, or move to it
        self.accounts: dict[str, frozenset[str]] = {}  # host → the Unix accounts of users that it has (`Hosts.put_accounts`)
        self._addresses: dict[str, set[str]] = {}  # subnet → the private addresses of its instances
        if not database.reads_only:
            for row in database.execute(f"SELECT {COLUMNS} FROM instance WHERE state != 'terminated'").fetchall():
                self._remember(row[0], _instance(row))

    def rebuild_slots(self) -> None:
        for instance in self._live.values():
            if instance.host_id is not None:
                self.renew_slot(instance.id)
        gpus: dict[str, list[tuple[str, int]]] = {}
        for task_id, gpu_id, allocated_mib in self._database.execute(LEASED_WITH_LIMIT).fetchall():
            gpus.setdefault(task_id, []).append((gpu_id, allocated_mib))
        for pool, instance_id, task_id, limit_at_s, cpu_units, memory_mib in self._database.execute(LIMITS).fetchall():
            leased = gpus.get(task_id, ())
            alone = tuple(gpu_id for gpu_id, allocated_mib in leased if not allocated_mib)
            shares = tuple(lease for lease in leased if lease[1])
            self._fleet.put_ending(pool, instance_id, Ending(task_id, limit_at_s, alone, cpu_units, memory_mib, shares))

    def living(self) -> dict[str, Instance]:
        """Return a copy of the cache, for readers (`show`)."""
        return dict(self._live)

    def show(self, living: dict[str, Instance]) -> None:
        """Use the instances that the writer has published. Only a reader calls this."""
        self._live = living

    # Reading

    def get(self, instance_id: str) -> Instance | None:
        live = self._live.get(instance_id)
        if live is not None:
            return live
        row = self._database.execute(f"SELECT {COLUMNS} FROM instance WHERE id = ?", (instance_id,)).fetchone()
        return _instance(row) if row else None

    def by_ec2_id(self, given: str) -> Instance | None:
        """Return the instance with this id in EC2's form. This form has the first digits of the instance's id."""
        digits = given.removeprefix("i-")
        if len(digits) != EC2_DIGITS or len(given) == len(digits):
            return None
        row = self._database.execute("SELECT id FROM instance WHERE id >= ? AND id < ?", (digits, f"{digits}g")).fetchone()
        return self.get(row[0]) if row else None

    def listed(self, region: str, after: str = "", limit: int = -1) -> list[Instance]:
        """Return the instances of a region, sorted by id, including terminated instances. A limit of -1 means no limit."""
        sql = f"SELECT {COLUMNS} FROM instance WHERE region = ? AND id > ? ORDER BY id LIMIT ?"
        return [_instance(row) for row in self._database.execute(sql, (region, after, limit)).fetchall()]

    def live(self, region: str) -> list[Instance]:
        """The instances of a region that are not terminated."""
        return [instance for instance in self._live.values() if instance.region == region]

    def slices(self) -> list[Instance]:
        """All instances that are not terminated, in all regions, without the hosts' own instances."""
        return [instance for instance in self._live.values() if not instance.is_host]

    def addresses(self, subnet_id: str) -> Set[str]:
        """The private addresses of the instances in a subnet that are not terminated."""
        return self._addresses.get(subnet_id, frozenset())

    def all(self) -> list[Instance]:
        """All instances, sorted by age. Terminated instances are included until their rows are deleted."""
        rows = self._database.execute(f"SELECT {COLUMNS} FROM instance ORDER BY created_at, id")
        return [_instance(row) for row in rows.fetchall()]

    def on_host(self, host_id: str) -> list[Instance]:
        """The instances on a host. The host's own instance comes first."""
        if self._database.reads_only:
            found = [each for each in self._live.values() if each.host_id == host_id]
        else:
            found = [self._live[instance_id] for instance_id in self._by_host.get(host_id, ())]
        return sorted(found, key=lambda instance: (not instance.is_host, instance.id))

    def clusters_of_hosts(self) -> Set[str]:
        """Return the clusters of hosts. A host of a lender has none.

        A host that moves to another cluster after its last task has two.
        """
        if self._database.reads_only:
            rows = self._database.execute(
                "SELECT cluster, joins FROM instance WHERE region = '' AND status != 'INACTIVE'"
            ).fetchall()
            return {name for names in rows for name in names if name and not is_allocation_cluster(name)}
        return self._host_clusters.keys()

    def joined_clusters(self) -> set[tuple[str, str]]:
        """Return the (region, cluster) pairs that EC2 instances have joined. The clusters of the hosts themselves are left out."""
        return {(each.region, each.cluster) for each in self._live.values() if each.cluster and not each.is_host}

    def host_of(self, instance_id: str) -> str:
        live = self._live.get(instance_id) or self.get(instance_id)
        assert live is not None and live.host_id is not None, f"instance {instance_id} has no host"
        return live.host_id

    def is_on(self, instance_id: str, host_id: str) -> bool:
        """Whether the instance is on this host. A stopped instance is on no host, and its tasks have ended."""
        found = self._live.get(instance_id) or self.get(instance_id)
        return found is not None and found.host_id == host_id

    def gpus(self, instance_id: str) -> list[GpuDevice]:
        """The GPUs of an instance that are present and not excluded, in the host's order."""
        rows = self._database.execute(
            "SELECT id, position, model, memory_mib, simulated, excluded FROM gpu "
            "WHERE instance_id = ? AND present = 1 AND excluded = 0 ORDER BY position",
            (instance_id,),
        )
        return [GpuDevice(gpu_id, at, model, mib, bool(sim), bool(out)) for gpu_id, at, model, mib, sim, out in rows]

    def leases(self, instance_id: str) -> dict[str, tuple[int, int]]:
        """GPU id → (number of leases, allocated memory in MiB), for leased GPUs. The memory is 0 if the GPU is not shared."""
        rows = self._database.execute(
            "SELECT lease.gpu_id, count(*), sum(lease.memory_mib) FROM gpu JOIN lease ON lease.gpu_id = gpu.id "
            "WHERE gpu.instance_id = ? GROUP BY lease.gpu_id",
            (instance_id,),
        )
        return {gpu_id: (count, allocated_mib) for gpu_id, count, allocated_mib in rows}

    def some_holders(self, pool: str, limit: int) -> tuple[dict[str, int], dict[str, int]]:
        """Tasks that lease GPUs of a pool, and EC2 instances that own GPUs of the pool's hosts, each with its number of GPUs.

        There are at most `limit` in total. Messages that explain why a claim waits name these tasks and instances as examples.
        """
        tasks, takers = dict[str, int](), dict[str, int]()
        for instance in [each for each in self._live.values() if each.pool == pool]:
            if len(tasks) + len(takers) >= limit:
                break
            tasks |= self._database.execute(
                "SELECT run.task_id, count(DISTINCT gpu_id) FROM lease JOIN run ON run.id = lease.run_id "
                "WHERE lease.instance_id = ? GROUP BY run.task_id ORDER BY 2 DESC, 1 LIMIT ?",
                (instance.id, limit),
            )
            if instance.is_host:
                others = [each for each in self.on_host(str(instance.host_id)) if not each.is_host]
                takers |= {each.id: each.gpus for each in others if each.gpus}
        return dict(list(tasks.items())[:limit]), dict(list(takers.items())[: max(0, limit - len(tasks))])

    # Launch and termination

    def add(self, instance: Instance, pool: str, rank: Rank, attributes: Mapping[str, str] | None = None) -> Claim:
        """Add an instance that waits for capacity of a pool, and its claim. `launch` grants the claim."""
        assert instance.state is InstanceState.PENDING and instance.host_id is None
        self.put_row(instance)
        self._database.executemany(
            "INSERT INTO instance_attribute VALUES (?, ?, ?)", [(instance.id, *each) for each in (attributes or {}).items()]
        )
        return self._claim(instance, pool, rank)

    def launch(self, instance: Instance, placement: Placement, now_s: float) -> Instance:
        """Grant the claim of an instance: give it the GPUs that a placement chose. The instance is running afterwards."""
        parent = self._live[placement.slot_id]
        assert parent.is_host and len(placement.gpu_ids) == instance.gpus
        launched = self._move(instance, InstanceState.RUNNING, host_id=parent.host_id, launched_at_s=now_s)
        self._claims.remove(INSTANCE, instance.id)
        self.usage.begin(launched, now_s)
        self._uses.hold_instance(launched, now_s)
        if placement.gpu_ids:
            self._give_gpus(placement.gpu_ids, parent.id, instance.id)
            self.renew_slot(parent.id)
        self.renew_slot(instance.id)
        return launched

    def begin_end(self, instance: Instance, state: InstanceState, reason: str, now_s: float) -> Instance:
        """Stop placing tasks on an instance: it is STOPPING or SHUTTING_DOWN until its last task has ended."""
        changed = self._move(instance, state, end_reason=reason)
        self.usage.end(instance, now_s)
        if changed.pool is not None:
            slot = self._fleet.pool(changed.pool).slot(instance.id)
            drained = replace(slot, draining=True, gpus=list(slot.gpus), tasks=dict(slot.tasks))  # only `draining` changes
            self._fleet.put_slot(changed.pool, drained)
        return changed

    def stop(self, instance: Instance, now_s: float) -> Instance:
        """Return the GPUs of a stopping instance to its host. The schema refuses this while a run leases one of them."""
        self._release(instance, now_s)
        return self._move(instance, InstanceState.STOPPED, host_id=None, cluster="", status="ACTIVE")

    def restart(self, instance: Instance, pool: str, rank: Rank, reason: str) -> tuple[Instance, Claim]:
        """Let a stopped instance wait for capacity again."""
        waiting = self._move(instance, InstanceState.PENDING, launch_reason=reason, end_reason="")
        return waiting, self._claim(waiting, pool, rank)

    def terminate(self, instance: Instance, now_s: float, reason: str = "") -> Instance:
        """End an instance that has no tasks. Its GPUs return to its host."""
        if instance.state is InstanceState.PENDING:
            self._claims.remove(INSTANCE, instance.id)
        elif instance.host_id is not None:
            self._release(instance, now_s)
        ended = self._move(
            instance, InstanceState.TERMINATED, terminated_at_s=now_s, end_reason=instance.end_reason or reason
        )  # fmt: skip
        self._database.execute("DELETE FROM instance_attribute WHERE instance_id = ?", (instance.id,))
        return ended

    def set_owner(self, instance: Instance, owner: str, now_s: float) -> None:
        """Pass an instance to another owner, with its claim. Its hours count for the new owner from now on."""
        changed = instance.but(owner=owner)
        self._database.execute("UPDATE instance SET owner = ? WHERE id = ?", (owner, instance.id))
        if changed.state is InstanceState.TERMINATED:
            return
        self.put_row(changed)
        if (claim := self._claims.get(INSTANCE, instance.id)) is not None:
            self._claims.change(claim, claim._replace(owner=owner))
        if changed.host_id is not None:
            self._uses.pass_instance(instance, changed, now_s)
            self.renew_slot(changed.id)
        if changed.state is InstanceState.RUNNING:
            self.usage.change(changed, now_s)

    def set_group(self, instance: Instance, group: str, now_s: float) -> Instance:
        """Attach an instance to an Auto Scaling group, or detach it. Its hours count for the new group from now on."""
        changed = instance.but(group=group)
        self.put_row(changed)
        if changed.state is not InstanceState.TERMINATED:
            self.renew_slot(changed.id)
        if changed.state is InstanceState.RUNNING and group != instance.group:
            self.usage.change(changed, now_s)
        return changed

    def move_claim(self, instance: Instance, pool: str, rank: Rank) -> None:
        """Let a pending instance wait in another pool."""
        self._claims.remove(INSTANCE, instance.id)
        self._claim(instance, pool, rank)

    def _claim(self, instance: Instance, pool: str, rank: Rank) -> Claim:
        claim = Claim(rank, INSTANCE, instance.id, instance.demand, owner=instance.owner)
        self._claims.add(pool, claim, roams=not is_allocation_cluster(cluster_of_pool(pool)))  # any host can have the GPUs
        return claim

    def _release(self, instance: Instance, now_s: float) -> None:
        assert instance.host_id is not None
        self._uses.release_instance(instance, now_s)
        own_id = host_instance_id(instance.host_id)
        owned = self._database.execute("SELECT id FROM gpu WHERE instance_id = ?", (instance.id,)).fetchall()
        if instance.pool is not None:
            self._fleet.drop_slot(instance.pool, instance.id)
        if owned:
            self._give_gpus([gpu_id for (gpu_id,) in owned], instance.id, own_id)
            self.renew_slot(own_id)

    def drop_terminated(self, before_s: float, limit: int) -> int:
        """Delete up to `limit` instances that were terminated before `before_s`. Return their number."""
        return self._database.execute(
            "DELETE FROM instance WHERE id IN (SELECT id FROM instance WHERE state = 'terminated' AND terminated_at < ? "
            "AND id NOT IN (SELECT instance_id FROM allocation) LIMIT ?)",
            (before_s, limit),
        ).rowcount

    def drop_own(self, instance_id: str) -> None:
        """Delete the own instance of a host that is deleted. It was withdrawn before."""
        self._database.execute("DELETE FROM instance_attribute WHERE instance_id = ?", (instance_id,))
        self._database.execute("DELETE FROM instance WHERE id = ?", (instance_id,))
        self._database.undo_log.on_rollback(partial(self._remember, instance_id, self._live.get(instance_id)))
        self._remember(instance_id, None)

    def put_row(self, instance: Instance) -> None:
        """Write only the row. If the change affects the slot, the caller must also call `renew_slot`."""
        self._database.execute(
            f"INSERT INTO instance ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET "
            "cluster = excluded.cluster, type = excluded.type, state = excluded.state, gpus = excluded.gpus, "
            "cpu_units = excluded.cpu_units, memory_mib = excluded.memory_mib, host_id = excluded.host_id, "
            "status = excluded.status, terminated_at = excluded.terminated_at, details = excluded.details, "
            "group_name = excluded.group_name, joins = excluded.joins, launched_at = excluded.launched_at, "
            "launch_reason = excluded.launch_reason, end_reason = excluded.end_reason",
            (instance.id, instance.region, instance.cluster, instance.type, instance.state.value, instance.gpus,
             instance.cpu_units, instance.memory_mib, instance.created_at_s, instance.host_id, instance.status,
             instance.terminated_at_s, orjson.dumps(instance.details).decode(), instance.group, instance.joins,
             instance.launched_at_s, instance.launch_reason, instance.end_reason, instance.owner),
        )  # fmt: skip
        self._database.undo_log.on_rollback(partial(self._remember, instance.id, self._live.get(instance.id)))
        self._remember(instance.id, instance)

    def _remember(self, instance_id: str, instance: Instance | None) -> None:
        before = self._live.pop(instance_id, None)
        if before is not None:
            del self._by_host[before.host_id][instance_id]
            self._count_host(before, -1)
            self._addresses.get(before.details.get("SubnetId", ""), set()).discard(before.details.get("PrivateIpAddress", ""))
        if instance is not None and instance.state is not InstanceState.TERMINATED:
            self._live[instance_id] = instance
            self._by_host.setdefault(instance.host_id, {})[instance_id] = None
            self._count_host(instance, 1)
            if "PrivateIpAddress" in instance.details:
                self._addresses.setdefault(instance.details["SubnetId"], set()).add(instance.details["PrivateIpAddress"])

    def _count_host(self, instance: Instance, change: int) -> None:
        if is_allocation_cluster(instance.cluster):
            return
        for cluster in {instance.cluster, instance.joins} - {""} if instance.is_host and instance.pool is not None else ():
            self._host_clusters[cluster] = self._host_clusters.get(cluster, 0) + change
            if not self._host_clusters[cluster]:
                del self._host_clusters[cluster]

    def _move(self, instance: Instance, state: InstanceState, **changes: Any) -> Instance:
        assert state in MOVES[instance.state], f"instance {instance.id}: {instance.state} → {state}"
        moved = instance.but(state=state, **changes)
        self.put_row(moved)
        return moved

    def _give_gpus(self, gpu_ids: Sequence[str], before: str, after: str) -> None:
        moved = self._database.executemany(
            "UPDATE gpu SET instance_id = ? WHERE id = ? AND instance_id = ?", [(after, gpu_id, before) for gpu_id in gpu_ids]
        ).rowcount
        assert moved == len(gpu_ids), "a GPU does not belong to the instance that gives it away"

    # Container instances of ECS

    def join(self, instance: Instance, cluster: str) -> Instance:
        """Let a running instance join a cluster. From then on, its slot serves the tasks of the cluster."""
        assert not instance.cluster and instance.host_id is not None
        joined = instance.but(cluster=cluster)
        self.put_row(joined)
        self.renew_slot(instance.id)
        return joined

    def leave(self, instance: Instance) -> Instance:
        """Take an instance without tasks out of its cluster. It keeps its GPUs."""
        assert instance.pool is not None
        self._fleet.drop_slot(instance.pool, instance.id)
        left = instance.but(cluster="")
        self.put_row(left)
        return left

    def withdraw(self, instance: Instance) -> None:
        """Take the own instance of a forgotten host, which has no tasks, out of its pool. The next hello puts it there again."""
        assert instance.is_host and instance.pool is not None
        self._fleet.drop_slot(instance.pool, instance.id)
        self.put_row(instance.but(status="INACTIVE"))

    def move_host(self, instance: Instance) -> Instance:
        """Move a host's own instance, which has no tasks, to the cluster that the options of the host name."""
        assert instance.is_host and instance.pool is not None
        self._fleet.drop_slot(instance.pool, instance.id)
        moved = instance.but(cluster=instance.joins)
        self.put_row(moved)
        self.renew_slot(instance.id)
        return moved

    def set_status(self, instance_id: str, status: str) -> None:
        """Set the status to ACTIVE, DRAINING or INACTIVE. Only an ACTIVE instance gets new tasks. No status stops running tasks."""
        self.put_row(self._live[instance_id].but(status=status))
        self.renew_slot(instance_id)

    def attributes(self, instance_id: str) -> dict[str, str]:
        sql = "SELECT name, value FROM instance_attribute WHERE instance_id = ? ORDER BY name"
        return dict(self._database.execute(sql, (instance_id,)).fetchall())

    def put_attribute(self, instance_id: str, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO instance_attribute VALUES (?, ?, ?)", (instance_id, name, value))
        self.renew_slot(instance_id)

    def drop_attribute(self, instance_id: str, name: str) -> bool:
        """Delete an attribute. Returns False if the instance does not have it."""
        sql = "DELETE FROM instance_attribute WHERE instance_id = ? AND name = ?"
        dropped = self._database.execute(sql, (instance_id, name)).rowcount
        self.renew_slot(instance_id)
        return dropped == 1

    def holds(self, instance_id: str) -> dict[str, str]:
        """GPU id → reason, for the GPUs that a user has reserved."""
        return holds_of(self.attributes(instance_id))

    def holds_on_host(self, host_id: str) -> dict[str, str]:
        """GPU id → reason, for the GPUs of a host that a user has reserved."""
        rows = self._database.execute(
            "SELECT name, value FROM instance_attribute JOIN instance ON instance.id = instance_id "
            "WHERE host_id = ? AND name LIKE ? ORDER BY name",
            (host_id, f"{HOLD_PREFIX}%"),
        )
        return holds_of(dict(rows.fetchall()))

    def held_gpus(self) -> set[str]:
        """Return the GPUs that a user has reserved."""
        rows = self._database.execute("SELECT name, value FROM instance_attribute WHERE name LIKE ?", (f"{HOLD_PREFIX}%",))
        return set(holds_of(dict(rows.fetchall())))

    # Slots

    def renew_slot(self, instance_id: str) -> None:
        """Derive the slot of an instance from the current rows again."""
        instance = self._live[instance_id]
        if instance.pool is not None and instance.host_id is not None:
            self._fleet.put_slot(instance.pool, self._slot(instance))

    def _slot(self, instance: Instance) -> Slot:
        slot = slot_of(self._database, instance, self.leases(instance.id), self.attributes(instance.id))
        slot.accounts = self.accounts.get(instance.host_id or "", NO_ACCOUNTS)
        return slot


def _instance(row: Row) -> Instance:
    return Instance(
        id=row[0], region=row[1], cluster=row[2], type=row[3], state=InstanceState(row[4]), gpus=row[5], cpu_units=row[6],
        memory_mib=row[7], created_at_s=row[8], host_id=row[9], status=row[10], terminated_at_s=row[11],
        details=orjson.loads(row[12]), group=row[13], joins=row[14], launched_at_s=row[15], launch_reason=row[16],
        end_reason=row[17], owner=row[18],
    )  # fmt: skip
