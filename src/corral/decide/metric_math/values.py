"""What metric math computes with: numbers, time series, and arrays of time series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from corral.model.metric import Metric

Values = dict[int, float]  # the second at which a period begins → its value, in the order of time


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    period_s: int
    values: Values
    metric: Metric | None = None  # what it was read from
    statistic: str = ""

    def over(self, values: Values) -> Series:
        return replace(self, values=values)


Value = float | Series | tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may refer to."""

    results: Mapping[str, Value]  # of the queries it names
    metrics: Mapping[str, Series]  # all metrics of the request: METRICS()
    period_s: int  # of series that are made from nothing
    times: Callable[[int], range]  # period → when the periods of the request begin
    search: Callable[[str, str, int | None], tuple[Series, ...]]
