"""The state store: one guarded method per write. The core calls it from one thread, inside one transaction per batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from corral.database import Migration, Row
from corral.model.placement import Claim, Placement
from corral.model.run import RunState
from corral.model.task import MOVES, Ask, Run, Task, TaskState
from corral.store.buckets import Buckets, Changes
from corral.store.documents import Documents
from corral.store.expiries import Expiries
from corral.store.fleet import Fleet
from corral.store.hosts import Hosts
from corral.store.images import Images
from corral.store.objects import Objects
from corral.store.parameters import Parameters
from corral.store.queues import Queues
from corral.store.stored import StoredResources
from corral.store.task_rows import (
    INSERT_RUN,
    INSERT_TASK,
    RUN_COLUMNS,
    TASK_COLUMNS,
    dumps,
    rules_of,
    task_of,
    values_of_run,
    values_of_task,
)

TASKS_KEPT_MAX = 10_000


class Conflict(Exception):
    """A guarded write found another version than the one it was decided on."""


TASK_CHANGES = (  # what changes of a task that is there: column and field
    ("desired", "desired"), ("started_at", "started_at_s"), ("stopping_at", "stopping_at_s"), ("stopped_at", "stopped_at_s"),
    ("stop_code", "stop_code"), ("stopped_reason", "stopped_reason"),
)  # fmt: skip


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


class Store(Hosts):
    """Rows, and the fleet index that follows them."""

    # What came with version 3.
    DATA = "".join(map(_script, ("queues.sql", "objects.sql", "buckets.sql", "parameters.sql", "images.sql")))
    MIGRATIONS: tuple[Migration, ...] = (_script("to_2.sql"), _script("to_3.sql") + DATA)  # from each schema version to the next

    def __init__(self, path: Path | None, *, checked: bool = False) -> None:
        super().__init__(path, _script("schema.sql") + self.DATA, self.MIGRATIONS, checked=checked)
        self.queues = Queues(self)
        self.objects = Objects(self)
        self.buckets = Buckets(self, Changes())
        self.documents = Documents(self, self.buckets)
        self.expiries = Expiries(self)
        self.parameters = Parameters(self)
        self.stored = StoredResources(self)
        self.images = Images(self)
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
        self.buckets.commit()
        self.fleet.committed()
        self._written.clear()
        for task_id, lives in self._moved:
            (self.live_tasks.add if lives else self.live_tasks.discard)(task_id)
        self._moved.clear()

    def rollback(self) -> None:
        """Give the whole transaction up."""
        super().rollback()
        self.queues.rollback()
        self.buckets.rollback()
        self._forget_written(0)
        self._moved.clear()
        self.rebuild()

    def reader(self) -> Self:
        """A reader has rows only: the index belongs to the one who writes."""
        beside = super().reader()
        del beside.fleet
        beside.queues, beside.objects = Queues(beside, reads_only=True), Objects(beside)
        beside.buckets = Buckets(beside, self.buckets.changes)
        beside.documents, beside.expiries = Documents(beside, beside.buckets), Expiries(beside)
        beside.parameters, beside.images = Parameters(beside), Images(beside)
        beside.stored = StoredResources(beside)
        beside._kept, beside._kept_by_run, beside._kept_max = {}, {}, 0
        return beside

    def begin_reading(self) -> None:
        super().begin_reading()
        self.buckets.begin_reading()  # nothing was read yet, so the snapshot is still to come

    def end_reading(self) -> None:
        self.buckets.end_reading()
        super().end_reading()

    def savepoint(self) -> None:
        super().savepoint()
        self.queues.savepoint()
        self._mark = self.fleet.mark()
        self._written_mark = len(self._written)
        self._moved_mark = len(self._moved)

    def rollback_to_savepoint(self) -> None:
        super().rollback_to_savepoint()
        self.queues.rollback_to_savepoint()
        self.buckets.rollback()
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
            self.fleet.join_line(pool, Claim(since_s, task_id, Ask(gpus, cpu_units, memory_mib, rules_of(rules))))
        self.fleet.committed()
        self._mark = 0

    def _placed_tasks(self) -> set[str]:
        rows = self.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING')")
        return {task_id for (task_id,) in rows}

    # Tasks, their runs and leases

    def add_task(self, task: Task) -> None:
        """A new task: a claim when it waits, with its leases when it is placed already."""
        self.execute(INSERT_TASK, values_of_task(task))
        self.executemany(INSERT_RUN, [values_of_run(run) for run in task.runs])
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
        given = [(dumps(run.gpu_ids), run.id) for run in runs if run.gpu_ids]
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
            self.execute("UPDATE run SET about = ? WHERE id = ?", (dumps(run.about) if run.about else "", run.id))
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
        self.execute("UPDATE run SET gpus = ?, gpu_ids = ? WHERE id = ?", (run.gpus, dumps(run.gpu_ids), run.id))
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
        return found | {row[0]: task_of(row, runs[row[0]]) for row in rows}

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
        return self._keep(task_of(row, runs))

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
            "UPDATE task SET details = ? WHERE id = ? AND version = ?", (dumps(details), task.id, task.version)
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


def _counts(task: Task) -> tuple[int, int, int]:
    """(should run, is running, is pending): what a task adds to the counts of its slot."""
    if task.host_id is None or task.launch_type != "EC2" or task.state is TaskState.STOPPED:
        return 0, 0, 0
    return task.desired is TaskState.RUNNING, task.state is TaskState.RUNNING, task.state is TaskState.PENDING


def claim_of(task: Task) -> Claim:
    return Claim(task.created_at_s, task.id, task.ask)
