"""The owners of tasks. Each request about a task needs the owner, to find out whether policies allow it."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from corral.core.database import Database
from corral.model.principal import ROOT


class TaskOwners:
    def __init__(self, database: Database, of_writer: TaskOwners | None) -> None:
        """A reader passes the owners of the writer. It sees them as they are now, and not as they were at its snapshot."""
        self._execute = database.execute
        self._on_commit = database.undo_log.on_commit
        # Committed tasks that have not stopped, and that do not belong to the root user → their owners
        self._of_users: dict[str, str] = {} if of_writer is None else of_writer._of_users
        if of_writer is None:
            sql = "SELECT id, owner FROM task WHERE state != 'STOPPED' AND owner != ?"
            self._of_users.update(database.execute(sql, (ROOT,)).fetchall())

    def of(self, task_id: str) -> str | None:
        """Return the owner of a task. Return None if there is no such task."""
        owner = self._of_users.get(task_id)
        if owner is None:
            row = self._execute("SELECT owner FROM task WHERE id = ?", (task_id,)).fetchone()
            return row[0] if row is not None else None
        return owner

    def details(self, task_id: str) -> dict[str, Any]:
        """Return the details of a task, in which its tags are. Without such a task, they are empty."""
        row = self._execute("SELECT details FROM task WHERE id = ?", (task_id,)).fetchone()
        found: dict[str, Any] = {} if row is None else orjson.loads(row[0])
        return found

    def of_users(self) -> dict[str, str]:
        """Return what is in memory, for tests."""
        return dict(self._of_users)

    def set(self, task_id: str, owner: str) -> None:
        """Set the owner of a task that has not stopped."""
        if owner != ROOT:
            self._on_commit(partial(self._of_users.__setitem__, task_id, owner))
        else:
            self.drop(task_id)

    def drop(self, task_id: str) -> None:
        self._on_commit(partial(self._of_users.pop, task_id, None))
