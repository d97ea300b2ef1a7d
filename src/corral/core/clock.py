"""Clocks. Other modules do not read the time of day themselves, so that tests can set the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Return the time in seconds since the epoch."""
        ...


class WallClock:
    def now_s(self) -> float:
        return time.time()


class VirtualClock:
    """A clock for simulations and tests. Its time changes only when `advance` is called."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> None:
        self._now_s += by_s
