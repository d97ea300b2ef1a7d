"""The number of tasks of each deployment of an ECS service, in memory.

With these counts, the reconciler of a service, which starts and stops its tasks, does not have to read all tasks at each change.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from corral.core.database import Database
from corral.model.ecs_service import STARTED_BY, EcsService, TaskCount
from corral.model.task import Task, TaskState

_Key = tuple[str, str, str, str]  # region, cluster, deployment, state


class DeploymentCounts:
    """Counts the tasks whose desired status is RUNNING. `store/tasks.py` reports each change. A rollback restores the counts."""

    def __init__(self, database: Database) -> None:
        self._undo_log = database.undo_log
        self._counts: Counter[_Key] = Counter()
        if not database.reads_only:
            rows = database.execute(
                "SELECT region, cluster, started_by, state, count(*) FROM task WHERE desired = 'RUNNING' "
                "AND started_by >= ? AND started_by < ? GROUP BY 1, 2, 3, 4",
                (STARTED_BY, STARTED_BY + "\x7f"),
            )
            self._counts.update({(region, cluster, by, state): count for region, cluster, by, state, count in rows})

    def of(self, service: EcsService) -> dict[str, TaskCount]:
        """Deployment → the number of its tasks whose desired status is RUNNING. Deployments without such tasks are left out."""
        found: dict[str, TaskCount] = {}
        for deployment in service.deployments:
            waiting, pending, running = (
                self._counts[service.region, service.cluster, deployment.id, state.value]
                for state in (TaskState.PROVISIONING, TaskState.PENDING, TaskState.RUNNING)
            )
            if waiting or pending or running:
                found[deployment.id] = TaskCount(waiting + pending + running, running, waiting)
        return found

    def change(self, before: Task | None, after: Task) -> None:
        was, now = _key(before) if before is not None else None, _key(after)
        if was != now:
            self._move(was, now)
            self._undo_log.on_rollback(partial(self._move, now, was))

    def _move(self, was: _Key | None, now: _Key | None) -> None:
        if was is not None:
            self._counts[was] -= 1
            if not self._counts[was]:
                del self._counts[was]
        if now is not None:
            self._counts[now] += 1


def _key(task: Task) -> _Key | None:
    if task.desired is not TaskState.RUNNING or task.started_by is None or not task.started_by.startswith(STARTED_BY):
        return None
    return task.region, task.cluster, task.started_by, task.state.value
