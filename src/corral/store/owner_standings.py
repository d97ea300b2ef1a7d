"""Which levels and allowances of owners in the fleet index are out of date (`fleet/shares.py`). All of it is in memory.

The level of an owner changes when the owner holds more or fewer GPUs, and slowly as long as it holds any. What its limits allow
changes with what it holds, or what the members of one of its groups hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import inf

from corral.core.undo_log import UndoLog

LEVELS_S = 1.0  # the levels of owners that hold GPUs are computed at most once in this time, unless what they hold changes


class OwnerStandings:
    def __init__(self, undo_log: UndoLog) -> None:
        self._on_rollback = undo_log.on_rollback
        self._moved: dict[str, None] = {}  # owners whose level is out of date
        self._changed: dict[str, None] = {}  # owners that hold more or less since the allowances were computed
        self._known: set[str] = set()  # owners whose allowance was computed since the limits have changed
        self._levels_at_s = -inf

    def hold(self, owner: str) -> None:
        """Note that an owner holds more or less. A rollback calls this, too."""
        self._moved[owner] = self._changed[owner] = None

    def look_again(self, owners: Iterable[str]) -> None:
        """Compute the allowances of owners again, because time has passed."""
        self._change_again(list(owners))

    def forget(self, owners: Iterable[str]) -> None:
        """Compute all levels and allowances again, because limits, weights or groups have changed. `owners` have used GPUs."""
        self._moved.update(dict.fromkeys(owners))
        self._know(set())

    def take_moved(self, now_s: float, holders: Callable[[], Iterable[str]]) -> Collection[str]:
        """Return the owners whose levels must be computed now."""
        moved = self._moved
        if now_s >= self._levels_at_s + LEVELS_S or now_s < self._levels_at_s:
            moved.update(dict.fromkeys(holders()))
            self._levels_at_s = now_s  # a rollback keeps it, because `_moved` then has these owners
        if moved:
            self._moved = {}
            self._on_rollback(partial(self._move_again, moved))
        return moved

    def take_changed(self, waiting: Collection[str]) -> tuple[Collection[str], list[str]]:
        """Return the owners that hold more or less, and those of the waiting owners whose allowance is unknown."""
        changed, unknown = self._changed, [owner for owner in waiting if owner not in self._known]
        if changed:
            self._changed = {}
            self._on_rollback(partial(self._change_again, changed))
        if unknown:
            self._know({*self._known, *unknown})
        return changed, unknown

    def _know(self, known: set[str]) -> None:
        self._on_rollback(partial(setattr, self, "_known", self._known))
        self._known = known

    def _move_again(self, moved: Collection[str]) -> None:
        self._moved.update(dict.fromkeys(moved))

    def _change_again(self, changed: Collection[str]) -> None:
        self._changed.update(dict.fromkeys(changed))
