"""The use of capacity by shares, computed from the launches and ends of tasks as AWS describes fair shares."""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import exp

TOLERANCE = 0.15  # the server ranks shares once a second


class ShareUses:
    def __init__(self, weights: Mapping[str, float], decay_s: float) -> None:
        self.weights, self.decay_s, self.now_s = weights, decay_s, 0.0
        self.tasks: dict[str, tuple[str, float]] = {}  # task id → its share, and the vCPUs that count
        self.used = dict.fromkeys(weights, 0.0)  # vCPU seconds, decayed
        self.before: dict[str, float] = {}  # the levels as if no attempt had ended in this commit

    def released(self, now_s: float, active: Set[str]) -> None:
        """A commit ended the attempts of all tasks that are not active."""
        faded = exp(-(now_s - self.now_s) / self.decay_s) if self.now_s else 0.0
        for share in self.used:
            steady = self._held(share) * self.decay_s
            self.used[share] = steady + (self.used[share] - steady) * faded if self.now_s else 0.0
        self.now_s = now_s
        self.before = {share: self.level(share) for share in self.weights}  # the server may launch before it ends attempts
        self.tasks = {task_id: taken for task_id, taken in self.tasks.items() if task_id in active}

    def taken(self, task_id: str, share: str, vcpus: float) -> None:
        self.tasks[task_id] = share, vcpus
        self.before[share] += self.weights[share] * vcpus

    def is_fair(self, task_id: str, share: str, other: str) -> bool:
        """Whether a task may start before a task of another share that waits. Its own vCPUs do not count yet."""
        taken = self.tasks.pop(task_id)
        level = self.level(share)
        self.tasks[task_id] = taken
        return level <= max(self.level(other), self.before[other]) + TOLERANCE

    def level(self, share: str) -> float:
        return self.weights[share] * (self.used[share] / self.decay_s + self._held(share))

    def _held(self, share: str) -> float:
        return sum(vcpus for each, vcpus in self.tasks.values() if each == share)

    def __str__(self) -> str:
        return str({share: round(self.level(share), 2) for share in self.weights})
