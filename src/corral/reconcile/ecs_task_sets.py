"""Starts and stops the tasks of task sets. Each task set runs a share of the desired count of its service."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.tasks.service_plan import Percentages, ServicePlan, next_start_s, replica_plan
from corral.fleet.clusters import slots_of
from corral.model.ecs_service import DRAINING, FAILED_CHECKS, EcsService, ServiceTask, TaskSet
from corral.model.task import TaskState
from corral.reconcile.ecs_service_tasks import (
    PACE_S,
    RETRY_S,
    STARTS_MAX,
    STOPS_MAX,
    busy_ranks,
    launch_request,
    make_room,
    protected_tasks,
    stop_task,
    task_names,
    wait_for_busy,
    withdraw_others,
)
from corral.services.ecs.capacity_providers import service_capacity
from corral.services.ecs.launch import launch
from corral.services.ecs.lookup import cluster_record
from corral.services.ecs.rollouts import write_event
from corral.services.ecs.service_description import STOPPED_READ
from corral.services.ecs.service_health import tasks_with_health
from corral.store import Store


class Budget(Struct):
    """How many tasks this transaction may still start and stop, and the texts of the problems that it has found."""

    starts: int = STARTS_MAX
    stops: int = STOPS_MAX
    is_spent: bool = False  # a later transaction has to continue
    problems: list[str] = field(default_factory=list)


def step_task_sets(tx: Tx[Store], caller: Caller, service: EcsService) -> None:
    draining = {slot.id for slot in slots_of(tx, service.region, service.cluster) if slot.draining}
    kept, budget = [], Budget()
    steps: list[tuple[TaskSet, EcsService, list[ServiceTask], ServicePlan]] = []
    for each in service.task_sets:
        # The functions for services get the task set as a service with one deployment.
        alone = service.but(deployments=(service.deployment(each.id),), desired=each.desired(service.desired), task_sets=())
        tasks = tasks_with_health(tx, alone)
        late = busy_ranks(tx, tasks)
        protected = set() if each.status == DRAINING else protected_tasks(tx, alone, tasks, late)
        plan = replica_plan(tasks, each.id, alone.desired, Percentages(), draining=draining, protected=protected, late=late)
        steps.append((each, alone, tasks, plan))
    withdraw_others(tx, service, {task_id for *_, plan in steps for task_id in plan.stop})
    for each, alone, tasks, plan in steps:
        _apply(tx, caller, alone, plan, tasks, budget, waits=not each.details.get("force"))
        if each.status != DRAINING or tasks:
            kept.append(_with_stability(tx, service, each, alone.desired, plan, tasks))
    steady = all(each.is_steady for each in kept)
    left = {each.id for each in kept}
    problem = "" if steady else " ".join(budget.problems) or service.problem
    for text in budget.problems:
        if text not in service.problem:
            write_event(tx, service, text)
    changed = service.but(
        task_sets=tuple(kept),
        deployments=tuple(each for each in service.deployments if each.id in left),
        is_steady=steady,
        problem=problem,
        paced_at_s=tx.now_s if budget.is_spent else service.paced_at_s,
    )
    if budget.is_spent:
        tx.due(f"service:{service.key}", tx.now_s + PACE_S)
    if steady and not service.is_steady:
        write_event(tx, service, "has reached a steady state.")
    if changed != service:
        tx.store.ecs_services.put(changed)


def _with_stability(
    tx: Tx[Store], service: EcsService, each: TaskSet, desired: int, plan: ServicePlan, tasks: list[ServiceTask]
) -> TaskSet:  # fmt: skip
    steady = not plan.start and not plan.stop and len(tasks) == desired and all(task.is_up for task in tasks)
    if steady == each.is_steady:
        return each
    if steady:
        write_event(tx, service, f"(taskSet {each.id}) has reached a steady state.")
    return replace(each, is_steady=steady, stability_at_s=tx.now_s)


def _apply(
    tx: Tx[Store], caller: Caller, alone: EcsService, plan: ServicePlan, tasks: list[ServiceTask], budget: Budget, *,
    waits: bool,
) -> None:  # fmt: skip
    """Stop and start the tasks of a plan, as far as the budget allows. With `waits`, wait until busy tasks have become idle."""
    others = [each for each in plan.stop if each not in plan.unhealthy]
    idle = [*plan.unhealthy, *(wait_for_busy(tx, alone, others) if waits else others)]
    stopping = idle[: budget.stops]
    for task_id in stopping:
        stop_task(tx, alone, task_id, FAILED_CHECKS if task_id in plan.unhealthy else "")
    if stopping:
        write_event(tx, alone, f"(taskSet {alone.primary.id}) has stopped {len(stopping)} running tasks: {task_names(stopping)}.")
    count = min(plan.start, budget.starts)
    started = _start(tx, caller, alone, count, len(tasks), budget) if count else 0
    budget.stops -= len(stopping)
    budget.starts -= started
    if len(stopping) < len(idle) or (count < plan.start and started == count):
        budget.is_spent = True


def _start(tx: Tx[Store], caller: Caller, alone: EcsService, count: int, running: int, budget: Budget) -> int:
    """Launch tasks. Return how many tasks were launched.

    The number includes tasks that wait for capacity. It is 0 if the launch is refused, or must wait after failures.
    """
    key, task_set = f"service:{alone.key}", f"(taskSet {alone.primary.id})"
    start_s = next_start_s(tx.store.ecs_services.newest_stopped(alone, STOPPED_READ), alone.desired)
    if start_s > tx.now_s:
        tx.due(key, start_s)
        budget.problems.append(f"{task_set} is unable to consistently start tasks successfully: DescribeTasks says why.")
        return 0
    _, about = cluster_record(tx, caller, alone.cluster) or ("ACTIVE", {})
    try:
        capacity = service_capacity(tx, alone.primary.settings, alone.region, alone.cluster, about, count, running)
        launched = launch(tx, launch_request(tx, caller, alone, count, capacity)).tasks
    except ApiError as refused:
        tx.due(key, tx.now_s + RETRY_S)
        budget.problems.append(f"{task_set} was unable to place a task. Reason: {refused}")
        return 0
    write_event(tx, alone, f"{task_set} has started {len(launched)} tasks: {task_names([task.id for task in launched])}.")
    if any(task.state is TaskState.PROVISIONING for task in launched):
        make_room(tx, alone)
    return len(launched)
