"""The lines of tasks that wait until fewer tasks take turns on the GPUs of a pool. These tasks have no claims yet.

A pool has one line for each owner, so that the tasks of one owner do not keep those of another waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from corral.core.undo_log import UndoLog


class TurnLines:
    def __init__(self, undo_log: UndoLog, waiting: Iterable[tuple[str, str, str]]) -> None:
        """`waiting` are the tasks in line, oldest first: id, pool, owner."""
        self._undo_log = undo_log
        self._pools: dict[str, dict[str, dict[str, None]]] = {}  # pool → owner → task ids, oldest first
        self._places: dict[str, tuple[str, str]] = {}  # task id → pool, owner
        for task_id, pool, owner in waiting:
            self._add(task_id, pool, owner)

    def join(self, task_id: str, pool: str, owner: str) -> None:
        if task_id not in self._places:
            self._add(task_id, pool, owner)
            self._undo_log.on_rollback(partial(self._remove, task_id))

    def leave(self, task_id: str) -> None:
        if task_id in self._places:
            place = self._places[task_id]
            self._remove(task_id)
            self._undo_log.on_rollback(partial(self._add, task_id, *place))

    def has_tasks(self, pool: str) -> bool:
        return pool in self._pools

    def next_of(self, pool: str, taking_turns: Mapping[str, int]) -> str | None:
        """Return the oldest task of the owner with the fewest tasks that take turns. `taking_turns` is owner → their number."""
        lines = self._pools.get(pool)
        if not lines:
            return None
        owner = min(lines, key=lambda each: taking_turns.get(each, 0))
        return next(iter(lines[owner]))

    def _add(self, task_id: str, pool: str, owner: str) -> None:
        self._places[task_id] = pool, owner
        self._pools.setdefault(pool, {}).setdefault(owner, {})[task_id] = None

    def _remove(self, task_id: str) -> None:
        pool, owner = self._places.pop(task_id)
        lines = self._pools[pool]
        del lines[owner][task_id]
        if not lines[owner]:
            del lines[owner]
        if not lines:
            del self._pools[pool]
