"""Histograms of durations and sizes that Corral measures about itself."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

# Upper bounds of the buckets.
DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
WAITS_S = (0.001, 0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
ACTIONS_MAX = 5_000  # further actions are counted as OTHER; Corral serves fewer operations than this
OTHER = "other"
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class Histogram(Struct, eq=False):
    """Counts of values by bucket. One thread may add values while others read the counts."""

    bounds: tuple[float, ...]
    sum: float = 0.0
    counts: list[int] = field(default_factory=list)  # the last one counts values above all bounds

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class RequestTimes:
    """Counts API requests and measures how long they take."""

    def __init__(self) -> None:
        self.durations: dict[str, Histogram] = {}  # action, for example ecs:RunTask → durations in seconds
        self.errors: dict[tuple[str, int], int] = {}  # (action, HTTP status) → number of responses

    def record(self, action: str, seconds: float, status: int) -> None:
        durations = self.durations.get(action)
        if durations is None:
            action, durations = self._first(action)
        durations.add(seconds)
        if status >= 400:
            self.errors[action, status] = self.errors.get((action, status), 0) + 1

    def _first(self, action: str) -> tuple[str, Histogram]:
        if len(self.durations) >= ACTIONS_MAX:
            action = OTHER
        return action, self.durations.setdefault(action, Histogram(DURATIONS_S))
