"""Properties of Batch jobs that must hold after each commit, when nothing is due, and at the end.

The checkers know what users submitted and stopped, and what the host reported. They read the rows of the server, and compare. A
launch is the creation of the task of an attempt, or of the tasks of all nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.core.undo_log import UndoLog
from corral.decide.placement.place import serve
from corral.model.instance import host_pool
from corral.model.job import DEPENDENCY_FAILED, TIMED_OUT
from corral.model.placement import Claim, Placement
from corral.model.task import Task
from corral.services.batch import line_claims, waiting_reasons
from corral.store.fleet import Fleet
from corral.store.job_holdings import JobHoldings
from corral.store.job_lines import JobLines
from corral.store.jobs import Jobs
from simulation.checkers import Violation
from simulation.job_setup import DECAY_S, GPUS, QUEUES, SHARES
from simulation.share_use import ShareUses
from store.rows import derived_fleet

if TYPE_CHECKING:
    from simulation.job_graphs import JobGraphs

ENDED = ("SUCCEEDED", "FAILED")
ACTIVE = ("STARTING", "RUNNING")
STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
DERIVED_EVERY = 25  # commits


@dataclass(frozen=True)
class Submitted:
    """A job as its user submitted it."""

    id: str
    number: int
    queue: str
    share: str
    definition: str
    gpus: int
    size: int
    nodes: int
    needs: list[tuple[str, str]]
    attempts: int
    rules: list[dict[str, str]]
    timeout_s: int | None


@dataclass(frozen=True)
class Ended:
    """The end of a task, as the host reported it."""

    code: int | None
    reason: str | None
    was_stopped: bool  # the server had ordered the host to stop it


@dataclass(frozen=True)
class JobRow:
    """A row of a job or of a child."""

    id: str
    kind: str
    state: str
    task_id: str
    status_reason: str
    attempts: str  # JSON
    runnable_at_s: float | None
    number: int = 0
    stops: bool = False  # of a parent: CancelJob or TerminateJob was called
    expanded: int = 0


class JobCheckers:
    def __init__(self, world: JobGraphs) -> None:
        self.world, self.is_on, self.commits = world, False, 0
        self.rows: dict[str, JobRow] = {}
        self.tasks: dict[str, str] = {}  # task id → its state
        self.launches: dict[str, list[str]] = {}  # job id → the tasks of its attempts; of a multi-node job those of the main node
        self.gpu_holders: dict[str, str] = {}  # GPU → the task that got it last
        self.ended: dict[str, str] = {}  # job id → SUCCEEDED or FAILED
        self.excused: set[str] = set()  # jobs that a user is stopping or has stopped
        self.stopped: set[str] = set()  # jobs that must not be launched any more
        self.shares = ShareUses(SHARES, DECAY_S)

    # What the world tells

    def stop(self, job_id: str) -> None:
        """A user has stopped a job that had not started, or has terminated a job."""
        if not self.world.submitted[job_id.partition(":")[0]].size or ":" in job_id:
            self.stopped.add(job_id)

    # After each commit

    def after_commit(self) -> None:
        if not self.is_on:
            return
        self.commits += 1
        self._read()
        self._check_counts()
        launched = self._launched()
        self.shares.released(self.world.clock.now_s(), self._active_tasks())
        for job_id, tasks in launched.items():
            self._check_launch(job_id, tasks)
        for row in self.rows.values():
            if row.kind == "node":
                continue  # its row is used again by the next attempt
            if row.state in ENDED and row.id not in self.ended:
                self.ended[row.id] = row.state
                self._check_end(row)
            elif row.id in self.ended and row.state != self.ended[row.id]:
                raise Violation(f"{row.id} was {self.ended[row.id]}, and is {row.state} now")
        if self.commits % DERIVED_EVERY == 0:
            self._check_derived()

    def _read(self) -> None:
        execute = self.world.store.execute
        rows = execute(
            "SELECT id, kind, state, task_id, status_reason, attempts, runnable_at, number, cancelled OR terminated, expanded "
            "FROM job"
        ).fetchall()
        self.rows = {row[0]: JobRow(*row) for row in rows}
        parents = {row.number: row for row in self.rows.values()}
        for row in execute("SELECT job, position, state, task_id, status_reason, attempts, runnable_at FROM job_child").fetchall():
            parent = parents[row[0]]
            mark, kind = (":", "child") if parent.kind == "array" else ("#", "node")
            child_id = f"{parent.id}{mark}{row[1]}"
            self.rows[child_id] = JobRow(child_id, kind, *row[2:])

    def state_of(self, job_id: str) -> str:
        row = self.rows.get(job_id)
        if row is not None:
            return row.state
        parent = self.rows[job_id.partition(":")[0]]
        return "FAILED" if parent.stops or parent.state in ENDED else "SUBMITTED"

    def _check_counts(self) -> None:
        """Summaries count the children. RUNNABLE jobs wait in lines. Jobs with tasks hold capacity."""
        execute, single = self.world.store.execute, ("single", "child", "multi-node")
        waiting = sorted(row.id for row in self.rows.values() if row.state == "RUNNABLE" and row.kind in single)
        if waiting != sorted(job_id for (job_id,) in execute("SELECT job_id FROM waiting_job").fetchall()):
            raise Violation("the jobs in lines are not the RUNNABLE jobs")
        active = sorted(row.id for row in self.rows.values() if row.state in ACTIVE and row.kind in single)
        if active != sorted(job_id for (job_id,) in execute("SELECT job_id FROM job_holding").fetchall()):
            raise Violation("the jobs that hold capacity are not those with tasks")
        counted: dict[str, Counter[str]] = {}
        for row in self.rows.values():
            if row.kind == "child":
                counted.setdefault(row.id.partition(":")[0], Counter())[row.state] += 1
        for job_id, *counts in execute(
            f"SELECT id, {', '.join(STATES)} FROM job_summary JOIN job ON number = job_summary.job".replace("state", "job.state")
        ).fetchall():
            of_children = counted.get(job_id, Counter())
            parent, size = self.rows[job_id], self.size_of(job_id, sum(counts))
            of_children["FAILED" if parent.stops or parent.state in ENDED else "SUBMITTED"] += size - of_children.total()
            if [of_children[state] for state in STATES] != counts:
                raise Violation(f"{job_id}: the summary {counts} is not that of the children, {dict(of_children)}")
            if parent.state in ENDED and (of_children.total() != of_children["SUCCEEDED"] + of_children["FAILED"]):
                raise Violation(f"{job_id} has ended before its children")

    def size_of(self, job_id: str, default: int) -> int:
        known = self.world.submitted.get(job_id)
        return default if known is None else known.size

    # Launches

    def _launched(self) -> dict[str, list[Task]]:
        """Return the new tasks by job, in the order of their launches."""
        found: dict[str, list[Task]] = {}
        before = self.tasks
        self.tasks = dict(self.world.store.execute("SELECT id, state FROM task ORDER BY rowid").fetchall())
        for task_id in self.tasks:
            if task_id not in before:
                task = self.world.store.tasks.get(task_id)
                assert task is not None and task.started_by is not None
                found.setdefault(task.started_by.removeprefix("batch:").partition("#")[0], []).append(task)
        return found

    def _check_launch(self, job_id: str, tasks: list[Task]) -> None:
        parent = self.world.submitted[job_id.partition(":")[0]]
        self._check_nodes(parent, job_id, tasks)
        for task in tasks:
            gpu_ids = [gpu_id for run in task.runs for gpu_id in run.gpu_ids]
            if len(gpu_ids) != parent.gpus:
                raise Violation(f"{job_id} got {len(gpu_ids)} GPUs, and not {parent.gpus}")
            for gpu_id in gpu_ids:
                holder = self.gpu_holders.get(gpu_id)
                if holder is not None and self.tasks.get(holder, "STOPPED") != "STOPPED":
                    raise Violation(f"{gpu_id} has two tasks: {holder} and {task.id}")
                self.gpu_holders[gpu_id] = task.id
        earlier = self.launches.setdefault(job_id, [])
        if any(self.tasks.get(task_id, "STOPPED") != "STOPPED" for task_id in earlier):
            raise Violation(f"{job_id} runs twice")
        if len(earlier) >= parent.attempts:
            raise Violation(f"{job_id}: attempt {len(earlier) + 1} of {parent.attempts}")
        if job_id in self.stopped or parent.id in self.stopped:
            raise Violation(f"{job_id} was launched after a user had stopped it")
        for needed in self._needed(parent, job_id):
            if self.state_of(needed) != "SUCCEEDED":
                raise Violation(f"{job_id} started before {needed} had succeeded")
        attempts = json.loads(self.rows[job_id].attempts or "[]")
        if [attempt[0] for attempt in attempts][: len(earlier)] != earlier:
            raise Violation(f"{job_id}: the attempts are not the tasks that ran")
        if attempts and not self._retries(parent, attempts[-1]):
            raise Violation(f"{job_id} was retried after {attempts[-1][5:8]} with {parent.rules}")
        earlier.append(tasks[1 if parent.nodes else 0].id)  # node 1 is the main node
        self._check_order(parent, job_id, tasks[0])

    def _check_nodes(self, parent: Submitted, job_id: str, tasks: list[Task]) -> None:
        """All nodes start together. Other jobs have one task."""
        nodes = [task.started_by.partition("#")[2] for task in tasks if task.started_by]
        if nodes != [str(each) for each in range(parent.nodes)] and nodes != ["" for _ in range(0 if parent.nodes else 1)]:
            raise Violation(f"{job_id} with {parent.nodes} nodes was launched with the nodes {nodes}")

    def _needed(self, parent: Submitted, job_id: str) -> list[str]:
        index = job_id.partition(":")[2]
        needed = [each for each, type_ in parent.needs if not type_]
        if index:
            needed += [f"{each}:{index}" for each, type_ in parent.needs if type_ == "N_TO_N"]
            needed += [f"{parent.id}:{int(index) - 1}" for _, type_ in parent.needs if type_ == "SEQUENTIAL" and index != "0"]
        return needed

    def _retries(self, parent: Submitted, attempt: list[Any]) -> bool:
        """Decide about a retry with the rules of the user, as AWS documents them. The number of attempts is checked elsewhere."""
        task_id, code, reason, status_reason = attempt[0], attempt[5], attempt[6], attempt[7]
        told = self.world.ended.get(task_id)
        if told is not None and told.code != code:
            raise Violation(f"{parent.id}: the host reported the exit code {told.code}, and the attempt has {code}")
        if status_reason == TIMED_OUT:
            return False
        values = {"onExitCode": "" if code is None else str(code), "onReason": reason, "onStatusReason": status_reason}
        for rule in parent.rules:
            patterns = [(pattern, values[name]) for name, pattern in rule.items() if name != "action"]
            if all(value.startswith(pattern[:-1]) if pattern[-1] == "*" else value == pattern for pattern, value in patterns):
                return rule["action"] == "RETRY"
        return True

    def _check_order(self, launched: Submitted, job_id: str, task: Task) -> None:
        """No job overtakes a job of a more important queue, an older job of its queue, or a share with a lower level.

        The machine is one slot. So the first job that does not fit reserves the whole slot, and no later job gets GPUs of it.
        """
        if launched.queue == "fair":
            self.shares.taken(task.id, launched.share, max(1, 4 * launched.gpus * (launched.nodes or 1)))
        if not launched.gpus or task.pool != host_pool("default"):
            return
        place = launched.number, int(job_id.partition(":")[2] or 0)
        for row in self.rows.values():
            if row.state != "RUNNABLE" or row.kind == "node" or (row.runnable_at_s or 0.0) >= task.created_at_s:
                continue
            waiting = self.world.submitted[row.id.partition(":")[0]]
            other = waiting.number, int(row.id.partition(":")[2] or 0)
            if waiting.queue == "fair" == launched.queue and waiting.share != launched.share:
                if waiting.definition == launched.definition and not self.shares.is_fair(task.id, launched.share, waiting.share):
                    raise Violation(f"{job_id} of {launched.share} overtook {row.id} of {waiting.share}: {self.shares}")
            elif waiting.gpus and waiting.definition != "licensed" and waiting.queue in ("urgent", "work"):
                more = QUEUES[waiting.queue] > QUEUES[launched.queue]
                if more or (waiting.queue == launched.queue and other < place):
                    raise Violation(f"{job_id} ({launched.definition}) overtook {row.id} ({waiting.definition})")

    def _active_tasks(self) -> set[str]:
        return {row.task_id for row in self.rows.values() if row.state in ACTIVE}

    # Ends

    def _check_end(self, row: JobRow) -> None:
        if row.state == "FAILED" and not row.status_reason:
            raise Violation(f"{row.id} failed without a reason")
        parent = self.world.submitted.get(row.id.partition(":")[0].partition("#")[0])
        if row.kind == "node" or parent is None:
            return
        if row.kind == "array":
            states = {self.state_of(f"{row.id}:{index}") for index in range(parent.size)}
            if (row.state == "FAILED") != ("FAILED" in states):
                raise Violation(f"{row.id} is {row.state}, and its children are {states}")
            return
        attempts, launches = json.loads(row.attempts or "[]"), self.launches.get(row.id, [])
        if [attempt[0] for attempt in attempts] != launches:
            raise Violation(f"{row.id} has {len(attempts)} attempts, and {len(launches)} launches")
        excused = row.id in self.excused or parent.id in self.excused
        if not launches:
            needs = [*self._needed(parent, row.id)]
            if row.state == "SUCCEEDED" or not (
                excused or (row.status_reason == DEPENDENCY_FAILED and any(self.state_of(each) == "FAILED" for each in needs))
            ):
                raise Violation(f"{row.id} is {row.state} without an attempt: {row.status_reason}")
            return
        told = self.world.ended.get(launches[-1])
        if row.state == "SUCCEEDED" and (told is None or told.code != 0):
            raise Violation(f"{row.id} has succeeded, and its last attempt has not: {told}")
        if row.state == "FAILED" and not excused:
            if told is not None and told.code == 0 and not told.was_stopped:
                raise Violation(f"{row.id} has failed, and its last attempt has succeeded")
            if len(attempts) < parent.attempts and self._retries(parent, attempts[-1]):
                raise Violation(f"{row.id} was not retried: {attempts[-1]}")

    # When nothing is due

    def when_quiet(self) -> None:
        """Nothing is due now: each job has ended, or waits for something that will come."""
        self.stopped |= {job_id for job_id in self.excused if ":" not in job_id and self.rows[job_id].stops}
        now_s, why = self.world.clock.now_s(), list[str]()
        for row in self.rows.values():
            if row.state in ENDED or row.kind == "node":
                continue
            parent = self.world.submitted[row.id.partition(":")[0]]
            if row.kind == "array" and row.expanded >= 0:
                continue  # its children wait
            if row.state in ("SUBMITTED", "PENDING"):
                states = {self.state_of(each) for each in self._needed(parent, row.id)}
                if "FAILED" in states or states <= {"SUCCEEDED"}:
                    raise Violation(f"{row.id} is {row.state}, and the jobs that it needs are {states}")
                if row.kind == "child" and self.rows[parent.id].stops:
                    raise Violation(f"{row.id} is {row.state}, and its array was stopped")
            elif row.state == "RUNNABLE":
                why.append(row.id)
            else:
                self._check_running(parent, row, now_s)
        self._check_waiting(why)

    def _check_running(self, parent: Submitted, row: JobRow, now_s: float) -> None:
        task = self.world.store.tasks.get(row.task_id)
        if task is None or (self.tasks[row.task_id] == "STOPPED" and not parent.nodes):
            raise Violation(f"{row.id} is {row.state}, and its task has ended")
        late = parent.timeout_s is not None and task.started_at_s is not None and task.started_at_s + parent.timeout_s < now_s - 0.1
        if (late or row.id in self.stopped) and task.state == "RUNNING" and task.desired != "STOPPED":
            raise Violation(f"{row.id} runs, and it was terminated or its time limit has passed")

    def _check_waiting(self, job_ids: list[str]) -> None:
        """No claim could be served now. Each waiting job has a reason."""
        lines = [line for name in self.world.store.job_lines.queues() for line in self.world.store.job_lines.lines_of(*name)]
        for pool in sorted({pool for line in lines for pool, _ in line.pools}):
            found = self.world.run(lambda tx, pool=pool: _served(tx, pool))
            if found is not None:
                raise Violation(f"{found[0].name} waits, and there is room for it: {found[1]}")
        for line in lines:
            if line.queue != "grow" and not line.pools and not line.key.resources:
                raise Violation(f"{line.head} waits, and has no claim")
        for job_id in job_ids[:1]:
            if not self.world.run(lambda tx, job_id=job_id: waiting_reasons.reason(tx, tx.store.jobs.get(job_id))):
                raise Violation(f"{job_id} waits without a reason")

    # Now and then, and at the end

    def _check_derived(self) -> None:
        """What is in memory is what the rows say."""
        store = self.world.store
        lines = JobLines(store, Fleet(UndoLog()))
        lines.rebuild()
        if store.job_lines.snapshot() != lines.snapshot():
            raise Violation("the lines in memory are not those of the rows")
        if store.job_holdings.snapshot() != JobHoldings(store).snapshot():
            raise Violation("the sums in memory are not those of the rows")
        if store.fleet.snapshot() != derived_fleet(store).snapshot():
            raise Violation("the free capacity in memory is not that of the rows")
        fresh = Jobs(store)
        for job_id, row in self.rows.items():
            if row.state not in ENDED and store.jobs.get(job_id) != fresh.get(job_id):
                raise Violation(f"{job_id} in memory is not that of the rows")

    def at_the_end(self) -> None:
        self._check_derived()
        for job_id in self.world.submitted:
            if self.rows[job_id].state not in ENDED:
                raise Violation(f"{job_id} never ends: {self.rows[job_id]}")
        for table in ("job_notice", "job_dependency", "waiting_job", "job_line", "job_holding"):
            if self.world.store.execute(f"SELECT count(*) FROM {table}").fetchone() != (0,):
                raise Violation(f"rows stay in {table}")
        free = self.world.store.fleet.pool(host_pool("default")).free_gpus
        if free != GPUS:
            raise Violation(f"{free} of {GPUS} GPUs are free at the end")
        if any(self.tasks[task_id] != "STOPPED" for task_id in self.tasks):
            raise Violation("tasks run after the end of all jobs")

    def happened(self) -> Counter[str]:
        """Count what happened in this seed."""
        found = Counter({"launch": len(self.launches), "restart": self.world.restarts, "stop": len(self.stopped)})
        found["retry"] = sum(len(tasks) > 1 for tasks in self.launches.values())
        found["nodes"] = sum(bool(self.world.submitted[job_id].nodes) for job_id in self.launches if ":" not in job_id)
        for row in self.rows.values():
            found[row.state] += 1
            found["dependency failed"] += row.status_reason == DEPENDENCY_FAILED
            found["time limit"] += TIMED_OUT in row.attempts
            found["lost instance"] += "Host EC2" in row.attempts
        found.update(type_ for each in self.world.submitted.values() for _, type_ in each.needs)
        return found


def _served(tx: Any, pool: str) -> tuple[Claim, Placement] | None:
    """Return a claim that the scheduler would serve now. It ranks the claims first, as the scheduler does."""
    line_claims.rank_claims(tx, pool)
    return next(serve(tx.store.fleet.pool(pool), tx.now_s), None)
