"""The values of metric math: numbers, time series, and arrays of time series."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from corral.model.metric import Metric

SeriesValues = dict[int, float]  # start of a period in seconds → value, sorted by time


class Series(Struct, frozen=True):
    label: str
    period_s: int
    values: SeriesValues
    metric: Metric | None = None  # None: the series is a result of an expression
    statistic: str = ""

    def over(self, values: SeriesValues) -> Series:
        return replace(self, values=values)


Value = float | Series | tuple[Series, ...]


class ExpressionScope(Struct, frozen=True):
    """The queries and series that an expression may refer to."""

    results: Mapping[str, Value]  # query id → result
    metrics: Mapping[str, Series]  # query id → series; the function METRICS() returns these
    period_s: int  # the period of series that a function such as TIME_SERIES creates
    times: Callable[[int], range]  # length of a period → the start times of all periods of that length in the request's time range
    search: Callable[[str, str, int | None], tuple[Series, ...]]  # (query, statistic, period in seconds) → the result of SEARCH
    count: Callable[[int], None]  # called with the number of datapoints of each value; raises an error if they are too many
