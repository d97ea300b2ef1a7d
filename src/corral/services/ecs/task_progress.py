"""Progress of placed tasks: write the new state of a task, and order its host to start and stop containers.

A task refers to its instance, not to a host. `host_of` returns the host whose agent receives the orders.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.core.transactions import Tx
from corral.decide.tasks.lifecycle import advance, startable
from corral.fleet.leaving_tasks import mark_leaving
from corral.fleet.private_environments import release_private_objects
from corral.fleet.shares import held_less
from corral.fleet.task_interfaces import placed_details
from corral.model.ecs_service import service_of_task
from corral.model.group import provider_key
from corral.model.instance import is_host_pool
from corral.model.job import STARTED_BY as STARTED_BY_BATCH
from corral.model.placement import TASK, Claim, Placement
from corral.model.run import RunState
from corral.model.task import Run, StopCode, Task, TaskState
from corral.services.ecs.gpu_assignment import assign_gpus
from corral.services.ecs.run_spec import start_order, waits_for_main_node
from corral.services.ecs.task_spec import TaskSpec, rules_by_container, spec_of
from corral.store import Store


def host_of(tx: Tx[Store], task: Task) -> str:
    """The host whose agent runs a placed task."""
    assert task.instance_id is not None
    return tx.store.instances.host_of(task.instance_id)


def start_run(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> None:
    tx.start(host_of(tx, task), start_order(tx, task, run, spec))


def start_runs(tx: Tx[Store], task: Task, spec: TaskSpec) -> None:
    """Start every container of a placed task that has not started and waits for no other container."""
    if waits_for_main_node(tx, task, spec):
        return  # services/batch/node_addresses.py starts the task when the main node has an address
    host_id = host_of(tx, task)
    for run in startable(task.runs):
        tx.start(host_id, start_order(tx, task, run, spec))


def stop_runs(tx: Tx[Store], task: Task, runs: Iterable[Run]) -> None:
    host_id = host_of(tx, task)
    for run in runs:
        tx.stop(host_id, run.attempt_id)


def check_health(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> None:
    """Order the agent to run the health checks of a running container. An agent that has restarted needs this order."""
    tx.check(host_of(tx, task), start_order(tx, task, run, spec).spec)


def place_waiting_task(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Place a task whose claim the scheduler has granted, and order its host to start the task."""
    task = tx.store.tasks.get(claim.id)
    assert task is not None, "the task of the claim does not exist"
    spec = spec_of(tx, task)
    details = placed_details(tx, task, placement.slot_id)
    if details is not task.details:
        task = tx.store.tasks.set_details(task, details)
    runs = assign_gpus(tx, task, placement, spec, task.runs, claim)
    start_runs(tx, tx.store.tasks.place(task, placement, runs, tx.now_s), spec)
    tx.changed(f"task:{task.id}")
    mark_starter(tx, task)
    mark_provider(tx, task, placement.slot_id)


def apply_progress(tx: Tx[Store], before: Task, task: Task, runs: tuple[Run, ...]) -> None:
    """Write the next state of a placed task, and send the resulting orders to the host. Orders are idempotent.

    `before` is the stored task. `task` and `runs` contain the changes that were decided or reported.
    """
    progress = advance(task, runs, tx.now_s, rules_by_container(tx, task))
    mark_leaving(tx, before.id)
    tx.store.tasks.change(before, progress.task, tx.now_s)
    tx.changed(f"task:{before.id}")
    mark_starter(tx, before)
    for run in progress.start:
        start_run(tx, progress.task, run, spec_of(tx, before))
    if progress.stop:
        stop_runs(tx, before, progress.stop)
    if progress.next_check_at_s is not None:
        tx.due(f"task:{before.id}", progress.next_check_at_s)
    pool, stopped = tx.store.fleet.pool(before.pool), progress.task.state is TaskState.STOPPED
    if stopped:
        mark_queued(tx, before)  # before the pool is marked, because the next member of the task's array may get a claim
    frees = stopped or _frees_capacity(before.runs, progress.task.runs)
    if pool.has_claims() or tx.store.claims.may_come(before.pool):
        # Before a task starts, its time limit counts from its placement, and afterwards from its start. So the start moves the end
        # of the time limit to a later time. Then a reserved slot has room for the oldest claim later, and more of the younger
        # claims can end before that time (`decide/placement/backfill.py`).
        extends = before.limit_s is not None and before.started_at_s != progress.task.started_at_s
        # A task that has started may make room for others, or its turn has begun.
        lends = before.pause is not None and progress.task.state is not before.state
        if pool.peers_depending_on_tasks or frees or extends or lends:
            tx.mark(f"pool:{before.pool}")
    elif stopped and before.pause is not None:
        tx.mark(f"pool:{before.pool}")  # another task may take turns now
    if frees:
        held_less(tx)
    if stopped and before.state is not TaskState.STOPPED:
        release_private_objects(tx, before)
    if stopped and not is_host_pool(before.pool):
        tx.mark(f"instance:{before.instance_id}")  # an instance that is shutting down terminates after its last task
        mark_provider(tx, before, before.instance_id)
    if frees and before.instance_id is not None and before.instance_id in pool:
        slot = pool.slot(before.instance_id)
        if slot.draining or slot.withheld:
            # Check the DAEMON services for two reasons. On a draining instance, a daemon task stops when it is the last task. If a
            # process outside Corral uses the GPU of an ended run, tasks do not get this GPU, so a daemon task may not fit any more.
            tx.mark(f"daemons:{before.pool}")
            if stopped and slot.draining:
                tx.mark(f"instance:{before.instance_id}")  # a host moves to another cluster after its last task


def begin_stop(tx: Tx[Store], task: Task, code: StopCode, reason: str) -> Task:
    """Begin to stop a task. A task that is already stopping keeps its first reason.

    A waiting task stops at once. A placed task stops when its containers have ended.
    """
    if task.desired is TaskState.STOPPED:
        return task
    stopping = task.but(desired=TaskState.STOPPED, stopping_at_s=tx.now_s, stop_code=code.value, stopped_reason=reason)
    if task.is_paused and tx.store.claims.get(TASK, task.id) is not None:
        tx.store.claims.remove(TASK, task.id)  # it does not continue
        tx.mark(f"pool:{task.pool}")
    if task.state is TaskState.PROVISIONING:
        runs = tuple(run.but(state=RunState.STOPPED, waits=False) for run in task.runs)
        in_line = tx.store.claims.get(TASK, task.id) is not None
        tx.store.tasks.change(task, stopping.but(state=TaskState.STOPPED, stopped_at_s=tx.now_s, runs=runs), tx.now_s)
        tx.changed(f"task:{task.id}")
        release_private_objects(tx, task)
        mark_queued(tx, task)
        if in_line:
            tx.mark(f"pool:{task.pool}")  # run the scheduler, because other claims may use a slot that was reserved for this task
        mark_starter(tx, task)
        mark_provider(tx, task)
    else:
        apply_progress(tx, task, stopping, task.runs)
    after = tx.store.tasks.get(task.id)
    assert after is not None
    return after


def _frees_capacity(before: tuple[Run, ...], after: tuple[Run, ...]) -> bool:
    return any(run.state is RunState.STOPPED and was.state is not RunState.STOPPED for run, was in zip(after, before))


def mark_queued(tx: Tx[Store], task: Task) -> None:
    """Reconcile the task queue after the end of a task, if the task is in the queue or other tasks wait for it."""
    if tx.store.task_queue.concerns(task.id):
        tx.mark(f"queued-task:{task.id}")


def mark_provider(tx: Tx[Store], task: Task, instance_id: str | None = None) -> None:
    """Reconcile the capacity provider of a waiting task, or of the Auto Scaling group of a task's instance."""
    group = task.demand.rules.instance_group if task.demand.rules is not None else ""
    pool = tx.store.fleet.pool(task.pool)
    if instance_id is not None and instance_id in pool:
        group = pool.slot(instance_id).instance_group
    if group:
        tx.mark(provider_key(task.region, group))


def mark_starter(tx: Tx[Store], task: Task) -> None:
    """Reconcile the service or the Batch job of a task that has changed."""
    if task.started_by is not None:
        mark_service(tx, task)
        if task.started_by.startswith(STARTED_BY_BATCH):
            tx.mark(f"job:{task.started_by.removeprefix(STARTED_BY_BATCH)}")


def mark_service(tx: Tx[Store], task: Task) -> None:
    key = service_of_task(task)
    if key is not None:
        tx.mark(f"service:{key}")
