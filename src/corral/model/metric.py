"""CloudWatch metrics: the name of a time series, its datapoints, and the summary of the samples of one period."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from msgspec import Struct, field

from corral.model.durations import DAY_S, HOUR_S

Dimensions = tuple[tuple[str, str], ...]  # (name, value), sorted

# The CloudWatch agent writes the metrics that it scrapes from the tasks of a cluster into this namespace.
COLLECTOR_NAMESPACE = "ECS/ContainerInsights/Prometheus"
GPU_NAMESPACE = "Corral/GPU"  # Corral's own metrics of GPUs
GPU_NAMESPACES = (GPU_NAMESPACE, COLLECTOR_NAMESPACE)
# The namespaces of AWS's services and of Corral begin with one of these texts. Only Corral writes to them.
RESERVED_NAMESPACES = ("AWS/", "Corral/")
DIMENSION_VALUE_MAX = 1024  # characters
LARGEST_VALUE = 2.0**360  # CloudWatch accepts values from -LARGEST_VALUE to LARGEST_VALUE
OLDEST_S = 14 * DAY_S  # CloudWatch accepts datapoints up to this age
AHEAD_S = 2 * HOUR_S  # CloudWatch accepts datapoints up to this far in the future
# Resolution in seconds → how long samples are stored with this resolution.
RETENTION_S = {1: 3 * HOUR_S, 60: 15 * DAY_S, 300: 63 * DAY_S, 3600: 455 * DAY_S}
UNITS = (
    "None", "Seconds", "Microseconds", "Milliseconds", "Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes", "Bits",
    "Kilobits", "Megabits", "Gigabits", "Terabits", "Percent", "Count", "Bytes/Second", "Kilobytes/Second", "Megabytes/Second",
    "Gigabytes/Second", "Terabytes/Second", "Bits/Second", "Kilobits/Second", "Megabits/Second", "Gigabits/Second",
    "Terabits/Second", "Count/Second",
)  # fmt: skip


class Metric(NamedTuple):
    """The name of one time series. It is a tuple because tuples are fast dictionary keys, and each new datapoint needs a lookup."""

    region: str
    namespace: str
    name: str
    dimensions: Dimensions = ()


class StatisticSet(NamedTuple):
    """A summary of several samples. Their single values are unknown."""

    samples: float
    sum: float
    minimum: float
    maximum: float


Sample = float | StatisticSet | Sequence[tuple[float, float]]  # a value, a summary, or (value, count) pairs


class Point(NamedTuple):
    metric: Metric
    at_s: float
    sample: Sample
    unit: str = "None"
    resolution_s: int = 60  # if 60, the time of the datapoint is rounded down to the minute


class Summary(Struct):
    """A summary of the samples of one period. Samples are added while rows are read."""

    count: float = 0.0
    sum: float = 0.0
    minimum: float = inf
    maximum: float = -inf
    weights: dict[float, float] | None = field(default_factory=dict)  # value → number of samples; None: the values are unknown
    exact: bool = True  # True: the keys of `weights` are exact values; False: they are the centers of buckets

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
