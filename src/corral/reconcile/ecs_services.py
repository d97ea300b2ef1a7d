"""The reconciler `service` starts and stops tasks until an ECS service has the tasks that it should have.

A task without free capacity waits in one pool. `reconcile/ecs_service_tasks.py` defines busy and leaving tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.placement.slot_fit import covers
from corral.decide.placement.strategies import matching
from corral.decide.tasks.service_plan import (
    SHORT_RUN_S,
    Percentages,
    ServicePlan,
    daemon_plan,
    failures_in_a_row,
    next_start_s,
    replica_plan,
)
from corral.fleet.clusters import pools_of, slots_of
from corral.fleet.leaving_tasks import still_awaited
from corral.model.ecs_service import (
    ACTIVE,
    COMPLETED,
    DAEMON,
    DRAINING,
    FAILED,
    FAILED_CHECKS,
    IN_PROGRESS,
    INACTIVE,
    EcsService,
    ServiceTask,
    TaskCount,
)
from corral.model.placement import Slot
from corral.model.principal import acting_service
from corral.model.task import Task, TaskState
from corral.reconcile.ecs_deployments import check_rollout, try_complete
from corral.reconcile.ecs_service_tasks import (
    PACE_S,
    RETRY_S,
    STARTS_MAX,
    STOPS_MAX,
    busy_ranks,
    definition_of,
    launch_request,
    make_room,
    protected_tasks,
    stop_task,
    task_names,
    wait_for_busy,
    withdraw_others,
)
from corral.reconcile.ecs_task_sets import step_task_sets
from corral.services.ecs.capacity_providers import service_capacity
from corral.services.ecs.launch import launch
from corral.services.ecs.lookup import cluster_record
from corral.services.ecs.placement_rules import placement_rules
from corral.services.ecs.rollouts import write_event
from corral.services.ecs.service_description import STOPPED_READ
from corral.services.ecs.service_health import all_healthy, tasks_with_health
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_description import task_descriptions
from corral.services.ecs.task_spec import task_spec
from corral.store import Store

INACTIVE_SHOWN_S = 3600.0  # how long an INACTIVE service is kept
ROWS_MAX = 100  # the most INACTIVE services that one transaction deletes
BLOCKED = (
    "was unable to stop or start tasks during a deployment because of the service deployment configuration. "
    "Update the minimumHealthyPercent or maximumPercent value and try again."
)
NO_ROOM = "no container instance met all of its requirements"


def reconcile_service(tx: Tx[Store], key: str) -> None:
    region, cluster, name = key.split("/")
    service = tx.store.ecs_services.get(region, cluster, name)
    if service is None or service.status == INACTIVE:
        return
    if service.paced_at_s == tx.now_s:
        tx.due(f"service:{service.key}", tx.now_s + PACE_S)
        return
    tx.changed(f"service:{service.key}")  # the reconciler of a stack that waits for this service runs after this function
    if service.status == DRAINING:
        _drain(tx, service)
        return
    paused = False
    if service.primary.rollout == IN_PROGRESS:
        service, continues = check_rollout(tx, service)
        paused = not continues
    caller = Caller(tx.settings.account, region, acting_service(tx.settings.account, "ecs.amazonaws.com", service.owner))
    if service.is_external:
        step_task_sets(tx, caller, service)
    elif paused:
        _step_older(tx, caller, service)
    else:
        _step(tx, caller, service)


def _step(tx: Tx[Store], caller: Caller, service: EcsService) -> None:
    if service.strategy == DAEMON:
        _step_daemon(tx, caller, service)
    else:
        _step_replica(tx, caller, service)


def _step_older(tx: Tx[Store], caller: Caller, service: EcsService) -> None:
    """Keep the tasks of the older deployments running while the new deployment is paused and has no tasks yet."""
    if len(service.deployments) < 2:
        return
    _step(tx, caller, service.but(deployments=service.deployments[1:], is_steady=True))
    written = tx.store.ecs_services.get(service.region, service.cluster, service.name)
    assert written is not None
    if written.primary.id != service.primary.id:
        tx.store.ecs_services.put(written.but(deployments=(service.primary, *written.deployments), is_steady=False))


def drop_inactive_services(tx: Tx[Store], _: str) -> None:
    """Delete services that became INACTIVE more than INACTIVE_SHOWN_S ago."""
    if tx.store.ecs_services.drop_deleted(tx.now_s - INACTIVE_SHOWN_S, ROWS_MAX) >= ROWS_MAX:
        tx.due("services:", tx.now_s)


# The two scheduling strategies


def _step_replica(tx: Tx[Store], caller: Caller, service: EcsService) -> None:
    counts = tx.store.tasks.deployment_counts.of(service)
    current = counts.get(service.primary.id, TaskCount()).total
    draining = {slot.id for slot in slots_of(tx, service.region, service.cluster) if slot.draining}
    is_plain = not draining and not counts.keys() - {service.primary.id} and not tx.store.ecs_services.has_unhealthy(service)
    starts, late = service.primary.rollout != FAILED, dict[str, int]()
    if current <= service.desired and is_plain:
        plan = ServicePlan(service.desired - current if starts else 0)  # no task has to stop, so the list of tasks is not needed
    elif is_plain and (newest := _newest_waiting(tx, service, current - service.desired)):
        plan = ServicePlan(stop=tuple(newest))
    else:
        tasks = tasks_with_health(tx, service)
        late = busy_ranks(tx, tasks)
        plan = replica_plan(
            tasks, service.primary.id, service.desired, _percentages(service), draining=draining,
            protected=protected_tasks(tx, service, tasks, late), late=late, starts=starts,
        )  # fmt: skip
    withdraw_others(tx, service, plan.stop)
    if plan.is_blocked:
        service = _report(tx, service, BLOCKED)
    capacity = _capacity(tx, caller, service, min(plan.start, STARTS_MAX), current) if plan.start else None
    _apply(tx, caller, service, plan, capacity, late)


def _newest_waiting(tx: Tx[Store], service: EcsService, excess: int) -> list[str]:
    """Return the tasks that a large scale-in stops next, if these are tasks that wait for capacity. Return none otherwise.

    They stop before all others, the newest first, so the list of all tasks is not needed.
    """
    if excess <= STOPS_MAX or tx.store.tasks.leaving.chosen_by(f"service:{service.key}"):
        return []
    found = tx.store.ecs_services.newest_waiting(service, tx.now_s, STOPS_MAX + 1)
    return found if len(found) > STOPS_MAX else []


def _step_daemon(tx: Tx[Store], caller: Caller, service: EcsService) -> None:
    """Plan each pool of the cluster separately, because a waiting task belongs to one pool."""
    try:
        _, document = definition_of(tx, caller, service)
    except ApiError as refused:  # the task definition was deleted
        _report(tx, service, f"was unable to place a task. Reason: {refused}")
        return
    demand = task_spec(document, {}).demand
    constraints = [*document["placementConstraints"], *service.details.get("placementConstraints", ())]
    suits = matching(placement_rules(constraints, (), "EC2", f"{service.region}/{service.cluster}", service.group))
    group = f"{service.region}/{service.cluster}/{service.group}"
    pools: dict[str, tuple[list[Slot], set[str]]] = {}
    for pool in pools_of(tx, service.region, service.cluster):
        slots = list(tx.store.fleet.pool(pool).slots())
        # A slot that has become too small for the task keeps the task that it already has.
        large = [slot for slot in slots if covers(slot.total, demand) or group in slot.tasks]
        pools[pool] = slots, {slot.id for slot in large if slot.takes_tasks and suits(slot)}
    plans = _vacancies(tx, service, pools) or _daemon_plans(tx, service, pools)
    eligible_count = sum(len(eligible) for _, eligible in pools.values())
    if service.desired != eligible_count:
        service = service.but(desired=eligible_count, is_steady=False)
        tx.store.ecs_services.put(service)
    withdraw_others(tx, service, [task_id for plan in plans.values() for task_id in plan.stop])
    for pool, plan in plans.items():
        service = _apply(tx, caller, service, plan, Capacity("EC2", (pool,), waits=True))


def _daemon_plans(
    tx: Tx[Store], service: EcsService, pools: Mapping[str, tuple[list[Slot], set[str]]]
) -> dict[str, ServicePlan]:  # fmt: skip
    tasks, plans = tasks_with_health(tx, service), dict[str, ServicePlan]()
    late, starts = busy_ranks(tx, tasks), service.primary.rollout != FAILED
    for pool, (slots, eligible) in pools.items():
        in_pool = [task for task in tasks if task.pool == pool]
        leaving = _leaving(slots, in_pool, eligible)
        plans[pool] = daemon_plan(
            in_pool, service.primary.id, eligible, _percentages(service), leaving=leaving, late=late, starts=starts
        )  # fmt: skip
    return plans


def _vacancies(
    tx: Tx[Store], service: EcsService, pools: Mapping[str, tuple[list[Slot], set[str]]]
) -> dict[str, ServicePlan] | None:  # fmt: skip
    """Return a plan for each pool if no task of the service waits, and none has to stop. Return None otherwise.

    Such plans need only the number of tasks on each instance. Other plans need a list of all tasks.
    """
    counts = tx.store.tasks.deployment_counts.of(service)
    current = counts.get(service.primary.id, TaskCount())
    if current.waiting or counts.keys() - {service.primary.id} or tx.store.ecs_services.has_unhealthy(service):
        return None
    group, on_eligible, plans = f"{service.region}/{service.cluster}/{service.group}", 0, dict[str, ServicePlan]()
    for pool, (slots, eligible) in pools.items():
        occupied = [slot.tasks[group] for slot in slots if group in slot.tasks and slot.id in eligible]
        on_eligible += sum(occupied)
        plans[pool] = ServicePlan(len(eligible) - len(occupied) if service.primary.rollout != FAILED else 0)
    return plans if on_eligible == current.total else None


def _leaving(slots: Sequence[Slot], tasks: Sequence[ServiceTask], eligible: Collection[str]) -> set[str]:
    """Return the instances whose daemon task must stop.

    These are instances that no longer match the constraints, and draining instances without other tasks.
    """
    leaving, by_instance = set[str](), Counter(task.instance_id for task in tasks)
    for slot in slots:
        own = by_instance[slot.id]
        if not own or slot.id in eligible or not slot.connected:
            continue
        if not slot.draining or slot.running + slot.pending <= own:
            leaving.add(slot.id)
    return leaving


# Apply a plan


def _apply(
    tx: Tx[Store], caller: Caller, service: EcsService, plan: ServicePlan, capacity: Capacity | None,
    busy: Collection[str] | None = None,
) -> EcsService:  # fmt: skip
    """Stop at most STOPS_MAX and start at most STARTS_MAX tasks of a plan, and write events. Return the updated service.

    `busy` has the busy tasks, if the caller knows them.
    """
    unhealthy = set(plan.unhealthy)
    idle = [*plan.unhealthy, *wait_for_busy(tx, service, [each for each in plan.stop if each not in unhealthy], busy)]
    for task_id in idle[:STOPS_MAX]:
        if task_id in unhealthy:
            write_event(tx, service, f"(task {task_id}) failed container health checks.")
        stop_task(tx, service, task_id, FAILED_CHECKS if task_id in unhealthy else "")
    if idle:
        write_event(tx, service, f"has stopped {len(idle[:STOPS_MAX])} running tasks: {task_names(idle[:STOPS_MAX])}.")
    started = 0
    if plan.start and capacity is not None:
        service, started = _start(tx, caller, service, min(plan.start, STARTS_MAX), capacity)
    if len(idle) > STOPS_MAX or (started and plan.start > started):
        service = _pace(tx, service)
    if plan.stop or plan.start:
        if service.is_steady:
            service = service.but(is_steady=False)
            tx.store.ecs_services.put(service)
        return service
    return _settle(tx, service)


def _pace(tx: Tx[Store], service: EcsService) -> EcsService:
    """Schedule the next step for a later transaction.

    Because of `paced_at_s`, the reconciler does nothing if the current transaction marks its key again.
    """
    paced = service.but(paced_at_s=tx.now_s)
    tx.store.ecs_services.put(paced)
    tx.due(f"service:{service.key}", tx.now_s + PACE_S)
    return paced


def _start(tx: Tx[Store], caller: Caller, service: EcsService, count: int, capacity: Capacity) -> tuple[EcsService, int]:
    """Launch tasks of the primary deployment. Return the updated service and how many tasks were launched.

    The number includes tasks that wait for capacity. It is 0 if the launch is refused, or must wait after failures.
    """
    stopped = tx.store.ecs_services.newest_stopped(service, STOPPED_READ)
    start_s = next_start_s(stopped, service.desired)
    if start_s > tx.now_s:
        tx.due(f"service:{service.key}", start_s)
        failed = failures_in_a_row(stopped)
        why = f"The newest {failed} tasks ended within a minute: DescribeTasks says why."
        return _report(tx, service, f"is unable to consistently start tasks successfully. {why}"), 0
    try:
        launched = launch(tx, launch_request(tx, caller, service, count, capacity)).tasks
    except ApiError as refused:
        tx.due(f"service:{service.key}", tx.now_s + RETRY_S)
        return _report(tx, service, f"was unable to place a task. Reason: {refused}"), 0
    write_event(tx, service, f"has started {len(launched)} tasks: {task_names([task.id for task in launched])}.")
    waiting = [task for task in launched if task.state is TaskState.PROVISIONING]
    if waiting:
        service = _report(tx, service, f"was unable to place a task because {NO_ROOM}. {_why_waiting(tx, waiting[0])}")
        make_room(tx, service)
    return service, len(launched)


def _drain(tx: Tx[Store], service: EcsService) -> None:
    """Stop all tasks of a deleted service. When the last task has stopped, the service becomes INACTIVE.

    Tasks that were leaving before the deletion stop only when they are idle or have been awaited for `busy_wait_s`. A forced
    deletion stops them at once.
    """
    tasks = tx.store.ecs_services.tasks(service)
    awaited, again_s = still_awaited(tx, tx.store.tasks.leaving.chosen_by(f"service:{service.key}"))
    waiting = {task.id for task in awaited}
    ending = [task.id for task in tasks if task.id not in waiting]
    for task_id in ending[:STOPS_MAX]:
        stop_task(tx, service, task_id)
    if again_s is not None:
        tx.due(f"service:{service.key}", again_s)
    if len(ending) > STOPS_MAX:
        _pace(tx, service)
    elif not waiting and not tx.store.ecs_services.still_stopping(service):
        tx.store.ecs_services.put(service.but(status=INACTIVE, deleted_at_s=tx.now_s))
        tx.due("services:", tx.now_s + INACTIVE_SHOWN_S)


def _settle(tx: Tx[Store], service: EcsService) -> EcsService:
    """Drop old deployments without tasks. When the service becomes steady, write an event. Return the updated service.

    `_apply` calls this function when no task has to start or stop.
    """
    counts = tx.store.tasks.deployment_counts.of(service)
    current = counts.get(service.primary.id, TaskCount())
    # During a rollback, responses still show the failed deployment.
    rolls_back = (
        service.primary.rollout == IN_PROGRESS and service.completed is not None and service.completed.id == service.primary.id
    )
    deployments = tuple(
        each
        for each in service.deployments
        if each is service.primary or each.id in counts or (rolls_back and each.rollout == FAILED)
    )
    steady = not counts.keys() - {service.primary.id} and current.running == service.desired == current.total
    steady = steady and (service.is_steady or all_healthy(tx, service))
    changed = service.but(deployments=deployments)
    if steady and not service.is_steady and service.primary.rollout != FAILED and _recovered(tx, service):
        done = service.primary.rollout == COMPLETED
        if not done:
            changed, done = try_complete(tx, changed)
        if done:
            changed = changed.but(deployments=(changed.primary,), is_steady=True, problem="")
            write_event(tx, service, "has reached a steady state.")
    if changed != service:
        tx.store.ecs_services.put(changed)
    return changed


def _recovered(tx: Tx[Store], service: EcsService) -> bool:
    """Return whether the service has no failures in a row, or all its present tasks are older than SHORT_RUN_S.

    Otherwise schedule the reconciler for the time when the youngest present task is old enough.
    """
    if not failures_in_a_row(tx.store.ecs_services.newest_stopped(service, STOPPED_READ)):
        return True
    newest_s = max((task.created_at_s for task in tx.store.ecs_services.tasks(service)), default=0.0)
    recovered_s = newest_s + SHORT_RUN_S
    if recovered_s > tx.now_s:
        tx.due(f"service:{service.key}", recovered_s)
    return recovered_s <= tx.now_s


# Inputs of a plan


def _capacity(tx: Tx[Store], caller: Caller, service: EcsService, count: int, running: int) -> Capacity | None:
    """Return where new tasks can run. If a capacity provider of the service cannot be used, write an event and return None.

    The service tries again: for example, the hosts of its cluster may have moved to another cluster, and come back.
    """
    _, about = cluster_record(tx, caller, service.cluster) or (ACTIVE, {})
    try:
        return service_capacity(tx, service.primary.settings, service.region, service.cluster, about, count, running)
    except ApiError as refused:
        tx.due(f"service:{service.key}", tx.now_s + RETRY_S)
        _report(tx, service, f"was unable to place a task. Reason: {refused}")
        return None


def _percentages(service: EcsService) -> Percentages:
    given = service.details["deploymentConfiguration"]
    return Percentages(given["minimumHealthyPercent"], given["maximumPercent"])


# Events


def _report(tx: Tx[Store], service: EcsService, problem: str) -> EcsService:
    """Write an event about a problem, unless the last problem has the same text."""
    if service.problem == problem:
        return service
    write_event(tx, service, problem)
    changed = service.but(problem=problem, is_steady=False)
    tx.store.ecs_services.put(changed)
    return changed


def _why_waiting(tx: Tx[Store], task: Task) -> str:
    reason = task_descriptions(tx, [task])[0]["containers"][0].get("reason") or ""
    return f"The task waits: {reason}."
