"""The tasks that the process keeps in memory, so that most reads of tasks need no query."""

from __future__ import annotations

from functools import partial
from typing import Any

from corral.core.database import Database
from corral.model.task import Task, TaskState

UNFINISHED_MAX = 10_000
STOPPED_MAX = 2_000


class TaskCache:
    """Tasks that have not stopped, tasks that this transaction has stopped, and stopped tasks that DescribeTasks has read.

    A reader keeps nothing itself. It uses the tasks that the writer has published (`show`).
    """

    def __init__(self, database: Database) -> None:
        self.keeps = not database.reads_only
        self._undo_log = database.undo_log
        self._unfinished: dict[str, Task] = {}
        self._by_run: dict[str, str] = {}  # run id → task id
        self._just_stopped: dict[str, Task] = {}  # tasks that this transaction has stopped; its reconcilers read them
        self._stopped: dict[str, Task] = {}
        self._derived: dict[str, tuple[Task, dict[Any, Any]]] = {}

    def unfinished(self) -> dict[str, Task]:
        """Return a copy of the tasks that have not stopped, for readers (`show`)."""
        return dict(self._unfinished)

    def show(self, unfinished: dict[str, Task]) -> None:
        self._unfinished = unfinished

    def get(self, task_id: str) -> Task | None:
        return self._unfinished.get(task_id) or self._just_stopped.get(task_id)

    def listed(self, task_id: str) -> Task | None:
        """Return a task also if it stopped earlier and DescribeTasks has read it."""
        return self._unfinished.get(task_id) or self._stopped.get(task_id)

    def of_run(self, run_id: str) -> Task | None:
        task_id = self._by_run.get(run_id)
        return None if task_id is None else self._unfinished[task_id]

    def put(self, task: Task) -> Task:
        if not self.keeps:
            return task
        if task.state is TaskState.STOPPED:
            self.drop(task.id)
        else:
            if task.id not in self._unfinished and len(self._unfinished) >= UNFINISHED_MAX:
                self.drop(next(iter(self._unfinished)))
            self._unfinished[task.id] = task
            for run in task.runs:
                self._by_run[run.id] = task.id
        return task

    def put_just_stopped(self, task: Task) -> None:
        """Keep a task that this transaction stops, until the transaction ends."""
        self._just_stopped[task.id] = task
        self._undo_log.on_commit(partial(self._just_stopped.pop, task.id, None))

    def put_stopped(self, task: Task) -> None:
        """Keep a stopped task that DescribeTasks has read."""
        if self.keeps:
            if len(self._stopped) >= STOPPED_MAX:
                self.drop(next(iter(self._stopped)))
            self._stopped[task.id] = task

    def drop(self, task_id: str) -> None:
        self._just_stopped.pop(task_id, None)
        self._stopped.pop(task_id, None)
        self._derived.pop(task_id, None)
        task = self._unfinished.pop(task_id, None)
        for run in task.runs if task is not None else ():
            self._by_run.pop(run.id, None)

    def drop_on_rollback(self, task_id: str) -> None:
        """Drop the task if the transaction is rolled back. Call this before you change the task's row."""
        self._undo_log.on_rollback(partial(self.drop, task_id))

    def derived(self, task: Task) -> dict[Any, Any] | None:
        """Return the dict in which callers keep what follows from a task, until the task changes or leaves the cache.

        Return None if the task is not cached, because later reads return another object then.
        """
        if not self.keeps or self.listed(task.id) is not task:
            return None
        found = self._derived.get(task.id)
        if found is None or found[0] is not task:
            found = self._derived[task.id] = task, {}
        return found[1]
