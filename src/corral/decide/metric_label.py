"""Labels of time series, with parts that are filled in: `${MAX}`, `${LAST_TIME}`, `${PROP('Dim.InstanceId')}`..."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.decide.metric_math.times import date_of
from corral.decide.metric_math.values import Series
from corral.model.metric import Metric

PART = re.compile(r"\$\{\s*(?:(?P<name>[A-Z_]+)|PROP\('(?P<property>[^']*)'\))\s*\}")
NOTHING = "--"  # what a series without values says


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a label may say that is not in the series."""

    now_s: float
    zone_s: int  # east of Greenwich
    account: str


def is_dynamic(label: str) -> bool:
    return PART.search(label) is not None


def filled(label: str, series: Series, default: str, around: Surroundings) -> str:
    """A part that nobody knows stays as it is."""

    def said(part: re.Match[str]) -> str:
        if part["property"] is not None:
            return _property(part["property"], series, around)
        if part["name"] == "LABEL":
            return default
        known = STATISTICS.get(part["name"])
        if known is None:
            return part[0]
        return known(series.values, around) if series.values else NOTHING

    return PART.sub(said, label)


def told_apart(metrics: Sequence[Metric]) -> list[str]:
    """For each of several series what tells it from the others: names that differ, values of dimensions that differ."""
    parts = [
        {"namespace": metric.namespace, "name": metric.name} | {f"dimension {name}": value for name, value in metric.dimensions}
        for metric in metrics
    ]
    keys = dict.fromkeys(key for each in parts for key in each)
    differing = [key for key in keys if len({each.get(key) for each in parts}) > 1]
    return [" ".join(each[key] for key in differing if key in each) or metric.name for each, metric in zip(parts, metrics)]


def number(value: float) -> str:
    return f"{value:.15g}"


def _time(at_s: float, around: Surroundings) -> str:
    local_s = int(at_s) + around.zone_s
    year, month, day = date_of(local_s)
    return f"{year:04d}-{month:02d}-{day:02d} {local_s // 3600 % 24:02d}:{local_s // 60 % 60:02d}:{local_s % 60:02d}"


def _span(seconds: float) -> str:
    """1d2h, 5m, 10s."""
    found, rest = "", int(abs(seconds))
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        found += f"{count}{unit}" if count else ""
    return found or "0s"


def _property(name: str, series: Series, around: Surroundings) -> str:
    metric = series.metric
    dimensions = dict(metric.dimensions) if metric is not None else {}
    known = {
        "AccountId": around.account,
        "Period": str(series.period_s),
        "Stat": series.statistic,
        **({"MetricName": metric.name, "Namespace": metric.namespace, "Region": metric.region} if metric is not None else {}),
        **{f"Dim.{key}": value for key, value in dimensions.items()},
    }
    return known.get(name, NOTHING)


Values = dict[int, float]


def _first(values: Values) -> int:
    return next(iter(values))


def _last(values: Values) -> int:
    return next(reversed(values))


def _lowest(values: Values) -> int:
    return min(values, key=lambda at: values[at])


def _highest(values: Values) -> int:
    return max(values, key=lambda at: values[at])


def _of_point(name: str, point: Callable[[Values], int]) -> dict[str, Callable[[Values, Surroundings], str]]:
    return {
        name: lambda values, _: number(values[point(values)]),
        f"{name}_TIME": lambda values, around: _time(point(values), around),
        f"{name}_TIME_RELATIVE": lambda values, around: _span(around.now_s - point(values)),
    }


STATISTICS: dict[str, Callable[[Values, Surroundings], str]] = {
    "AVG": lambda values, _: number(sum(values.values()) / len(values)),
    "SUM": lambda values, _: number(sum(values.values())),
    "DATAPOINT_COUNT": lambda values, _: str(len(values)),
    "FIRST_LAST_RANGE": lambda values, _: number(values[_last(values)] - values[_first(values)]),
    "FIRST_LAST_TIME_RANGE": lambda values, _: _span(_last(values) - _first(values)),
    "MIN_MAX_RANGE": lambda values, _: number(max(values.values()) - min(values.values())),
    "MIN_MAX_TIME_RANGE": lambda values, _: _span(_highest(values) - _lowest(values)),
    **_of_point("FIRST", _first),
    **_of_point("LAST", _last),
    **_of_point("MIN", _lowest),
    **_of_point("MAX", _highest),
}
