"""Collects items on the event loop and passes them, several at a time, to a function that wakes a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadFeed(Generic[T]):
    def __init__(self, give: Callable[[list[T]], None], most: int) -> None:
        self._give = give
        self._most = most
        self._items: list[T] = []

    def add(self, item: T) -> None:
        """Add an item.

        At the end of each iteration of the event loop, the items are passed on if there are at least `most`, or if no item was
        added in this iteration.
        """
        if not self._items:
            asyncio.get_running_loop().call_soon(self._end_turn, 0)
        self._items.append(item)

    def flush(self) -> None:
        items, self._items = self._items, []
        if items:  # an earlier call may have passed them on
            self._give(items)

    def _end_turn(self, before: int) -> None:
        if before < len(self._items) < self._most:
            asyncio.get_running_loop().call_soon(self._end_turn, len(self._items))
        else:
            self.flush()
