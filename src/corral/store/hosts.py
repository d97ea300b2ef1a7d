"""Hosts, their GPUs and what is said of them: rows, and the slots that are derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from corral.database import Migration
from corral.model.placement import Links, Slot
from corral.model.run import Foreign, GpuDevice, Hello
from corral.model.task import Ask
from corral.store.fleet import Fleet
from corral.store.records import Records

HOST_POOL = "hosts"  # every machine that belongs to no instance; the cluster `default` of each region runs on it
HOLD = "corral.hold."  # and a GPU's id: the attribute of a host that keeps this GPU away; its value says why


class Hosts(Records):
    """A change of what is said of a host is a change of its slot in the fleet index."""

    def __init__(self, path: Path | None, schema: str, migrations: Sequence[Migration], *, checked: bool = False) -> None:
        super().__init__(path, schema, migrations, checked=checked)
        self.fleet = Fleet()

    def put_host(self, hello: Hello, now_s: float) -> None:
        """A host said hello: keep its size, its boot and its GPUs. A GPU it no longer shows stays, unplaceable."""
        self.execute(
            "INSERT INTO host (id, pool, name, boot_id, cpu_units, memory_mib, connected, seen_at, registered_at, links, docker) "
            "VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name, "
            "boot_id = excluded.boot_id, cpu_units = excluded.cpu_units, memory_mib = excluded.memory_mib, connected = 1, "
            "seen_at = excluded.seen_at, links = excluded.links, docker = excluded.docker",
            (hello.host_id, HOST_POOL, hello.name, hello.boot_id, hello.cpu_units, hello.memory_mib, now_s, now_s,
             _dumps(hello.links) if hello.links else "", hello.docker),
        )  # fmt: skip
        self.execute("UPDATE gpu SET present = 0 WHERE host_id = ? AND present = 1", (hello.host_id,))
        for gpu in hello.gpus:
            self.execute(
                "INSERT INTO gpu (id, host_id, position, model, memory_mib, simulated, present, owner, excluded, foreign_use) "
                "VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET position = excluded.position, "
                "model = excluded.model, memory_mib = excluded.memory_mib, present = 1, excluded = excluded.excluded, "
                "foreign_use = excluded.foreign_use",
                (gpu.gpu_id, hello.host_id, gpu.index, gpu.model, gpu.memory_mib, gpu.simulated, f"host:{hello.host_id}",
                 gpu.excluded, _dumps_any(hello.foreign.get(gpu.gpu_id))),
            )  # fmt: skip
        self.fleet.put_slot(HOST_POOL, self._slot(hello.host_id))

    def host(self, host_id: str) -> dict[str, Any] | None:
        found = self.hosts(host_id)
        return found[0] if found else None

    def hosts(self, host_id: str | None = None) -> list[dict[str, Any]]:
        names = (
            "id", "pool", "name", "boot_id", "cpu_units", "memory_mib", "connected", "seen_at", "registered_at", "status", "docker",
        )  # fmt: skip
        sql = f"SELECT {', '.join(names)} FROM host WHERE ? IS NULL OR id = ? ORDER BY id"
        return [dict(zip(names, row)) for row in self.execute(sql, (host_id, host_id))]

    def gpus(self, host_id: str, *, excluded: bool = False) -> list[GpuDevice]:
        """The GPUs that the host offers now; with `excluded` those that it shows and does not offer."""
        rows = self.execute(
            "SELECT id, position, model, memory_mib, simulated, excluded FROM gpu "
            "WHERE host_id = ? AND present = 1 AND excluded = ? ORDER BY position",
            (host_id, excluded),
        )
        return [GpuDevice(gpu_id, at, model, mib, bool(sim), bool(out)) for gpu_id, at, model, mib, sim, out in rows]

    def links(self, host_id: str) -> Links | None:
        """How far the host's GPUs are from each other, excluded ones too, in their order. None: unknown."""
        (text,) = self.execute("SELECT links FROM host WHERE id = ?", (host_id,)).fetchone()
        return tuple(tuple(row) for row in orjson.loads(text)) if text else None

    def holds(self, host_id: str) -> dict[str, str]:
        """GPU → why a person keeps it away."""
        rows = self.execute(
            "SELECT substr(name, ?), value FROM host_attribute WHERE host_id = ? AND name >= ? AND name < ?",
            (len(HOLD) + 1, host_id, HOLD, HOLD[:-1] + "/"),
        )
        return dict(rows.fetchall())

    def foreign(self, host_id: str) -> dict[str, list[Foreign]]:
        """GPU → processes that compute on it and are not of a run of ours."""
        rows = self.execute("SELECT id, foreign_use FROM gpu WHERE host_id = ? AND present = 1 AND foreign_use != ''", (host_id,))
        return {gpu_id: [(pid, name) for pid, name in orjson.loads(text)] for gpu_id, text in rows}

    def put_foreign(self, host_id: str, found: Mapping[str, Sequence[Foreign]]) -> bool:
        """What computes on these GPUs of the host now. False: nothing new."""
        changed = self.executemany(
            "UPDATE gpu SET foreign_use = ?1 WHERE id = ?2 AND host_id = ?3 AND foreign_use != ?1",
            [(_dumps_any(processes), gpu_id, host_id) for gpu_id, processes in found.items()],
        ).rowcount
        if changed:
            self._renew_slot(host_id)
        return bool(changed)

    def holders(self, host_id: str) -> dict[str, str]:
        """GPU → the task that holds it."""
        return dict(
            self.execute(
                "SELECT lease.gpu_id, run.task_id FROM gpu JOIN lease ON lease.gpu_id = gpu.id JOIN run ON run.id = lease.run_id "
                "WHERE gpu.host_id = ?",
                (host_id,),
            ).fetchall()
        )

    def some_holders(self, pool: str, limit: int) -> list[str]:
        """Some of the tasks that hold GPUs of a pool's hosts: enough to name them to a person."""
        rows = self.execute(
            "SELECT DISTINCT run.task_id FROM lease JOIN run ON run.id = lease.run_id JOIN gpu ON gpu.id = lease.gpu_id "
            "JOIN host ON host.id = gpu.host_id WHERE host.pool = ? LIMIT ?",
            (pool, limit),
        )
        return [task_id for (task_id,) in rows]

    def host_seen(self, host_id: str, now_s: float) -> None:
        self.execute("UPDATE host SET seen_at = ?, connected = 1 WHERE id = ?", (now_s, host_id))
        self._refresh_slot(host_id, connected=True)

    def attributes(self, host_id: str) -> dict[str, str]:
        """What callers said of a host, by name."""
        return dict(self.execute("SELECT name, value FROM host_attribute WHERE host_id = ? ORDER BY name", (host_id,)).fetchall())

    def put_attribute(self, host_id: str, name: str, value: str) -> None:
        self.execute("INSERT OR REPLACE INTO host_attribute VALUES (?, ?, ?)", (host_id, name, value))
        self._renew_slot(host_id)

    def drop_attribute(self, host_id: str, name: str) -> bool:
        """False: it was not there."""
        dropped = self.execute("DELETE FROM host_attribute WHERE host_id = ? AND name = ?", (host_id, name)).rowcount
        self._renew_slot(host_id)
        return dropped == 1

    def host_silent(self, host_id: str) -> None:
        """Nothing new is placed there; its leases stay."""
        self.execute("UPDATE host SET connected = 0 WHERE id = ?", (host_id,))
        self._refresh_slot(host_id, connected=False)

    def set_host_status(self, host_id: str, status: str) -> None:
        """ACTIVE, or DRAINING: nothing new is placed there; what is there stays."""
        self.execute("UPDATE host SET status = ? WHERE id = ?", (status, host_id))
        self._renew_slot(host_id)

    def _refresh_slot(self, host_id: str, *, connected: bool) -> None:
        (pool,) = self.execute("SELECT pool FROM host WHERE id = ?", (host_id,)).fetchone()
        if self.fleet.pool(pool).slot(host_id).connected != connected:
            self._renew_slot(host_id)

    def _renew_slot(self, host_id: str) -> None:
        """What is said of a host has changed: derive its slot again."""
        (pool,) = self.execute("SELECT pool FROM host WHERE id = ?", (host_id,)).fetchone()
        self.fleet.put_slot(pool, self._slot(host_id))

    def _slot(self, host_id: str) -> Slot:
        name, cpu_units, memory_mib, connected, status, registered_at_s, links = self.execute(
            "SELECT name, cpu_units, memory_mib, connected, status, registered_at, links FROM host WHERE id = ?", (host_id,)
        ).fetchone()
        rows = self.execute(
            "SELECT id, excluded, foreign_use FROM gpu WHERE host_id = ? AND present = 1 ORDER BY position", (host_id,)
        ).fetchall()
        held, holds = self.holders(host_id), self.holds(host_id)
        # What is in use by others is given to nobody when its lease ends; while it is leased the lease is what counts.
        offered = {gpu_id: foreign for gpu_id, excluded, foreign in rows if not excluded and gpu_id not in holds}
        withheld = {gpu_id: f"'{holds[gpu_id]}'" for gpu_id, excluded, _ in rows if not excluded and gpu_id in holds}
        withheld |= {gpu_id: _in_use(foreign) for gpu_id, foreign in offered.items() if foreign and gpu_id not in held}
        positions = {gpu_id: at for at, (gpu_id, _, _) in enumerate(rows) if offered.get(gpu_id) == ""}
        slot = Slot(
            id=host_id,
            total=Ask(sum(gpu_id not in withheld for gpu_id in offered), cpu_units, memory_mib),
            cpu_units=cpu_units,
            memory_mib=memory_mib,
            gpus=[gpu_id for gpu_id in positions if gpu_id not in held],
            positions=positions,
            connected=bool(connected),
            links=_worth_knowing(links),
            withheld=withheld,
            draining=status == "DRAINING",
            attributes={**built_in_attributes(name, self.gpus(host_id)), **self.attributes(host_id)},
            registered_at_s=registered_at_s,
        )
        there = self.execute(
            "SELECT region || '/' || cluster || '/' || task_group, state, desired, launch_type, count(*), sum(cpu_units), "
            "sum(memory_mib) FROM task WHERE host_id = ? AND state IN ('PENDING', 'RUNNING') GROUP BY 1, 2, 3, 4",
            (host_id,),
        )
        for group, state, desired, launch_type, count, used_cpu, used_memory in there:
            slot.cpu_units -= used_cpu
            slot.memory_mib -= used_memory
            if launch_type == "EC2":
                slot.running += count if state == "RUNNING" else 0
                slot.pending += count if state == "PENDING" else 0
                if desired == "RUNNING":
                    slot.tasks[group] = slot.tasks.get(group, 0) + count
        return slot


def _in_use(foreign: str) -> str:
    processes = orjson.loads(foreign)
    more = " and others" if len(processes) > 1 else ""
    return f"process {processes[0][0]} ({processes[0][1]}){more} computes on it"


def _worth_knowing(text: str) -> Links | None:
    """None where every two GPUs are equally close: then there is nothing to choose, and nothing to pay for it."""
    rows = orjson.loads(text) if text else []
    distances = {far for at, row in enumerate(rows) for other, far in enumerate(row) if other != at}
    return tuple(tuple(row) for row in rows) if len(distances) > 1 else None


def built_in_attributes(name: str, gpus: Sequence[GpuDevice]) -> dict[str, str]:
    """What a host is known by without anybody saying it; what depends on a region is not here."""
    return {
        "ecs.instance-type": "corral.host",
        "ecs.os-type": "linux",
        "ecs.os-family": "LINUX",
        "corral.host-name": name,
        "corral.gpu-model": ", ".join(sorted({gpu.model for gpu in gpus})),
        "corral.gpus-simulated": "true" if any(gpu.simulated for gpu in gpus) else "false",
    }


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


def _dumps_any(values: Sequence[Any] | None) -> str:
    return _dumps(values) if values else ""
