"""Checkers: one small class for each thing that must never happen. They receive every change; the system does not check itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from corral.core.core import Outcome
from corral.core.transactions import Tx
from corral.decide.placement.backfill import longest_time_s
from corral.decide.placement.place import serve
from corral.model.instance import host_pool, is_host_pool
from corral.model.placement import INSTANCE, TASK
from corral.model.run import attempt_id, run_of_attempt
from corral.model.task import ALL_GPUS, MOVES, Demand, PlacementRules, TaskState
from corral.services.ecs.tasks import WAIT_MAX_S
from simulation.clients import CALLER, CLUSTERS, NEEDS, NEVER, Request
from simulation.host import Host, Process
from store.rows import FromRows, fleet_of_rows

if TYPE_CHECKING:
    from simulation.world import World

INDEX_EVERY = 5  # transactions
WAIT_SLACK_S = 5.0


HOST_LOST = "the host was lost"


class Violation(AssertionError):
    """A checker found something that must never happen."""


@cache
def placement_of(rules: str) -> PlacementRules:
    scope, member_of, distinct, strategy, group, *others = orjson.loads(rules)
    return PlacementRules(scope, tuple(member_of), distinct, tuple(map(tuple, strategy)), group, *others)


class TaskRow(NamedTuple):
    id: str
    state: str
    desired: str
    instance_id: str | None
    created_at: float
    gpus: int
    cpu_units: int
    memory_mib: int
    started_by: str | None
    definition_arn: str
    stopped_reason: str | None
    rules: str | None
    group: str
    cluster: str
    pool: str
    placed_at: float | None
    started_at: float | None
    time_limit: float | None
    longest: float | None  # of a waiting task: the longest time from its placement to its end; None: it has no time limit

    @property
    def age(self) -> tuple[float, str, str]:
        return self.created_at, TASK, self.id

    @property
    def limit_at(self) -> float:
        """When the time limit of a placed task ends."""
        since = self.started_at if self.started_at is not None else self.placed_at
        return inf if since is None or self.time_limit is None else since + self.time_limit

    @property
    def demand(self) -> Demand:
        return Demand(self.gpus, self.cpu_units, self.memory_mib, self.placement)

    @property
    def placement(self) -> PlacementRules | None:
        return None if self.rules is None else placement_of(self.rules)

    def is_kept_apart_from(self, instance_id: str, others: Iterable[TaskRow]) -> bool:
        """Whether distinctInstance forbids the instance: another task of the group should run there."""
        placement = self.placement
        if placement is None or not placement.distinct:
            return False
        there = [other for other in others if other.instance_id == instance_id and other.id != self.id]
        return any(other.group == self.group and other.state != "STOPPED" and other.desired == "RUNNING" for other in there)


class RunRow(NamedTuple):
    id: str
    task_id: str
    state: str
    exit_code: int | None
    reason: str | None
    gpus: int
    waits: int
    restarts: int
    gpu_ids: str

    @property
    def attempt_id(self) -> str:
        return attempt_id(self.id, self.restarts)


class InstanceRow(NamedTuple):
    id: str
    region: str
    cluster: str
    state: str
    gpus: int
    host_id: str | None
    created_at: float
    group_name: str
    pool: str | None  # of its claim

    @property
    def slot_pool(self) -> str:
        """The pool that its slot belongs to."""
        return f"{self.region}/{self.cluster}" if self.region else host_pool(self.cluster)

    # As a claim, which takes from the hosts' own slots

    longest = None

    @property
    def age(self) -> tuple[float, str, str]:
        return self.created_at, INSTANCE, self.id

    @property
    def demand(self) -> Demand:
        return Demand(self.gpus)

    def is_kept_apart_from(self, instance_id: str, others: Iterable[TaskRow]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Rows:
    """What the database says after a transaction."""

    tasks: dict[str, TaskRow]
    runs: dict[str, RunRow]
    instances: dict[str, InstanceRow]
    owners: dict[str, str]  # GPU → instance
    leases: dict[str, str]  # GPU → run
    sizes: dict[str, Demand]  # running instances of connected hosts, with the GPUs that may be given out
    lent: dict[str, int]  # own instance of a host → how many GPUs of the host belong to other instances
    withheld: set[str]  # GPUs that are not offered
    attributes: dict[str, dict[str, str]]  # that callers gave to instances
    draining: set[str]
    given_up: set[str]  # runs of lost hosts, which may still be alive

    def waiting(self) -> list[TaskRow]:
        return sorted((task for task in self.tasks.values() if task.state == "PROVISIONING"), key=lambda task: task.age)

    def claims(self) -> list[TaskRow | InstanceRow]:
        """Tasks and instances that wait, oldest first."""
        pending = [instance for instance in self.instances.values() if instance.state == "pending"]
        return sorted([*self.waiting(), *pending], key=lambda claim: claim.age)

    def still_waits(self, claim: TaskRow | InstanceRow) -> bool:
        if isinstance(claim, InstanceRow):
            return self.instances[claim.id].state == "pending"
        return self.tasks[claim.id].state == "PROVISIONING"

    def waits_in(self, claim: TaskRow | InstanceRow) -> str | None:
        return (self.instances if isinstance(claim, InstanceRow) else self.tasks)[claim.id].pool


def read_rows(execute: Callable[..., Any]) -> Rows:
    tasks = execute(
        "SELECT task.id, state, desired, instance_id, created_at, gpus, cpu_units, memory_mib, started_by, definition_arn, "
        "stopped_reason, rules, task_group, cluster, task.pool, placed_at, started_at, time_limit, longest "
        "FROM task LEFT JOIN claim ON kind = 'task' AND claim.id = task.id"
    )
    held = "SELECT 1 FROM instance_attribute AS held WHERE held.instance_id = gpu.instance_id AND name = 'corral.hold.' || gpu.id"
    is_held = f"EXISTS ({held})"
    sizes = execute(
        "SELECT instance.id, (SELECT count(*) FROM gpu WHERE instance_id = instance.id AND present = 1 AND excluded = 0 "
        f"AND NOT {is_held} AND (foreign_use = '' OR EXISTS (SELECT 1 FROM lease WHERE gpu_id = gpu.id))), cpu_units, memory_mib "
        "FROM instance JOIN host ON host.id = instance.host_id WHERE connected = 1 "
        "AND NOT EXISTS (SELECT 1 FROM old_run WHERE old_run.host_id = host.id) "
        "AND state IN ('running', 'stopping', 'shutting-down')"
    )
    lent = execute(
        "SELECT instance.id, count(*) FROM instance JOIN gpu ON gpu.host_id = instance.host_id "
        "WHERE region = '' AND gpu.instance_id != instance.id AND present = 1 AND excluded = 0 GROUP BY instance.id"
    )
    withheld = execute(f"SELECT id FROM gpu WHERE excluded OR foreign_use != '' OR {is_held}")
    attributes: dict[str, dict[str, str]] = {}
    for instance_id, name, value in execute("SELECT instance_id, name, value FROM instance_attribute"):
        attributes.setdefault(instance_id, {})[name] = value
    instances = execute(
        f"SELECT {', '.join(InstanceRow._fields[:-1])}, "
        "(SELECT pool FROM claim WHERE kind = 'instance' AND claim.id = instance.id) FROM instance"
    )
    return Rows(
        tasks={row[0]: TaskRow._make(row) for row in tasks},
        runs={row[0]: RunRow._make(row) for row in execute(f"SELECT {', '.join(RunRow._fields)} FROM run")},
        instances={row[0]: InstanceRow._make(row) for row in instances},
        owners=dict(execute("SELECT id, instance_id FROM gpu").fetchall()),
        leases=dict(execute("SELECT gpu_id, run_id FROM lease").fetchall()),
        sizes={row[0]: Demand(*row[1:]) for row in sizes},
        lent=dict(lent.fetchall()),
        withheld={gpu_id for (gpu_id,) in withheld},
        attributes=attributes,
        given_up={run_id for (run_id,) in execute("SELECT run_id FROM old_run")},
        draining={
            row[0] for row in execute("SELECT id FROM instance WHERE status != 'ACTIVE' OR state IN ('stopping', 'shutting-down')")
        }
        | {row[0] for row in execute("SELECT id FROM instance WHERE region = '' AND cluster != joins")},
    )


class Checker:
    """The base class: it receives every change and never raises."""

    world: World

    def run_started(self, host: Host, process: Process) -> None: ...
    def run_ended(self, host: Host, process: Process) -> None: ...
    def run_told_to_stop(self, host: Host, process: Process) -> None: ...
    def run_judged(self, host: Host, process: Process, verdict: str) -> None: ...
    def end_acknowledged(self, host: Host, run_ids: list[str]) -> None: ...
    def rebooted(self, host: Host) -> None: ...
    def plane_started(self) -> None: ...
    def answered(self, request: Request, answer: Any) -> None: ...
    def transaction_done(self, outcome: Outcome) -> None: ...
    def telemetry_done(self, outcome: Outcome) -> None: ...
    def rows_seen(self, rows: Rows) -> None: ...
    def services_settled(self) -> None: ...
    def finished(self) -> None: ...


def listeners(checkers: Sequence[Checker], what: str) -> list[Callable[..., None]]:
    """The methods of this name, of the checkers that have one of their own."""
    return [getattr(checker, what) for checker in checkers if getattr(type(checker), what) is not getattr(Checker, what)]


class RowReader(Checker):
    """Read the rows once for all checkers, after each transaction and after each start."""

    def __init__(self, others: list[Checker]) -> None:
        self._listeners = listeners(others, "rows_seen")
        self._rows = FromRows(lambda store: read_rows(store.execute))

    def plane_started(self) -> None:
        self._look()

    def transaction_done(self, outcome: Outcome) -> None:
        self._look()

    def finished(self) -> None:
        self._look()

    def _look(self) -> None:
        rows = self._rows.value(self.world.plane.store)
        for listener in self._listeners:
            listener(rows)


class OneRunPerGpu(Checker):
    """In truth, on the hosts themselves, a GPU is held by at most one live process."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def run_started(self, host: Host, process: Process) -> None:
        for gpu_id in process.spec.gpu_ids:
            if gpu_id in self._held:
                raise Violation(f"{gpu_id} is given to {process.spec.run_id} while {self._held[gpu_id]} is alive on it")
            self._held[gpu_id] = process.spec.run_id

    def run_ended(self, host: Host, process: Process) -> None:
        for gpu_id in process.spec.gpu_ids:
            if self._held.get(gpu_id) == process.spec.run_id:
                del self._held[gpu_id]


class StartedOnce(Checker):
    """No run is ever started a second time, whatever crashed in between."""

    def __init__(self) -> None:
        self._started: set[str] = set()

    def run_started(self, host: Host, process: Process) -> None:
        if process.spec.run_id in self._started:
            raise Violation(f"run {process.spec.run_id} was started twice")
        self._started.add(process.spec.run_id)


class LeaseWhileAlive(Checker):
    """A process that lives holds its GPUs in the database too: a lease ends only when its run has ended."""

    def __init__(self) -> None:
        self._alive: dict[str, list[str]] = {}
        self._fenced: set[str] = set()  # runs that end before their host is lost

    def run_started(self, host: Host, process: Process) -> None:
        self._alive[process.spec.run_id] = process.spec.gpu_ids
        if process.spec.fence_s is not None:
            self._fenced.add(process.spec.run_id)

    def run_ended(self, host: Host, process: Process) -> None:
        self._alive.pop(process.spec.run_id, None)

    def rows_seen(self, rows: Rows) -> None:
        for run_id, gpu_ids in self._alive.items():
            if run_id in rows.given_up and run_id not in self._fenced:
                continue
            for gpu_id in gpu_ids:
                if rows.leases.get(gpu_id) != run_of_attempt(run_id):
                    raise Violation(f"{run_id} is alive on {gpu_id}, which is leased to {rows.leases.get(gpu_id)}")


class KnownWhileAlive(Checker):
    """A process that lives belongs to a task that has not stopped."""

    def __init__(self) -> None:
        self._alive: dict[str, str] = {}
        self._fenced: set[str] = set()  # runs that end before their host is lost

    def run_started(self, host: Host, process: Process) -> None:
        self._alive[process.spec.run_id] = process.spec.task_id
        if process.spec.fence_s is not None:
            self._fenced.add(process.spec.run_id)

    def run_ended(self, host: Host, process: Process) -> None:
        self._alive.pop(process.spec.run_id, None)

    def rows_seen(self, rows: Rows) -> None:
        for run_id, task_id in self._alive.items():
            if run_id in rows.given_up and run_id not in self._fenced:
                continue
            task, run = rows.tasks.get(task_id), rows.runs.get(run_of_attempt(run_id))
            if task is None or run is None or task.state == "STOPPED" or run.state == "STOPPED" or run.attempt_id != run_id:
                raise Violation(f"{run_id} of {task_id} is alive; the database says {run} of {task}")


class TasksStayInTheirCluster(Checker):
    """A task starts only on an instance of its cluster, and a host with tasks does not move to another one."""

    def rows_seen(self, rows: Rows) -> None:
        for task in rows.tasks.values():
            if (
                task.instance_id is not None
                and task.state != "STOPPED"
                and rows.instances[task.instance_id].cluster != task.cluster
            ):
                raise Violation(f"{task} is on {rows.instances[task.instance_id]}")


class HoldsWhatItWasGiven(Checker):
    """A container of a placed task has its GPUs until it has stopped: also while it waits for others, or starts again."""

    def rows_seen(self, rows: Rows) -> None:
        held: dict[str, int] = {}
        for run_id in rows.leases.values():
            held[run_id] = held.get(run_id, 0) + 1
        for run in rows.runs.values():
            lives = rows.tasks[run.task_id].instance_id is not None and run.state != "STOPPED"
            given = len(orjson.loads(run.gpu_ids)) if lives else 0
            if held.get(run.id, 0) != given or (lives and run.gpus > 0 and given != run.gpus):
                raise Violation(f"{run} holds {held.get(run.id, 0)} GPUs and should hold {given}")


class InTheirOrder(Checker):
    """No container starts before what it depends on is as it must be, and none is stopped before its dependents."""

    def __init__(self) -> None:
        self._started: set[tuple[str, str]] = set()
        self._codes: dict[tuple[str, str], set[int | None]] = {}
        self._healthy: set[tuple[str, str]] = set()
        self._alive: dict[str, Process] = {}

    def run_started(self, host: Host, process: Process) -> None:
        for needed, condition in _needs(process):
            key = (process.spec.task_id, needed)
            met = {
                "START": key in self._started,
                "COMPLETE": key in self._codes,
                "SUCCESS": 0 in self._codes.get(key, set()),
                "HEALTHY": key in self._healthy,
            }
            if not met[condition]:
                raise Violation(f"{process.spec.container} of {process.spec.task_id} started before {needed} was {condition}")
        self._started.add((process.spec.task_id, process.spec.container))
        self._alive[process.spec.run_id] = process

    def run_ended(self, host: Host, process: Process) -> None:
        self._codes.setdefault((process.spec.task_id, process.spec.container), set()).add(process.exit_code)
        self._alive.pop(process.spec.run_id, None)

    def run_judged(self, host: Host, process: Process, verdict: str) -> None:
        if verdict == "HEALTHY":
            self._healthy.add((process.spec.task_id, process.spec.container))

    def run_told_to_stop(self, host: Host, process: Process) -> None:
        for other in self._alive.values():
            if other.spec.task_id == process.spec.task_id and process.spec.container in dict(_needs(other)):
                raise Violation(f"{process.spec.container} is to stop before {other.spec.container}, which depends on it")


class OneAttemptAtATime(Checker):
    """A container starts again only when it has ended, and the next attempt follows the one before."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bool]] = {}  # run → (restarts, lives)

    def run_started(self, host: Host, process: Process) -> None:
        run_id, _, restarts = process.spec.run_id.partition(".")
        before, lives = self._last.get(run_id, (-1, False))
        if lives or int(restarts or 0) != before + 1:
            raise Violation(
                f"{process.spec.run_id} started; the last attempt was {before}, and {'lives' if lives else 'has ended'}"
            )
        self._last[run_id] = before + 1, True

    def run_ended(self, host: Host, process: Process) -> None:
        run_id = run_of_attempt(process.spec.run_id)
        if process.pid is not None:
            self._last[run_id] = self._last[run_id][0], False


class LimitsAreKept(Checker):
    """After a transaction no task runs on whose time was over before it."""

    def transaction_done(self, outcome: Outcome) -> None:
        late = self.world.plane.store.execute(
            "SELECT id FROM task WHERE desired = 'RUNNING' AND started_at + time_limit < ?",
            (self.world.clock.now_s() - WAIT_SLACK_S,),
        ).fetchone()
        if late is not None and not outcome.faults:
            raise Violation(f"the time limit of {late[0]} is over, and it runs on")


class OnlyForward(Checker):
    """A stopped task stays stopped, a stopping one stays that, and every move is in the table; over crashes too."""

    def __init__(self) -> None:
        self._before: dict[str, TaskRow] = {}

    def rows_seen(self, rows: Rows) -> None:
        for task_id, before in self._before.items():
            after = rows.tasks.get(task_id)
            if after is None:
                raise Violation(f"task {task_id} is gone")
            if after.state != before.state and after.desired == before.desired == "RUNNING":
                self._check_move(task_id, before.state, after.state)
            if (before.state, after.state) != ("STOPPED", "STOPPED") and before.state == "STOPPED":
                raise Violation(f"task {task_id} was stopped and is {after.state}")
            if before.desired == "STOPPED" and after.desired != "STOPPED":
                raise Violation(f"task {task_id} should have stopped and should now run")
        self._before = rows.tasks

    def _check_move(self, task_id: str, before: str, after: str) -> None:
        """A transaction may do several moves."""
        reachable, found = {TaskState(before)}, set()
        while reachable:
            found |= reachable
            reachable = {state for start in reachable for state in MOVES[start]} - found
        if TaskState(after) not in found:
            raise Violation(f"task {task_id}: {before} → {after}")


class AcknowledgedStays(Checker):
    """An acknowledged change survives any crash, and a request that failed changed nothing."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._stopping: dict[str, int] = {}
        self._ended: list[str] = []

    def answered(self, request: Request, answer: Any) -> None:
        if not isinstance(answer, dict):
            return
        if request.operation == "RunTask":
            self._tasks.update({_id(task): request.number for task in answer["tasks"]})
        elif request.operation == "StopTask":
            self._stopping[_id(answer["task"])] = request.number

    def end_acknowledged(self, host: Host, run_ids: list[str]) -> None:
        self._ended += run_ids

    def rows_seen(self, rows: Rows) -> None:
        for task_id, number in self._tasks.items():
            if task_id not in rows.tasks:
                raise Violation(f"task {task_id} of request {number} was acknowledged and is not there")
        for task_id, number in self._stopping.items():
            if rows.tasks[task_id].desired != "STOPPED":
                raise Violation(f"request {number} stopped {task_id}, which should still run")
        for attempt in self._ended:
            run = rows.runs.get(run_of_attempt(attempt))
            if run is not None and run.attempt_id == attempt and run.state != "STOPPED":
                raise Violation(f"the end of {attempt} was acknowledged, and it is {run.state}")


class TokensOnce(Checker):
    """A request sent again with its token makes no further task, and is answered with those it made."""

    def __init__(self) -> None:
        self._answers: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def answered(self, request: Request, answer: Any) -> None:
        if request.operation == "RunTask" and isinstance(answer, dict) and "startedBy" in request.params:
            self._answers[request.params["startedBy"]] = sorted(_id(task) for task in answer["tasks"])
            self._counts[request.params["startedBy"]] = request.params["count"]
            if len(answer["tasks"]) + len(answer["failures"]) != request.params["count"]:
                raise Violation(f"request {request.number} asked for {request.params['count']} tasks: {answer}")

    def finished(self) -> None:
        rows = read_rows(self.world.plane.store.execute)
        made: dict[str, list[str]] = {}
        for task in rows.tasks.values():
            made.setdefault(task.started_by or "", []).append(task.id)
        for started_by, told in self._answers.items():
            if sorted(made.get(started_by, [])) != told:
                raise Violation(f"{started_by} was told of {told}; there are {made.get(started_by)}")


class RefusedLeavesNothing(Checker):
    """A command that failed half-way has left no row."""

    def rows_seen(self, rows: Rows) -> None:
        for task in rows.tasks.values():
            if task.started_by == NEVER or task.stopped_reason == NEVER:
                raise Violation(f"a command that failed left {task}")


class ExitCodes(Checker):
    """The exit code that is shown is the one that the engine saw."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[int | None, str | None]] = {}
        self._told: set[str] = set()

    def run_ended(self, host: Host, process: Process) -> None:
        self._ended[process.spec.run_id] = process.exit_code, process.reason

    def end_acknowledged(self, host: Host, run_ids: list[str]) -> None:
        self._told.update(run_ids)

    def finished(self) -> None:
        tx = self.world.reading()
        rows = read_rows(tx.store.execute)
        for task in rows.tasks.values():
            shown = self.world.parts.handlers["DescribeTasks"](tx, {"cluster": task.cluster, "tasks": [task.id]}, CALLER)["tasks"][
                0
            ]
            for container in shown["containers"]:
                self._check(rows.runs[container["containerArn"].rpartition("/")[2]].attempt_id, container)

    def _check(self, run_id: str, container: dict[str, Any]) -> None:
        truth = self._ended.get(run_id, (None, None))
        code = container.get("exitCode")
        if code is not None and code != truth[0]:
            raise Violation(f"{run_id} ended with {truth[0]}; shown is {code}")
        if str(container.get("reason")).startswith(HOST_LOST):
            return  # its end was reported too late
        if run_id in self._told and run_id in self._ended and (code, container.get("reason")) != truth:
            raise Violation(f"the end of {run_id} was acknowledged as {truth}; shown is {code}, {container.get('reason')}")


class IndexIsDerived(Checker):
    """The index in memory is what the rows say."""

    def __init__(self) -> None:
        self._transactions = 0
        self._fleet_of_rows = fleet_of_rows()

    def transaction_done(self, outcome: Outcome) -> None:
        self._transactions += 1
        if self._transactions % INDEX_EVERY == 0 or outcome.faults:
            self._compare()

    def finished(self) -> None:
        self._compare()

    def _compare(self) -> None:
        store = self.world.plane.store
        kept, derived = store.fleet.snapshot(), self._fleet_of_rows.value(store)
        if kept != derived:
            raise Violation(f"the index is\n  {kept}\nand the rows say\n  {derived}")
        uses = store.owner_uses.snapshot()
        store.owner_uses.rebuild(store.instances.slices())
        if uses != store.owner_uses.snapshot():
            raise Violation(f"the use of owners is\n  {uses}\nand the rows say\n  {store.owner_uses.snapshot()}")


class CountersEqualRows(Checker):
    """What DescribeClusters and DescribeContainerInstances count is what is there."""

    def finished(self) -> None:
        tx = self.world.reading()
        rows = read_rows(tx.store.execute)
        for cluster in self.world.parts.handlers["DescribeClusters"](tx, {"clusters": list(CLUSTERS)}, CALLER)["clusters"]:
            states = [task.state for task in rows.tasks.values() if task.cluster == cluster["clusterName"]]
            counted = cluster["runningTasksCount"], cluster["pendingTasksCount"]
            there = states.count("RUNNING"), states.count("PENDING") + states.count("PROVISIONING")
            if counted != there:
                raise Violation(f"running and pending tasks: shown {counted}, there are {there}")
        for instance_id, size in rows.sizes.items():
            if rows.instances[instance_id].cluster:
                self._check_instance(tx, rows, rows.instances[instance_id], size)

    def _check_instance(self, tx: Tx[Any], rows: Rows, instance: InstanceRow, size: Demand) -> None:
        params = {"cluster": instance.cluster, "containerInstances": [instance.id]}
        asked = self.world.parts.handlers["DescribeContainerInstances"](tx, params, CALLER)
        left = {item["name"]: item for item in asked["containerInstances"][0]["remainingResources"]}
        there = [task for task in rows.tasks.values() if task.instance_id == instance.id and task.state != "STOPPED"]
        held = {
            gpu_id for gpu_id, run_id in rows.leases.items() if rows.tasks[rows.runs[run_id].task_id].instance_id == instance.id
        }
        shown = {gpu.gpu_id for gpu in tx.store.instances.gpus(instance.id)} - rows.withheld
        expected = (
            size.cpu_units - sum(task.demand.cpu_units for task in there),
            size.memory_mib - sum(task.demand.memory_mib for task in there),
            sorted(shown - held),
        )
        found = left["CPU"]["integerValue"], left["MEMORY"]["integerValue"], sorted(left["GPU"]["stringSetValue"])
        if found != expected:
            raise Violation(f"left on {instance}: shown {found}, there is {expected}")


class NoLostWakeUp(Checker):
    """After a transaction no claim is left that could be served: a wake-up was lost if one is."""

    def transaction_done(self, outcome: Outcome) -> None:
        store = self.world.plane.store
        for name in store.fleet.pools_with_claims() if not outcome.faults else ():
            due = store.execute("SELECT 1 FROM due WHERE key = ? AND at <= ?", (f"pool:{name}", self.world.clock.now_s()))
            could = next(serve(store.fleet.pool(name), self.world.clock.now_s()), None)
            if could is not None and due.fetchone() is None:
                raise Violation(f"{could[0]} waits and would fit: {could[1]}")


class OldestFirst(Checker):
    """Of claims with equal demands, the oldest is served first, unless the younger one has a shorter time limit."""

    def __init__(self) -> None:
        self._waiting: list[TaskRow | InstanceRow] = []

    def rows_seen(self, rows: Rows) -> None:
        still = [claim for claim in self._waiting if rows.still_waits(claim)]
        for claim in self._waiting:
            if _is_granted(rows, claim):
                equal = [other for other in still if (other.pool, other.demand) == (claim.pool, claim.demand)]
                older = next((other for other in equal if other.age < claim.age and not _is_shorter(claim.longest, other)), None)
                if older is not None:
                    raise Violation(f"{claim} was served before {older}")
        self._waiting = rows.claims()


def _is_shorter(longest: float | None, than: TaskRow | InstanceRow) -> bool:
    """Whether a claim that needs its resources for this time may be served before an older claim: it may fit before a third one."""
    return longest is not None and (than.longest is None or longest < than.longest)


def _is_granted(rows: Rows, claim: TaskRow | InstanceRow) -> bool:
    if isinstance(claim, InstanceRow):
        return rows.instances[claim.id].host_id is not None
    return rows.tasks[claim.id].instance_id is not None


class NoOvertaking(Checker):
    """A new task is not placed while a claim with the same demand waits that has the same time limit or a shorter one."""

    def __init__(self) -> None:
        self._before: Rows | None = None

    def rows_seen(self, rows: Rows) -> None:
        if self._before is not None:
            waited = [claim for claim in self._before.claims() if rows.still_waits(claim)]
            for task in rows.tasks.values():
                if task.id not in self._before.tasks and task.instance_id is not None:
                    equal = [other for other in waited if (other.pool, other.demand) == (task.pool, task.demand)]
                    longest = self._longest(task) if equal else None
                    older = next((other for other in equal if not _is_shorter(longest, other)), None)
                    if older is not None:
                        raise Violation(f"the newcomer {task} was placed while {older} waits")
        self._before = rows

    def _longest(self, task: TaskRow) -> float | None:
        family, _, revision = task.definition_arn.rpartition("/")[2].partition(":")
        found = self.world.plane.store.definitions.get(CALLER.region, family, int(revision))
        assert found is not None
        return longest_time_s(task.time_limit, sum(each.get("stopTimeout", 30) for each in found[2]["containerDefinitions"]))


class KeptForTheOldest(Checker):
    """If only one host can hold the oldest claim, no younger task gets a GPU there first, also not by NVIDIA_VISIBLE_DEVICES.

    A younger task may get a GPU there if the time limits of the tasks there say when the oldest claim can start, and the younger
    task does not move this time: neither if the tasks without a time limit never end, nor if they end now.

    A host can hold a claim if it has enough once its tasks have ended and EC2 instances have returned its GPUs. A claim that no
    host can hold reserves nothing, so the next claim counts as the oldest. A claim that several hosts can hold reserves one of
    them, and this checker does not know which: then it checks nothing. Claims after the oldest one reserve nothing, so younger
    claims may overtake them.
    """

    def __init__(self) -> None:
        self._before: Rows | None = None
        self._changes = 0

    def rows_seen(self, rows: Rows) -> None:
        changes = self.world.withheld_changes
        if self._before is not None and changes == self._changes:  # else in between another host may have been the only one
            self._check(self._before, rows)
        self._before, self._changes = rows, changes

    def _check(self, before: Rows, after: Rows) -> None:
        claims = before.claims()
        for pool in {claim.pool for claim in claims} - {None}:
            self._check_pool(before, after, [claim for claim in claims if claim.pool == pool])

    def _check_pool(self, before: Rows, after: Rows, waiting: list[TaskRow | InstanceRow]) -> None:
        for oldest in waiting:
            able = [_able(rows, oldest) for rows in (before, after)]
            if able[0] == able[1] == []:
                continue  # no instance can hold it: the next claim is the oldest
            if able[0] != able[1] or len(able[0]) != 1 or not after.still_waits(oldest):
                return
            if after.waits_in(oldest) != oldest.pool:
                return  # it has moved
            (only,) = able[0]
            holding = {after.runs[run_id].task_id for run_id in after.leases.values()}
            for task in after.tasks.values():
                was = before.tasks.get(task.id)
                has_gpus = task.demand.gpus or task.id in holding
                is_new = task.instance_id == only and (was is None or was.instance_id is None)
                if has_gpus and is_new and task.age > oldest.age and _delays(before, after, oldest, only, task):
                    raise Violation(f"{task} got a GPU before {oldest}, which only that instance can hold")
            for instance in after.instances.values() if is_host_pool(str(oldest.pool)) else ():
                was_there = instance.id in before.instances and before.instances[instance.id].host_id is not None
                cut_from_it = instance.host_id == after.instances[only].host_id and instance.region and instance.gpus
                is_new = cut_from_it and not was_there
                if is_new and instance.age > oldest.age and _delays(before, after, oldest, only, instance):
                    raise Violation(f"{instance} got GPUs before {oldest}, which only that host can hold")
            return


def _delays(before: Rows, after: Rows, oldest: TaskRow | InstanceRow, only: str, younger: TaskRow | InstanceRow) -> bool:
    """Whether a younger claim that got its place in this transaction delays the oldest claim on the only suitable instance.

    Tasks and containers that ended in this transaction may have ended before the younger claim got its place, or after. The GPUs of
    a container that ended before may have gone to other tasks in this transaction, so they must not count twice.
    """
    earlier, leased = (Counter(rows.runs[run_id].task_id for run_id in rows.leases.values()) for rows in (before, after))
    size, needs = after.sizes[only], oldest.demand
    if isinstance(younger, InstanceRow):
        size = Demand(size.gpus + younger.gpus, size.cpu_units, size.memory_mib)
        own = (inf, Demand(younger.gpus))
    else:
        own = (younger.limit_at, Demand(leased[younger.id], younger.cpu_units, younger.memory_mib))
    now = {task.id: task for task in after.tasks.values() if task.state in ("PENDING", "RUNNING")}
    ended = {task.id: task for task in before.tasks.values() if task.state in ("PENDING", "RUNNING")}
    for tasks, gpus in ((now, leased), (now, leased | earlier), (ended | now, leased | earlier)):
        there = [task for task in tasks.values() if task.instance_id == only and task.id != younger.id]
        held = [(task.limit_at, Demand(gpus[task.id], task.cpu_units, task.memory_mib)) for task in there]
        limited = [each for each in held if each[0] < inf]
        known = _room_at(size, needs, held)
        stays = known < inf and _room_at(size, needs, [*held, own]) <= known
        if stays and _room_at(size, needs, [*limited, own]) <= _room_at(size, needs, limited):
            return False
    return True


def _room_at(size: Demand, needs: Demand, held: list[tuple[float, Demand]]) -> float:
    """When an instance of this size has room, if each task gives back what it holds at its time. At once is -inf, never is inf."""
    for at in (-inf, *sorted(ends for ends, _ in held if ends < inf)):
        left = [what for ends, what in held if ends > at]
        gpus = size.gpus - sum(each.gpus for each in left)
        cpu_units = size.cpu_units - sum(each.cpu_units for each in left)
        memory_mib = size.memory_mib - sum(each.memory_mib for each in left)
        needed = size.gpus or 1 if needs.gpus == ALL_GPUS else needs.gpus
        if gpus >= needed and cpu_units >= needs.cpu_units and memory_mib >= needs.memory_mib:
            return at
    return inf


def _able(rows: Rows, claim: TaskRow | InstanceRow) -> list[str]:
    """Instances that could hold a claim if no more than its rules stood in the way, and no GPU of theirs were lent."""
    demand = claim.demand
    return sorted(
        instance_id
        for instance_id, size in rows.sizes.items()
        if instance_id not in rows.draining
        and rows.instances[instance_id].slot_pool == claim.pool
        and (
            size.gpus + rows.lent.get(instance_id, 0) >= demand.least_gpus
            and size.cpu_units >= demand.cpu_units
            and size.memory_mib >= demand.memory_mib
        )
        and (demand.rules is None or matches_all(demand.rules.member_of, rows.attributes.get(instance_id, {})))
        and (demand.rules is None or demand.rules.instance_group in ("", rows.instances[instance_id].group_name))
        and not claim.is_kept_apart_from(instance_id, rows.tasks.values())
    )


def matches_all(expressions: Iterable[str], attributes: dict[str, str]) -> bool:
    """Written again, for the one kind of expression that the clients here use: attribute:NAME in [A, B]."""
    for expression in expressions:
        name, _, values = expression.removeprefix("attribute:").partition(" in ")
        if attributes.get(name) not in values.strip("[]").split(", "):
            return False
    return True


class RulesHold(Checker):
    """A task goes only where its rules allow it, and none goes to a draining host. What is said of hosts may change meanwhile."""

    def __init__(self) -> None:
        self._before: Rows | None = None

    def rows_seen(self, rows: Rows) -> None:
        before = self._before or rows
        for task in rows.tasks.values():
            was = before.tasks.get(task.id)
            if task.instance_id is not None and (was is None or was.instance_id is None):
                self._check_newly_placed(before, rows, task, task.instance_id)
        active = [task for task in rows.tasks.values() if task.state != "STOPPED" and task.desired == "RUNNING"]
        apart = [task for task in active if task.placement is not None and task.placement.distinct]
        places = [(task.group, task.instance_id) for task in apart if task.instance_id is not None]
        if len(places) != len(set(places)):
            raise Violation(f"two tasks of a group that should be apart are on one host: {apart}")
        self._before = rows

    def _check_newly_placed(self, before: Rows, after: Rows, task: TaskRow, instance_id: str) -> None:
        said = self._said(instance_id)
        if instance_id in before.draining & after.draining and not any(params.get("status") == "ACTIVE" for params in said):
            raise Violation(f"{task} was placed on a host that is draining")
        expressions = task.placement.member_of if task.placement is not None else ()
        known = [rows.attributes.get(instance_id, {}) for rows in (before, after)]
        known += [{pair["name"]: pair["value"] for pair in params.get("attributes", ())} for params in said]
        if not any(matches_all(expressions, attributes) for attributes in known):
            raise Violation(f"{task} was placed on a host with {known}")

    def _said(self, instance_id: str) -> list[dict[str, Any]]:
        """Changes of a host that may have been made and reverted within the transaction: requests without a response."""
        open_ones = [request.params for request in self.world.clients.requests if request.answer is None]
        return [
            params
            for params in open_ones
            if instance_id in params.get("containerInstances", ())
            or any(pair["targetId"] == instance_id for pair in params.get("attributes", ()))
        ]


class WithheldIsNotGiven(Checker):
    """A GPU that is withheld, by a hold or by a foreign process, gets no new lease."""

    def __init__(self) -> None:
        self._before: Rows | None = None
        self._changes = 0

    def rows_seen(self, rows: Rows) -> None:
        before, changes = self._before, self.world.withheld_changes
        if before is not None and changes == self._changes:
            for gpu_id in rows.withheld & before.withheld:
                if gpu_id in rows.leases and rows.leases[gpu_id] != before.leases.get(gpu_id):
                    raise Violation(f"{gpu_id} is withheld and was given to {rows.leases[gpu_id]}")
        self._before, self._changes = rows, changes


class AllIsAll(Checker):
    """A task that requires all GPUs of a host has every GPU that is not withheld, and no other task has one of them."""

    def __init__(self) -> None:
        self._placed: set[str] = set()
        self._changes = 0

    def rows_seen(self, rows: Rows) -> None:
        placed = {task.id for task in rows.tasks.values() if task.demand.gpus == ALL_GPUS and task.instance_id is not None}
        if self._changes == self.world.withheld_changes:
            for task_id in placed - self._placed:
                self._check(rows, rows.tasks[task_id])
        self._placed, self._changes = placed, self.world.withheld_changes

    def _check(self, rows: Rows, task: TaskRow) -> None:
        holders = {gpu_id: rows.tasks[rows.runs[run_id].task_id] for gpu_id, run_id in rows.leases.items()}
        others = {gpu_id for gpu_id, holder in holders.items() if holder.instance_id == task.instance_id and holder.id != task.id}
        if task.state != "STOPPED" and others - rows.withheld:
            raise Violation(f"{task} has all GPUs of its host, and {others} are others'")


class RunsWhatWasRegistered(Checker):
    """A task runs the document of its revision, not one that was rolled back."""

    def __init__(self) -> None:
        self._registered: dict[str, str] = {}
        self._ran: dict[str, str] = {}

    def answered(self, request: Request, answer: Any) -> None:
        if request.operation == "RegisterTaskDefinition" and isinstance(answer, dict):
            self._registered[answer["taskDefinition"]["taskDefinitionArn"]] = request.notes["nonce"]

    def run_started(self, host: Host, process: Process) -> None:
        self._ran[process.spec.task_id] = process.spec.environment["NONCE"]

    def rows_seen(self, rows: Rows) -> None:
        for task_id, nonce in self._ran.items():
            task = rows.tasks.get(task_id)
            registered = self._registered.get(task.definition_arn, nonce) if task is not None else nonce
            if registered != nonce:
                raise Violation(f"task {task_id} runs {nonce}; its definition says {registered}")


class WaitsAreAnswered(Checker):
    """A long poll is answered when its time is over, if the core lives."""

    def transaction_done(self, outcome: Outcome) -> None:
        now_s, life = self.world.clock.now_s(), self.world.plane.life
        for request in self.world.clients.requests:
            if request.waits_since is not None and request.life == life:
                late_s = now_s - request.waits_since - min(request.caller.wait_s, WAIT_MAX_S)
                if late_s > WAIT_SLACK_S:
                    raise Violation(f"request {request.number} waits since {request.waits_since}: {late_s} s too long")


class NoFaultsOfOurs(Checker):
    """The only tracebacks are those that the simulation asked for."""

    def telemetry_done(self, outcome: Outcome) -> None:
        self.transaction_done(outcome)

    def transaction_done(self, outcome: Outcome) -> None:
        for fault in outcome.faults:
            if "on purpose" not in fault and "says the simulation" not in fault:
                raise Violation(f"the core has a fault of its own:\n{fault}")


class WaitingHasAReason(Checker):
    """In the end, what has not stopped says why: no living host is large enough, or its host is silent."""

    def finished(self) -> None:
        tx, handlers = self.world.reading(), self.world.parts.handlers
        dead = {host.id for host in self.world.hosts if host.dead}
        rows = read_rows(tx.store.execute)
        for row in rows.tasks.values():
            shown = handlers["DescribeTasks"](tx, {"cluster": row.cluster, "tasks": [row.id]}, CALLER)["tasks"][0]
            if row.state == "PROVISIONING":
                reasons = [container.get("reason", "") for container in shown["containers"]]
                if not all("needs " in reason for reason in reasons):
                    raise Violation(f"{row} waits and does not say why: {reasons}")
            elif row.state != "STOPPED":
                params = {"cluster": row.cluster, "containerInstances": [row.instance_id]}
                asked = handlers["DescribeContainerInstances"](tx, params, CALLER)
                if rows.instances[str(row.instance_id)].host_id not in dead or asked["containerInstances"][0]["agentConnected"]:
                    raise Violation(f"{row} has not stopped, and its host is not shown as silent")
            elif not shown.get("stoppedReason"):
                raise Violation(f"{row} has stopped and does not say why")


class OwnersHold(Checker):
    """A run holds GPUs of its task's instance only, an instance owns as many as its type says, and one that has ended none."""

    def rows_seen(self, rows: Rows) -> None:
        for gpu_id, run_id in rows.leases.items():
            task = rows.tasks[rows.runs[run_id].task_id]
            if rows.owners[gpu_id] != task.instance_id:
                raise Violation(f"{gpu_id} belongs to {rows.owners[gpu_id]} and is leased to {task}")
        owned: dict[str, int] = {}
        for instance_id in rows.owners.values():
            owned[instance_id] = owned.get(instance_id, 0) + 1
        for instance in rows.instances.values():
            expected = instance.gpus if instance.state in ("running", "stopping", "shutting-down") else 0
            if instance.region and owned.get(instance.id, 0) != expected:
                raise Violation(f"{instance} owns {owned.get(instance.id, 0)} GPUs")
        for task in rows.tasks.values():
            if task.state != "STOPPED" and task.instance_id and rows.instances[task.instance_id].state == "terminated":
                raise Violation(f"{task} is on an instance that was terminated")


class InstancesOnlyForward(Checker):
    """An instance that ended stays so, over crashes too; and in the end none shuts down for ever on a living host."""

    ORDER = ("pending", "running", "stopping", "stopped", "shutting-down", "terminated")  # no client starts a stopped one again

    def __init__(self) -> None:
        self._before: dict[str, InstanceRow] = {}

    def rows_seen(self, rows: Rows) -> None:
        for instance_id, before in self._before.items():
            after = rows.instances.get(instance_id)
            if after is None or self.ORDER.index(after.state) < self.ORDER.index(before.state):
                raise Violation(f"{before} has become {after}")
        self._before = rows.instances

    def finished(self) -> None:
        dead = {host.id for host in self.world.hosts if host.dead}
        for instance in self._before.values():
            if instance.state in ("stopping", "shutting-down") and instance.host_id not in dead:
                raise Violation(f"{instance} never ends")


def _needs(process: Process) -> list[tuple[str, str]]:
    named = process.spec.environment.get(NEEDS, "")
    return [(name, condition) for name, _, condition in (need.partition(":") for need in named.split())]


def _id(task: dict[str, Any]) -> str:
    return str(task["taskArn"].rpartition("/")[2])


def everything() -> list[Checker]:
    """A fresh one of each."""
    from simulation.group_checkers import group_checkers
    from simulation.handover_checkers import CountedOnce, NothingIsLeft, PoliciesAreAsked, StreamsAreOpen  # they are checkers too
    from simulation.history_checkers import RecordedOnce
    from simulation.joined_hosts import RevokedGetNothing
    from simulation.service_checkers import service_checkers

    others: list[Checker] = [
        OneRunPerGpu(), StartedOnce(), LeaseWhileAlive(), KnownWhileAlive(), HoldsWhatItWasGiven(), TasksStayInTheirCluster(),
        InTheirOrder(),
        OneAttemptAtATime(), LimitsAreKept(), OnlyForward(), AcknowledgedStays(), TokensOnce(),
        RefusedLeavesNothing(), ExitCodes(), IndexIsDerived(), CountersEqualRows(), NoLostWakeUp(),
        OldestFirst(), NoOvertaking(), KeptForTheOldest(), RulesHold(), WithheldIsNotGiven(), AllIsAll(),
        RunsWhatWasRegistered(), WaitsAreAnswered(),
        NoFaultsOfOurs(), WaitingHasAReason(), OwnersHold(), InstancesOnlyForward(), CountedOnce(), PoliciesAreAsked(),
        StreamsAreOpen(), NothingIsLeft(), RecordedOnce(), RevokedGetNothing(), *service_checkers(), *group_checkers(),
    ]  # fmt: skip
    return [RowReader(others), *others]
