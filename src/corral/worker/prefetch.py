"""Limits what a feeder holds: the number of messages, and the bytes of their objects."""

from __future__ import annotations

import threading


class Prefetch:
    """Slots for messages and a budget of bytes. A thread that receives messages waits here while the feeder holds enough."""

    def __init__(self, slots_max: int, bytes_max: int) -> None:
        self.slots_max = slots_max
        self._slots = slots_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def take_slots(self, count: int) -> int:
        """Wait until `count` slots are free, take them, and return `count`. Return 0 after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._slots >= count)
            if self._closed:
                return 0
            self._slots -= count
            return count

    def take_bytes(self, size: int) -> None:
        """Wait until `size` bytes are free and take them. If `size` exceeds the limit, wait until no bytes are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes == 0 or self._bytes + size <= self._bytes_max)
            self._bytes += size

    def add_bytes(self, more: int) -> None:
        """Correct an estimate without waiting, for example if decoded data is larger than its object."""
        with self._changed:
            self._bytes += more
            self._changed.notify_all()

    def give(self, slots: int, size: int = 0) -> None:
        with self._changed:
            self._slots += slots
            self._bytes -= size
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
