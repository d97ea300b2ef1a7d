"""SQL of instances, and the slots derived from them. A slot is the capacity of an instance, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from corral.database import Database, Row
from corral.model.instance import MOVES, Instance, InstanceState, host_instance_id
from corral.model.placement import INSTANCE, Claim, Links, Placement, Rank, Slot
from corral.model.run import GpuDevice
from corral.model.task import Demand
from corral.store.claims import Claims
from corral.store.fleet import Fleet

HOLD_PREFIX = "corral.hold."  # the instance attribute `corral.hold.<GPU id>` reserves that GPU; its value is the reason
COLUMNS = "id, region, cluster, type, state, gpus, cpu_units, memory_mib, created_at, host_id, status, terminated_at, details"


class Instances:
    """The instances in the state store. When the row of an instance changes, its slot in the fleet index changes too."""

    def __init__(self, database: Database, fleet: Fleet, claims: Claims) -> None:
        self._database = database
        self._fleet = fleet
        self._claims = claims
        self._live: dict[str, Instance] = {}  # a cache of all instances that are not terminated
        self._by_host: dict[str | None, dict[str, None]] = {}
        if not database.reads_only:
            for row in database.execute(f"SELECT {COLUMNS} FROM instance WHERE state != 'terminated'").fetchall():
                self._remember(row[0], _instance(row))

    def rebuild_slots(self) -> None:
        for instance in self._live.values():
            if instance.host_id is not None:
                self.renew_slot(instance.id)

    # Reading

    def get(self, instance_id: str) -> Instance | None:
        live = self._live.get(instance_id)
        if live is not None:
            return live
        row = self._database.execute(f"SELECT {COLUMNS} FROM instance WHERE id = ?", (instance_id,)).fetchone()
        return _instance(row) if row else None

    def all(self) -> list[Instance]:
        """All instances, sorted by age. Terminated instances are included until their rows are deleted."""
        rows = self._database.execute(f"SELECT {COLUMNS} FROM instance ORDER BY created_at, id")
        return [_instance(row) for row in rows.fetchall()]

    def on_host(self, host_id: str) -> list[Instance]:
        """The instances on a host. The host's own instance comes first."""
        found = [self._live[instance_id] for instance_id in self._by_host.get(host_id, ())]
        return sorted(found, key=lambda instance: (not instance.is_host, instance.id))

    def joined_clusters(self) -> set[tuple[str, str]]:
        """The (region, cluster) pairs that instances have joined. The hosts' own instances are not included."""
        return {(each.region, each.cluster) for each in self._live.values() if each.pool is not None and not each.is_host}

    def host_of(self, instance_id: str) -> str:
        """The host whose agent gets the orders for this instance."""
        live = self._live.get(instance_id) or self.get(instance_id)
        assert live is not None and live.host_id is not None, f"instance {instance_id} has no host"
        return live.host_id

    def gpus(self, instance_id: str) -> list[GpuDevice]:
        """The GPUs of an instance that are present and not excluded, in the host's order."""
        rows = self._database.execute(
            "SELECT id, position, model, memory_mib, simulated, excluded FROM gpu "
            "WHERE owner = ? AND present = 1 AND excluded = 0 ORDER BY position",
            (instance_id,),
        )
        return [GpuDevice(gpu_id, at, model, mib, bool(sim), bool(out)) for gpu_id, at, model, mib, sim, out in rows]

    def holders(self, instance_id: str) -> dict[str, str]:
        """GPU id → id of the task that leases the GPU, for the GPUs of the instance."""
        return dict(
            self._database.execute(
                "SELECT lease.gpu_id, run.task_id FROM gpu JOIN lease ON lease.gpu_id = gpu.id JOIN run ON run.id = lease.run_id "
                "WHERE gpu.owner = ?",
                (instance_id,),
            ).fetchall()
        )

    def some_holders(self, pool: str, limit: int) -> tuple[list[str], list[str]]:
        """Some tasks that lease GPUs of a pool, and some instances that own GPUs of its hosts. At most `limit` in total.

        Messages name them as examples.
        """
        members = (instance for instance in self._live.values() if instance.pool == pool)
        tasks, takers = dict[str, None](), dict[str, None]()
        for instance in members:
            if len(tasks) + len(takers) >= limit:
                break
            for (task_id,) in self._database.execute(
                "SELECT DISTINCT run.task_id FROM lease JOIN run ON run.id = lease.run_id WHERE lease.owner = ? LIMIT ?",
                (instance.id, limit),
            ):
                tasks[task_id] = None
            if instance.is_host:
                takers |= dict.fromkeys(
                    other.id for other in self.on_host(str(instance.host_id)) if not other.is_host and other.gpus
                )
        return list(tasks)[:limit], list(takers)[: max(0, limit - len(tasks))]

    # Launch and termination

    def add(self, instance: Instance, pool: str, rank: Rank) -> Claim:
        """Add an instance that waits for capacity of a pool, and its claim. `launch` grants the claim."""
        assert instance.state is InstanceState.PENDING and instance.host_id is None
        self.put_row(instance)
        claim = Claim(rank, INSTANCE, instance.id, instance.demand)
        self._claims.add(pool, claim)
        return claim

    def launch(self, instance: Instance, placement: Placement) -> Instance:
        """Move GPUs from the chosen slot to the instance. The instance is running then."""
        parent = self._live[placement.slot_id]
        assert parent.is_host and len(placement.gpu_ids) == instance.gpus
        launched = self._move(instance, InstanceState.RUNNING, host_id=parent.host_id)
        self._claims.remove(INSTANCE, instance.id)
        self._give_gpus(placement.gpu_ids, parent.id, instance.id)
        self.renew_slot(parent.id)
        self.renew_slot(instance.id)
        return launched

    def shut_down(self, instance: Instance) -> Instance:
        """Stop placing tasks on an instance. When its last task has ended, `terminate` is called."""
        changed = self._move(instance, InstanceState.SHUTTING_DOWN)
        self.renew_slot(instance.id)
        return changed

    def terminate(self, instance: Instance, now_s: float) -> Instance:
        """Return the GPUs of an instance to its host's own slot. The schema refuses this while a run leases one of the GPUs."""
        ended = self._move(instance, InstanceState.TERMINATED, terminated_at_s=now_s)
        if instance.host_id is None:
            self._claims.remove(INSTANCE, instance.id)
            return ended
        own_id = host_instance_id(instance.host_id)
        owned = self._database.execute("SELECT id FROM gpu WHERE owner = ?", (instance.id,)).fetchall()
        self._give_gpus([gpu_id for (gpu_id,) in owned], instance.id, own_id)
        self._database.execute("DELETE FROM instance_attribute WHERE instance_id = ?", (instance.id,))
        if instance.pool is not None:
            self._fleet.drop_slot(instance.pool, instance.id)
        self.renew_slot(own_id)
        return ended

    def drop_terminated(self, before_s: float, limit: int) -> int:
        """Delete up to `limit` instances that were terminated before `before_s`. Return their number."""
        return self._database.execute(
            "DELETE FROM instance WHERE id IN (SELECT id FROM instance WHERE state = 'terminated' AND terminated_at < ? LIMIT ?)",
            (before_s, limit),
        ).rowcount

    def put_row(self, instance: Instance) -> None:
        """Write only the row. If the change affects the slot, the caller must also call `renew_slot`."""
        self._database.execute(
            f"INSERT INTO instance ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "cluster = excluded.cluster, type = excluded.type, state = excluded.state, gpus = excluded.gpus, "
            "cpu_units = excluded.cpu_units, memory_mib = excluded.memory_mib, host_id = excluded.host_id, "
            "status = excluded.status, terminated_at = excluded.terminated_at, details = excluded.details",
            (instance.id, instance.region, instance.cluster, instance.type, instance.state.value, instance.gpus,
             instance.cpu_units, instance.memory_mib, instance.created_at_s, instance.host_id, instance.status,
             instance.terminated_at_s, orjson.dumps(instance.details).decode()),
        )  # fmt: skip
        self._database.journal.on_rollback(partial(self._remember, instance.id, self._live.get(instance.id)))
        self._remember(instance.id, instance)

    def _remember(self, instance_id: str, instance: Instance | None) -> None:
        before = self._live.pop(instance_id, None)
        if before is not None:
            del self._by_host[before.host_id][instance_id]
        if instance is not None and instance.state is not InstanceState.TERMINATED:
            self._live[instance_id] = instance
            self._by_host.setdefault(instance.host_id, {})[instance_id] = None

    def _move(self, instance: Instance, state: InstanceState, **changes: Any) -> Instance:
        assert state in MOVES[instance.state], f"instance {instance.id}: {instance.state} → {state}"
        moved = instance.but(state=state, **changes)
        self.put_row(moved)
        return moved

    def _give_gpus(self, gpu_ids: Sequence[str], before: str, after: str) -> None:
        moved = self._database.executemany(
            "UPDATE gpu SET owner = ? WHERE id = ? AND owner = ?", [(after, gpu_id, before) for gpu_id in gpu_ids]
        ).rowcount
        assert not gpu_ids or moved == len(gpu_ids), "a GPU does not belong to the instance that gives it away"

    # Container instances of ECS

    def set_status(self, instance_id: str, status: str) -> None:
        """Set ACTIVE or DRAINING. A draining instance gets no new tasks. Its running tasks continue."""
        self.put_row(self._live[instance_id].but(status=status))
        self.renew_slot(instance_id)

    def attributes(self, instance_id: str) -> dict[str, str]:
        """The custom attributes of an instance, by name."""
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
        return _holds(self.attributes(instance_id))

    # Slots

    def renew_slot(self, instance_id: str) -> None:
        """Replace the slot of an instance by one that is derived from the current rows."""
        instance = self._live[instance_id]
        if instance.pool is not None:
            self._fleet.put_slot(instance.pool, self._slot(instance))

    def _slot(self, instance: Instance) -> Slot:
        name, connected, links = self._database.execute(
            "SELECT name, connected, links FROM host WHERE id = ?", (instance.host_id,)
        ).fetchone()
        rows = self._database.execute(
            "SELECT id, excluded, foreign_use, owner FROM gpu WHERE host_id = ? AND present = 1 ORDER BY position",
            (instance.host_id,),
        ).fetchall()
        held, attributes = self.holders(instance.id), self.attributes(instance.id)
        holds = _holds(attributes)
        offered: dict[str, str] = {}  # GPU id → foreign processes that use the GPU, as JSON
        withheld: dict[str, str] = {}
        positions: dict[str, int] = {}
        for position, (gpu_id, excluded, foreign, owner) in enumerate(rows):
            if owner != instance.id or excluded:
                continue
            if gpu_id in holds:
                withheld[gpu_id] = f"'{holds[gpu_id]}'"
                continue
            offered[gpu_id] = foreign
            if not foreign:
                positions[gpu_id] = position
            elif gpu_id not in held:  # a run keeps its leased GPU, even if a foreign process uses it too
                withheld[gpu_id] = _in_use(foreign)
        slot = Slot(
            id=instance.id,
            total=Demand(sum(gpu_id not in withheld for gpu_id in offered), instance.cpu_units, instance.memory_mib),
            cpu_units=instance.cpu_units,
            memory_mib=instance.memory_mib,
            gpus=[gpu_id for gpu_id in positions if gpu_id not in held],
            positions=positions,
            connected=bool(connected),
            links=_useful_links(links),
            withheld=withheld,
            draining=instance.status == "DRAINING" or instance.state is not InstanceState.RUNNING,
            attributes={**built_in_attributes(instance.type, name, self.gpus(instance.id)), **attributes},
            registered_at_s=instance.created_at_s,
        )
        self._count_tasks(slot)
        return slot

    def _count_tasks(self, slot: Slot) -> None:
        """Subtract the resources of the slot's tasks, and count the tasks.

        Fargate tasks are not counted, because the API shows them on no instance.
        """
        rows = self._database.execute(
            "SELECT region || '/' || cluster || '/' || task_group, state, desired, launch_type, count(*), sum(cpu_units), "
            "sum(memory_mib) FROM task WHERE instance_id = ? AND state IN ('PENDING', 'RUNNING') GROUP BY 1, 2, 3, 4",
            (slot.id,),
        )
        for group, state, desired, launch_type, count, used_cpu, used_memory in rows:
            slot.cpu_units -= used_cpu
            slot.memory_mib -= used_memory
            if launch_type == "EC2":
                slot.running += count if state == "RUNNING" else 0
                slot.pending += count if state == "PENDING" else 0
                if desired == "RUNNING":
                    slot.tasks[group] = slot.tasks.get(group, 0) + count


def _holds(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(HOLD_PREFIX): value for name, value in attributes.items() if name.startswith(HOLD_PREFIX)}


def built_in_attributes(instance_type: str, host_name: str, gpus: Sequence[GpuDevice]) -> dict[str, str]:
    """The attributes of every container instance that do not depend on a region."""
    return {
        "ecs.instance-type": instance_type,
        "ecs.os-type": "linux",
        "ecs.os-family": "LINUX",
        "corral.host-name": host_name,
        "corral.gpu-model": ", ".join(sorted({gpu.model for gpu in gpus})),
        "corral.gpus-simulated": "true" if any(gpu.simulated for gpu in gpus) else "false",
    }


def _instance(row: Row) -> Instance:
    return Instance(
        id=row[0], region=row[1], cluster=row[2], type=row[3], state=InstanceState(row[4]), gpus=row[5], cpu_units=row[6],
        memory_mib=row[7], created_at_s=row[8], host_id=row[9], status=row[10], terminated_at_s=row[11],
        details=orjson.loads(row[12]),
    )  # fmt: skip


def _in_use(foreign: str) -> str:
    processes = orjson.loads(foreign)
    more = " and others" if len(processes) > 1 else ""
    return f"process {processes[0][0]} ({processes[0][1]}){more} computes on it"


def _useful_links(text: str) -> Links | None:
    """The distances between GPUs. None if all distances are equal, because then placement need not compare them."""
    rows = orjson.loads(text) if text else []
    distances = {far for at, row in enumerate(rows) for other, far in enumerate(row) if other != at}
    return tuple(tuple(row) for row in rows) if len(distances) > 1 else None
