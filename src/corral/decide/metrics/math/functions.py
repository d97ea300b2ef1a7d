"""The functions of metric math."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from math import ceil, floor, log, log10, sqrt
from typing import Any, NoReturn

from msgspec import Struct

from corral.decide.metrics.math.parse import InvalidExpression, Keyword
from corral.decide.metrics.math.series import ExpressionScope, Series, SeriesValues, Value
from corral.model.durations import DAY_S, HOUR_S
from corral.model.numbers import INT64_MAX

UNSUPPORTED = ("ANOMALY_DETECTION_BAND", "DB_PERF_INSIGHTS", "INSIGHT_RULE_METRIC", "LAMBDA", "SERVICE_QUOTA")
CYCLE_DAYS = 146_097  # days in 400 years, after which the calendar repeats


class Function(Struct, frozen=True):
    name: str
    compute: Callable[..., Value]
    fewest: int
    most: int

    def takes(self, arguments: int) -> bool:
        return self.fewest <= arguments <= self.most

    def refuse(self, arguments: int) -> NoReturn:
        wanted = str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"
        raise InvalidExpression(f"{self.name} takes {wanted} arguments, not {arguments}")

    def __call__(self, scope: ExpressionScope, *arguments: Any) -> Value:
        return self.compute(self.name, scope, *arguments)


# Checks of arguments


def _one(name: str, value: Any) -> Series:
    listed = _many(name, value)
    if len(listed) == 1:
        return listed[0]
    raise InvalidExpression(f"{name} needs a time series")


def _many(name: str, value: Any) -> tuple[Series, ...]:
    if isinstance(value, Series):
        return (value,)
    if isinstance(value, tuple):
        return value
    raise InvalidExpression(f"{name} needs an array of time series")


def _number(name: str, value: Any) -> float:
    if isinstance(value, float):
        return value
    raise InvalidExpression(f"{name} needs a scalar")


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if not 0 <= number <= INT64_MAX or number != floor(number):
        raise InvalidExpression(f"{name} needs an integer that is 0 or greater")
    return int(number)


# Kinds of functions


def _by_series(change: Callable[[Series, ExpressionScope], SeriesValues]) -> Callable[..., Value]:
    """Make a function that maps a series to a series, and an array of series to an array of series."""

    def compute(name: str, scope: ExpressionScope, value: Any) -> Value:
        if isinstance(value, Series):
            return value.over(change(value, scope))
        return tuple(series.over(change(series, scope)) for series in _many(name, value))

    return compute


def _by_value(change: Callable[[float], float | None]) -> Callable[..., Value]:
    def changed(series: Series, _: ExpressionScope) -> SeriesValues:
        found = ((at, change(value)) for at, value in series.values.items())
        return {at: value for at, value in found if value is not None}

    return _by_series(changed)


def _reducing(of_values: Callable[[list[float]], float], of_column: Callable[[list[float], int], float]) -> Callable[..., Value]:
    """Make a function that reduces a series to a number.

    It reduces an array to one series. This series has a value for each time at which any series of the array has a value.
    """

    def compute(name: str, _: ExpressionScope, value: Any) -> Value:
        if isinstance(value, Series):
            return of_values(list(value.values.values()))
        series = _many(name, value)
        if not series:
            return ()
        times = sorted({at for each in series for at in each.values})
        columns = {at: [each.values[at] for each in series if at in each.values] for at in times}
        period_s = max(each.period_s for each in series)
        return Series("", period_s, {at: of_column(column, len(series)) for at, column in columns.items()})

    return compute


def _ignoring_missing(of_values: Callable[[list[float]], float]) -> Callable[[list[float], int], float]:
    return lambda column, _: of_values(column)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _largest(values: list[float]) -> float:
    return max(values, default=0.0)


def _smallest(values: list[float]) -> float:
    return min(values, default=0.0)


def _deviation(values: list[float]) -> float:
    mean = _mean(values)
    return sqrt(_mean([(value - mean) ** 2 for value in values]))


def _total(values: list[float]) -> float:
    return float(sum(values))


def _count(values: list[float]) -> float:
    return float(len(values))


REDUCERS: dict[str, Callable[[list[float]], float]] = {"AVG": _mean, "MAX": _largest, "MIN": _smallest, "SUM": _total}


# Differences between values


def _steps(series: Series) -> Iterable[tuple[int, int, float]]:
    """Yield (time, seconds since the previous value, difference from the previous value)."""
    return ((at, at - before, value - last) for (before, last), (at, value) in pairwise(series.values.items()))


def _diff(series: Series, _: ExpressionScope) -> SeriesValues:
    return {at: difference for at, _, difference in _steps(series)}


def _diff_time(series: Series, _: ExpressionScope) -> SeriesValues:
    return {at: float(seconds) for at, seconds, _ in _steps(series)}


def _rate(series: Series, _: ExpressionScope) -> SeriesValues:
    return {at: difference / seconds for at, seconds, difference in _steps(series)}


def _running_sum(series: Series, _: ExpressionScope) -> SeriesValues:
    return dict(zip(series.values, accumulate(series.values.values())))


def _logarithm(of: Callable[[float], float]) -> Callable[[float], float | None]:
    return lambda value: of(value) if value > 0 else None


# Missing values


def _fill(name: str, scope: ExpressionScope, value: Any, filler: Any) -> Value:
    if isinstance(value, Series):
        return value.over(_filled(name, value, scope, filler))
    return tuple(series.over(_filled(name, series, scope, filler)) for series in _many(name, value))


def _filled(name: str, series: Series, scope: ExpressionScope, filler: Any) -> SeriesValues:
    times = list(scope.times(series.period_s))
    known = series.values
    if isinstance(filler, Keyword):
        if filler.word == "REPEAT":
            return _repeated(times, known)
        if filler.word == "LINEAR":
            return _linear(times, known)
        raise InvalidExpression(f"{name} can fill only with a scalar, a time series, REPEAT or LINEAR")
    if isinstance(filler, (Series, tuple)):
        other = _one(name, filler).values
        return {at: known[at] if at in known else other[at] for at in times if at in known or at in other}
    constant = _number(name, filler)
    return {at: known.get(at, constant) for at in times}


def _repeated(times: Iterable[int], known: SeriesValues) -> SeriesValues:
    found: SeriesValues = {}
    last: float | None = None
    for at in times:
        last = known.get(at, last)
        if last is not None:
            found[at] = last
    return found


def _linear(times: Iterable[int], known: SeriesValues) -> SeriesValues:
    """Interpolate missing values between two values. Times before the first value and after the last value stay empty."""
    found: SeriesValues = {}
    gap: list[int] = []
    before: tuple[int, float] | None = None
    for at in times:
        if at not in known:
            gap.append(at)
            continue
        if before is not None:
            rise = (known[at] - before[1]) / (at - before[0])
            found |= {missing: before[1] + rise * (missing - before[0]) for missing in gap}
        gap.clear()
        found[at], before = known[at], (at, known[at])
    return found


# Arrays


def _metrics(name: str, scope: ExpressionScope, part: Any = "") -> Value:
    if not isinstance(part, str):
        raise InvalidExpression(f"{name} needs text in quotes")
    return tuple(series for id, series in scope.metrics.items() if part in id)


def _metric_count(name: str, _: ExpressionScope, value: Any) -> Value:
    return float(len(_many(name, value)))


def _end_of(at: int) -> Callable[..., Value]:
    def compute(name: str, _: ExpressionScope, value: Any) -> Value:
        series = _many(name, value)
        return series[at] if series else ()

    return compute


def _remove_empty(name: str, _: ExpressionScope, value: Any) -> Value:
    return tuple(series for series in _many(name, value) if series.values)


def _slice(name: str, _: ExpressionScope, value: Any, start: Any, end: Any = None) -> Value:
    return _many(name, value)[_whole(name, start) : None if end is None else _whole(name, end)]


def _sort(name: str, _: ExpressionScope, value: Any, by: Any, order: Any, limit: Any = None) -> Value:
    if not isinstance(by, Keyword) or by.word not in REDUCERS:
        raise InvalidExpression(f"{name} must sort by one of {', '.join(REDUCERS)}")
    if not isinstance(order, Keyword) or order.word not in ("ASC", "DESC"):
        raise InvalidExpression(f"The order of {name} must be ASC or DESC")
    reduce = REDUCERS[by.word]
    full = [series for series in _many(name, value) if series.values]
    empty = [series for series in _many(name, value) if not series.values]
    full.sort(key=lambda series: reduce(list(series.values.values())), reverse=order.word == "DESC")
    return tuple([*full, *empty][: None if limit is None else _whole(name, limit)])


# Other functions


def _if(name: str, scope: ExpressionScope, condition: Any, yes: Any, no: Any = None) -> Value:
    for choice in (condition, yes, no):
        if isinstance(choice, tuple):
            raise InvalidExpression(f"{name} needs time series or scalars, not arrays")
    if isinstance(condition, float):
        chosen: Value = yes if condition != 0 else Series("", scope.period_s, {}) if no is None else no
        return chosen
    series = _one(name, condition)
    found: SeriesValues = {}
    for at, truth in series.values.items():
        if truth != 0:
            found[at] = yes.values.get(at, 0.0) if isinstance(yes, Series) else _number(name, yes)
        elif isinstance(no, Series):
            if at in no.values:
                found[at] = no.values[at]
        elif no is not None:
            found[at] = _number(name, no)
    model = yes if isinstance(yes, Series) else no if isinstance(no, Series) else series
    return model.over(found)


def _period(name: str, _: ExpressionScope, value: Any) -> Value:
    return float(_one(name, value).period_s)


def _time_series(name: str, scope: ExpressionScope, value: Any) -> Value:
    number = _number(name, value)
    return Series("", scope.period_s, dict.fromkeys(scope.times(scope.period_s), number))


# Dates in UTC. They are computed here, because the modules of decide/ may not import datetime.


def date_of(at_s: int) -> tuple[int, int, int]:
    """Return (year, month, day). The computation uses years that start in March, so that the leap day is the last day of a year."""
    days = at_s // DAY_S + 719_468  # days since March 1 of the year 0
    cycle, of_cycle = divmod(days, CYCLE_DAYS)
    year_of_cycle = (of_cycle - of_cycle // 1460 + of_cycle // 36_524 - of_cycle // 146_096) // 365
    of_year = of_cycle - (365 * year_of_cycle + year_of_cycle // 4 - year_of_cycle // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return 400 * cycle + year_of_cycle + (month <= 2), month, day


CALENDAR: dict[str, Callable[[int], int]] = {
    "MINUTE": lambda at_s: at_s // 60 % 60,
    "HOUR": lambda at_s: at_s // HOUR_S % 24,
    "DAY": lambda at_s: (at_s // DAY_S + 3) % 7 + 1,  # Monday is 1; the epoch was a Thursday
    "DATE": lambda at_s: date_of(at_s)[2],
    "MONTH": lambda at_s: date_of(at_s)[1],
    "YEAR": lambda at_s: date_of(at_s)[0],
    "EPOCH": lambda at_s: at_s,
}


def _calendar(part: Callable[[int], int]) -> Callable[..., Value]:
    def compute(name: str, scope: ExpressionScope, value: Any) -> Value:
        series = _one(name, value)
        return series.over({at: float(part(at)) for at in scope.times(series.period_s)})

    return compute


def _search(name: str, scope: ExpressionScope, query: Any, statistic: Any, period: Any = None) -> Value:
    if not isinstance(query, str) or not isinstance(statistic, str):
        raise InvalidExpression(f"{name} needs a query and a statistic, both in quotes")
    return scope.search(query, statistic, None if period is None else _whole(name, period))


ALL: list[tuple[str, Callable[..., Value], int, int]] = [
    ("ABS", _by_value(abs), 1, 1),
    ("AVG", _reducing(_mean, lambda column, series: sum(column) / series), 1, 1),
    ("CEIL", _by_value(lambda value: float(ceil(value))), 1, 1),
    ("DATAPOINT_COUNT", _reducing(_count, _ignoring_missing(_count)), 1, 1),
    ("DIFF", _by_series(_diff), 1, 1),
    ("DIFF_TIME", _by_series(_diff_time), 1, 1),
    ("FILL", _fill, 2, 2),
    ("FIRST", _end_of(0), 1, 1),
    ("FLOOR", _by_value(lambda value: float(floor(value))), 1, 1),
    ("IF", _if, 2, 3),
    ("LAST", _end_of(-1), 1, 1),
    ("LOG", _by_value(_logarithm(log)), 1, 1),
    ("LOG10", _by_value(_logarithm(log10)), 1, 1),
    ("MAX", _reducing(_largest, _ignoring_missing(_largest)), 1, 1),
    ("METRICS", _metrics, 0, 1),
    ("METRIC_COUNT", _metric_count, 1, 1),
    ("MIN", _reducing(_smallest, _ignoring_missing(_smallest)), 1, 1),
    ("PERIOD", _period, 1, 1),
    ("RATE", _by_series(_rate), 1, 1),
    ("REMOVE_EMPTY", _remove_empty, 1, 1),
    ("RUNNING_SUM", _by_series(_running_sum), 1, 1),
    ("SEARCH", _search, 2, 3),
    ("SLICE", _slice, 2, 3),
    ("SORT", _sort, 3, 4),
    ("STDDEV", _reducing(_deviation, _ignoring_missing(_deviation)), 1, 1),
    ("SUM", _reducing(_total, _ignoring_missing(_total)), 1, 1),
    ("TIME_SERIES", _time_series, 1, 1),
    *((name, _calendar(part), 1, 1) for name, part in CALENDAR.items()),
]
FUNCTIONS = {name: Function(name, compute, fewest, most) for name, compute, fewest, most in ALL}
