"""Decides which tasks an ECS service starts and stops, and how long it waits after failed tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from corral.model.ecs_service import UNHEALTHY, ServiceTask, StoppedTask
from corral.model.task import StopCode, TaskState

SHORT_RUN_S = 60.0  # a failed task that ran at least this long does not count as a failure, and earlier failures are forgotten
DELAY_MAX_S = 15 * 60.0
FAILURES_AT_ONCE = 1  # after this many rounds of failures, tasks are still replaced without a delay (see `next_start_s`)
FAILURE_CODES = frozenset({StopCode.ESSENTIAL_EXITED.value, StopCode.FAILED_TO_START.value})
STATE_ORDER = {TaskState.PROVISIONING.value: 0, TaskState.PENDING.value: 1, TaskState.RUNNING.value: 2}


class ServicePlan(Struct, frozen=True):
    start: int = 0  # how many tasks of the primary deployment to start
    stop: tuple[str, ...] = ()  # the ids of the tasks to stop
    unhealthy: tuple[str, ...] = ()  # the tasks in `stop` that failed their health checks
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
    draining: Collection[str] = (), protected: Collection[str] = (), late: Mapping[str, int] | None = None, starts: bool = True,
) -> ServicePlan:  # fmt: skip
    """Return the next step of a service with the strategy REPLICA, which keeps a number of tasks running.

    `tasks` contains all tasks of the service except those that are stopping. The plan replaces tasks of older deployments, tasks on
    draining instances and unhealthy tasks, within the percentages. It never stops `protected` tasks. `late` has the ranks of tasks
    that should stop after others, for example because they are busy (`fleet/leaving_tasks.py`). All other tasks have the rank 0.
    With `starts` False, which is for a failed deployment, the plan starts no tasks. Then tasks of older deployments and unhealthy
    tasks stop only if they are on draining instances, or if there are too many tasks.
    """
    own = [task for task in tasks if task.deployment == primary and task.instance_id not in draining]
    current = [task for task in own if task.health != UNHEALTHY]
    kept = {task.id for task in current}
    others = [task for task in tasks if task.id not in kept]
    old, current_up = _stop_order(others, protected, late or {}), sum(_up(current))
    waits = any(task.id in protected for task in others) or current_up < len(current)
    most = max(desired, percentages.most(desired))
    start = max(0, min(desired - len(current), most - len(tasks))) if starts else 0
    spare = current_up + sum(_up(others)) - min(percentages.least(desired), desired)  # how many tasks that are up can stop
    excess = _within(_stop_order(current, protected, late or {})[: max(0, len(current) - desired)], spare)
    if not starts:
        old = _surplus(old, tasks, excess, desired, draining)
    # If there is room for the replacement of an unhealthy task, the replacement starts first, and the unhealthy task stops when the
    # replacement is up.
    elif (len(tasks) < most or len(current) >= desired) and all(task.state != TaskState.PROVISIONING.value for task in current):
        awaited = {task.id for task in own if task.health == UNHEALTHY and current_up < desired}
        old = [task for task in old if task.id not in awaited]
    excess_up = sum(_up(excess))
    replaceable = _within(old, len(old) if current_up - excess_up >= desired else spare - excess_up)
    plan = _plan(start, [*replaceable, *excess])
    blocked = starts and not start and not plan.stop and not waits and len(current) < desired
    return replace(plan, is_blocked=blocked)


def daemon_plan(
    tasks: Sequence[ServiceTask], primary: str, eligible: Collection[str], percentages: Percentages, *,
    leaving: Collection[str] = (), late: Mapping[str, int] | None = None, starts: bool = True,
) -> ServicePlan:  # fmt: skip
    """Return the next step of a service with the strategy DAEMON, which runs one task on each eligible instance.

    A task that waits for capacity has no instance yet. The plan treats it as if it were on an eligible instance that has no task.
    The plan stops unhealthy tasks and the tasks on `leaving` instances, on which the service should no longer run. It replaces
    tasks of older deployments within the percentages: the old task of an instance stops before the new one starts. Tasks with a
    high rank in `late` stop last. With `starts` False, which is for a failed deployment, the plan starts no tasks. Then old and
    unhealthy tasks stay, unless they are on `leaving` instances.
    """
    current = [task for task in tasks if task.deployment == primary]
    old = [task for task in tasks if task.deployment != primary]
    occupied = {task.instance_id for task in tasks if task.instance_id is not None}
    waiting = [task for task in current if task.instance_id is None]
    vacant = sum(instance_id not in occupied for instance_id in eligible)
    stop = [task for task in tasks if task.instance_id in leaving]
    stop += waiting[: max(0, len(waiting) - vacant)]
    if not starts:
        return _plan(0, stop)
    stop += [task for task in current if task.health == UNHEALTHY]
    stop += [task for task in old if task.instance_id is None]
    running_old = [task for task in old if task.instance_id is not None and task.instance_id not in leaving]
    up = [task for task in running_old if task.is_up]
    stop += _oldest(up, late or {})[: max(0, sum(_up(tasks)) - percentages.least(len(eligible)))]
    stop += [task for task in running_old if not task.is_up]
    return _plan(max(0, vacant - len(waiting)), stop)


def _plan(start: int, stop: Iterable[ServiceTask]) -> ServicePlan:
    chosen = {task.id: task for task in stop}
    return ServicePlan(start, tuple(chosen), tuple(each.id for each in chosen.values() if each.health == UNHEALTHY))


def _within(tasks: Sequence[ServiceTask], spare: int) -> list[ServiceTask]:
    """Return the tasks that are not up, and at most `spare` of those that are up. A task is up when it runs and is healthy."""
    up = [task for task in tasks if task.is_up]
    return [task for task in tasks if not task.is_up] + up[: max(0, spare)]


def _surplus(
    old: Sequence[ServiceTask], tasks: Sequence[ServiceTask], excess: Sequence[ServiceTask], desired: int,
    draining: Collection[str],
) -> list[ServiceTask]:  # fmt: skip
    """Return the old tasks that a failed deployment stops: those on draining instances, and those above the desired count.

    A task that is up counts as above the desired count only if at least the desired number of other tasks is up.
    """
    left = len(tasks) - len(excess) - desired
    up_left = sum(_up(tasks)) - sum(_up(excess)) - desired
    chosen = []
    for task in old:
        if task.instance_id in draining or (up_left if task.is_up else left) > 0:
            chosen.append(task)
            left, up_left = left - 1, up_left - task.is_up
    return chosen


def _up(tasks: Iterable[ServiceTask]) -> list[bool]:
    return [task.is_up for task in tasks]


def _stop_order(tasks: Sequence[ServiceTask], protected: Collection[str], late: Mapping[str, int]) -> list[ServiceTask]:
    """Sort the unprotected tasks in the order in which they stop.

    These criteria decide, the most important first: the task does not run yet; it is not healthy; its rank in `late` is low; its
    instance has many tasks of the service; it is new.
    """
    left = [task for task in tasks if task.id not in protected]
    crowd = Counter(task.instance_id for task in left)  # instance → how many of its tasks have no place yet
    by_age = sorted(left, key=lambda task: (STATE_ORDER[task.state], task.is_up, -task.created_at_s, task.id))
    places: list[tuple[int, bool, int, int]] = []
    for task in by_age:
        places.append((STATE_ORDER[task.state], task.is_up, late.get(task.id, 0), -crowd[task.instance_id]))
        crowd[task.instance_id] -= 1
    return [by_age[at] for at in sorted(range(len(by_age)), key=places.__getitem__)]  # tasks with equal places stay sorted by age


def _oldest(tasks: Iterable[ServiceTask], late: Mapping[str, int]) -> list[ServiceTask]:
    return sorted(tasks, key=lambda task: (late.get(task.id, 0), task.created_at_s, task.id))


def failures_in_a_row(newest_first: Iterable[StoppedTask]) -> int:
    """Count the failed tasks since the last failed task that ran for at least SHORT_RUN_S.

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

    A round is as many failures as the desired count of the service. The result is 0.0 if the task may start at once.
    """
    rounds = ceil(failures_in_a_row(newest_first) / max(1, desired))
    if rounds <= FAILURES_AT_ONCE:
        return 0.0
    last_s = max(task.stopped_at_s or task.created_at_s for task in newest_first if _failed(task))
    return last_s + min(DELAY_MAX_S, 2.0 ** (rounds - FAILURES_AT_ONCE - 1))


def _failed(task: StoppedTask) -> bool:
    return task.stop_code in FAILURE_CODES or task.failed_checks
