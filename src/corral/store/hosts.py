"""SQL of hosts and their GPUs. `store/instances.py` has the capacity that a host offers to tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import Struct

from corral.core.database import Database
from corral.model.agent_protocol import Hello, HostOptions
from corral.model.allocation import allocation_cluster
from corral.model.gpu import Foreign, GpuDevice, GpuFault
from corral.model.instance import ARCHITECTURES, Instance, InstanceState, host_instance_id
from corral.model.placement import Links
from corral.store.instance_slots import HOLD_PREFIX
from corral.store.instances import Instances

# The condition for failed GPUs. It includes real GPUs that are not present: after a restart, the agent does not report a GPU that
# has fallen off the bus, because the driver does not list it.
FAILED = "fault != '' AND (present = 1 OR simulated = 0)"
HOST_FIELDS = ("id", "name", "boot_id", "connected", "seen_at", "docker", "lost_at", "lost_reason", "drain_until")


_OPTIONS = msgspec.json.Decoder(HostOptions)


class StoredOptions(Struct, frozen=True):
    """The options of a host, and name and version of its container engine, which is empty if it has none."""

    options: HostOptions
    docker: str = ""

    @property
    def runs_containers(self) -> bool:
        """Whether images run in Docker: always with `--runtime docker`, and with `auto` if the host has an engine."""
        return self.options.runtime == "docker" or (self.options.runtime == "auto" and bool(self.docker))


class NamedGpu(NamedTuple):
    gpu_id: str
    host_name: str
    memory_mib: int
    instance_id: str  # the instance that owns the GPU


class GpuFacts(NamedTuple):
    """A present GPU with its host and its owner, and whether it has failed or is used by a process that belongs to no task."""

    host_name: str
    host_id: str
    gpu_id: str
    position: int
    model: str
    memory_mib: int
    is_simulated: int
    is_excluded: int
    instance_id: str
    has_failed: int
    is_foreign: int


class Hosts:
    def __init__(self, database: Database, instances: Instances, writer: Hosts | None) -> None:
        """`writer` has the rows of the writer, if this store only reads."""
        self._database = database
        # Host id → when it has last reported. The row of a host gets this time only when the host becomes silent, so that
        # heartbeats write nothing. At its start, a server takes all connected hosts for those that have just reported.
        self._heard: dict[str, float] = {} if writer is None else writer._heard
        self._instances = instances
        self._options: dict[str, StoredOptions] | None = None  # None: read them again
        self._silence_noted: dict[str, float] = {}  # host id → the last time of `note_silence` in this process

    def put(self, hello: Hello, now_s: float) -> None:
        """Store the content of a hello, the first message of an agent: the options, the size, the boot id and the GPUs of its host.

        A GPU that the host no longer has is marked as not present. Tasks cannot get it. A GPU that another host has is ignored,
        unless it moves (`_take`). If the host belongs to another cluster than before, its own instance stays where it is, until
        `Instances.move_host` moves it.
        """
        self._heard[hello.host_id] = now_s  # also if the disk is full, so that the host is not lost then
        execute = self._database.execute
        gpus = [gpu for gpu in hello.gpus if self._host_of(gpu.gpu_id) in (None, hello.host_id) or self.is_free_to_move(gpu.gpu_id)]
        execute(
            "INSERT INTO host (id, name, boot_id, connected, seen_at, links, docker, options) VALUES (?, ?, ?, 1, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET name = excluded.name, boot_id = excluded.boot_id, connected = 1, "
            "seen_at = excluded.seen_at, links = excluded.links, docker = excluded.docker, options = excluded.options, "
            "lost_at = NULL, lost_reason = ''",
            (hello.host_id, hello.name, hello.boot_id, now_s, _dumps(hello.links), hello.docker,
             msgspec.json.encode(hello.options).decode()),
        )  # fmt: skip
        if self._options is None or self._options.get(hello.host_id) != StoredOptions(hello.options, hello.docker):
            self._forget_options()
            self._database.undo_log.on_rollback(self._forget_options)
        own_id = host_instance_id(hello.host_id)
        before = self._instances.get(own_id)
        self._instances.put_row(
            Instance(
                id=own_id,
                region="",
                cluster=before.cluster if before is not None else hello.options.cluster,
                type=hello.options.instance_type,
                state=InstanceState.RUNNING,
                gpus=len(gpus),
                cpu_units=hello.cpu_units,
                memory_mib=hello.memory_mib,
                created_at_s=before.created_at_s if before is not None else now_s,
                host_id=hello.host_id,
                joins=hello.options.cluster,
                details={"Architecture": ARCHITECTURES[hello.architecture]} if hello.architecture in ARCHITECTURES else {},
                status="DRAINING" if before is not None and before.status == "DRAINING" else "ACTIVE",
            )
        )
        execute("UPDATE gpu SET present = 0 WHERE host_id = ? AND present = 1", (hello.host_id,))
        for gpu in gpus:
            self._take(gpu.gpu_id, hello.host_id)
            execute(
                "INSERT INTO gpu (id, host_id, position, model, memory_mib, simulated, present, instance_id, excluded, "
                "foreign_use) VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET position = excluded.position, "
                "model = excluded.model, memory_mib = excluded.memory_mib, present = 1, excluded = excluded.excluded, "
                "foreign_use = excluded.foreign_use",
                (gpu.gpu_id, hello.host_id, gpu.index, gpu.model, gpu.memory_mib, gpu.simulated, own_id,
                 gpu.excluded, _dumps(hello.foreign.get(gpu.gpu_id))),
            )  # fmt: skip
        self._renew(hello.host_id)

    def _host_of(self, gpu_id: str) -> str | None:
        row = self._database.execute("SELECT host_id FROM gpu WHERE id = ?", (gpu_id,)).fetchone()
        return None if row is None else str(row[0])

    def is_free_to_move(self, gpu_id: str) -> bool:
        """Whether a GPU of another host may move to a host that reports it: its machine was installed again, and has a new host id.

        The other host is silent or lost, and no run can be on the GPU: it has no lease, no EC2 instance owns it, and no old run is
        left on the other host.
        """
        sql = (
            "SELECT 1 FROM gpu JOIN host ON host.id = gpu.host_id JOIN instance ON instance.id = gpu.instance_id WHERE gpu.id = ? "
            "AND host.connected = 0 AND instance.region = '' AND NOT EXISTS (SELECT 1 FROM lease WHERE gpu_id = gpu.id) "
            "AND NOT EXISTS (SELECT 1 FROM old_run WHERE old_run.host_id = host.id)"
        )
        return self._database.execute(sql, (gpu_id,)).fetchone() is not None

    def _take(self, gpu_id: str, host_id: str) -> None:
        """Move a GPU that another host has to this host. A user may have reserved it."""
        before, own_id = self._host_of(gpu_id), host_instance_id(host_id)
        if before in (None, host_id):
            return
        was = host_instance_id(before)
        self._database.execute("UPDATE gpu SET host_id = ?, instance_id = ? WHERE id = ?", (host_id, own_id, gpu_id))
        self._database.execute(
            "UPDATE OR REPLACE instance_attribute SET instance_id = ? WHERE instance_id = ? AND name = ?",
            (own_id, was, HOLD_PREFIX + gpu_id),
        )
        owner = self._instances.get(was)
        assert owner is not None
        self._instances.put_row(owner.but(gpus=max(0, owner.gpus - 1)))
        self._renew(before)

    def options(self) -> Mapping[str, StoredOptions]:
        found = self._options
        if found is None:
            rows = self._database.execute("SELECT id, options, docker FROM host ORDER BY id")
            found = {host_id: StoredOptions(_OPTIONS.decode(options), docker) for host_id, options, docker in rows}
            if not self._database.reads_only:
                self._options = found
        return found

    def _forget_options(self) -> None:
        self._options = None

    def accounts(self, host_id: str) -> frozenset[str] | None:
        """Return the Unix accounts of users that a host has. None: it has not reported them since the start of the server."""
        return self._instances.accounts.get(host_id)

    def put_accounts(self, host_id: str, names: frozenset[str]) -> bool:
        """Store in memory the Unix accounts that a host has. Return False if nothing has changed."""
        accounts = self._instances.accounts
        before = accounts.get(host_id)
        if before == names:
            return False
        accounts[host_id] = names
        self._database.undo_log.on_rollback(lambda: accounts.pop(host_id) if before is None else accounts.update({host_id: before}))
        self._renew(host_id)
        return True

    def silent_ids(self) -> set[str]:
        """Return the ids of the hosts that are not connected."""
        return {host_id for (host_id,) in self._database.execute("SELECT id FROM host WHERE connected = 0")}

    def lost_ids(self) -> set[str]:
        """Return the ids of the hosts whose tasks were given up, and that have not connected anew."""
        return {host_id for (host_id,) in self._database.execute("SELECT id FROM host WHERE lost_at IS NOT NULL")}

    def get(self, host_id: str) -> dict[str, Any] | None:
        row = self._database.execute(f"SELECT {', '.join(HOST_FIELDS)} FROM host WHERE id = ?", (host_id,)).fetchone()
        return None if row is None else self._fields(row)

    def all(self) -> list[dict[str, Any]]:
        rows = self._database.execute(f"SELECT {', '.join(HOST_FIELDS)} FROM host ORDER BY id")
        return [self._fields(row) for row in rows]

    def _fields(self, row: Sequence[Any]) -> dict[str, Any]:
        found = dict(zip(HOST_FIELDS, row))
        found["seen_at"] = max(found["seen_at"], self._heard.get(found["id"], 0.0))
        return found

    def seen(self, host_ids: Iterable[str], now_s: float) -> None:
        """Note that these hosts have reported. Those that were silent are connected again."""
        ids = list(host_ids)
        for host_id in self.silent_ids().intersection(ids):
            self._set_connected(host_id, True)
        self._heard.update(dict.fromkeys(ids, now_s))

    def last_seen(self) -> dict[str, float]:
        """Return when each connected host has last reported."""
        rows = self._database.execute("SELECT id, seen_at FROM host WHERE connected = 1")
        return {host_id: max(seen_at_s, self._heard.get(host_id, 0.0)) for host_id, seen_at_s in rows}

    def silent(self, host_id: str) -> None:
        """Mark a host as disconnected. It gets no new tasks. Its tasks keep their GPUs."""
        self._set_connected(host_id, False)

    def note_silence(self, host_id: str, now_s: float) -> float | None:
        """Return how many seconds ago this process has noted the silence of a host. None: it has not."""
        before_s = self._silence_noted.get(host_id)
        self._silence_noted[host_id] = now_s
        return None if before_s is None else now_s - before_s

    def lose(self, host_id: str, reason: str, now_s: float) -> None:
        """Mark a host as lost: its tasks are given up. The next hello ends this."""
        self._set_connected(host_id, False)
        self._database.execute("UPDATE host SET lost_at = ?, lost_reason = ? WHERE id = ?", (now_s, reason, host_id))

    def rename(self, host_id: str, name: str) -> None:
        self._database.execute("UPDATE host SET name = ? WHERE id = ?", (name, host_id))
        self._renew(host_id)

    def drain_until(self, host_id: str, at_s: float | None) -> None:
        """Set when the tasks of a drained host are stopped. None: they end by themselves."""
        self._database.execute("UPDATE host SET drain_until = ? WHERE id = ?", (at_s, host_id))

    # Old runs: runs that were given up, and may still be alive on the host

    def old_runs(self, host_id: str) -> list[str]:
        rows = self._database.execute("SELECT run_id FROM old_run WHERE host_id = ? ORDER BY run_id", (host_id,))
        return [run_id for (run_id,) in rows]

    def set_old_runs(self, host_id: str, run_ids: Collection[str]) -> None:
        """Replace the old runs of a host. While it has any, it gets no work, and its GPUs do not move to another host."""
        if set(run_ids) == set(self.old_runs(host_id)):
            return
        self._database.execute("DELETE FROM old_run WHERE host_id = ?", (host_id,))
        self._database.executemany("INSERT INTO old_run VALUES (?, ?)", [(host_id, run_id) for run_id in sorted(run_ids)])
        self._renew(host_id)

    def gpus_elsewhere(self, gpu_ids: Iterable[str], host_id: str) -> dict[str, str]:
        """GPU id → the other host that has the GPU."""
        owners = {gpu_id: self._host_of(gpu_id) for gpu_id in gpu_ids}
        return {gpu_id: owner for gpu_id, owner in owners.items() if owner not in (None, host_id)}

    def lost_owners(self, gpu_ids: Iterable[str], host_id: str) -> list[dict[str, Any]]:
        """Return the lost hosts, except this one, that have one of these GPUs."""
        owners = {self._host_of(gpu_id) for gpu_id in gpu_ids} - {None, host_id}
        return [host for host in map(self.get, sorted(str(owner) for owner in owners)) if host and host["lost_at"] is not None]

    def drop_lent(self, limit: int) -> list[str]:
        """Delete up to `limit` hosts whose allocations have ended, and on which no instance was lately. Return their ids.

        An allocation gets a new host each time, and its certificate is revoked at its end. So such a host never returns. A host
        with old runs stays, so that its GPUs move to no other host, until its machine has restarted.
        """
        sql = (
            "SELECT host_id, id FROM instance WHERE region = '' AND status = 'INACTIVE' AND cluster LIKE ?1 || '%' "
            "AND substr(cluster, length(?1) + 1) NOT IN (SELECT instance_id FROM allocation) "
            "AND host_id NOT IN (SELECT host_id FROM instance WHERE region != '' AND host_id IS NOT NULL) "
            "AND host_id NOT IN (SELECT host_id FROM old_run) LIMIT ?2"
        )
        found = self._database.execute(sql, (allocation_cluster(""), limit)).fetchall()
        for host_id, own_id in found:
            self._database.execute("DELETE FROM gpu WHERE host_id = ?", (host_id,))
            self._instances.drop_own(own_id)
            self._database.execute("DELETE FROM host WHERE id = ?", (host_id,))
            self._heard.pop(host_id, None)
        if found:
            self._forget_options()
            self._database.undo_log.on_rollback(self._forget_options)
        return [host_id for host_id, _ in found]

    def _set_connected(self, host_id: str, connected: bool) -> None:
        sql = "UPDATE host SET connected = ?1, seen_at = max(seen_at, ?3) WHERE id = ?2 AND connected != ?1"
        if self._database.execute(sql, (connected, host_id, self._heard.get(host_id, 0.0))).rowcount:
            self._renew(host_id)

    def _renew(self, host_id: str) -> None:
        for instance in self._instances.on_host(host_id):
            self._instances.renew_slot(instance.id)

    # GPUs

    def gpu_facts(self) -> list[GpuFacts]:
        """Describe all present GPUs, also those that --exclude-gpus excludes, sorted by host name and position."""
        rows = self._database.execute(
            "SELECT host.name, gpu.host_id, gpu.id, position, model, memory_mib, simulated, excluded, instance_id, "
            f"{FAILED}, foreign_use != '' FROM gpu JOIN host ON host.id = gpu.host_id WHERE present = 1 "
            "ORDER BY host.name, position"
        )
        return [GpuFacts(*row) for row in rows]

    def all_holders(self) -> tuple[dict[str, list[str]], set[str]]:
        """Return GPU id → ids of the tasks that lease the GPU, for all leased GPUs, and the GPUs that tasks share."""
        rows = self._database.execute("SELECT gpu_id, task_id FROM lease JOIN run ON run.id = run_id ORDER BY gpu_id, task_id")
        shared = self._database.execute("SELECT DISTINCT gpu_id FROM lease WHERE mode = 'shared'")
        return _lists(dict.fromkeys(rows)), {gpu_id for (gpu_id,) in shared}

    def named_gpus(self, gpu_ids: Iterable[str]) -> list[NamedGpu]:
        """Return those of these GPUs that are present and that --exclude-gpus does not exclude, sorted by host and position."""
        sql = (
            "SELECT gpu.id, host.name, gpu.memory_mib, gpu.instance_id FROM gpu JOIN host ON host.id = gpu.host_id "
            "WHERE gpu.id IN (SELECT value FROM json_each(?)) AND gpu.present = 1 AND gpu.excluded = 0 "
            "ORDER BY host.id, gpu.position"
        )
        return [NamedGpu(*row) for row in self._database.execute(sql, (_dumps(list(gpu_ids)),))]

    def gpus(self, host_id: str, *, excluded: bool = False) -> list[GpuDevice]:
        """The present GPUs of a host that --exclude-gpus does not exclude. With `excluded`, the GPUs that it excludes."""
        rows = self._database.execute(
            "SELECT id, position, model, memory_mib, simulated, excluded FROM gpu "
            "WHERE host_id = ? AND present = 1 AND excluded = ? ORDER BY position",
            (host_id, excluded),
        )
        return [GpuDevice(gpu_id, at, model, mib, bool(sim), bool(out)) for gpu_id, at, model, mib, sim, out in rows]

    def gpu_memory(self) -> dict[str, int]:
        """The memory of each GPU in MiB, also of GPUs that the hosts no longer have."""
        return dict(self._database.execute("SELECT id, memory_mib FROM gpu").fetchall())

    def gpu_models(self, host_id: str) -> tuple[set[str], bool]:
        """The models of the present GPUs of a host that are not excluded, and whether one of these GPUs is simulated."""
        sql = "SELECT DISTINCT model, simulated FROM gpu WHERE host_id = ? AND present = 1 AND excluded = 0"
        rows = self._database.execute(sql, (host_id,)).fetchall()
        return {model for model, _ in rows}, any(simulated for _, simulated in rows)

    def most_gpus(self) -> int | None:
        """Return the number of GPUs of the host with the most GPUs. Return None if there is no host yet.

        GPUs that EC2 instances own are counted. GPUs that --exclude-gpus excludes are not counted.
        """
        (hosts,) = self._database.execute("SELECT count(*) FROM host").fetchone()
        if not hosts:
            return None
        rows = self._database.execute("SELECT count(*) FROM gpu WHERE present = 1 AND excluded = 0 GROUP BY host_id").fetchall()
        return max((count for (count,) in rows), default=0)

    def all_gpus(self) -> int | None:
        """Return the number of GPUs of all hosts, counted as in `most_gpus`. Return None if there is no host yet."""
        sql = "SELECT (SELECT count(*) FROM host), (SELECT count(*) FROM gpu WHERE present = 1 AND excluded = 0)"
        hosts, gpus = self._database.execute(sql).fetchone()
        return gpus if hosts else None

    def gpu_owners(self, host_id: str) -> dict[str, str]:
        """GPU id → id of the instance that owns the GPU."""
        return dict(
            self._database.execute("SELECT id, instance_id FROM gpu WHERE host_id = ? AND present = 1", (host_id,)).fetchall()
        )

    def links(self, host_id: str) -> Links | None:
        """The distances between all GPUs of a host, in the order of the GPUs. None if they are unknown.

        GPUs that --exclude-gpus excludes have distances too.
        """
        (text,) = self._database.execute("SELECT links FROM host WHERE id = ?", (host_id,)).fetchone()
        return tuple(tuple(row) for row in orjson.loads(text)) if text else None

    def foreign(self, host_id: str) -> dict[str, list[Foreign]]:
        """GPU id → processes that use the GPU but belong to no task."""
        rows = self._database.execute(
            "SELECT id, foreign_use FROM gpu WHERE host_id = ? AND present = 1 AND foreign_use != ''", (host_id,)
        )
        return {gpu_id: [(pid, name) for pid, name in orjson.loads(text)] for gpu_id, text in rows}

    def put_foreign(self, host_id: str, processes: Mapping[str, Sequence[Foreign]]) -> bool:
        """Store which foreign processes use these GPUs. Return False if nothing has changed."""
        changed = self._database.executemany(
            "UPDATE gpu SET foreign_use = ?1 WHERE id = ?2 AND host_id = ?3 AND foreign_use != ?1",
            [(_dumps(of_gpu), gpu_id, host_id) for gpu_id, of_gpu in processes.items()],
        ).rowcount
        if changed:
            self._renew(host_id)
        return bool(changed)

    def gpu(self, gpu_id: str) -> tuple[str, bool] | None:
        """Return (host id, is simulated) of a GPU. Return None if no host has the GPU."""
        row = self._database.execute("SELECT host_id, simulated FROM gpu WHERE id = ? AND present = 1", (gpu_id,)).fetchone()
        return None if row is None else (row[0], bool(row[1]))

    def faults(self, host_id: str) -> dict[str, GpuFault]:
        """GPU id → why no task should get the GPU."""
        rows = self._database.execute(
            f"SELECT id, fault, fault_at, instance_id FROM gpu WHERE host_id = ? AND {FAILED}", (host_id,)
        )
        return {gpu_id: GpuFault(text, at_s, instance_id) for gpu_id, text, at_s, instance_id in rows}

    def failed_instances(self) -> dict[str, str]:
        """Instance id → a text with one failed GPU of the instance and its fault."""
        rows = self._database.execute(f"SELECT instance_id, id, fault FROM gpu WHERE {FAILED} ORDER BY id DESC")
        return {instance_id: f"{gpu_id}: {fault}" for instance_id, gpu_id, fault in rows}

    def put_faults(self, host_id: str, texts: Mapping[str, str], now_s: float) -> list[str]:
        """Replace the faults of a host's GPUs. Return the GPUs whose fault has begun, changed or ended."""
        known = self._database.execute("SELECT id, fault FROM gpu WHERE host_id = ?", (host_id,)).fetchall()
        changed = [gpu_id for gpu_id, fault in known if fault != texts.get(gpu_id, "")]
        self._database.executemany(
            "UPDATE gpu SET fault = ?, fault_at = ? WHERE id = ?",
            [(texts.get(gpu_id, ""), now_s if gpu_id in texts else None, gpu_id) for gpu_id in changed],
        )
        if changed:
            self._renew(host_id)
        return changed

    def holders(self, host_id: str) -> dict[str, list[str]]:
        """GPU id → ids of the tasks that lease the GPU. A leased GPU that is not shared has one task."""
        rows = self._database.execute(
            "SELECT DISTINCT lease.gpu_id, run.task_id FROM gpu JOIN lease ON lease.gpu_id = gpu.id "
            "JOIN run ON run.id = lease.run_id WHERE gpu.host_id = ? ORDER BY lease.gpu_id, run.task_id",
            (host_id,),
        )
        return _lists(rows)

    def holders_of(self, gpu_ids: Iterable[str]) -> dict[str, list[str]]:
        """GPU id → ids of the tasks that lease the GPU, for these GPUs."""
        rows = self._database.execute(
            "SELECT DISTINCT lease.gpu_id, run.task_id FROM lease JOIN run ON run.id = lease.run_id "
            "WHERE lease.gpu_id IN (SELECT value FROM json_each(?)) ORDER BY lease.gpu_id, run.task_id",
            (_dumps(list(gpu_ids)),),
        )
        return _lists(rows)

    def allocated_mib(self, host_id: str) -> dict[str, int]:
        """GPU id → the memory in MiB that all tasks together have on the GPU. Only GPUs that tasks share are included."""
        rows = self._database.execute(
            "SELECT lease.gpu_id, sum(lease.memory_mib) FROM gpu JOIN lease ON lease.gpu_id = gpu.id "
            "WHERE gpu.host_id = ? AND gpu.mode = 'shared' GROUP BY lease.gpu_id",
            (host_id,),
        )
        return dict(rows.fetchall())


def _lists(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _dumps(values: Sequence[Any] | None) -> str:
    return orjson.dumps(values).decode() if values else ""
