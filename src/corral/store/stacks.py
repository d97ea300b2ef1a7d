"""SQL of CloudFormation stacks: stacks, templates, resources, events, exports, imports and change sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.core.database import Database
from corral.model.change_set import ChangeSet
from corral.model.stack import NO_ECHO, Stack, StackEvent, StackResource

_ENCODER = msgspec.json.Encoder()
RECENT_MAX = 2_000  # stacks and times that are kept in memory


class Stacks:
    """The part of the state store (`Store`) with stacks.

    The resources of a stack that is being changed are also in memory, because each step of the change needs all of them. A leftover
    is an old resource that the current version of the stack does not contain, and that must be deleted.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute
        self._resources: dict[str, dict[str, StackResource]] = {}  # stack → key → resource, in the order of the rows
        # Stack → what services have computed from its rows, for example its compiled template.
        self.computed: dict[str, Any] = {}
        # The stacks that may have resources with secret attributes. None: they have not been read.
        self._stacks_with_no_echo: set[str] | None = None
        # The stacks that were written last, and the times of their last events, because each step of an operation needs them.
        self._recent: dict[str, Stack] = {}
        self._last_event_s: dict[str, float] = {}

    # Stacks

    def put(self, stack: Stack) -> None:
        self._execute(
            "INSERT INTO stack VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "status = excluded.status, deleted_at = excluded.deleted_at, record = excluded.record",
            (stack.id, stack.region, stack.name, stack.status.value, stack.created_at_s, stack.deleted_at_s, stack.parent_id,
             stack.owner, _dumps(stack)),
        )  # fmt: skip
        self._keep(self._recent, stack.id, stack)

    def set_owner(self, stack: Stack, owner: str) -> None:
        self._execute("UPDATE stack SET owner = ? WHERE id = ?", (owner, stack.id))
        self.forget(stack.id)
        self.put(replace(stack, owner=owner))

    def _keep(self, recent: dict[str, Any], stack_id: str, value: Any) -> None:
        """Keep a value in memory until it is replaced or this transaction is rolled back."""
        if len(recent) >= RECENT_MAX:
            recent.clear()
        recent[stack_id] = value
        self._database.undo_log.on_rollback(partial(recent.pop, stack_id, None))

    def get(self, stack_id: str) -> Stack | None:
        """Return a stack by its ARN, even if the stack is deleted. Return None if there is no such stack."""
        if (recent := self._recent.get(stack_id)) is not None:
            return recent
        row = self._execute("SELECT record FROM stack WHERE id = ?", (stack_id,)).fetchone()
        return msgspec.json.decode(row[0], type=Stack) if row else None

    def named(self, region: str, name: str) -> Stack | None:
        """Return the stack with this name that is not deleted."""
        sql = "SELECT record FROM stack WHERE region = ? AND name = ? AND deleted_at IS NULL"
        row = self._execute(sql, (region, name)).fetchone()
        return msgspec.json.decode(row[0], type=Stack) if row else None

    def listed(
        self, region: str, *, deleted: bool = False, before: tuple[float, str] | None = None, limit: int = -1
    ) -> list[Stack]:
        """Return the stacks of a region, newest first. `before` is (created_at_s, id) of the last stack of the previous page.

        If `deleted` is set, include deleted stacks. A limit of -1 means no limit.
        """
        where, values = ["region = ?"], [region]
        if not deleted:
            where.append("deleted_at IS NULL")
        if before is not None:
            where.append("(created_at, id) < (?, ?)")
            values += [*before]  # type: ignore[list-item]
        sql = f"SELECT record FROM stack WHERE {' AND '.join(where)} ORDER BY created_at DESC, id DESC LIMIT ?"
        return [msgspec.json.decode(record, type=Stack) for (record,) in self._execute(sql, (*values, limit))]

    def nested(self, parent_id: str) -> list[Stack]:
        """Return the nested stacks of a stack that are not deleted."""
        sql = "SELECT record FROM stack WHERE parent_id = ? AND parent_id != '' AND deleted_at IS NULL"
        return [msgspec.json.decode(record, type=Stack) for (record,) in self._execute(sql, (parent_id,))]

    def count(self, region: str, limit: int) -> int:
        """Return how many stacks a region has. Count up to `limit`."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM stack WHERE region = ? AND deleted_at IS NULL LIMIT ?)"
        found: int = self._execute(sql, (region, limit)).fetchone()[0]
        return found

    def first_deleted(self) -> tuple[str, float] | None:
        """Return the ARN of the stack that was deleted first, and when. Return None if there is no deleted stack."""
        sql = "SELECT id, deleted_at FROM stack WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1"
        row = self._execute(sql).fetchone()
        return (str(row[0]), float(row[1])) if row else None

    def drop(self, stack_id: str, limit: int) -> bool:
        """Delete the rows of a deleted stack, but at most `limit` events in one call. Return True if no rows are left."""
        sql = "DELETE FROM stack_event WHERE number IN (SELECT number FROM stack_event WHERE stack_id = ? LIMIT ?)"
        if self._execute(sql, (stack_id, limit)).rowcount == limit:
            return False
        self.forget(stack_id)
        for table in ("change_set", "stack_resource", "stack_template", "stack_export", "stack_import"):
            self._execute(f"DELETE FROM {table} WHERE stack_id = ?", (stack_id,))
        self._execute("DELETE FROM stack WHERE id = ?", (stack_id,))
        return True

    # Templates

    def put_template(self, stack_id: str, number: int, original: str, processed: str) -> None:
        self._execute("INSERT INTO stack_template VALUES (?, ?, ?, ?)", (stack_id, number, original, processed))

    def template(self, stack_id: str, number: int) -> tuple[str, str]:
        """Return the template as the request contained it, and as JSON after the transforms."""
        sql = "SELECT original, processed FROM stack_template WHERE stack_id = ? AND number = ?"
        original, processed = self._execute(sql, (stack_id, number)).fetchone()
        return original, processed

    def drop_templates_except(self, stack_id: str, numbers: Iterable[int]) -> None:
        kept = ", ".join(str(number) for number in numbers)
        self._execute(f"DELETE FROM stack_template WHERE stack_id = ? AND number NOT IN ({kept})", (stack_id,))

    # Resources

    def put_resource(self, resource: StackResource) -> None:
        self._execute(
            "INSERT INTO stack_resource VALUES (?, ?, ?, ?) ON CONFLICT (stack_id, key) DO UPDATE SET "
            "physical_id = excluded.physical_id, record = excluded.record",
            (resource.stack_id, resource.key, resource.physical_id, _dumps(resource)),
        )
        if self._stacks_with_no_echo is not None and resource.has_no_echo:
            self._stacks_with_no_echo.add(resource.stack_id)
        known = self._resources.get(resource.stack_id)
        if known is not None:
            before = known.get(resource.key)
            self._database.undo_log.on_rollback(partial(self._restore, resource.stack_id, resource.key, before))
            known[resource.key] = resource

    def drop_resource(self, resource: StackResource) -> None:
        self._execute("DELETE FROM stack_resource WHERE stack_id = ? AND key = ?", (resource.stack_id, resource.key))
        known = self._resources.get(resource.stack_id)
        if known is not None and resource.key in known:
            self._database.undo_log.on_rollback(partial(self._restore, resource.stack_id, resource.key, known.pop(resource.key)))

    def _restore(self, stack_id: str, key: str, before: StackResource | None) -> None:
        known = self._resources.get(stack_id)
        if known is None:
            return
        if before is None:
            known.pop(key, None)
        else:
            known[key] = before

    def resources(self, stack_id: str) -> dict[str, StackResource]:
        """Return the resources of a stack by key, with its leftovers. The caller must not change the dict."""
        known = self._resources.get(stack_id)
        if known is None:
            sql = "SELECT record FROM stack_resource WHERE stack_id = ? ORDER BY key"
            decoded = (msgspec.json.decode(record, type=StackResource) for (record,) in self._execute(sql, (stack_id,)))
            known = {resource.key: resource for resource in decoded}
        return known

    def remember(self, stack_id: str) -> None:
        """Keep the resources of a stack in memory until `forget` is called or this transaction is rolled back."""
        self._database.undo_log.on_rollback(partial(self.forget, stack_id))
        self._resources[stack_id] = self.resources(stack_id)

    def compute(self, stack_id: str, value: Any) -> None:
        """Keep a value that was computed from the rows of a stack, as `remember` does."""
        self._database.undo_log.on_rollback(partial(self.forget, stack_id))
        self.computed[stack_id] = value

    def forget(self, stack_id: str) -> None:
        """Drop the cached data of a stack."""
        for kept in (self._resources, self.computed, self._recent, self._last_event_s):
            kept.pop(stack_id, None)

    def resource(self, stack_id: str, key: str) -> StackResource | None:
        known = self._resources.get(stack_id)
        if known is not None:
            return known.get(key)
        sql = "SELECT record FROM stack_resource WHERE stack_id = ? AND key = ?"
        row = self._execute(sql, (stack_id, key)).fetchone()
        return msgspec.json.decode(row[0], type=StackResource) if row else None

    def with_no_echo(self, stack_id: str) -> list[StackResource]:
        """Return the resources of a stack whose attributes are secret, or were before the operation in progress."""
        if self._stacks_with_no_echo is None:
            rows = self._execute("SELECT DISTINCT stack_id FROM stack_resource WHERE instr(record, ?)", (NO_ECHO,))
            self._stacks_with_no_echo = {found for (found,) in rows}
        if stack_id not in self._stacks_with_no_echo:
            return []
        return [each for each in self.resources(stack_id).values() if each.has_no_echo]

    def with_physical_id(self, physical_id: str) -> list[StackResource]:
        sql = "SELECT record FROM stack_resource WHERE physical_id = ?"
        return [msgspec.json.decode(record, type=StackResource) for (record,) in self._execute(sql, (physical_id,))]

    # Events

    def add_event(self, event: StackEvent) -> None:
        sql = "INSERT INTO stack_event (id, stack_id, record) VALUES (?, ?, ?)"
        self._execute(sql, (event.id, event.stack_id, _dumps(event)))
        self._keep(self._last_event_s, event.stack_id, event.at_s)

    def last_event_s(self, stack_id: str) -> float | None:
        """Return the time of the newest event of a stack. Return None if there is none."""
        if stack_id in self._last_event_s:
            return self._last_event_s[stack_id]
        newest = self.events(stack_id, limit=1)
        return newest[0][1].at_s if newest else None

    def events(self, stack_id: str, before: int | None = None, limit: int = -1) -> list[tuple[int, StackEvent]]:
        """Return the events of a stack with their numbers, newest first. If `before` is given, return only smaller numbers."""
        below = "" if before is None else "AND number < ?"
        values = (stack_id, limit) if before is None else (stack_id, before, limit)
        sql = f"SELECT number, record FROM stack_event WHERE stack_id = ? {below} ORDER BY number DESC LIMIT ?"
        return [(number, msgspec.json.decode(record, type=StackEvent)) for number, record in self._execute(sql, values)]

    # Exports and imports

    def export(self, region: str, name: str) -> tuple[str, str] | None:
        """Return the value of an export, and the stack that exports it."""
        sql = "SELECT value, stack_id FROM stack_export WHERE region = ? AND name = ?"
        row = self._execute(sql, (region, name)).fetchone()
        return (str(row[0]), str(row[1])) if row else None

    def exports(self, region: str, after: str = "", limit: int = -1) -> list[tuple[str, str, str]]:
        """Return (name, value, stack) of the exports whose name is greater than `after`, sorted by name."""
        sql = "SELECT name, value, stack_id FROM stack_export WHERE region = ? AND name > ? ORDER BY name LIMIT ?"
        return [(name, value, stack_id) for name, value, stack_id in self._execute(sql, (region, after, limit))]

    def exports_of(self, stack_id: str) -> dict[str, str]:
        return dict(self._execute("SELECT name, value FROM stack_export WHERE stack_id = ?", (stack_id,)).fetchall())

    def set_exports(self, stack: Stack, exports: dict[str, str]) -> None:
        """Replace the exports of a stack. No other stack may have exports with these names."""
        self._execute("DELETE FROM stack_export WHERE stack_id = ?", (stack.id,))
        for name, value in exports.items():
            self._execute("INSERT INTO stack_export VALUES (?, ?, ?, ?)", (stack.region, name, value, stack.id))

    def importers(self, region: str, name: str) -> list[str]:
        """Return the names of the stacks that import an export, sorted."""
        sql = (
            "SELECT stack.name FROM stack_import JOIN stack ON stack.id = stack_import.stack_id "
            "WHERE stack_import.region = ? AND stack_import.name = ? ORDER BY stack.name"
        )
        return [name for (name,) in self._execute(sql, (region, name))]

    def add_import(self, stack: Stack, name: str) -> None:
        self._execute("INSERT OR IGNORE INTO stack_import VALUES (?, ?, ?)", (stack.region, name, stack.id))

    def set_imports(self, stack: Stack, names: Iterable[str]) -> None:
        self._execute("DELETE FROM stack_import WHERE stack_id = ?", (stack.id,))
        for name in names:
            self.add_import(stack, name)


def _dumps(record: Stack | StackResource | StackEvent) -> str:
    return _ENCODER.encode(record).decode()


class ChangeSets:
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
        return msgspec.json.decode(row[0], type=ChangeSet) if row else None

    def named(self, stack_id: str, name: str) -> ChangeSet | None:
        row = self._execute("SELECT record FROM change_set WHERE stack_id = ? AND name = ?", (stack_id, name)).fetchone()
        return msgspec.json.decode(row[0], type=ChangeSet) if row else None

    def listed(self, stack_id: str, after: str = "", limit: int = -1) -> list[ChangeSet]:
        """Return the change sets of a stack with names greater than `after`, sorted by name. A limit of -1 means no limit."""
        sql = "SELECT record FROM change_set WHERE stack_id = ? AND name > ? ORDER BY name LIMIT ?"
        return [msgspec.json.decode(record, type=ChangeSet) for (record,) in self._execute(sql, (stack_id, after, limit))]

    def drop(self, change_set_id: str) -> None:
        self._execute("DELETE FROM change_set WHERE id = ?", (change_set_id,))

    def drop_of_stack(self, stack_id: str, *, kept: str = "") -> None:
        """Delete the change sets of a stack, except the change set with the ARN `kept`."""
        self._execute("DELETE FROM change_set WHERE stack_id = ? AND id != ?", (stack_id, kept))
