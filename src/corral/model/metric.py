"""Metrics: what a series is called, what arrives for it, and what is known of the samples of one period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

Dimensions = tuple[tuple[str, str], ...]  # (name, value), sorted

DIMENSION_VALUE_MAX = 1024  # characters
LARGEST = 2.0**360  # of a value, either way
UNITS = (
    "None", "Seconds", "Microseconds", "Milliseconds", "Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes", "Bits",
    "Kilobits", "Megabits", "Gigabits", "Terabits", "Percent", "Count", "Bytes/Second", "Kilobytes/Second", "Megabytes/Second",
    "Gigabytes/Second", "Terabytes/Second", "Bits/Second", "Kilobits/Second", "Megabits/Second", "Gigabits/Second",
    "Terabits/Second", "Count/Second",
)  # fmt: skip


class Metric(NamedTuple):
    """The name of one series. A tuple, because it is looked up for every point that arrives."""

    region: str
    namespace: str
    name: str
    dimensions: Dimensions = ()


class StatisticSet(NamedTuple):
    """Samples of which only this is known."""

    samples: float
    sum: float
    minimum: float
    maximum: float


Sample = float | StatisticSet | Sequence[tuple[float, float]]  # a value; a summary; values and how often each was seen


class Point(NamedTuple):
    metric: Metric
    at_s: float
    sample: Sample
    unit: str = "None"
    resolution_s: int = 60  # 60: of its second only the minute is kept


@dataclass(slots=True)
class Summary:
    """What is known of the samples of one period; it grows while its parts are read."""

    count: float = 0.0
    sum: float = 0.0
    minimum: float = inf
    maximum: float = -inf
    weights: dict[float, float] | None = field(default_factory=dict)  # value → how often; None: the values are not known
    exact: bool = True  # the weights are of the very values, and the rest follows from them

    def add(self, value: float, weight: float = 1.0) -> None:
        self.count += weight
        self.sum += value * weight
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        if self.weights is not None:
            self.weights[value] = self.weights.get(value, 0.0) + weight

    def merge(self, other: Summary) -> None:
        self.count += other.count
        self.sum += other.sum
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.exact = self.exact and other.exact
        if self.weights is None or other.weights is None:
            self.weights = None
            return
        for value, weight in other.weights.items():
            self.weights[value] = self.weights.get(value, 0.0) + weight
