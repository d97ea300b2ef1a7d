"""Dynamic batches for `predict`, a function of the user.

A batch is taken when it has the maximum size, or when `predict` is idle and the oldest item has waited for the maximum time.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from .items import Batch, Item

Taken = tuple[Batch, list[float]]  # a batch, and the seconds that each of its items has waited


class Batches:
    """The items that are ready, in their order. `take` makes the next batch from them."""

    def __init__(self, batch_max: int, wait_max_s: float) -> None:
        self._batch_max = batch_max
        self._wait_max_s = wait_max_s
        self._ready: deque[tuple[float, Item]] = deque()
        self._changed = threading.Condition()
        self._is_wanted = False  # `predict` waits for a batch
        self._is_closed = False

    def add(self, items: list[Item]) -> bool:
        """Add items. Return False after `close`: then the caller must return the items to the queue."""
        now_s = time.monotonic()
        with self._changed:
            if not self._is_closed:
                was_empty = not self._ready
                self._ready.extend((now_s, item) for item in items)
                if was_empty or len(self._ready) >= self._batch_max:  # otherwise the waiting thread has nothing to do yet
                    self._changed.notify_all()
            return not self._is_closed

    def want(self, is_wanted: bool) -> None:
        """Set whether `predict` is idle. While it works, `take` returns only full batches, because a small batch can still grow."""
        with self._changed:
            self._is_wanted = is_wanted
            self._changed.notify_all()

    def take(self) -> Taken | None:
        """Wait for the next batch and return it. Return None after `close`."""
        with self._changed:
            while not self._is_closed:
                pause_s = self._pause_s()
                if pause_s == 0.0:
                    now_s = time.monotonic()
                    pairs = [self._ready.popleft() for _ in range(min(self._batch_max, len(self._ready)))]
                    return Batch(item for _, item in pairs), [now_s - since_s for since_s, _ in pairs]
                self._changed.wait(pause_s)
            return None

    def close(self) -> list[Item]:
        """End all waits. Return the items that no batch contains yet."""
        with self._changed:
            self._is_closed = True
            left = [item for _, item in self._ready]
            self._ready.clear()
            self._changed.notify_all()
            return left

    def _pause_s(self) -> float | None:
        """Return the seconds until a batch can be taken. Return None if an item must arrive or `predict` must become idle first."""
        if len(self._ready) >= self._batch_max:
            return 0.0
        if not self._ready or not self._is_wanted:
            return None
        return max(0.0, self._ready[0][0] + self._wait_max_s - time.monotonic())


class NextBatch:
    """A buffer for one batch, which is prepared while `predict` works on the previous batch."""

    def __init__(self) -> None:
        self._batch: Taken | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def __bool__(self) -> bool:
        return self._batch is not None

    def put(self, batch: Taken) -> bool:
        """Wait until the buffer is free. Return False after `close`: then the caller must return the items to the queue."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch is None or self._is_closed)
            if not self._is_closed:
                self._batch = batch
                self._changed.notify_all()
            return not self._is_closed

    def take(self) -> Taken | None:
        with self._changed:
            self._changed.wait_for(lambda: self._batch is not None or self._is_closed)
            batch, self._batch = self._batch, None
            self._changed.notify_all()
            return batch

    def close(self) -> list[Item]:
        with self._changed:
            batch, self._batch, self._is_closed = self._batch, None, True
            self._changed.notify_all()
            return list(batch[0]) if batch else []
