"""SQL of tasks, their runs and their leases. A write fails if the task has another version than the caller expects.

A lease gives a run a whole GPU, or a part of the memory of a shared GPU. A task that waits for capacity has a claim.
`task_listing.py` has the lists and the counts of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from corral.core.database import Database, Row
from corral.model.histogram import WAITS_S, Histogram
from corral.model.pause import Pause
from corral.model.placement import TASK, Claim, Ending, Placement, Rank, Shares
from corral.model.principal import ROOT
from corral.model.run import RunState
from corral.model.task import MOVES, Run, Task, TaskState
from corral.store.claims import Claims
from corral.store.deployment_counts import DeploymentCounts
from corral.store.fleet import Fleet
from corral.store.instances import Instances
from corral.store.leaving_tasks import LeavingTasks
from corral.store.owner_use import WHOLE, OwnerUses
from corral.store.task_cache import TaskCache
from corral.store.task_history import TaskHistory
from corral.store.task_listing import TaskListing
from corral.store.task_owners import TaskOwners
from corral.store.task_rows import (
    INSERT_LEASE,
    INSERT_RUN,
    INSERT_TASK,
    RUN_COLUMNS,
    TASK_COLUMNS,
    dumps,
    pause_text,
    task_of,
    update_task,
    values_of_run,
    values_of_task,
)
from corral.store.turn_lines import TurnLines

CHANGEABLE = ("desired", "started_at", "stopping_at", "stopped_at", "stop_code", "stopped_reason")  # columns that `change` writes
_changeable = attrgetter("desired", "started_at_s", "stopping_at_s", "stopped_at_s", "stop_code", "stopped_reason")


class Conflict(Exception):
    """The stored task has another version than the caller expects, because another write has changed it."""


class Tasks:
    """The tasks in the state store. When a task takes or returns resources, the free capacity changes too (`store/fleet.py`)."""

    def __init__(
        self, database: Database, fleet: Fleet, claims: Claims, instances: Instances, uses: OwnerUses, owners: TaskOwners
    ) -> None:
        self._execute, self._executemany, self._insert_later = database.execute, database.executemany, database.insert_later
        self._undo_log = database.undo_log
        self._fleet = fleet
        self._claims = claims
        self._instances = instances
        self._uses = uses
        self.cache = TaskCache(database)
        self.owners = owners
        self.deployment_counts = DeploymentCounts(database)
        self.leaving = LeavingTasks(database)
        self.history = TaskHistory(database)
        self.listing = TaskListing(database)
        placed = database.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING')") if self.cache.keeps else ()
        # Placed tasks that were paused, lend their GPUs or take turns, and tasks with a claim that will take turns.
        self.with_pause: set[str] = set(self.listing.with_pause() if self.cache.keeps else ())
        self.turn_lines = TurnLines(self._undo_log, self.listing.in_turn_lines() if self.cache.keeps else ())
        # Committed tasks that are placed and have not stopped. Other threads may read this set.
        self.live = {task_id for (task_id,) in placed}
        self.placements = Histogram(WAITS_S)  # the time from the request of a task to its placement, since the start of the server

    # Writing

    def add(self, task: Task, rank: Rank | None = None, *, roams: bool = False, longest_s: float | None = None) -> None:
        """Add a task. A placed task gets its leases. A task that waits gets a claim with this rank. `Claim` describes `longest_s`.

        Without a rank, the task gets its claim later, because its queue options hold it back (`store/task_queue.py`).
        """
        self._insert_later(INSERT_TASK, values_of_task(task))
        for run in task.runs:
            self._insert_later(INSERT_RUN, values_of_run(run))
        self.cache.drop_on_rollback(task.id)
        self.cache.put(task)
        if task.pause is not None and task.instance_id is not None:
            self._note_pause(task.id)
        if task.owner != ROOT:
            self.owners.set(task.id, task.owner)
        if task.started_by is not None:
            self.deployment_counts.change(None, task)
        if task.state is TaskState.PROVISIONING:
            if rank is not None:
                self.enqueue(task, rank, roams=roams, longest_s=longest_s)
        else:
            assert task.state is TaskState.PENDING and task.instance_id is not None
            self._lease(task)

    def enqueue(self, task: Task, rank: Rank, *, roams: bool, longest_s: float | None) -> None:
        """Give a claim to a task that waits."""
        self.turn_lines.leave(task.id)
        if task.pause is not None and task.pause.turn_s:
            self._note_pause(task.id)
        self._claims.add(task.pool, Claim(rank, TASK, task.id, task.demand, longest_s, task.owner), roams=roams)

    def raise_version(self, task: Task) -> None:
        """Increase the version of a task, because its reason to wait has changed. Clients that wait for a change read it again."""
        self.cache.drop_on_rollback(task.id)
        self._move(task, task.state, {})
        self.cache.put(task.but(version=task.version + 1))

    def place(self, task: Task, placement: Placement, runs: Sequence[Run], now_s: float) -> Task:
        """Grant the claim of a task. The task becomes PENDING, and its runs get their GPUs."""
        self.cache.drop_on_rollback(task.id)
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
        if task.pause is not None:
            self._note_pause(task.id)
        self.deployment_counts.change(task, placed)
        return self.cache.put(placed)

    def set_owner(self, task: Task, owner: str, details: dict[str, Any], now_s: float) -> None:
        """Pass a task to another owner, with its claim and what it holds."""
        self.cache.drop(task.id)
        self.cache.drop_on_rollback(task.id)
        self._fleet.forget_names(task.pool)
        self._execute("UPDATE task SET owner = ?, details = ? WHERE id = ?", (owner, dumps(details), task.id))
        if task.state is not TaskState.STOPPED:
            self.owners.set(task.id, owner)
        if (claim := self._claims.get(TASK, task.id)) is not None:
            self._claims.change(claim, claim._replace(owner=owner))
        if task.instance_id is not None and task.state is not TaskState.STOPPED:
            leasing = [] if task.is_paused else [run for run in task.runs if run.gpu_ids and run.state is not RunState.STOPPED]
            self._uses.release(task, self._uses.leased(leasing), now_s)
            self._uses.hold_runs(task.but(owner=owner), leasing, now_s)
            self._uses.add_memory(task.owner, -task.demand.memory_mib)
            self._uses.add_memory(owner, task.demand.memory_mib)

    def set_pause(self, task: Task, pause: Pause, now_s: float) -> Task:
        """Write what is known of the pauses of a task. Its GPUs become free when it is paused, and are leased again afterwards."""
        assert task.instance_id is not None
        self.cache.drop_on_rollback(task.id)
        sql = "UPDATE task SET pause = ?, version = version + 1 WHERE id = ? AND version = ?"
        moved = self._execute(sql, (pause_text(pause), task.id, task.version))
        if moved.rowcount == 0:
            raise Conflict(task.id)
        if task.pause is None:
            self._note_pause(task.id)
        after = task.but(pause=pause, version=task.version + 1)
        more_mib = pause.held_mib - (task.pause.held_mib if task.pause is not None else 0)
        gpu_ids: list[str] = []
        if after.is_paused != task.is_paused:
            leasing = [run for run in task.runs if run.gpu_ids and run.state is not RunState.STOPPED]
            gpu_ids = [gpu_id for run in leasing for gpu_id in run.gpu_ids]
            leases = [(gpu_id, run.id) for run in leasing for gpu_id in run.gpu_ids]
            if after.is_paused:
                leased = self._uses.leased(leasing)
                self._executemany("DELETE FROM lease WHERE gpu_id = ? AND run_id = ?", leases)
                self._uses.release(task, leased, now_s)
            else:
                values = [(*lease, "exclusive", task.instance_id) for lease in leases]
                self._executemany(f"{INSERT_LEASE} VALUES (?, ?, ?, ?)", values)
                self._uses.hold_runs(task, leasing, now_s)
        if not self._fleet.pool(task.pool).slot(task.instance_id).positions.keys() >= set(gpu_ids):
            self._instances.renew_slot(task.instance_id)  # some of these GPUs are not available to tasks any more
        elif after.is_paused:
            self._fleet.give(task.pool, task.instance_id, gpu_ids, 0, -more_mib)
        elif gpu_ids or more_mib:
            self._fleet.take(task.pool, task.instance_id, gpu_ids, 0, more_mib)
        if task.limit_s is not None:
            self._change_ending(task, after, task.instance_id, task.limit_s)
        return self.cache.put(after)

    def _note_pause(self, task_id: str) -> None:
        if task_id not in self.with_pause:
            self.with_pause.add(task_id)
            self._undo_log.on_rollback(partial(self.with_pause.discard, task_id))

    def forget_pause(self, task_id: str) -> None:
        self.turn_lines.leave(task_id)
        if task_id in self.with_pause:
            self.with_pause.discard(task_id)
            self._undo_log.on_rollback(partial(self.with_pause.add, task_id))

    def move_claim(self, task: Task, pool: str) -> None:
        """Move the claim of a task to another pool. The claim keeps its rank."""
        claim = self._claims.get(TASK, task.id)
        assert claim is not None and task.state is TaskState.PROVISIONING
        self.cache.drop_on_rollback(task.id)
        self._move(task, task.state, {"pool": pool})
        self._claims.move(claim, pool)
        self.cache.put(task.but(pool=pool, version=task.version + 1))

    def change_waiting(self, before: Task, after: Task, longest_s: float | None) -> Task:
        """Write the GPUs, the time limit and the details of a task that waits. Its claim keeps its rank, and so its place."""
        assert before.state is TaskState.PROVISIONING and len(before.runs) == len(after.runs)
        self.cache.drop_on_rollback(before.id)
        self._fleet.forget_names(before.pool)
        demand = {"gpus": after.demand.gpus, "gpu_memory_mib": after.demand.gpu_memory_mib}
        details = {"details": dumps(after.details), "plain": after.plain, "time_limit": after.time_limit_s}
        self._move(before, before.state, demand | details)
        self._executemany("UPDATE run SET gpus = ? WHERE id = ?", [(run.gpus, run.id) for run in after.runs])
        if (claim := self._claims.get(TASK, before.id)) is not None:
            self._claims.change(claim, claim._replace(demand=after.demand, longest_s=longest_s))
        return self.cache.put(after.but(version=before.version + 1))

    def _lease(self, task: Task) -> None:
        assert task.instance_id is not None
        shares: Shares = ()
        if task.demand.gpu_memory_mib:
            shares = self._lease_shares(task, task.instance_id)
        gpu_ids = []
        for run in task.runs:
            if not run.gpu_memory_mib:
                for gpu_id in run.gpu_ids:
                    self._insert_later(INSERT_LEASE, (gpu_id, run.id, "exclusive", task.instance_id))
                    gpu_ids.append(gpu_id)
        self._uses.hold_runs(task, task.runs, task.placed_at_s or task.created_at_s)
        self._uses.add_memory(task.owner, task.demand.memory_mib)
        self._undo_log.on_commit(partial(self._went_live, task))
        group = task.group_key if task.launch_type == "EC2" else ""
        self._fleet.take(task.pool, task.instance_id, gpu_ids, task.demand.cpu_units, task.demand.memory_mib, group, shares)
        if task.limit_s is not None:
            self._fleet.put_ending(task.pool, task.instance_id, _ending(task, task.limit_s))

    def _lease_shares(self, task: Task, instance_id: str) -> Shares:
        """Lease memory of a shared GPU to the runs of a task that need it. The schema refuses more memory than the GPU has."""
        sharing = [run for run in task.runs if run.gpu_memory_mib]
        shares = tuple((gpu_id, run.gpu_memory_mib) for run in sharing for gpu_id in run.gpu_ids)
        self._executemany("UPDATE gpu SET mode = 'shared' WHERE id = ? AND mode != 'shared'", {(gpu_id,) for gpu_id, _ in shares})
        self._executemany(
            "INSERT INTO lease (gpu_id, run_id, mode, instance_id, memory_mib, millionths) VALUES (?1, ?2, 'shared', ?3, ?4, "
            f"max(1, ?4 * {WHOLE} / (SELECT memory_mib FROM gpu WHERE id = ?1)))",
            [(gpu_id, run.id, instance_id, run.gpu_memory_mib) for run in sharing for gpu_id in run.gpu_ids],
        )
        return shares

    def _went_live(self, task: Task) -> None:
        self.live.add(task.id)
        if task.placed_at_s is not None:
            self.placements.add(task.placed_at_s - task.created_at_s)

    def _count(self, before: Task, after: Task) -> None:
        """Update the task counts of the slot.

        Fargate tasks are not counted, because the API shows them on no container instance.
        """
        was, now = _counts(before), _counts(after)
        if was != now:
            assert after.instance_id is not None
            self._fleet.count(after.pool, after.instance_id, after.group_key, now[0] - was[0], now[1] - was[1], now[2] - was[2])

    def change(self, before: Task, after: Task, now_s: float) -> None:
        """Write the new state of a task and its runs.

        A run that has ended returns its GPUs. A task that has stopped returns its CPU and memory.
        """
        self.cache.drop_on_rollback(before.id)
        freed: list[str] = []
        shares: Shares = ()
        for run, was in zip(after.runs, before.runs):
            if run is not was:
                gpu_ids = self._change_run(before, was, run, now_s)
                if run.gpu_memory_mib:
                    shares += tuple((gpu_id, run.gpu_memory_mib) for gpu_id in gpu_ids)
                else:
                    freed += gpu_ids
        ended = after.state is TaskState.STOPPED and before.state is not TaskState.STOPPED
        if ended:
            self._undo_log.on_commit(partial(self.live.discard, before.id))
            if before.owner != ROOT:
                self.owners.drop(before.id)
            self.leaving.drop(before.id)
            if (before.instance_id is None or before.pause is not None) and self._claims.get(TASK, before.id) is not None:
                self._claims.remove(TASK, before.id)
            if before.pause is not None:
                self.forget_pause(before.id)
        if before.instance_id is not None and (freed or shares or ended):
            self._give_back(before, before.instance_id, freed, shares, ended=ended)
            if ended:
                self._uses.add_memory(before.owner, -before.demand.memory_mib)
        if before.instance_id is not None and before.limit_s is not None:
            self._change_ending(before, after, before.instance_id, before.limit_s)
        if after.state is not before.state or after.desired is not before.desired:
            self._count(before, after)
            if before.started_by is not None:
                self.deployment_counts.change(before, after)
        values = zip(CHANGEABLE, _changeable(before), _changeable(after))
        changes = {column: new for column, old, new in values if new != old}
        self._move(before, after.state, changes)
        after = after.but(version=before.version + 1)
        self.cache.put(after)
        if ended:
            self.cache.put_just_stopped(after)
            self.history.add(after)

    def _give_back(self, task: Task, instance_id: str, gpu_ids: Sequence[str], shares: Shares, *, ended: bool) -> None:
        """Return the GPUs of ended runs to the slot. If the task has ended, also return its CPU and memory."""
        positions = self._fleet.pool(task.pool).slot(instance_id).positions
        if not positions.keys() >= {*gpu_ids, *[gpu_id for gpu_id, _ in shares]}:
            # Some of these GPUs are not available to tasks any more, so the slot is derived from the rows.
            self._instances.renew_slot(instance_id)
            gpu_ids, shares = (), ()
        cpu_units, memory_mib = (task.demand.cpu_units, task.demand.memory_mib) if ended else (0, 0)
        if ended and task.pause is not None:
            memory_mib += task.pause.held_mib
        self._fleet.give(task.pool, instance_id, gpu_ids, cpu_units, memory_mib, shares)

    def _change_ending(self, before: Task, after: Task, instance_id: str, limit_s: float) -> None:
        """Update the time limit in the fleet index, if the task has started, has other GPUs, or has stopped."""
        if after.state is TaskState.STOPPED or after.is_paused:
            self._fleet.drop_ending(before.pool, instance_id, before.id)
        elif (ending := _ending(after, limit_s)) != _ending(before, limit_s) or before.is_paused:
            self._fleet.put_ending(before.pool, instance_id, ending)

    def _change_run(self, task: Task, was: Run, run: Run, now_s: float) -> tuple[str, ...]:
        """Write the new state of a run. Return the GPUs that it frees."""
        if run.about is not was.about:
            self._execute("UPDATE run SET about = ? WHERE id = ?", (dumps(run.about) if run.about else "", run.id))
        if run.gpus != was.gpus:
            self._give_gpus(task, run, now_s)
        progress = (run.waits, run.restarts, run.health)
        # This is written before the state, because the schema allows `waits` only for PENDING runs.
        if progress != (was.waits, was.restarts, was.health):
            self._execute("UPDATE run SET waits = ?, restarts = ?, health = ? WHERE id = ?", (*progress, run.id))
        self._execute(
            "UPDATE run SET state = ?, pid = ?, exit_code = ?, reason = ?, started_at = ?, stopped_at = ? WHERE id = ?",
            (run.state._value_, run.pid, run.exit_code, run.reason, run.started_at_s, run.stopped_at_s, run.id),
        )
        if run.state is not RunState.STOPPED or was.state is RunState.STOPPED or not run.gpu_ids:
            return ()
        leased = self._uses.leased((run,))
        leases = [(gpu_id, run.id) for gpu_id in run.gpu_ids]
        freed = self._executemany("DELETE FROM lease WHERE gpu_id = ? AND run_id = ?", leases).rowcount
        if run.gpu_memory_mib:
            self._executemany(
                "UPDATE gpu SET mode = 'exclusive' WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM lease WHERE gpu_id = ?1)",
                [(gpu_id,) for gpu_id in run.gpu_ids],
            )
        if not freed:
            return ()
        self._uses.release(task, leased, now_s)
        return run.gpu_ids

    def _give_gpus(self, task: Task, run: Run, now_s: float) -> None:
        """Lease GPUs to a run that had none. Its task is already placed."""
        assert task.instance_id is not None
        self._execute("UPDATE run SET gpus = ?, gpu_ids = ? WHERE id = ?", (run.gpus, dumps(run.gpu_ids), run.id))
        self._executemany(
            "INSERT INTO lease (gpu_id, run_id, mode, instance_id) VALUES (?, ?, 'exclusive', ?)",
            [(gpu_id, run.id, task.instance_id) for gpu_id in run.gpu_ids],
        )
        self._uses.hold_runs(task, (run,), now_s)
        self._instances.renew_slot(task.instance_id)

    def _move(self, task: Task, state: TaskState, changes: dict[str, Any]) -> None:
        """Write the state and the changed columns."""
        assert state is task.state or state in MOVES[task.state], f"task {task.id}: {task.state} → {state}"
        moved = self._execute(update_task(tuple(changes)), (state._value_, *changes.values(), task.id, task.version))
        if moved.rowcount == 0:
            raise Conflict(task.id)

    # Reading

    def get(self, task_id: str) -> Task | None:
        cached = self.cache.get(task_id)
        if cached is not None:
            return cached
        return self._with_runs(self._execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id = ?", (task_id,)).fetchone())

    def several(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """The tasks with these ids, by id. Ids that do not exist are omitted."""
        found = {task_id: task for task_id in task_ids if (task := self.cache.listed(task_id))}
        if found:
            task_ids = [task_id for task_id in task_ids if task_id not in found]
            if not task_ids:
                return found
        marks = ", ".join("?" * len(task_ids))
        runs: dict[str, list[Row]] = {}
        for run in self._execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id IN ({marks}) ORDER BY position", task_ids):
            runs.setdefault(run[1], []).append(run)
        rows = self._execute(f"SELECT {TASK_COLUMNS} FROM task WHERE id IN ({marks})", task_ids)
        for row in rows:
            found[row[0]] = task = task_of(row, runs[row[0]])
            if task.state is TaskState.STOPPED:
                self.cache.put_stopped(task)
        return found

    def of_run(self, run_id: str) -> Task | None:
        if (cached := self.cache.of_run(run_id)) is not None:
            return cached
        sql = f"SELECT {TASK_COLUMNS} FROM task WHERE id = (SELECT task_id FROM run WHERE id = ?)"
        return self._with_runs(self._execute(sql, (run_id,)).fetchone())

    def _with_runs(self, row: Row | None) -> Task | None:
        if row is None:
            return None
        runs = self._execute(f"SELECT {RUN_COLUMNS} FROM run WHERE task_id = ? ORDER BY position", (row[0],)).fetchall()
        return self.cache.put(task_of(row, runs))

    def on(self, instance_id: str) -> list[Task]:
        """The tasks on an instance that have not stopped."""
        sql = "SELECT id FROM task WHERE instance_id = ? AND state IN ('PENDING', 'RUNNING') ORDER BY id"
        rows = self._execute(sql, (instance_id,))
        return [task for (task_id,) in rows.fetchall() if (task := self.get(task_id)) is not None]

    def placed(self) -> list[Task]:
        """All tasks that are placed and have not stopped, in all regions."""
        # Without the "+", SQLite would read all tasks in the order of their ids, also the stopped ones.
        ids = self._execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY +id").fetchall()
        return list(self.several([task_id for (task_id,) in ids]).values())

    def instances(self) -> list[str]:
        """The ids of the instances that have tasks which have not stopped."""
        rows = self._execute("SELECT DISTINCT instance_id FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY instance_id")
        return [instance_id for (instance_id,) in rows.fetchall() if instance_id is not None]

    def on_host(self, host_id: str) -> list[Task]:
        """The tasks on all instances of a host that have not stopped."""
        return [task for instance in self._instances.on_host(host_id) for task in self.on(instance.id)]

    def with_gpus_of_hosts(self) -> list[Task]:
        """The tasks that lease GPUs which no EC2 instance owns, and paused tasks that will continue on such GPUs."""
        sql = (
            "SELECT task.id FROM lease JOIN run ON run.id = lease.run_id JOIN task ON task.id = run.task_id "
            "JOIN instance ON instance.id = task.instance_id WHERE instance.region = '' UNION "
            "SELECT task.id FROM task JOIN instance ON instance.id = task.instance_id WHERE instance.region = '' AND "
            "task.pause IS NOT NULL AND task.state != 'STOPPED' AND json_extract(task.pause, '$.phase') = 'paused' ORDER BY 1"
        )
        rows = self._execute(sql).fetchall()
        return [task for (task_id,) in rows if (task := self.get(task_id)) is not None]

    def drop_stopped(self, before_s: float, limit: int) -> int:
        """Delete up to `limit` tasks that stopped before `before_s`. Return their number."""
        dropped = self._execute(
            "DELETE FROM task WHERE id IN (SELECT id FROM task WHERE state = 'STOPPED' AND stopped_at < ? LIMIT ?) RETURNING id",
            (before_s, limit),
        ).fetchall()
        for (task_id,) in dropped:
            self.cache.drop(task_id)
        return len(dropped)

    def set_details(self, task: Task, details: dict[str, Any]) -> Task:
        """Replace the details of a task, such as its tags and its protection."""
        self.cache.drop_on_rollback(task.id)
        self._fleet.forget_names(task.pool)
        changed = self._execute(
            "UPDATE task SET details = ? WHERE id = ? AND version = ?", (dumps(details), task.id, task.version)
        ).rowcount
        if changed == 0:
            raise Conflict(task.id)
        after = task.but(details=details)
        if after.state is TaskState.STOPPED:
            self.history.change_tags(after)
        return self.cache.put(after)


def _ending(task: Task, limit_s: float) -> Ending:
    since_s = task.started_at_s if task.started_at_s is not None else task.placed_at_s
    assert since_s is not None, "a placed task has the time of its placement"
    if task.pause is not None:
        since_s += task.pause.paused_s
    gpu_ids: list[str] = []
    shares: list[tuple[str, int]] = []
    for run in task.runs:
        if run.state is RunState.STOPPED:
            continue
        if run.gpu_memory_mib:
            shares += [(gpu_id, run.gpu_memory_mib) for gpu_id in run.gpu_ids]
        else:
            gpu_ids += run.gpu_ids
    demand = task.demand
    return Ending(
        task.id, since_s + limit_s, tuple(sorted(gpu_ids)), demand.cpu_units, demand.memory_mib, tuple(sorted(shares))
    )  # fmt: skip


def _counts(task: Task) -> tuple[int, int, int]:
    """Return the numbers that a task adds to the counts of its slot: (desired status is RUNNING, is running, is pending)."""
    if task.instance_id is None or task.launch_type != "EC2" or task.state is TaskState.STOPPED:
        return 0, 0, 0
    return task.desired is TaskState.RUNNING, task.state is TaskState.RUNNING, task.state is TaskState.PENDING
