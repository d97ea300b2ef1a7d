"""What MetricDataQueries come to: series read from the store, and expressions over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from corral.core import Tx
from corral.decide.metric_label import told_apart
from corral.decide.metric_math import InvalidExpression, Scope, Series, Value, evaluate, to_result
from corral.decide.metric_search import InvalidSearch, parse_search
from corral.decide.metric_sql import SERIES_MAX, Select
from corral.decide.periods import first_period, is_kept, is_period
from corral.decide.statistics import parse_statistic, value_of
from corral.model.metric import Metric, Summary
from corral.services.cloudwatch.listing import VISIBLE_S
from corral.services.cloudwatch.naming import ValidationError
from corral.services.cloudwatch.queries import MetricStat, Query, in_order
from corral.services.cloudwatch.reading import values
from corral.telemetry import MetricStore

DEFAULT_PERIOD_S = 60
DATAPOINTS_MAX = 100_800
SEARCHED_MAX = 500  # series that one search may give
TOO_MANY = ("MaxMetricsExceeded", f"The maximum number of allowed metrics exceeded: only the first {SEARCHED_MAX} are shown.")


@dataclass(slots=True)
class Computed:
    results: dict[str, Series | tuple[Series, ...]] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)  # (code, text)


def compute(tx: Tx[MetricStore], region: str, queries: Sequence[Query], start_s: float, end_s: float) -> Computed:
    """The results of all queries, by id, whether they are to be returned or not."""
    return _Computation(tx, region, queries, start_s, end_s).run()


class _Computation:
    def __init__(self, tx: Tx[MetricStore], region: str, queries: Sequence[Query], start_s: float, end_s: float) -> None:
        self._tx = tx
        self._region = region
        self._queries = queries
        self._start_s = start_s
        self._end_s = end_s
        self._computed = Computed()
        periods = [query.what.period_s for query in queries if isinstance(query.what, MetricStat)]
        self._period_s = min(periods, default=DEFAULT_PERIOD_S)

    def run(self) -> Computed:
        metrics = {
            query.id: self._read(query.what, query.what.metric.name)
            for query in self._queries
            if isinstance(query.what, MetricStat)
        }
        results: dict[str, Value] = dict(metrics)
        for query in in_order(self._queries):
            what = query.what
            if isinstance(what, MetricStat):
                continue
            try:
                if isinstance(what, Select):
                    results[query.id] = self._select(what, query.period_s or DEFAULT_PERIOD_S)
                    continue
                scope = Scope(results, metrics, query.period_s or self._period_s, self._times, self._search)
                results[query.id] = to_result(evaluate(what, scope))
            except (InvalidExpression, InvalidSearch) as error:
                raise ValidationError(f"Error in expression '{query.id}': {error}.") from None
        self._computed.results = {id: to_result(value) for id, value in results.items()}
        return self._computed

    def _times(self, period_s: int) -> range:
        """When the periods begin that have begun."""
        end_s = min(ceil(self._end_s), int(self._tx.now_s) + 1)
        times = range(first_period(self._start_s, period_s, self._tx.now_s), end_s, period_s)
        if len(times) > DATAPOINTS_MAX:
            raise InvalidExpression(f"It would have {len(times):,} datapoints, which exceeds the limit of {DATAPOINTS_MAX:,}")
        return times

    def _read(self, stat: MetricStat, label: str) -> Series:
        start_s = first_period(self._start_s, stat.period_s, self._tx.now_s)
        found = values(
            self._tx, stat.metric, stat.statistic, start_s=start_s, end_s=ceil(self._end_s), period_s=stat.period_s, unit=stat.unit
        )
        return Series(label, stat.period_s, found, stat.metric, stat.said)

    def _search(self, query: str, said: str, period_s: int | None) -> tuple[Series, ...]:
        statistic, period_s = parse_statistic(said), self._period_s if period_s is None else period_s
        if statistic is None or not is_period(period_s):
            raise InvalidSearch(f"SEARCH needs a statistic and a period, not '{said}' and {period_s}")
        search = parse_search(query)
        found = [metric for metric in self._visible(search.namespace, search.name) if search.matches(metric)]
        found = self._bounded(found)
        return tuple(
            self._read(MetricStat(metric, statistic, period_s, said), label) for metric, label in zip(found, told_apart(found))
        )

    def _select(self, select: Select, period_s: int) -> Series | tuple[Series, ...]:
        """All series of a group together. Without GROUP BY there is one group."""
        tx = self._tx
        statistic = parse_statistic(select.statistic)
        assert statistic is not None
        start_s = first_period(self._start_s, period_s, tx.now_s)
        groups: dict[tuple[str, ...], dict[int, Summary]] = {}
        for metric in self._visible(select.namespace, select.name):
            if not select.matches(metric):
                continue
            group = groups.setdefault(select.group_of(metric), {})
            read = tx.store.read(metric, start_s=start_s, end_s=ceil(self._end_s), period_s=period_s, now_s=tx.now_s)
            for at_s, summary in read.items():
                if at_s in group:
                    group[at_s].merge(summary)
                elif is_kept(at_s, period_s, tx.now_s):
                    group[at_s] = summary
        found = []
        for labels, summaries in sorted(groups.items()):
            told = ((at_s, value_of(summary, statistic)) for at_s, summary in sorted(summaries.items()))
            known = {at_s: value for at_s, value in told if value is not None}
            found.append(Series(" ".join(labels) or select.name, period_s, known, None, select.statistic))
        if not select.group_by:
            return found[0] if found else Series(select.name, period_s, {}, None, select.statistic)
        if select.order_by is not None:
            found = _ordered(found, select.order_by, descending=select.descending)
        if len(found) > SERIES_MAX:
            self._computed.messages.append(TOO_MANY)
        return tuple(found[: select.limit])

    def _visible(self, namespace: str | None, name: str | None) -> list[Metric]:
        return self._tx.store.listed(self._region, active_since_s=self._tx.now_s - VISIBLE_S, namespace=namespace, name=name)

    def _bounded(self, found: list[Metric]) -> list[Metric]:
        if len(found) > SEARCHED_MAX:
            self._computed.messages.append(TOO_MANY)
        return found[:SEARCHED_MAX]


def _ordered(found: list[Series], statistic: str, *, descending: bool) -> list[Series]:
    """By one number for each; those that have none come last."""
    known = parse_statistic(statistic)
    assert known is not None
    full: list[tuple[float, Series]] = []
    for series in found:
        summary = Summary(weights=None)
        for value in series.values.values():
            summary.add(value)
        told = value_of(summary, known)
        if series.values and told is not None:
            full.append((told, series))
    full.sort(key=lambda pair: pair[0], reverse=descending)
    return [series for _, series in full] + [series for series in found if not series.values]
