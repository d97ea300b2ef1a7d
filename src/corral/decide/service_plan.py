"""Which tasks of an ECS service to start and to stop, and how long to wait after tasks that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import ceil

from msgspec import Struct

from corral.model.ecs_service import ServiceTask, StoppedTask
from corral.model.task import StopCode, TaskState

SHORT_RUN_S = 60.0  # a task that ends sooner after its start counts as failed
DELAY_MAX_S = 15 * 60.0
FAILURES_AT_ONCE = 1  # after this many rounds of failures in a row, the next start is delayed
FAILURE_CODES = frozenset({StopCode.ESSENTIAL_EXITED.value, StopCode.FAILED_TO_START.value})
STATE_ORDER = {TaskState.PROVISIONING.value: 0, TaskState.PENDING.value: 1, TaskState.RUNNING.value: 2}


class ServicePlan(Struct, frozen=True):
    start: int = 0  # tasks of the primary deployment
    stop: tuple[str, ...] = ()  # task ids
    is_blocked: bool = False  # tasks are to be replaced, and the percentages allow neither to start nor to stop one


class Percentages(Struct, frozen=True):
    """The bounds of a rolling deployment, in percent of the desired number of tasks."""

    minimum_healthy: int = 100
    maximum: int = 200

    def least(self, desired: int) -> int:
        """The least number of running tasks. ECS rounds up."""
        return ceil(desired * self.minimum_healthy / 100)

    def most(self, desired: int) -> int:
        """The largest number of tasks. ECS rounds down."""
        return desired * self.maximum // 100


def replica_plan(
    tasks: Sequence[ServiceTask], primary: str, desired: int, percentages: Percentages, *,
    draining: Collection[str] = (), protected: Collection[str] = (),
) -> ServicePlan:  # fmt: skip
    """The next step of a service that keeps a number of tasks running.

    `tasks` are all tasks of the service that should run. Tasks of older deployments and tasks on draining instances are replaced,
    within the percentages. `protected` tasks are never stopped.
    """
    current = [task for task in tasks if task.deployment == primary and task.instance_id not in draining]
    kept = {task.id for task in current}
    old = [task for task in tasks if task.id not in kept]
    start = max(0, min(desired - len(current), max(desired, percentages.most(desired)) - len(tasks)))
    excess = _stop_order(current, protected)[: max(0, len(current) - desired)]
    stop = tuple(task.id for task in [*_replaceable(old, current, desired, percentages, protected), *excess])
    waits = any(task.id in protected for task in old) or any(task.state != TaskState.RUNNING.value for task in current)
    return ServicePlan(start, stop, not start and not stop and not waits and len(current) < desired)


def daemon_plan(
    tasks: Sequence[ServiceTask], primary: str, eligible: Collection[str], percentages: Percentages, *,
    leaving: Collection[str] = (),
) -> ServicePlan:  # fmt: skip
    """The next step of a service that runs one task on each eligible instance, for the instances of one pool.

    A task that waits for capacity has no instance yet: it counts for any eligible instance without a task. Tasks on `leaving`
    instances stop. Tasks of older deployments stop first, within the percentages, and then their instance gets a new one.
    """
    current = [task for task in tasks if task.deployment == primary]
    old = [task for task in tasks if task.deployment != primary]
    occupied = {task.instance_id for task in tasks if task.instance_id is not None}
    waiting = [task for task in current if task.instance_id is None]
    vacant = sum(instance_id not in occupied for instance_id in eligible)
    stop = [task for task in current if task.instance_id in leaving]
    stop += waiting[: max(0, len(waiting) - vacant)]
    stop += [task for task in old if task.instance_id is None or task.instance_id in leaving]
    running_old = [task for task in old if task.instance_id is not None and task.instance_id not in leaving]
    running = sum(task.state == TaskState.RUNNING.value for task in tasks)
    stop += _oldest(running_old)[: max(0, running - percentages.least(len(eligible)))]
    stop += [task for task in running_old if task.state != TaskState.RUNNING.value and task not in stop]
    return ServicePlan(max(0, vacant - len(waiting)), tuple(dict.fromkeys(task.id for task in stop)))


def _replaceable(
    old: Sequence[ServiceTask], current: Sequence[ServiceTask], desired: int, percentages: Percentages, protected: Collection[str]
) -> list[ServiceTask]:
    """The old tasks that can stop now: those that do not run yet, and running ones above the least healthy number."""
    candidates = _stop_order(old, protected)
    running = [task for task in candidates if task.state == TaskState.RUNNING.value]
    up = sum(task.state == TaskState.RUNNING.value for task in [*old, *current])
    spare = max(0, up - min(percentages.least(desired), desired))
    if len([task for task in current if task.state == TaskState.RUNNING.value]) >= desired:
        spare = len(running)
    return [task for task in candidates if task.state != TaskState.RUNNING.value] + running[:spare]


def _stop_order(tasks: Sequence[ServiceTask], protected: Collection[str]) -> list[ServiceTask]:
    """Unprotected tasks in the order in which they stop.

    Tasks that do not run yet are first, then those on the instance with the most tasks of the service; newest first.
    """
    left = [task for task in tasks if task.id not in protected]
    crowd = Counter(task.instance_id for task in left)  # how many tasks stay on each instance
    ranked: list[tuple[tuple[int, int, float, str], ServiceTask]] = []
    for task in sorted(left, key=lambda task: (STATE_ORDER[task.state], -task.created_at_s, task.id)):
        ranked.append(((STATE_ORDER[task.state], -crowd[task.instance_id], -task.created_at_s, task.id), task))
        crowd[task.instance_id] -= 1
    return [task for _, task in sorted(ranked, key=lambda pair: pair[0])]


def _oldest(tasks: Iterable[ServiceTask]) -> list[ServiceTask]:
    return sorted(tasks, key=lambda task: (task.created_at_s, task.id))


def failures_in_a_row(newest_first: Iterable[StoppedTask]) -> int:
    """How many of the newest stopped tasks failed. A task that a caller or the service stopped does not count either way."""
    failures = 0
    for task in newest_first:
        if task.stop_code not in FAILURE_CODES:
            continue
        if task.started_at_s is not None and (task.stopped_at_s or 0.0) - task.started_at_s >= SHORT_RUN_S:
            break
        failures += 1
    return failures


def next_start_s(newest_first: Sequence[StoppedTask], desired: int) -> float:
    """When the next task may start: at once after the first failure of each task, then after 1, 2, 4 … seconds."""
    rounds = ceil(failures_in_a_row(newest_first) / max(1, desired))
    if rounds <= FAILURES_AT_ONCE:
        return 0.0
    last_s = max(task.stopped_at_s or task.created_at_s for task in newest_first if task.stop_code in FAILURE_CODES)
    return last_s + min(DELAY_MAX_S, 2.0 ** (rounds - FAILURES_AT_ONCE - 1))
