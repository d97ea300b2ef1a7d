"""SQL of task definitions."""

from __future__ import annotations

from corral.core.database import Database
from corral.store.revisions import Revisions


class Definitions(Revisions):
    """The task definitions in the state store."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "task_definition")

    def drop_deleted(self, account: str, limit: int) -> int:
        """Delete DELETE_IN_PROGRESS revisions that no task uses. Return how many DELETE_IN_PROGRESS revisions are left."""
        unused = self._database.execute(
            "SELECT region, family, revision FROM task_definition d WHERE status = 'DELETE_IN_PROGRESS' AND NOT EXISTS ("
            "SELECT 1 FROM task WHERE definition_arn = "
            "'arn:aws:ecs:' || d.region || ':' || ? || ':task-definition/' || d.family || ':' || d.revision) LIMIT ?",
            (account, limit),
        ).fetchall()
        self._database.executemany("DELETE FROM task_definition WHERE region = ? AND family = ? AND revision = ?", unused)
        for key in unused:
            self._evict(key)
        return int(self._database.execute("SELECT count(*) FROM task_definition WHERE status = 'DELETE_IN_PROGRESS'").fetchone()[0])
