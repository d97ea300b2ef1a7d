"""Counts API requests and measures how long they take, for the page `/metrics`."""

from __future__ import annotations

from corral.model.histogram import DURATIONS_S, Histogram

ACTIONS_MAX = 5_000  # further actions are counted as OTHER; Corral serves fewer operations than this
OTHER = "other"


class RequestTimes:
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
