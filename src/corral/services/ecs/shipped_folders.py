"""The folders of `corral run --ship`, as the tasks that run in them get them from the server."""

from __future__ import annotations

from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.model.blob import Slice
from corral.model.shipped_folder import BUCKET, PART_MAX_BYTES, VARIABLE
from corral.model.task import TaskState
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

GONE = "a part of it is not stored any more, because shipped folders have limits of age and size: start the run again"

NotShipped = api_error("NotShipped", 404)


def slices(tx: Tx[Store], task_id: str, key: str) -> tuple[Slice, ...]:
    """Return where the content of an object is. Only a task that runs in a shipped folder may read it."""
    task = tx.store.tasks.get(task_id)
    if task is None or task.state is TaskState.STOPPED:
        raise NotShipped("the task has stopped")
    if not any(VARIABLE in container.environment for container in spec_of(tx, task).containers.values()):
        raise NotShipped("the task has no shipped folder")
    bucket = tx.store.buckets.get(BUCKET)
    version = tx.store.objects.latest(bucket.id, key) if bucket is not None else None
    if version is None or version.is_marker or version.content is None:
        raise NotShipped(GONE)
    if version.size > PART_MAX_BYTES:  # the server reads it as a whole
        raise NotShipped("it is no part of a folder, because it is too large")
    return tuple(tx.store.objects.slices(version.content, 0, version.size))
