"""MetricDataQueries of GetMetricData and of alarms: parses, checks and computes them.

A query has one of three sources. A `MetricStat` reads one series from the store. An `Expression` is evaluated over the results of
other queries. A `Select` is a Metrics Insights query. `series_values` and `newest_second` read the statistics of one series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct, field

from corral.core.transactions import Tx
from corral.decide.metrics import math as metric_math
from corral.decide.metrics import sql as metric_sql
from corral.decide.metrics.label import default_labels, distinct_labels
from corral.decide.metrics.math import (
    Expression,
    ExpressionScope,
    InvalidExpression,
    Series,
    Value,
    calls_in,
    evaluate,
    names_in,
    to_result,
)
from corral.decide.metrics.periods import first_period, is_period, is_stored_for
from corral.decide.metrics.search import InvalidSearch, parse_search
from corral.decide.metrics.sql import SERIES_MAX, InvalidQuery, Select
from corral.decide.metrics.statistics import Statistic, parse_statistic, value_of
from corral.model.durations import DAY_S, MINUTE_S
from corral.model.metric import GPU_NAMESPACES, Metric, Summary
from corral.services.cloudwatch.common import dimension_faults, dimensions_of
from corral.services.cloudwatch.errors import ValidationException
from corral.telemetry import MetricStore

DEFAULT_PERIOD_S = MINUTE_S
# If a query has no unit and its datapoints have several, CloudWatch returns those of the first of these units.
UNITS_READ = (
    "Megabits", "Terabits", "Gigabits", "Count", "Bytes", "Gigabytes", "Gigabytes/Second", "Kilobytes", "Kilobits/Second",
    "Terabytes", "Terabits/Second", "Bytes/Second", "Percent", "Megabytes", "Megabits/Second", "Milliseconds", "Microseconds",
    "Kilobytes/Second", "Gigabits/Second", "Megabytes/Second", "Bits", "Bits/Second", "Count/Second", "Seconds", "Kilobits",
    "Terabytes/Second", "None",
)  # fmt: skip
DATAPOINTS_MAX = 100_800
COMPUTED_MAX = 10 * DATAPOINTS_MAX  # the maximum number of datapoints that all queries of one request read or compute
EVALUATED_MAX = 2 * COMPUTED_MAX  # the maximum number of datapoints that all parts of all expressions of one request have together
SEARCHES_MAX = 100  # per request
STEP_SERIES = 200  # the number of series that a search examines between two calls of `tx.step`, which ends a read that must stop
VISIBLE_S = 14 * DAY_S  # lists and searches omit a series that has had no data for this long
SELECT_METRICS_MAX = 10_000  # the maximum number of series that one Metrics Insights query aggregates
TOO_MANY_SELECTED = (
    "MaxMetricsExceeded",
    f"The maximum number of allowed metrics exceeded: the query aggregates only the first {SELECT_METRICS_MAX:,}.",
)
TOO_MANY = ("MaxMetricsExceeded", f"The maximum number of allowed metrics exceeded: only the first {SERIES_MAX} are shown.")


class MetricStat(Struct, frozen=True):
    metric: Metric
    statistic: Statistic
    period_s: int
    stat: str  # the statistic as it is written in the request
    unit: str | None = None


class MetricDataQuery(Struct, frozen=True):
    id: str
    source: MetricStat | Expression | Select
    label: str | None = None
    returned: bool = True
    period_s: int | None = None


class QueryResults(Struct):
    results: dict[str, Series | tuple[Series, ...]] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)  # (code, text)
    units: dict[str, list[str]] = field(default_factory=dict)  # query → the units of its datapoints, if there are several


# Parsing


def parse_queries(listed: Sequence[dict[str, Any]], region: str, member: str = "MetricDataQueries") -> list[MetricDataQuery]:
    """Parse the queries. The result has the order of the request."""
    if not listed:
        raise ValidationException(f"The parameter {member} must contain at least one query.")
    queries = [_query(each, region, f"{member}.member.{number}") for number, each in enumerate(listed, 1)]
    if len({query.id for query in queries}) < len(queries):
        raise ValidationException(f"The values for parameter id in {member} are not unique.")
    if sum(isinstance(query.source, Select) for query in queries) > 1:
        raise ValidationException("Only one Metrics Insights query is allowed in a request.")
    searches = sum(calls_in(query.source, "SEARCH") for query in queries if not isinstance(query.source, (MetricStat, Select)))
    if searches > SEARCHES_MAX:
        raise ValidationException(f"A request must not have more than {SEARCHES_MAX} SEARCH functions: it has {searches}.")
    _by_dependency(queries)
    return queries


def period_fault(period_s: int, member: str) -> str | None:
    return None if is_period(period_s) else f"The parameter {member} must be 1, 5, 10, 20, 30 or a multiple of 60."


def _by_dependency(queries: Sequence[MetricDataQuery]) -> list[MetricDataQuery]:
    """Sort the queries, so that each query follows the queries that its expression refers to."""
    by_id = {query.id: query for query in queries}
    found: dict[str, MetricDataQuery] = {}
    under_way: set[str] = set()

    def visit(query: MetricDataQuery) -> None:
        if query.id in found:
            return
        if query.id in under_way:
            raise ValidationException(
                f"Error in expression '{query.id}': The expression refers to itself, directly or through others."
            )
        under_way.add(query.id)
        for name in _named_queries(query):
            if name not in by_id:
                raise ValidationException(f"Error in expression '{query.id}': There is no query with the id '{name}'.")
            visit(by_id[name])
        found[query.id] = query

    for query in queries:
        visit(query)
    return list(found.values())


def _named_queries(query: MetricDataQuery) -> list[str]:
    return [] if isinstance(query.source, (MetricStat, Select)) else list(dict.fromkeys(names_in(query.source)))


def _query(each: dict[str, Any], region: str, member: str) -> MetricDataQuery:
    id = each["Id"]
    if ("MetricStat" in each) is ("Expression" in each):
        both = f"{member}.MetricStat and {member}.Expression"
        if "Expression" in each:
            raise ValidationException(f"The parameters {both} are mutually exclusive and you have specified both.")
        raise ValidationException(f"At least one of the parameters {both} must be specified.")
    period_s: int | None = each.get("Period")
    if period_s is not None:
        _check_period(period_s, f"{member}.Period")
    source = (
        _metric_stat(each["MetricStat"], region, member) if "MetricStat" in each else _expression(id, each["Expression"], period_s)
    )
    return MetricDataQuery(id, source, each.get("Label"), each.get("ReturnData", True), period_s)


def _metric_stat(each: dict[str, Any], region: str, member: str) -> MetricStat:
    where = f"{member}.MetricStat"
    metric, stat, unit = each["Metric"], each["Stat"], each.get("Unit")
    if faults := dimension_faults(metric.get("Dimensions", ()), f"{where}.Metric.Dimensions.member"):
        raise ValidationException("\n".join(faults))
    if not metric.get("Namespace") or not metric.get("MetricName"):
        raise ValidationException(f"The parameters {where}.Metric.Namespace and {where}.Metric.MetricName must be specified.")
    _check_period(each["Period"], f"{where}.Period")
    statistic = parse_statistic(stat)
    if statistic is None:
        raise ValidationException(f"The value {stat} for parameter {where}.Stat is not supported.")
    series = Metric(region, metric["Namespace"], metric["MetricName"], dimensions_of(metric.get("Dimensions", ())))
    return MetricStat(series, statistic, each["Period"], stat, unit)


def _expression(id: str, text: str, period_s: int | None) -> Expression | Select:
    try:
        if not metric_sql.is_query(text):
            return metric_math.parse(text)
        if period_s is None:
            raise InvalidQuery("A Metrics Insights query needs a Period")
        return metric_sql.parse_query(text)
    except (InvalidExpression, InvalidQuery) as error:
        raise ValidationException(f"Error in expression '{id}': {error}.") from None


def _check_period(period_s: int, member: str) -> None:
    if fault := period_fault(period_s, member):
        raise ValidationException(fault)


# Values of one series


def series_values(
    tx: Tx[MetricStore], metric: Metric, statistic: Statistic, *, start_s: int, end_s: int, period_s: int, unit: str | None = None
) -> dict[int, float]:
    """Return the value of each period that has samples, by the start of the period. The first period begins at `start_s`."""
    summaries = tx.store.read(
        metric, start_s=start_s, end_s=end_s, period_s=period_s, now_s=tx.now_s, unit=unit, values=statistic.needs_values
    )
    return known_values(tx, summaries, statistic, period_s)


def known_values(tx: Tx[MetricStore], summaries: Mapping[int, Summary], statistic: Statistic, period_s: int) -> dict[int, float]:
    """Return the value of a statistic for each period, sorted by time."""
    found = ((at_s, value_of(summary, statistic)) for at_s, summary in sorted(summaries.items()))
    return {at_s: value for at_s, value in found if value is not None and is_stored_for(at_s, period_s, tx.now_s)}


def newest_second(
    tx: Tx[MetricStore], metric: Metric, statistic: Statistic, *, since_s: int, unit: str | None = None
) -> tuple[int, float] | None:
    """Return the newest second that has samples, at or after `since_s`, and the value of this second, or None if there is none."""
    newest = tx.store.newest(metric, since_s=since_s, now_s=tx.now_s, unit=unit)
    if newest is None:
        return None
    value = value_of(newest[1], statistic)
    return None if value is None else (newest[0], value)


# Computation


def compute(
    tx: Tx[MetricStore], region: str, queries: Sequence[MetricDataQuery], start_s: float, end_s: float, *, rounds: bool = True
) -> QueryResults:
    """Return the results of all queries by id, including queries with ReturnData false.

    With `rounds`, the start of the first period is rounded as CloudWatch does it. Otherwise the first period begins at `start_s`.
    """
    return _Computation(tx, region, queries, start_s, end_s, rounds=rounds).run()


def note_reader(tx: Tx[MetricStore], metric: Metric, period_s: int) -> None:
    """A reader of single seconds of GPU metrics needs the samples of hosts at once."""
    if period_s < MINUTE_S and metric.namespace in GPU_NAMESPACES:
        tx.settings.server.read_samples()


class _Computation:
    def __init__(
        self, tx: Tx[MetricStore], region: str, queries: Sequence[MetricDataQuery], start_s: float, end_s: float, *, rounds: bool
    ) -> None:
        self._tx = tx
        self._region = region
        self._queries = queries
        self._start_s = start_s
        self._end_s = end_s
        self._rounds = rounds
        self._computed = QueryResults()
        self._listed: dict[tuple[str | None, str | None], list[Metric]] = {}  # cached, because many searches list the same series
        self._series_left = SERIES_MAX  # the number of series that searches may still return
        self._computed_points = self._evaluated_points = 0
        periods = [query.source.period_s for query in queries if isinstance(query.source, MetricStat)]
        self._period_s = min(periods, default=DEFAULT_PERIOD_S)

    def run(self) -> QueryResults:
        stats = {query.id: query.source for query in self._queries if isinstance(query.source, MetricStat)}
        labels = default_labels([(stat.metric, stat.stat, stat.period_s) for stat in stats.values()])
        metrics = {query_id: self._read(stat, label, query_id) for (query_id, stat), label in zip(stats.items(), labels)}
        results: dict[str, Value] = dict(metrics)
        for query in _by_dependency(self._queries):
            self._tx.step()
            source = query.source
            if isinstance(source, MetricStat):
                continue
            try:
                if isinstance(source, Select):
                    results[query.id] = self._select(source, query.period_s or DEFAULT_PERIOD_S)
                    continue
                scope = ExpressionScope(
                    results, metrics, query.period_s or self._period_s, self._times, self._search, self._count_evaluated
                )
                results[query.id] = to_result(evaluate(source, scope))
            except (InvalidExpression, InvalidSearch) as error:
                raise ValidationException(f"Error in expression '{query.id}': {error}.") from None
        self._computed.results = {id: to_result(value) for id, value in results.items()}
        return self._computed

    def _first(self, period_s: int) -> int:
        return first_period(self._start_s, period_s, self._tx.now_s) if self._rounds else int(self._start_s)

    def _times(self, period_s: int) -> range:
        """Return the start times of the periods that have already begun."""
        end_s = min(ceil(self._end_s), int(self._tx.now_s) + 1)
        times = range(self._first(period_s), end_s, period_s)
        if len(times) > DATAPOINTS_MAX:
            raise InvalidExpression(f"It would have {len(times):,} datapoints, which exceeds the limit of {DATAPOINTS_MAX:,}")
        self._count(len(times))
        return times

    def _count(self, datapoints: int) -> None:
        """Count datapoints, and refuse a request that has too many of them, to limit its memory."""
        self._tx.step()
        self._computed_points += datapoints
        if self._computed_points > COMPUTED_MAX:
            raise ValidationException(
                f"You have requested more than {COMPUTED_MAX:,} datapoints, which exceeds the limit. "
                "You may reduce the datapoints requested by increasing Period, or decreasing the time range or the metrics."
            )

    def _count_evaluated(self, datapoints: int) -> None:
        """Count the datapoints of a part of an expression. A short expression can use a large array many times."""
        self._tx.step()
        self._evaluated_points += datapoints
        if self._evaluated_points > EVALUATED_MAX:
            raise InvalidExpression(f"The parts of all expressions have more than {EVALUATED_MAX:,} datapoints, which is the limit")

    def _read(self, stat: MetricStat, label: str, query_id: str = "") -> Series:
        """Read the datapoints of a query. Without a unit, read those of one unit, as on CloudWatch."""
        self._tx.step()
        note_reader(self._tx, stat.metric, stat.period_s)
        start_s, end_s = self._first(stat.period_s), ceil(self._end_s)
        found = self._tx.store.read_by_unit(
            stat.metric,
            start_s=start_s,
            end_s=end_s,
            period_s=stat.period_s,
            now_s=self._tx.now_s,
            values=stat.statistic.needs_values,
        )
        units = [unit for unit in UNITS_READ if found.get(unit)]
        if len(units) > 1 and stat.unit is None and query_id:
            self._computed.units[query_id] = units
        summaries = found.get(stat.unit or (units[0] if units else ""), {})
        values = known_values(self._tx, summaries, stat.statistic, stat.period_s)
        self._count(len(values))
        return Series(label, stat.period_s, values, stat.metric, stat.stat)

    def _search(self, query: str, stat: str, period_s: int | None) -> tuple[Series, ...]:
        statistic, period_s = parse_statistic(stat), self._period_s if period_s is None else period_s
        if statistic is None or not is_period(period_s):
            raise InvalidSearch(f"SEARCH needs a statistic and a period, not '{stat}' and {period_s}")
        search = parse_search(query)
        found: list[Metric] = []
        for at, metric in enumerate(self._visible(search.namespace, search.name)):
            if at % STEP_SERIES == 0:
                self._tx.step()
            if not search.matches(metric):
                continue
            if len(found) >= self._series_left:
                self._computed.messages.append(TOO_MANY)
                break
            found.append(metric)
        self._series_left -= len(found)
        return tuple(
            self._read(MetricStat(metric, statistic, period_s, stat), label) for metric, label in zip(found, distinct_labels(found))
        )

    def _select(self, select: Select, period_s: int) -> Series | tuple[Series, ...]:
        """Return one series for each group, aggregated over the metrics of the group.

        Without GROUP BY, all metrics are one group.
        """
        tx = self._tx
        statistic = parse_statistic(select.statistic)
        assert statistic is not None
        start_s = self._first(period_s)
        groups: dict[tuple[str, ...], dict[int, Summary]] = {}
        examined = 0
        for metric in self._visible(select.namespace, select.name):
            if not select.matches(metric):
                continue
            tx.step()
            examined += 1
            if examined > SELECT_METRICS_MAX:
                self._computed.messages.append(TOO_MANY_SELECTED)
                break
            group = groups.setdefault(select.group_of(metric), {})
            read = tx.store.read(metric, start_s=start_s, end_s=ceil(self._end_s), period_s=period_s, now_s=tx.now_s)
            for at_s, summary in read.items():
                if at_s in group:
                    group[at_s].merge(summary)
                elif is_stored_for(at_s, period_s, tx.now_s):
                    group[at_s] = summary
        found = []
        for labels, summaries in sorted(groups.items()):
            values = ((at_s, value_of(summary, statistic)) for at_s, summary in sorted(summaries.items()))
            known = {at_s: value for at_s, value in values if value is not None}
            found.append(Series(" ".join(labels) or select.name, period_s, known, None, select.statistic))
        if not select.group_by:
            return found[0] if found else Series(select.name, period_s, {}, None, select.statistic)
        if select.order_by is not None:
            found = _ordered(found, select.order_by, descending=select.descending)
        if len(found) > SERIES_MAX:
            self._computed.messages.append(TOO_MANY)
        return tuple(found[: select.limit])

    def _visible(self, namespace: str | None, name: str | None) -> list[Metric]:
        tx = self._tx
        if (namespace, name) not in self._listed:
            self._listed[namespace, name] = tx.store.listed(
                self._region, active_since_s=tx.now_s - VISIBLE_S, namespace=namespace, name=name, step=tx.step
            )
        return self._listed[namespace, name]


def _ordered(found: list[Series], statistic: str, *, descending: bool) -> list[Series]:
    """Sort the series by a statistic of their values. Series without values are last."""
    parsed = parse_statistic(statistic)
    assert parsed is not None
    full: list[tuple[float, Series]] = []
    for series in found:
        summary = Summary(weights=None)
        for value in series.values.values():
            summary.add(value)
        rank = value_of(summary, parsed)
        if series.values and rank is not None:
            full.append((rank, series))
    full.sort(key=lambda pair: pair[0], reverse=descending)
    return [series for _, series in full] + [series for series in found if not series.values]
