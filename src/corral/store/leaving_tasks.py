"""SQL of leaving tasks: tasks that a scale-in, a rollout or the end of their instance has chosen to stop.

A leaving task receives no further messages of SQS queues. It stops when it is not busy any more, or after a time limit
(`fleet/leaving_tasks.py`). Two reconcilers can choose a task: `service`, which starts and stops the tasks of a service, and
`group`, which launches and terminates the instances of an Auto Scaling group. The key of a reconciler names the service or group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import orjson

from corral.core.database import Database

# The condition for busy tasks. A task is busy while messages that it has received are in flight, or while it is protected. The two
# parameters are the present time in seconds and in ms.
_BUSY = (
    "state IN ('PENDING', 'RUNNING') AND desired = 'RUNNING' AND (json_extract(details, '$.protectedUntil') > ? OR EXISTS "
    "(SELECT 1 FROM place JOIN queue ON queue.pile = place.pile WHERE place.task_id = task.id AND visible_ms > ?))"
)


class LeavingTasks:
    """The leaving tasks. They are also in memory, because each ReceiveMessage of a task needs them."""

    def __init__(self, database: Database) -> None:
        self._execute = database.execute
        self._undo_log = database.undo_log
        self._by_task: dict[str, dict[str, float]] = {}  # task → key of a reconciler → when the reconciler chose the task
        self._by_key: dict[str, dict[str, float]] = {}  # key → task → the same time
        self._reads_only = database.reads_only
        if not database.reads_only:
            for row in self._execute("SELECT task_id, chosen_by, chosen_at FROM leaving_task").fetchall():
                self._remember(*row)

    def __contains__(self, task_id: str) -> bool:
        if self._reads_only:
            return self._execute("SELECT 1 FROM leaving_task WHERE task_id = ?", (task_id,)).fetchone() is not None
        return task_id in self._by_task

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._by_task))

    def keys_of(self, task_id: str) -> list[str]:
        """The keys of the reconcilers that chose a task."""
        return list(self._by_task.get(task_id, ()))

    def chosen_by(self, key: str) -> Mapping[str, float]:
        """The tasks that a reconciler chose, and when."""
        return dict(self._by_key.get(key, {}))

    def add(self, task_id: str, key: str, at_s: float) -> None:
        self._execute("INSERT INTO leaving_task VALUES (?, ?, ?)", (task_id, key, at_s))
        self._remember(task_id, key, at_s)
        self._undo_log.on_rollback(partial(self._forget, task_id, key))

    def drop(self, task_id: str, key: str | None = None) -> None:
        """Delete the choice of the reconciler with this key. Without a key, delete the choices of all reconcilers."""
        if task_id not in self._by_task:
            return
        for each in [key] if key is not None else self.keys_of(task_id):
            at_s = self._by_task.get(task_id, {}).get(each)
            if at_s is not None:
                self._execute("DELETE FROM leaving_task WHERE task_id = ? AND chosen_by = ?", (task_id, each))
                self._forget(task_id, each)
                self._undo_log.on_rollback(partial(self._remember, task_id, each, at_s))

    def _remember(self, task_id: str, key: str, at_s: float) -> None:
        self._by_task.setdefault(task_id, {})[key] = at_s
        self._by_key.setdefault(key, {})[task_id] = at_s

    def _forget(self, task_id: str, key: str) -> None:
        for index, first, second in ((self._by_task, task_id, key), (self._by_key, key, task_id)):
            del index[first][second]
            if not index[first]:
                del index[first]

    def snapshot(self) -> dict[str, dict[str, float]]:
        """A copy of the index, for tests."""
        return {task_id: dict(keys) for task_id, keys in self._by_task.items()}

    # Busy tasks

    def busy_among(self, task_ids: Iterable[str], now_s: float) -> set[str]:
        sql = f"SELECT id FROM task WHERE id IN (SELECT value FROM json_each(?)) AND {_BUSY}"
        return {row[0] for row in self._execute(sql, (_dumps(task_ids), now_s, round(now_s * 1000)))}

    def busy_instances(self, instance_ids: Iterable[str], now_s: float) -> set[str]:
        sql = f"SELECT DISTINCT instance_id FROM task WHERE instance_id IN (SELECT value FROM json_each(?)) AND {_BUSY}"
        return {row[0] for row in self._execute(sql, (_dumps(instance_ids), now_s, round(now_s * 1000)))}


def _dumps(ids: Iterable[str]) -> str:
    return orjson.dumps(list(ids)).decode()
