"""SQL of change sets of CloudFormation stacks."""

from __future__ import annotations

import msgspec

from corral.core.database import Database
from corral.model.change_set import ChangeSet

_ENCODER = msgspec.json.Encoder()
_CHANGE_SET = msgspec.json.Decoder(ChangeSet)


class ChangeSets:
    """The part of the state store (`Store`) with change sets."""

    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def put(self, change_set: ChangeSet) -> None:
        """Add a change set, or replace the change set with the same ARN."""
        self._execute(
            "INSERT INTO change_set VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
            (change_set.id, change_set.stack_id, change_set.name, _ENCODER.encode(change_set).decode()),
        )

    def get(self, change_set_id: str) -> ChangeSet | None:
        row = self._execute("SELECT record FROM change_set WHERE id = ?", (change_set_id,)).fetchone()
        return _CHANGE_SET.decode(row[0]) if row else None

    def named(self, stack_id: str, name: str) -> ChangeSet | None:
        row = self._execute("SELECT record FROM change_set WHERE stack_id = ? AND name = ?", (stack_id, name)).fetchone()
        return _CHANGE_SET.decode(row[0]) if row else None

    def listed(self, stack_id: str, after: str = "", limit: int = -1) -> list[ChangeSet]:
        """Return the change sets of a stack with names greater than `after`, sorted by name. A limit of -1 means no limit."""
        sql = "SELECT record FROM change_set WHERE stack_id = ? AND name > ? ORDER BY name LIMIT ?"
        return [_CHANGE_SET.decode(record) for (record,) in self._execute(sql, (stack_id, after, limit))]

    def drop(self, change_set_id: str) -> None:
        self._execute("DELETE FROM change_set WHERE id = ?", (change_set_id,))

    def drop_of_stack(self, stack_id: str, *, kept: str = "") -> None:
        """Delete the change sets of a stack, except the change set with the ARN `kept`."""
        self._execute("DELETE FROM change_set WHERE stack_id = ? AND id != ?", (stack_id, kept))
