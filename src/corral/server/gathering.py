"""What is to be given to a thread, gathered on the event loop: fewer and larger batches, fewer wake-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    def __init__(self, give: Callable[[list[T]], None], most: int) -> None:
        self._give = give
        self._most = most
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """It leaves with the others once a turn of the loop has brought no more, or enough have come."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self._look, 0)
        self._items.append(item)

    def flush(self) -> None:
        items, self._items = self._items, []
        if items:  # a flush may have come before
            self._give(items)

    def _look(self, before: int) -> None:
        if before < len(self._items) < self._most:
            asyncio.get_running_loop().call_soon(self._look, len(self._items))
        else:
            self.flush()
