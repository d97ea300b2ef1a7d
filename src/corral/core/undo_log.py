"""The undo log of a store: it undoes changes of values in memory when the database transaction is rolled back."""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class UndoLog:
    """Records how to undo each change of a derived value, and what to do after the commit.

    Derived values are indexes, counters and caches in memory that are computed from rows. When a transaction or a savepoint is
    rolled back, the database restores the rows first. Then the undo log undoes the changes of derived values, newest first. So no
    derived value has to be rebuilt from all rows when a commit fails.
    """

    def __init__(self) -> None:
        self._inverses: list[Action] = []
        self._effects: list[Action] = []
        self._mark = (0, 0)
        self.before_commit: list[Action] = []  # functions that write the rows that were collected during the transaction
        # Call `on_rollback` with a function that undoes the last change of a derived value. The function may read rows.
        self.on_rollback = self._inverses.append
        self.on_commit = self._effects.append  # call `on_commit` with a function that must run after the commit

    def savepoint(self) -> None:
        self._mark = len(self._inverses), len(self._effects)

    def rollback_to_savepoint(self) -> None:
        self.rollback_to(self._mark)

    def position(self) -> tuple[int, int]:
        """Return the position of the latest recorded change. `rollback_to` undoes the later changes."""
        return len(self._inverses), len(self._effects)

    def rollback_to(self, position: tuple[int, int]) -> None:
        inverses, effects = position
        self._undo_to(inverses)
        del self._effects[effects:]

    def prepare_commit(self) -> None:
        for write in self.before_commit:
            write()

    def commit(self) -> None:
        self._inverses.clear()
        if self._effects:
            effects = self._effects[:]
            self._effects.clear()
            for effect in effects:
                effect()

    def rollback(self) -> None:
        self._effects.clear()
        self._undo_to(0)

    def _undo_to(self, mark: int) -> None:
        while len(self._inverses) > mark:
            self._inverses.pop()()
