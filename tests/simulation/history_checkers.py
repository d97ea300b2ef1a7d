"""A checker of the task history, and a fault that it finds."""

from __future__ import annotations

from corral.model.task import Task
from corral.store.task_history import TaskHistory
from simulation.checkers import Checker, Violation
from simulation.lanes import SimStore
from simulation.world import Parts

WRONG = (
    "SELECT id, state, (SELECT count(*) FROM task_history h WHERE substr(h.id, 1, 8) = substr(task.id, 1, 8) AND h.id = task.id "
    "AND (task.stopped_at IS NULL OR h.stopped_at = task.stopped_at)) AS records FROM task WHERE records != (state = 'STOPPED')"
)


class RecordedOnce(Checker):
    """A stopped task has one record in the history. A task that has not stopped has none."""

    def finished(self) -> None:
        wrong = self.world.plane.store.execute(WRONG).fetchone()
        if wrong is not None:
            raise Violation("task {} is {} and has {} records in the history".format(*wrong))


class KeepsUndoneRecords(TaskHistory):
    def add(self, task: Task) -> None:
        self._new[task.id] = task, None


class StoreWithUndoneRecords(SimStore):
    def _compose(self) -> None:
        super()._compose()
        self.tasks.history.__class__ = KeepsUndoneRecords


HISTORY_FAULTS = {"a record stays when the stop is undone": Parts(store=StoreWithUndoneRecords)}
