"""Passes what a removed user has left to another owner, in small steps: all rows that have an owner (`core/owned_rows.py`).

The lane of the state begins. What starts tasks and other resources passes first. A lane reads its tables again until it finds
nothing more, because a service, for example, may have started a task meanwhile. Then the other lanes pass logs and alarms.

The programs that the user has left do not get the rights of the new owner (`Task.program_owner`), until the new owner deploys or
submits them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from corral.core.owned_rows import Key, OwnedTable, owned_tables
from corral.core.transactions import Tx
from corral.fleet.passing import LANES, note_passed
from corral.model.ecs_service import EcsService
from corral.model.passing import PASSING, PassingStep, step_of
from corral.model.principal import OF_USER, removed_owner
from corral.model.task import PASSED_FROM, TaskState
from corral.store import Store
from corral.telemetry import MetricStore

SCANNED_MAX = 1_000  # the most rows that one step reads
PASSED_MAX = 40  # the most rows that one step changes: about 5 ms of work
FIRST = ("stack", "ecs_service", "scaling_group", "stored_resource", "job")  # they create rows of other tables
# Tables whose owner does not pass by itself.
FOLLOWING = frozenset({"claim", "job_line"})  # with the task, the instance or the jobs
STORAGE = frozenset({"bucket", "repository", "stored_bytes"})  # together (`StoredBytes.pass_on`)
HISTORY = frozenset({"instance_usage", "owner_use", "owner_hour"})  # the past keeps its name

Setter = Callable[[Tx[Any], OwnedTable, Key, PassingStep], None]


def pass_state(tx: Tx[Store], name: str) -> None:
    step = step_of(name)
    if not step.table and step.after is None:
        step = _counted(step, tx.store.stored_bytes.pass_on(step.owner, step.to))
    _advance(tx, step, SETTERS, lambda ended: _begin_others(tx, ended))


def pass_telemetry(tx: Tx[Any], name: str) -> None:
    """Pass logs, or alarms and dashboards."""
    lane = "metrics" if isinstance(tx.store, MetricStore) else "logs"

    def end(ended: PassingStep) -> None:
        tx.hand_over("state", PASSING, {"owner": ended.owner, "lane": lane, "count": ended.total})

    _advance(tx, step_of(name), SETTERS, end)


def receive_passing(tx: Tx[Any], payload: dict[str, Any]) -> None:
    tx.mark(PassingStep(payload["owner"], payload["to"]).key)


def receive_passed(tx: Tx[Store], payload: dict[str, Any]) -> None:
    note_passed(tx, payload["owner"].removeprefix(OF_USER), payload["lane"], payload["count"])


def _begin_others(tx: Tx[Store], ended: PassingStep) -> None:
    note_passed(tx, ended.owner.removeprefix(OF_USER), "state", ended.total)
    for lane in LANES[1:]:
        tx.hand_over(lane, PASSING, {"owner": ended.owner, "to": ended.to})


def _advance(tx: Tx[Any], step: PassingStep, setters: dict[str, Setter], end: Callable[[PassingStep], None]) -> None:
    """Read the next rows, and pass those of the removed user. Schedule the next step, or call `end`."""
    tables = passing_tables(owned_tables(tx.store.execute))
    scanned = 0
    while step.table < len(tables):
        table = tables[step.table]
        rows = table.rows_after(tx.store.execute, step.after, SCANNED_MAX - scanned)
        for key, owner in rows:
            if owner == step.owner:
                setters.get(table.name, _set_row)(tx, table, key, step)
                step = _counted(step, 1)
            step = replace(step, after=key)
            scanned += 1
            if owner == step.owner and not step.passed % PASSED_MAX:
                break
        else:
            if scanned < SCANNED_MAX:
                step = replace(step, table=step.table + 1, after=None)
                continue
        tx.due(step.key, tx.now_s)
        return
    if step.passed:
        tx.due(PassingStep(step.owner, step.to, total=step.total).key, tx.now_s)
    else:
        end(step)


def passing_tables(tables: dict[str, OwnedTable]) -> Sequence[OwnedTable]:
    """Return the tables whose rows pass one by one, in their order."""
    left = sorted(tables.keys() - FOLLOWING - STORAGE - HISTORY - set(FIRST))
    return [tables[name] for name in (*FIRST, *left) if name in tables]


def _counted(step: PassingStep, count: int) -> PassingStep:
    return replace(step, passed=step.passed + count, total=step.total + count)


# One function for each table whose rows are also in memory, or whose owner is in a document, too


def _set_row(tx: Tx[Any], table: OwnedTable, key: Key, step: PassingStep) -> None:
    table.set_owner(tx.store.execute, key, step.to)


def _set_stack(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    stack = tx.store.stacks.get(*key)
    assert stack is not None
    tx.store.stacks.set_owner(stack, step.to)


def _set_service(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    service = tx.store.ecs_services.get(*key)
    assert service is not None
    tx.store.ecs_services.put(_left_by(service, step.owner).but(owner=step.to))


def _left_by(service: EcsService, owner: str) -> EcsService:
    former = removed_owner(owner)
    deployments = tuple(replace(each, passed_from=former) for each in service.deployments)
    completed = replace(service.completed, passed_from=former) if service.completed is not None else None
    return service.but(deployments=deployments, completed=completed)


def _set_group(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    group = tx.store.groups.get(*key)
    assert group is not None
    tx.store.groups.set_owner(group, step.to)


def _set_job(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    from corral.services.batch.waiting_jobs import pass_on  # imported with the first job

    job = tx.store.jobs.by_number(*key)
    assert job is not None
    pass_on(tx, job, step.to, "" if job.has_ended else removed_owner(step.owner))


def _set_task(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    task = tx.store.tasks.get(*key)
    assert task is not None
    left = task.state is not TaskState.STOPPED
    details = {**task.details, PASSED_FROM: removed_owner(step.owner)} if left else task.details
    tx.store.tasks.set_owner(task, step.to, details, tx.now_s)
    if task.state is TaskState.PROVISIONING:
        tx.mark(f"pool:{task.pool}")


def _set_instance(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    instance = tx.store.instances.get(*key)
    assert instance is not None
    tx.store.instances.set_owner(instance, step.to, tx.now_s)


def _set_queue(tx: Tx[Store], _: OwnedTable, key: Key, step: PassingStep) -> None:
    queue = tx.store.queues.queue_numbered(*key)
    assert queue is not None
    tx.store.queues.set_owner(queue, step.to)


def _set_definition(tx: Tx[Store], table: OwnedTable, key: Key, step: PassingStep) -> None:
    revisions = tx.store.definitions if table.name == "task_definition" else tx.store.job_definitions
    region, family, revision = key
    revisions.set_owner(region, family, revision, step.to)


def _set_alarm(tx: Tx[MetricStore], _: OwnedTable, key: Key, step: PassingStep) -> None:
    tx.store.alarms.set_owner(key[0], step.to)


SETTERS: dict[str, Setter] = {
    "stack": _set_stack,
    "ecs_service": _set_service,
    "scaling_group": _set_group,
    "job": _set_job,
    "task": _set_task,
    "instance": _set_instance,
    "queue": _set_queue,
    "task_definition": _set_definition,
    "job_definition": _set_definition,
    "alarm": _set_alarm,
}
