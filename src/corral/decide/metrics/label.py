"""Labels of CloudWatch time series. They can have placeholders: `${MAX}`, `${LAST_TIME}`, `${PROP('Dim.InstanceId')}`..."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.decide.metrics.math.functions import date_of
from corral.decide.metrics.math.series import Series, SeriesValues
from corral.model.durations import DAY_S, HOUR_S, MINUTE_S
from corral.model.metric import Metric

PART = re.compile(r"\$\{\s*(?:(?P<name>[A-Z_]+)|PROP\('(?P<property>[^']*)'\))\s*\}")
NO_VALUE = "--"  # replaces a placeholder if the series has no values


class LabelContext(Struct, frozen=True):
    """Values for placeholders that do not depend on the datapoints of the series."""

    now_s: float
    zone_s: int  # offset of the time zone from UTC, in seconds
    account: str


def is_dynamic(label: str) -> bool:
    return PART.search(label) is not None


def fill_label(label: str, series: Series, default: str, context: LabelContext) -> str:
    """Replace the placeholders of a label. Unknown placeholders stay as they are."""

    def replacement(part: re.Match[str]) -> str:
        if part["property"] is not None:
            return _property(part["property"], series, context)
        if part["name"] == "LABEL":
            return default
        known = STATISTICS.get(part["name"])
        if known is None:
            return part[0]
        return known(series.values, context) if series.values else NO_VALUE

    return PART.sub(replacement, label)


def distinct_labels(metrics: Sequence[Metric]) -> list[str]:
    """Return a label for each series. It contains the names and dimension values that differ between the series."""
    parts = [
        {"namespace": metric.namespace, "name": metric.name} | {f"dimension {name}": value for name, value in metric.dimensions}
        for metric in metrics
    ]
    keys = dict.fromkeys(key for each in parts for key in each)
    differing = [key for key in keys if len({each.get(key) for each in parts}) > 1]
    return [" ".join(each[key] for key in differing if key in each) or metric.name for each, metric in zip(parts, metrics)]


def default_labels(queries: Sequence[tuple[Metric, str, int]]) -> list[str]:
    """Return the default label of each query of GetMetricData that reads a metric: (metric, statistic, period in seconds).

    The label is the name of the metric. As on CloudWatch, dimension values, the statistic and the period follow if they differ
    between the queries.
    """
    shows_dimensions = len({metric.dimensions for metric, _, _ in queries}) > 1
    shows_statistic = len({statistic for _, statistic, _ in queries}) > 1
    shows_period = len({period_s for _, _, period_s in queries}) > 1
    labels = []
    for metric, statistic, period_s in queries:
        parts = [metric.name]
        parts += [value for _, value in metric.dimensions] if shows_dimensions else []
        parts += [statistic] if shows_statistic else []
        parts += [str(period_s)] if shows_period else []
        labels.append(" ".join(parts))
    return labels


def number(value: float) -> str:
    return f"{value:.15g}"


def _time(at_s: float, context: LabelContext) -> str:
    local_s = int(at_s) + context.zone_s
    year, month, day = date_of(local_s)
    return f"{year:04d}-{month:02d}-{day:02d} {local_s // HOUR_S % 24:02d}:{local_s // 60 % 60:02d}:{local_s % 60:02d}"


def _span(seconds: float) -> str:
    """Write a duration as 1d2h, 5m or 10s."""
    found, rest = "", int(abs(seconds))
    for unit, length in (("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S), ("s", 1)):
        count, rest = divmod(rest, length)
        found += f"{count}{unit}" if count else ""
    return found or "0s"


def _property(name: str, series: Series, context: LabelContext) -> str:
    metric = series.metric
    dimensions = dict(metric.dimensions) if metric is not None else {}
    known = {
        "AccountId": context.account,
        "Period": str(series.period_s),
        "Stat": series.statistic,
        **({"MetricName": metric.name, "Namespace": metric.namespace, "Region": metric.region} if metric is not None else {}),
        **{f"Dim.{key}": value for key, value in dimensions.items()},
    }
    return known.get(name, NO_VALUE)


def _first(values: SeriesValues) -> int:
    return next(iter(values))


def _last(values: SeriesValues) -> int:
    return next(reversed(values))


def _lowest(values: SeriesValues) -> int:
    return min(values, key=lambda at: values[at])


def _highest(values: SeriesValues) -> int:
    return max(values, key=lambda at: values[at])


def _of_point(name: str, point: Callable[[SeriesValues], int]) -> dict[str, Callable[[SeriesValues, LabelContext], str]]:
    return {
        name: lambda values, _: number(values[point(values)]),
        f"{name}_TIME": lambda values, context: _time(point(values), context),
        f"{name}_TIME_RELATIVE": lambda values, context: _span(context.now_s - point(values)),
    }


STATISTICS: dict[str, Callable[[SeriesValues, LabelContext], str]] = {
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
