"""The state store: one guarded method per write. The core calls it from one thread, inside one transaction per batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from corral.database import Migration, Row
from corral.model.placement import Claim, Links, Placement, Slot
from corral.model.rules import Rules
from corral.model.run import Foreign, GpuDevice, Hello, RunState
from corral.model.task import MOVES, Ask, Run, Task, TaskState
from corral.store.documents import Documents
from corral.store.expiries import Expiries
from corral.store.fleet import Fleet
from corral.store.images import Images
from corral.store.objects import Objects
from corral.store.parameters import Parameters
from corral.store.queues import Queues
from corral.store.records import Records

HOST_POOL = "hosts"  # every machine that belongs to no instance; the cluster `default` of each region runs on it


HOLD = "corral.hold."  # and a GPU's id: the attribute of a host that keeps this GPU away; its value says why
TASKS_KEPT_MAX = 10_000


class Conflict(Exception):
    """A guarded write found another version than the one it was decided on."""


# Columns and the fields they are read into; a task's last four make its ask.
TASK_FIELDS = (
    "id", "region", "cluster", "definition_arn", "pool", "state", "desired", "created_at_s", "version", "host_id", "placed_at_s",
    "started_at_s", "stopping_at_s", "stopped_at_s", "stop_code", "stopped_reason", "family", "group", "started_by", "details",
    "plain", "time_limit_s", "launch_type", "gpus", "cpu_units", "memory_mib", "rules",
)  # fmt: skip
RUN_FIELDS = (
    "id", "task_id", "container", "position", "essential", "gpus", "state", "gpu_ids", "pid", "exit_code", "reason", "started_at_s",
    "stopped_at_s", "waits", "restarts", "health", "about",
)  # fmt: skip
assert set(TASK_FIELDS[:-4]) | {"ask", "runs"} == {field.name for field in dataclasses.fields(Task)}
assert set(RUN_FIELDS) == {field.name for field in dataclasses.fields(Run)}
COLUMNS = {"group": "task_group", "time_limit_s": "time_limit"}  # where it is not the field's name, less the unit of a moment
TASK_COLUMNS, RUN_COLUMNS = (
    ", ".join(COLUMNS.get(field, field.replace("_at_s", "_at")) for field in fields) for fields in (TASK_FIELDS, RUN_FIELDS)
)
INSERT_TASK = f"INSERT INTO task ({TASK_COLUMNS}) VALUES ({', '.join('?' * len(TASK_FIELDS))})"
INSERT_RUN = f"INSERT INTO run ({RUN_COLUMNS}) VALUES ({', '.join('?' * len(RUN_FIELDS))})"
TASK_STATES = {state.value: state for state in TaskState}
RUN_STATES = {state.value: state for state in RunState}
TASK_CHANGES = (  # what changes of a task that is there: column and field
    ("desired", "desired"), ("started_at", "started_at_s"), ("stopping_at", "stopping_at_s"), ("stopped_at", "stopped_at_s"),
    ("stop_code", "stop_code"), ("stopped_reason", "stopped_reason"),
)  # fmt: skip


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


class Store(Records):
    """Rows, and the fleet index that follows them."""

    # What came with version 3.
    DATA = "".join(map(_script, ("queues.sql", "objects.sql", "buckets.sql", "parameters.sql", "images.sql")))
    MIGRATIONS: tuple[Migration, ...] = (_script("to_2.sql"), _script("to_3.sql") + DATA)  # from each schema version to the next

    def __init__(self, path: Path | None, *, checked: bool = False) -> None:
        super().__init__(path, _script("schema.sql") + self.DATA, self.MIGRATIONS, checked=checked)
        self.queues = Queues(self)
        self.objects = Objects(self)
        self.documents = Documents(self)
        self.expiries = Expiries(self)
        self.parameters = Parameters(self)
        self.images = Images(self)
        self.fleet = Fleet()
        self._mark = 0
        self._kept: dict[str, Task] = {}  # unfinished tasks as their rows are, so that not every word on one reads them
        self._kept_max = TASKS_KEPT_MAX
        self._kept_by_run: dict[str, str] = {}  # run id → task id
        self._written: list[str] = []  # tasks changed in this transaction: what is taken back is not kept
        self._written_mark = 0
        self.live_tasks = self._placed_tasks()  # placed and not stopped, as committed: other threads may look
        self._moved: list[tuple[str, bool]] = []  # (task, lives now), of this transaction
        self._moved_mark = 0
        self.rebuild()

    # The fleet index follows the transaction.

    def commit(self) -> None:
        super().commit()
        self.queues.commit()
        self.fleet.committed()
        self._written.clear()
        for task_id, lives in self._moved:
            (self.live_tasks.add if lives else self.live_tasks.discard)(task_id)
        self._moved.clear()

    def rollback(self) -> None:
        """Give the whole transaction up."""
        super().rollback()
        self.queues.rollback()
        self._forget_written(0)
        self._moved.clear()
        self.rebuild()

    def reader(self) -> Self:
        """A reader has rows only: the index belongs to the one who writes."""
        beside = super().reader()
        del beside.fleet
        beside.queues, beside.objects = Queues(beside, reads_only=True), Objects(beside)
        beside.documents, beside.expiries, beside.parameters = Documents(beside), Expiries(beside), Parameters(beside)
        beside.images = Images(beside)
        beside._kept, beside._kept_by_run, beside._kept_max = {}, {}, 0
        return beside

    def savepoint(self) -> None:
        super().savepoint()
        self.queues.savepoint()
        self._mark = self.fleet.mark()
        self._written_mark = len(self._written)
        self._moved_mark = len(self._moved)

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        self.queues.rollback_to_savepoint()
        self.fleet.undo_to(self._mark)
        self._forget_written(self._written_mark)
        del self._moved[self._moved_mark :]

    def _keep(self, task: Task) -> Task:
        if task.state is TaskState.STOPPED:
            self._forget(task.id)
        elif self._kept_max:
            if task.id not in self._kept and len(self._kept) >= self._kept_max:
                self._forget(next(iter(self._kept)))
            self._kept[task.id] = task
            for run in task.runs:
                self._kept_by_run[run.id] = task.id
        return task

    def _forget(self, task_id: str) -> None:
        task = self._kept.pop(task_id, None)
        for run in task.runs if task is not None else ():
            self._kept_by_run.pop(run.id, None)

    def _forget_written(self, mark: int) -> None:
        for task_id in self._written[mark:]:
            self._forget(task_id)
        del self._written[mark:]

    def rebuild(self) -> None:
        """Derive the index from the rows."""
        self.fleet = Fleet()
        for host_id, pool in self.execute("SELECT id, pool FROM host").fetchall():
            self.fleet.put_slot(pool, self._slot(host_id))
        waiting = "SELECT pool, created_at, id, gpus, cpu_units, memory_mib, rules FROM task WHERE state = 'PROVISIONING'"
        for pool, since_s, task_id, gpus, cpu_units, memory_mib, rules in self.execute(waiting).fetchall():
            self.fleet.join_line(pool, Claim(since_s, task_id, Ask(gpus, cpu_units, memory_mib, _rules(rules))))
        self.fleet.committed()
        self._mark = 0

    def _placed_tasks(self) -> set[str]:
        rows = self.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING')")
        return {task_id for (task_id,) in rows}

    # Hosts and their GPUs

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

    # Tasks, their runs and leases

    def add_task(self, task: Task) -> None:
        """A new task: a claim when it waits, with its leases when it is placed already."""
        self.execute(
            INSERT_TASK,
            (
                task.id, task.region, task.cluster, task.definition_arn, task.pool, task.state.value, task.desired.value,
                task.created_at_s, task.version, task.host_id, task.placed_at_s, task.started_at_s, task.stopping_at_s,
                task.stopped_at_s, task.stop_code, task.stopped_reason, task.family, task.group, task.started_by,
                _dumps(task.details), task.plain, task.time_limit_s, task.launch_type,
                task.ask.gpus, task.ask.cpu_units, task.ask.memory_mib, _rules_text(task.ask.rules),
            ),
        )  # fmt: skip
        self.executemany(
            INSERT_RUN,
            [
                (run.id, run.task_id, run.container, run.position, run.essential, run.gpus, run.state.value,
                 _dumps(run.gpu_ids), run.pid, run.exit_code, run.reason, run.started_at_s, run.stopped_at_s,
                 run.waits, run.restarts, run.health, None)
                for run in task.runs
            ],
        )  # fmt: skip
        self._written.append(task.id)
        self._keep(task)
        if task.state is TaskState.PROVISIONING:
            self.fleet.join_line(task.pool, claim_of(task))
        else:
            assert task.state is TaskState.PENDING and task.host_id is not None
            self._lease(task)

    def place_task(self, task: Task, placement: Placement, runs: Sequence[Run], now_s: float) -> Task:
        """A claim is granted: PROVISIONING → PENDING, with its GPUs."""
        self._written.append(task.id)
        self._move(task, TaskState.PENDING, {"host_id": placement.slot_id, "placed_at": now_s})
        given = [(_dumps(run.gpu_ids), run.id) for run in runs if run.gpu_ids]
        self.executemany("UPDATE run SET gpu_ids = ? WHERE id = ?", given)
        self.fleet.leave_line(task.pool, claim_of(task))
        placed = task.but(
            state=TaskState.PENDING,
            host_id=placement.slot_id,
            placed_at_s=now_s,
            version=task.version + 1,
            runs=tuple(runs),
        )
        self._lease(placed)
        return self._keep(placed)

    def _lease(self, task: Task) -> None:
        rows = [(gpu_id, run.id, f"host:{task.host_id}") for run in task.runs for gpu_id in run.gpu_ids]
        if rows:
            self.executemany("INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, 'exclusive', ?)", rows)
        assert task.host_id is not None
        self._moved.append((task.id, True))
        group = task.group_key if task.launch_type == "EC2" else ""
        self.fleet.take(task.pool, task.host_id, [row[0] for row in rows], task.ask.cpu_units, task.ask.memory_mib, group)

    def _count(self, before: Task, after: Task) -> None:
        """What the slot says of the tasks on it. A Fargate task is on no container instance, as far as anybody can see."""
        was, now = _counts(before), _counts(after)
        if was != now:
            assert after.host_id is not None
            self.fleet.count(after.pool, after.host_id, after.group_key, now[0] - was[0], now[1] - was[1], now[2] - was[2])

    def change_task(self, before: Task, after: Task) -> None:
        """Write what became of a placed task and its runs; a run that ended gives its GPUs back, a task the rest."""
        self._written.append(before.id)
        freed: list[str] = []
        for run, was in zip(after.runs, before.runs):
            if run is not was:
                freed += self._change_run(before, was, run)
        ended = after.state is TaskState.STOPPED and before.state is not TaskState.STOPPED
        if ended:
            self._moved.append((before.id, False))
            if before.host_id is None:
                self.fleet.leave_line(before.pool, claim_of(before))
        if before.host_id is not None and (freed or ended):
            self._give_back(before, before.host_id, freed, ended=ended)
        if after.state is not before.state or after.desired is not before.desired:
            self._count(before, after)
        changes = {column: new for column, name in TASK_CHANGES if (new := getattr(after, name)) != getattr(before, name)}
        self._move(before, after.state, changes)
        if after.state is not TaskState.STOPPED:
            after = after.but(version=before.version + 1)
        self._keep(after)

    def _give_back(self, task: Task, host_id: str, gpu_ids: Sequence[str], *, ended: bool) -> None:
        """GPUs of runs that ended, and of a task that ended all the rest."""
        positions = self.fleet.pool(task.pool).slot(host_id).positions
        if not all(gpu_id in positions for gpu_id in gpu_ids):
            self._renew_slot(host_id)  # some of them are kept away from now on
            gpu_ids = ()
        cpu_units, memory_mib = (task.ask.cpu_units, task.ask.memory_mib) if ended else (0, 0)
        self.fleet.give(task.pool, host_id, gpu_ids, cpu_units, memory_mib)

    def _change_run(self, task: Task, was: Run, run: Run) -> tuple[str, ...]:
        """Write what became of a run; the GPUs that this frees."""
        if run.about is not was.about:
            self.execute("UPDATE run SET about = ? WHERE id = ?", (_dumps_any(run.about), run.id))
        if run.gpus != was.gpus:
            self._give_gpus(task, run)
        kept = (run.waits, run.restarts, run.health)
        if kept != (was.waits, was.restarts, was.health):  # first: only who is PENDING waits
            self.execute("UPDATE run SET waits = ?, restarts = ?, health = ? WHERE id = ?", (*kept, run.id))
        self.execute(
            "UPDATE run SET state = ?, pid = ?, exit_code = ?, reason = ?, started_at = ?, stopped_at = ? WHERE id = ?",
            (run.state.value, run.pid, run.exit_code, run.reason, run.started_at_s, run.stopped_at_s, run.id),
        )
        if run.state is not RunState.STOPPED or was.state is RunState.STOPPED or not run.gpu_ids:
            return ()
        leases = [(gpu_id, run.id) for gpu_id in run.gpu_ids]
        freed = self.executemany("DELETE FROM lease WHERE gpu_id = ? AND run_id = ?", leases).rowcount
        return run.gpu_ids if freed else ()

    def _give_gpus(self, task: Task, run: Run) -> None:
        """To a run of a placed task, which had none."""
        assert task.host_id is not None
        self.execute("UPDATE run SET gpus = ?, gpu_ids = ? WHERE id = ?", (run.gpus, _dumps(run.gpu_ids), run.id))
        self.executemany(
            "INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, 'exclusive', ?)",
            [(gpu_id, run.id, f"host:{task.host_id}") for gpu_id in run.gpu_ids],
        )
        self._renew_slot(task.host_id)

    def _move(self, task: Task, state: TaskState, changes: dict[str, Any]) -> None:
        """Only columns that change are written: SQLite renews every index of a column that is."""
        assert state is task.state or state in MOVES[task.state], f"task {task.id}: {task.state} → {state}"
        columns = "".join([f", {column} = ?" for column in changes])
        moved = self.execute(
            f"UPDATE task SET state = ?, version = version + 1{columns} WHERE id = ? AND version = ?",
            (state.value, *changes.values(), task.id, task.version),
        ).rowcount
        if moved == 0:
            raise Conflict(task.id)

    def task(self, task_id: str) -> Task | None:
        kept = self._kept.get(task_id)
        if kept is not None:
            return kept
        return self._with_runs(self.execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id = ?", (task_id,)).fetchone())

    def tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """Those of them that there are, by id."""
        found = {task_id: self._kept[task_id] for task_id in task_ids if task_id in self._kept}
        if found:
            task_ids = [task_id for task_id in task_ids if task_id not in found]
            if not task_ids:
                return found
        marks = ", ".join("?" * len(task_ids))
        runs: dict[str, list[Row]] = {}
        for run in self.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id IN ({marks}) ORDER BY position", task_ids):
            runs.setdefault(run[1], []).append(run)
        rows = self.execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id IN ({marks})", task_ids)
        return found | {row[0]: _task(row, runs[row[0]]) for row in rows}

    def task_of_run(self, run_id: str) -> Task | None:
        task_id = self._kept_by_run.get(run_id)
        if task_id is not None:
            return self._kept[task_id]
        sql = f"SELECT {TASK_COLUMNS} FROM task WHERE id = (SELECT task_id FROM run WHERE id = ?)"
        return self._with_runs(self.execute(sql, (run_id,)).fetchone())

    def _with_runs(self, row: Row | None) -> Task | None:
        if row is None:
            return None
        runs = self.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id = ? ORDER BY position", (row[0],)).fetchall()
        return self._keep(_task(row, runs))

    def tasks_on(self, host_id: str) -> list[Task]:
        """Tasks placed on a host that have not stopped."""
        rows = self.execute("SELECT id FROM task WHERE host_id = ? AND state IN ('PENDING', 'RUNNING') ORDER BY id", (host_id,))
        return [task for (task_id,) in rows.fetchall() if (task := self.task(task_id)) is not None]

    def list_tasks(
        self, region: str, cluster: str, *, desired: str, after: tuple[str, int], limit: int, family: str | None = None,
        started_by: str | None = None, host_id: str | None = None, launch_type: str | None = None,
    ) -> list[tuple[str, int, str]]:  # fmt: skip
        """(family, number, id), by family and then as they came; the numbers say so.

        Only the filters that are given are in the statement, so that each finds its index.
        """
        filters = {"started_by": started_by, "host_id": host_id, "launch_type": launch_type}
        given = {column: value for column, value in filters.items() if value is not None}
        where = "region = ? AND cluster = ? AND desired = ?" + "".join(f" AND {column} = ?" for column in given)
        if launch_type is not None and launch_type != "EC2":
            where += " AND launch_type != 'EC2'"  # what the index of the few says
        if host_id is not None and desired == "RUNNING":  # by the index of the host, which has few; a plus keeps the others away
            where = where.replace("region", "+region").replace("cluster", "+cluster").replace("desired", "+desired")
            where += " AND state IN ('PENDING', 'RUNNING')"
        chosen = f"SELECT family, rowid, id FROM task WHERE {where}"
        values: tuple[str | int, ...] = (region, cluster, desired, *given.values())
        if family is not None:
            sql, values = f"{chosen} AND family = ? AND rowid > ?", (*values, family, after[1])
        else:  # the rest of the family at which the last page ended, and all families after it
            sql = f"{chosen} AND family = ? AND rowid > ? UNION ALL {chosen} AND family > ?"
            values = (*values, *after, *values, after[0])
        return self.execute(f"{sql} ORDER BY family, rowid LIMIT ?", (*values, limit)).fetchall()

    def task_counts(self) -> dict[str, int]:
        """How many tasks there are in each state, everywhere. Each part has an index of its own, for stopped ones may be many."""
        return dict(
            self.execute(
                "SELECT state, count(*) FROM task WHERE state IN ('PENDING', 'RUNNING') GROUP BY state "
                "UNION ALL SELECT state, count(*) FROM task WHERE state = 'PROVISIONING' GROUP BY state "
                "UNION ALL SELECT 'STOPPED', count(*) FROM task WHERE state = 'STOPPED' HAVING count(*) > 0"
            ).fetchall()
        )

    def oldest_placed(self, limit: int) -> list[str]:
        """Ids of tasks on hosts, the oldest of each host first."""
        sql = "SELECT id FROM task WHERE host_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') ORDER BY host_id, rowid LIMIT ?"
        return [task_id for (task_id,) in self.execute(sql, (limit,))]

    def drop_stopped_tasks(self, before_s: float, limit: int) -> int:
        """Forget tasks that stopped long ago; how many were dropped."""
        return self.execute(
            "DELETE FROM task WHERE id IN (SELECT id FROM task WHERE state = 'STOPPED' AND stopped_at < ? LIMIT ?)",
            (before_s, limit),
        ).rowcount

    def set_task_details(self, task: Task, details: dict[str, Any]) -> Task:
        """What is said of a task beside its state: its tags, its protection."""
        self._written.append(task.id)
        changed = self.execute(
            "UPDATE task SET details = ? WHERE id = ? AND version = ?", (_dumps(details), task.id, task.version)
        ).rowcount
        if changed == 0:
            raise Conflict(task.id)
        return self._keep(task.but(details=details))

    # Client tokens

    def remembered(self, scope: str, token: str, now_s: float) -> tuple[str, str] | None:
        """(digest of the request, its reply)"""
        row = self.execute(
            "SELECT request, reply FROM client_token WHERE scope = ? AND token = ? AND expires_at > ?", (scope, token, now_s)
        ).fetchone()
        return (row[0], row[1]) if row else None

    def remember(self, scope: str, token: str, request: str, reply: str, expires_at_s: float) -> None:
        self.execute("INSERT OR REPLACE INTO client_token VALUES (?, ?, ?, ?, ?)", (scope, token, request, reply, expires_at_s))

    def drop_tokens(self, now_s: float, limit: int) -> int:
        return self.execute(
            "DELETE FROM client_token WHERE (scope, token) IN "
            "(SELECT scope, token FROM client_token WHERE expires_at <= ? LIMIT ?)",
            (now_s, limit),
        ).rowcount


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


def _dumps_any(values: Sequence[Any] | dict[str, Any] | None) -> str:
    return _dumps(values) if values else ""


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


def _rules_text(rules: Rules | None) -> str | None:
    return (
        None
        if rules is None
        else _dumps([rules.scope, rules.member_of, rules.distinct, rules.strategy, rules.group, rules.restless])
    )


def _rules(text: str | None) -> Rules | None:
    if text is None:
        return None
    scope, member_of, distinct, strategy, group, restless = orjson.loads(text)
    return Rules(scope, tuple(member_of), distinct, tuple((kind, of) for kind, of in strategy), group, restless)


def _counts(task: Task) -> tuple[int, int, int]:
    """(should run, is running, is pending): what a task adds to the counts of its slot."""
    if task.host_id is None or task.launch_type != "EC2" or task.state is TaskState.STOPPED:
        return 0, 0, 0
    return task.desired is TaskState.RUNNING, task.state is TaskState.RUNNING, task.state is TaskState.PENDING


def claim_of(task: Task) -> Claim:
    return Claim(task.created_at_s, task.id, task.ask)


def _task(row: Row, runs: Sequence[Row]) -> Task:
    fields = dict(zip(TASK_FIELDS, row))
    fields["state"], fields["desired"] = TASK_STATES[fields["state"]], TASK_STATES[fields["desired"]]
    fields["ask"] = Ask(fields.pop("gpus"), fields.pop("cpu_units"), fields.pop("memory_mib"), _rules(fields.pop("rules")))
    fields["details"] = orjson.loads(fields["details"])
    fields["plain"] = bool(fields["plain"])
    fields["runs"] = tuple([_run(run) for run in runs])
    return Task.of(fields)


def _run(row: Row) -> Run:
    fields = dict(zip(RUN_FIELDS, row))
    fields["essential"], fields["waits"] = bool(fields["essential"]), bool(fields["waits"])
    fields["state"] = RUN_STATES[fields["state"]]
    fields["gpu_ids"] = tuple(orjson.loads(fields["gpu_ids"]))
    fields["about"] = orjson.loads(fields["about"]) if fields["about"] else None
    return Run.of(fields)
