"""Requeues: a task with the tag `corral:requeue` that has failed, or was lost with its host, is replaced by a new task.

The new task has the same definition, overrides, tags, group and array index. Tasks that wait for the failed task wait for the new
task.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet.private_environments import use_private_objects
from corral.model.queue_options import REQUEUE_OF_TAG, REQUEUE_TAG, REQUEUED_AS_TAG, queue_options
from corral.model.task import Task, TaskState
from corral.model.task_queue import QueuedTask, QueueState
from corral.services.ecs.task_queue import FIRST_SUBMITTED, REQUEUED_AS, TIMES
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

ENDED_MEMBERS = frozenset({REQUEUED_AS, "protectedUntil"})  # members of Task.details that concern only the ended task


def requeue(tx: Tx[Store], task: Task, queued: QueuedTask, not_before_s: float) -> Task:
    """Add the task that replaces a stopped task, and give it the place of the stopped task in the task queue.

    The new task does not start before `not_before_s`.
    """
    task_id = tx.ids.hex32()
    tags: list[dict[str, str]] = task.details.get("tags", [])
    changed = {REQUEUE_TAG: str(queued.requeues - 1), REQUEUE_OF_TAG: queued.chain}
    details = {name: value for name, value in task.details.items() if name not in ENDED_MEMBERS}
    details["tags"] = _with_tags(tags, changed)
    pause = task.pause.fresh() if task.pause is not None and task.pause.lends_something else None
    if task.pause is not None and task.pause.claim:  # it was stopped for another claim, so it keeps its place in line
        details.setdefault(FIRST_SUBMITTED, task.created_at_s)
    fresh = spec_of(tx, task).runs
    successor = Task(
        id=task_id,
        region=task.region,
        cluster=task.cluster,
        definition_arn=task.definition_arn,
        pool=task.pool,
        state=TaskState.PROVISIONING,
        desired=TaskState.RUNNING,
        demand=task.demand,
        created_at_s=tx.now_s,
        family=task.family,
        group=task.group,
        started_by=task.started_by,
        details=details,
        runs=tuple(
            each.but(id=tx.ids.hex32_by_time(tx.now_s), task_id=task_id, gpus=0 if task.launch_type == "FARGATE" else each.gpus)
            for each in fresh
        ),
        plain=task.plain,
        time_limit_s=task.time_limit_s,
        launch_type=task.launch_type,
        owner=task.owner,
        pause=pause,
    )
    tx.store.tasks.add(successor)
    use_private_objects(tx, successor)
    tx.store.tasks.set_details(task, {**task.details, "tags": _with_tags(tags, {REQUEUED_AS_TAG: task_id}), REQUEUED_AS: task_id})
    tx.store.task_queue.remove(task.id)
    tx.store.task_queue.add(
        queued.but(
            task_id=task_id,
            state=QueueState.WAITING,
            held=queue_options(tags).held,
            not_before_s=not_before_s,
            requeues=queued.requeues - 1,
            attempt=queued.attempt + 1,
        )
    )
    tx.due(TIMES, not_before_s)
    return successor


def _with_tags(tags: list[dict[str, str]], changed: dict[str, str]) -> list[dict[str, str]]:
    """Return tags with some values changed. The limit of 50 tags does not apply to tags that Corral itself adds."""
    kept = [tag for tag in tags if tag["key"] not in changed]
    return [*kept, *({"key": key, "value": value} for key, value in changed.items())]
