"""SQL of tasks, their runs and leases: one guarded method per write."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from corral.database import Database, Row
from corral.model.placement import TASK, Claim, Placement, Rank
from corral.model.run import RunState
from corral.model.task import MOVES, Run, Task, TaskState
from corral.store.claims import Claims
from corral.store.fleet import Fleet
from corral.store.instances import Instances
from corral.store.task_rows import (
    INSERT_RUN,
    INSERT_TASK,
    RUN_COLUMNS,
    TASK_COLUMNS,
    dumps,
    task_of,
    values_of_run,
    values_of_task,
)

CACHED_MAX = 10_000
CHANGES = (  # columns that change after a task was placed, and their fields
    ("desired", "desired"), ("started_at", "started_at_s"), ("stopping_at", "stopping_at_s"), ("stopped_at", "stopped_at_s"),
    ("stop_code", "stop_code"), ("stopped_reason", "stopped_reason"),
)  # fmt: skip


class Conflict(Exception):
    """A guarded write found another version of the task than the one it was decided on."""


class Tasks:
    """A part of the state store. It keeps the fleet index in step with what tasks take and give back."""

    def __init__(self, database: Database, fleet: Fleet, claims: Claims, instances: Instances) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._journal = database.journal
        self._fleet = fleet
        self._claims = claims
        self._instances = instances
        self._cached: dict[str, Task] = {}  # tasks that have not stopped, as their rows are: reports need not read them
        self._cached_by_run: dict[str, str] = {}  # run id → task id
        self._caches = not database.reads_only
        placed = database.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING')") if self._caches else ()
        self.live = {task_id for (task_id,) in placed}  # committed tasks that are placed and not stopped; other threads may read it

    def _cache(self, task: Task) -> Task:
        if task.state is TaskState.STOPPED:
            self._evict(task.id)
        elif self._caches:
            if task.id not in self._cached and len(self._cached) >= CACHED_MAX:
                self._evict(next(iter(self._cached)))
            self._cached[task.id] = task
            for run in task.runs:
                self._cached_by_run[run.id] = task.id
        return task

    def _evict(self, task_id: str) -> None:
        task = self._cached.pop(task_id, None)
        for run in task.runs if task is not None else ():
            self._cached_by_run.pop(run.id, None)

    def _evict_on_rollback(self, task_id: str) -> None:
        """Call before a task's row is changed: a rollback then evicts the task from the cache."""
        self._journal.on_rollback(partial(self._evict, task_id))

    # Writing

    def add(self, task: Task, rank: Rank | None = None, *, roams: bool = False) -> None:
        """Add a task, with its leases if it is placed, or with a claim of this rank if it waits."""
        self._execute(INSERT_TASK, values_of_task(task))
        self._executemany(INSERT_RUN, [values_of_run(run) for run in task.runs])
        self._evict_on_rollback(task.id)
        self._cache(task)
        if task.state is TaskState.PROVISIONING:
            assert rank is not None, "a task that waits needs a rank in its queue"
            self._claims.add(task.pool, Claim(rank, TASK, task.id, task.demand), roams=roams)
        else:
            assert task.state is TaskState.PENDING and task.instance_id is not None
            self._lease(task)

    def place(self, task: Task, placement: Placement, runs: Sequence[Run], now_s: float) -> Task:
        """Grant the claim of a task: it becomes PENDING, and its runs get their GPUs."""
        self._evict_on_rollback(task.id)
        self._move(task, TaskState.PENDING, {"instance_id": placement.slot_id, "placed_at": now_s})
        gpu_ids = [(dumps(run.gpu_ids), run.id) for run in runs if run.gpu_ids]
        self._executemany("UPDATE run SET gpu_ids = ? WHERE id = ?", gpu_ids)
        self._claims.remove(TASK, task.id)
        placed = task.but(
            state=TaskState.PENDING,
            instance_id=placement.slot_id,
            placed_at_s=now_s,
            version=task.version + 1,
            runs=tuple(runs),
        )
        self._lease(placed)
        return self._cache(placed)

    def move_claim(self, task: Task, pool: str) -> None:
        """Let a task that roams wait in another pool, with its rank."""
        claim = self._claims.get(TASK, task.id)
        assert claim is not None and task.state is TaskState.PROVISIONING
        self._evict_on_rollback(task.id)
        self._move(task, task.state, {"pool": pool})
        self._claims.remove(TASK, task.id)
        self._claims.add(pool, claim, roams=True)
        self._cache(task.but(pool=pool, version=task.version + 1))

    def _lease(self, task: Task) -> None:
        rows = [(gpu_id, run.id, task.instance_id) for run in task.runs for gpu_id in run.gpu_ids]
        if rows:
            self._executemany("INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, 'exclusive', ?)", rows)
        assert task.instance_id is not None
        self._journal.on_commit(partial(self.live.add, task.id))
        group = task.group_key if task.launch_type == "EC2" else ""
        self._fleet.take(
            task.pool, task.instance_id, [row[0] for row in rows], task.demand.cpu_units, task.demand.memory_mib, group
        )

    def _count(self, before: Task, after: Task) -> None:
        """Update the task counts of the slot. Fargate tasks do not count: callers see them on no container instance."""
        was, now = _counts(before), _counts(after)
        if was != now:
            assert after.instance_id is not None
            self._fleet.count(after.pool, after.instance_id, after.group_key, now[0] - was[0], now[1] - was[1], now[2] - was[2])

    def change(self, before: Task, after: Task) -> None:
        """Write the new state of a task and its runs. Ended runs give their GPUs back, and an ended task its CPU and memory."""
        self._evict_on_rollback(before.id)
        freed: list[str] = []
        for run, was in zip(after.runs, before.runs):
            if run is not was:
                freed += self._change_run(before, was, run)
        ended = after.state is TaskState.STOPPED and before.state is not TaskState.STOPPED
        if ended:
            self._journal.on_commit(partial(self.live.discard, before.id))
            if before.instance_id is None:
                self._claims.remove(TASK, before.id)
        if before.instance_id is not None and (freed or ended):
            self._give_back(before, before.instance_id, freed, ended=ended)
        if after.state is not before.state or after.desired is not before.desired:
            self._count(before, after)
        changes = {column: new for column, name in CHANGES if (new := getattr(after, name)) != getattr(before, name)}
        self._move(before, after.state, changes)
        if after.state is not TaskState.STOPPED:
            after = after.but(version=before.version + 1)
        self._cache(after)

    def _give_back(self, task: Task, instance_id: str, gpu_ids: Sequence[str], *, ended: bool) -> None:
        """Return the GPUs of ended runs to the slot and, if the task has ended, its CPU and memory."""
        positions = self._fleet.pool(task.pool).slot(instance_id).positions
        if not all(gpu_id in positions for gpu_id in gpu_ids):
            self._instances.renew_slot(instance_id)  # some of them are withheld now
            gpu_ids = ()
        cpu_units, memory_mib = (task.demand.cpu_units, task.demand.memory_mib) if ended else (0, 0)
        self._fleet.give(task.pool, instance_id, gpu_ids, cpu_units, memory_mib)

    def _change_run(self, task: Task, was: Run, run: Run) -> tuple[str, ...]:
        """Write the new state of a run. Return the GPUs that it frees."""
        if run.about is not was.about:
            self._execute("UPDATE run SET about = ? WHERE id = ?", (dumps(run.about) if run.about else "", run.id))
        if run.gpus != was.gpus:
            self._give_gpus(task, run)
        progress = (run.waits, run.restarts, run.health)
        if progress != (was.waits, was.restarts, was.health):  # before the state: the schema lets only PENDING runs wait
            self._execute("UPDATE run SET waits = ?, restarts = ?, health = ? WHERE id = ?", (*progress, run.id))
        self._execute(
            "UPDATE run SET state = ?, pid = ?, exit_code = ?, reason = ?, started_at = ?, stopped_at = ? WHERE id = ?",
            (run.state.value, run.pid, run.exit_code, run.reason, run.started_at_s, run.stopped_at_s, run.id),
        )
        if run.state is not RunState.STOPPED or was.state is RunState.STOPPED or not run.gpu_ids:
            return ()
        leases = [(gpu_id, run.id) for gpu_id in run.gpu_ids]
        freed = self._executemany("DELETE FROM lease WHERE gpu_id = ? AND run_id = ?", leases).rowcount
        return run.gpu_ids if freed else ()

    def _give_gpus(self, task: Task, run: Run) -> None:
        """Lease GPUs to a run of a placed task that had none."""
        assert task.instance_id is not None
        self._execute("UPDATE run SET gpus = ?, gpu_ids = ? WHERE id = ?", (run.gpus, dumps(run.gpu_ids), run.id))
        self._executemany(
            "INSERT INTO lease (gpu_id, run_id, mode, owner) VALUES (?, ?, 'exclusive', ?)",
            [(gpu_id, run.id, task.instance_id) for gpu_id in run.gpu_ids],
        )
        self._instances.renew_slot(task.instance_id)

    def _move(self, task: Task, state: TaskState, changes: dict[str, Any]) -> None:
        """Write the state and the changed columns only: SQLite updates every index of a column that is written."""
        assert state is task.state or state in MOVES[task.state], f"task {task.id}: {task.state} → {state}"
        columns = "".join([f", {column} = ?" for column in changes])
        moved = self._execute(
            f"UPDATE task SET state = ?, version = version + 1{columns} WHERE id = ? AND version = ?",
            (state.value, *changes.values(), task.id, task.version),
        ).rowcount
        if moved == 0:
            raise Conflict(task.id)

    # Reading

    def get(self, task_id: str) -> Task | None:
        cached = self._cached.get(task_id)
        if cached is not None:
            return cached
        return self._with_runs(self._execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id = ?", (task_id,)).fetchone())

    def several(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """The tasks that exist among these, by id."""
        found = {task_id: self._cached[task_id] for task_id in task_ids if task_id in self._cached}
        if found:
            task_ids = [task_id for task_id in task_ids if task_id not in found]
            if not task_ids:
                return found
        marks = ", ".join("?" * len(task_ids))
        runs: dict[str, list[Row]] = {}
        for run in self._execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id IN ({marks}) ORDER BY position", task_ids):
            runs.setdefault(run[1], []).append(run)
        rows = self._execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id IN ({marks})", task_ids)
        return found | {row[0]: task_of(row, runs[row[0]]) for row in rows}

    def of_run(self, run_id: str) -> Task | None:
        task_id = self._cached_by_run.get(run_id)
        if task_id is not None:
            return self._cached[task_id]
        sql = f"SELECT {TASK_COLUMNS} FROM task WHERE id = (SELECT task_id FROM run WHERE id = ?)"
        return self._with_runs(self._execute(sql, (run_id,)).fetchone())

    def _with_runs(self, row: Row | None) -> Task | None:
        if row is None:
            return None
        runs = self._execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id = ? ORDER BY position", (row[0],)).fetchall()
        return self._cache(task_of(row, runs))

    def on(self, instance_id: str) -> list[Task]:
        """The tasks on an instance that have not stopped."""
        sql = "SELECT id FROM task WHERE instance_id = ? AND state IN ('PENDING', 'RUNNING') ORDER BY id"
        rows = self._execute(sql, (instance_id,))
        return [task for (task_id,) in rows.fetchall() if (task := self.get(task_id)) is not None]

    def on_host(self, host_id: str) -> list[Task]:
        """The tasks on all instances of a host that have not stopped."""
        return [task for instance in self._instances.on_host(host_id) for task in self.on(instance.id)]

    def listed(
        self, region: str, cluster: str, *, desired: str, after: tuple[str, int], limit: int, family: str | None = None,
        started_by: str | None = None, instance_id: str | None = None, launch_type: str | None = None, group: str | None = None,
    ) -> list[tuple[str, int, str]]:  # fmt: skip
        """Return (family, number, id), sorted by family and then by number; numbers grow with time.

        The statement has only the filters that are given, so that SQLite can use the index of each.
        """
        filters = {"started_by": started_by, "instance_id": instance_id, "launch_type": launch_type, "task_group": group}
        given = {column: value for column, value in filters.items() if value is not None}
        where = "region = ? AND cluster = ? AND desired = ?" + "".join(f" AND {column} = ?" for column in given)
        if launch_type is not None and launch_type != "EC2":
            where += " AND launch_type != 'EC2'"  # the condition of the partial index task_not_on_ec2
        if instance_id is not None and desired == "RUNNING":  # use the instance's index; a plus disables the others
            where = where.replace("region", "+region").replace("cluster", "+cluster").replace("desired", "+desired")
            where += " AND state IN ('PENDING', 'RUNNING')"
        chosen = f"SELECT family, rowid, id FROM task WHERE {where}"
        values: tuple[str | int, ...] = (region, cluster, desired, *given.values())
        if family is not None:
            sql, values = f"{chosen} AND family = ? AND rowid > ?", (*values, family, after[1])
        else:  # the rest of the family in which the last page ended, and all later families
            sql = f"{chosen} AND family = ? AND rowid > ? UNION ALL {chosen} AND family > ?"
            values = (*values, *after, *values, after[0])
        return self._execute(f"{sql} ORDER BY family, rowid LIMIT ?", (*values, limit)).fetchall()

    def counts(self) -> dict[str, int]:
        """The number of tasks in each state, over all clusters. Each SELECT uses an index, because many tasks may be stopped."""
        return dict(
            self._execute(
                "SELECT state, count(*) FROM task WHERE state IN ('PENDING', 'RUNNING') GROUP BY state "
                "UNION ALL SELECT 'PROVISIONING', count(*) FROM claim WHERE kind = 'task' HAVING count(*) > 0 "
                "UNION ALL SELECT 'STOPPED', count(*) FROM task WHERE state = 'STOPPED' HAVING count(*) > 0"
            ).fetchall()
        )

    def oldest_placed(self, limit: int) -> list[str]:
        """Ids of placed tasks, the oldest of each instance first."""
        sql = (
            "SELECT id FROM task WHERE instance_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') "
            "ORDER BY instance_id, rowid LIMIT ?"
        )
        return [task_id for (task_id,) in self._execute(sql, (limit,))]

    def drop_stopped(self, before_s: float, limit: int) -> int:
        """Delete tasks that stopped long ago. Return how many."""
        return self._execute(
            "DELETE FROM task WHERE id IN (SELECT id FROM task WHERE state = 'STOPPED' AND stopped_at < ? LIMIT ?)",
            (before_s, limit),
        ).rowcount

    def set_details(self, task: Task, details: dict[str, Any]) -> Task:
        """Replace the details of a task: its tags, its protection."""
        self._evict_on_rollback(task.id)
        changed = self._execute(
            "UPDATE task SET details = ? WHERE id = ? AND version = ?", (dumps(details), task.id, task.version)
        ).rowcount
        if changed == 0:
            raise Conflict(task.id)
        return self._cache(task.but(details=details))


def _counts(task: Task) -> tuple[int, int, int]:
    """What a task adds to the counts of its slot: (should run, is running, is pending)."""
    if task.instance_id is None or task.launch_type != "EC2" or task.state is TaskState.STOPPED:
        return 0, 0, 0
    return task.desired is TaskState.RUNNING, task.state is TaskState.RUNNING, task.state is TaskState.PENDING
