"""Decides which tasks an ECS service starts and stops, and how long it waits after failed tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from corral.model.ecs_service import UNHEALTHY, ServiceTask, StoppedTask
from corral.model.task import StopCode, TaskState

SHORT_RUN_S = 60.0  # a task that runs for less than this time counts as failed
DELAY_MAX_S = 15 * 60.0
FAILURES_AT_ONCE = 1  # how many rounds of failures are replaced without a delay (see `next_start_s`)
FAILURE_CODES = frozenset({StopCode.ESSENTIAL_EXITED.value, StopCode.FAILED_TO_START.value})
STATE_ORDER = {TaskState.PROVISIONING.value: 0, TaskState.PENDING.value: 1, TaskState.RUNNING.value: 2}


class ServicePlan(Struct, frozen=True):
    start: int = 0  # how many tasks of the primary deployment to start
    stop: tuple[str, ...] = ()  # the ids of the tasks to stop
    unhealthy: tuple[str, ...] = ()  # those of `stop` that failed their health checks
    is_blocked: bool = False  # tasks must be replaced, but the percentages do not allow to start or stop any task


class Percentages(Struct, frozen=True):
    """minimumHealthyPercent and maximumPercent of a rolling deployment."""

    minimum_healthy: int = 100
    maximum: int = 200

    def least(self, desired: int) -> int:
        """Return the minimum number of running tasks. As in ECS, it is rounded up."""
        return ceil(desired * self.minimum_healthy / 100)

    def most(self, desired: int) -> int:
        """Return the maximum number of tasks. As in ECS, it is rounded down."""
        return desired * self.maximum // 100


def replica_plan(
    tasks: Sequence[ServiceTask], primary: str, desired: int, percentages: Percentages, *,
    draining: Collection[str] = (), protected: Collection[str] = (), late: Mapping[str, int] | None = None,
) -> ServicePlan:  # fmt: skip
    """Return the next step of a service with the strategy REPLICA, which keeps a number of tasks running.

    `tasks` contains all tasks of the service except those that are stopping. The plan replaces tasks of older deployments, tasks on
    draining instances and unhealthy tasks, within the percentages. It never stops `protected` tasks. `late` is the rank of tasks
    that should stop after others, for example because they are busy; all other tasks have the rank 0.
    """
    own = [task for task in tasks if task.deployment == primary and task.instance_id not in draining]
    current = [task for task in own if task.health != UNHEALTHY]
    kept = {task.id for task in current}
    old = [task for task in tasks if task.id not in kept]
    most = max(desired, percentages.most(desired))
    start = max(0, min(desired - len(current), most - len(tasks)))
    excess = _stop_order(current, protected, late or {})[: max(0, len(current) - desired)]
    # A replacement of an unhealthy task starts first, if there is room for it.
    replaced_first = len(tasks) < most and all(task.state != TaskState.PROVISIONING.value for task in current)
    awaited = {task.id for task in own if task.health == UNHEALTHY and replaced_first and sum(_up(current)) < desired}
    candidates = [task for task in _stop_order(old, protected, late or {}) if task.id not in awaited]
    replaceable = _replaceable(candidates, [*old, *current], current, desired, percentages)
    waits = any(task.id in protected for task in old) or not all(_up(current))
    plan = _plan(start, [*replaceable, *excess])
    blocked = not start and not plan.stop and not waits and len(current) < desired
    return replace(plan, is_blocked=blocked)


def daemon_plan(
    tasks: Sequence[ServiceTask], primary: str, eligible: Collection[str], percentages: Percentages, *,
    leaving: Collection[str] = (), late: Mapping[str, int] | None = None,
) -> ServicePlan:  # fmt: skip
    """Return the next step of a service with the strategy DAEMON, which runs one task on each eligible instance.

    A task that waits for capacity has no instance yet. It counts as the task of an eligible instance without a task. The plan stops
    unhealthy tasks and the tasks on `leaving` instances. It replaces tasks of older deployments within the percentages: the old
    task of an instance stops before the new one starts. Tasks with a high rank in `late` stop last.
    """
    current = [task for task in tasks if task.deployment == primary]
    old = [task for task in tasks if task.deployment != primary]
    occupied = {task.instance_id for task in tasks if task.instance_id is not None}
    waiting = [task for task in current if task.instance_id is None]
    vacant = sum(instance_id not in occupied for instance_id in eligible)
    stop = [task for task in current if task.instance_id in leaving or task.health == UNHEALTHY]
    stop += waiting[: max(0, len(waiting) - vacant)]
    stop += [task for task in old if task.instance_id is None or task.instance_id in leaving]
    running_old = [task for task in old if task.instance_id is not None and task.instance_id not in leaving]
    up = [task for task in running_old if task.is_up]
    stop += _oldest(up, late or {})[: max(0, sum(_up(tasks)) - percentages.least(len(eligible)))]
    stop += [task for task in running_old if not task.is_up]
    return _plan(max(0, vacant - len(waiting)), stop)


def without_starts(plan: ServicePlan) -> ServicePlan:
    """Return the plan of a failed deployment: it starts no tasks, so it does not stop unhealthy ones either."""
    return ServicePlan(0, tuple(task_id for task_id in plan.stop if task_id not in plan.unhealthy))


def _plan(start: int, stop: Iterable[ServiceTask]) -> ServicePlan:
    chosen = {task.id: task for task in stop}
    return ServicePlan(start, tuple(chosen), tuple(each.id for each in chosen.values() if each.health == UNHEALTHY))


def _replaceable(
    candidates: Sequence[ServiceTask], tasks: Sequence[ServiceTask], current: Sequence[ServiceTask], desired: int,
    percentages: Percentages,
) -> list[ServiceTask]:  # fmt: skip
    """Return the old tasks that can stop now: tasks that are not up, and tasks above the minimum number of those that are up.

    `candidates` are old tasks in the order in which they stop. A task is up when it runs and is healthy.
    """
    up = [task for task in candidates if task.is_up]
    spare = max(0, sum(_up(tasks)) - min(percentages.least(desired), desired))
    if sum(_up(current)) >= desired:
        spare = len(up)
    return [task for task in candidates if not task.is_up] + up[:spare]


def _up(tasks: Iterable[ServiceTask]) -> list[bool]:
    return [task.is_up for task in tasks]


def _stop_order(tasks: Sequence[ServiceTask], protected: Collection[str], late: Mapping[str, int]) -> list[ServiceTask]:
    """Sort the unprotected tasks in the order in which they stop.

    Tasks that do not run yet are first, and then tasks that are not healthy. Then tasks with a low rank in `late`, and tasks on the
    instance with the most tasks of the service follow. Newer tasks are before older ones.
    """
    left = [task for task in tasks if task.id not in protected]
    crowd = Counter(task.instance_id for task in left)  # instance → how many of its tasks are not sorted yet
    ranked: list[tuple[tuple[int, bool, int, int, float, str], ServiceTask]] = []
    for task in sorted(left, key=lambda task: (STATE_ORDER[task.state], task.is_up, -task.created_at_s, task.id)):
        place = STATE_ORDER[task.state], task.is_up, late.get(task.id, 0), -crowd[task.instance_id]
        rank = *place, -task.created_at_s, task.id
        ranked.append((rank, task))
        crowd[task.instance_id] -= 1
    return [task for _, task in sorted(ranked, key=lambda pair: pair[0])]


def _oldest(tasks: Iterable[ServiceTask], late: Mapping[str, int]) -> list[ServiceTask]:
    return sorted(tasks, key=lambda task: (late.get(task.id, 0), task.created_at_s, task.id))


def failures_in_a_row(newest_first: Iterable[StoppedTask]) -> int:
    """Count the failed tasks since the last task that ran for SHORT_RUN_S.

    Ignore tasks that a caller or the service stopped, except tasks that failed their health checks.
    """
    failures = 0
    for task in newest_first:
        if not _failed(task):
            continue
        if task.started_at_s is not None and (task.stopped_at_s or 0.0) - task.started_at_s >= SHORT_RUN_S:
            break
        failures += 1
    return failures


def next_start_s(newest_first: Sequence[StoppedTask], desired: int) -> float:
    """Return when the next task may start: at once after the first round of failures, then after 1, 2, 4 … seconds.

    A round is as many failures as the service has tasks.
    """
    rounds = ceil(failures_in_a_row(newest_first) / max(1, desired))
    if rounds <= FAILURES_AT_ONCE:
        return 0.0
    last_s = max(task.stopped_at_s or task.created_at_s for task in newest_first if _failed(task))
    return last_s + min(DELAY_MAX_S, 2.0 ** (rounds - FAILURES_AT_ONCE - 1))


def _failed(task: StoppedTask) -> bool:
    return task.stop_code in FAILURE_CODES or task.failed_checks
