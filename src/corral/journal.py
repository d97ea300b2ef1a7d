"""The journal of a store: it keeps indexes, counters and caches in memory in step with the transaction that changes the rows."""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class Journal:
    """Records, for each change of a derived value, how to undo it and what to do after the commit.

    A rollback runs the recorded inverses, newest first, after the rows were rolled back, so an inverse may read rows. All derived
    values follow savepoints and transactions in this way, and none must be rebuilt when a commit fails.
    """

    def __init__(self) -> None:
        self._inverses: list[Action] = []
        self._effects: list[Action] = []
        self._mark = (0, 0)
        self.on_rollback = self._inverses.append  # call it with the inverse of a change that was just made in memory
        self.on_commit = self._effects.append  # call it with an action that must wait for the commit

    def savepoint(self) -> None:
        self._mark = len(self._inverses), len(self._effects)

    def rollback_to_savepoint(self) -> None:
        inverses, effects = self._mark
        self._undo_to(inverses)
        del self._effects[effects:]

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
