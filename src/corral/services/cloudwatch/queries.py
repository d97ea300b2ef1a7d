"""MetricDataQueries, as GetMetricData and alarms take them: read, checked, and put in the order in which they can be computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corral.decide import metric_math, metric_sql
from corral.decide.metric_math import Expression, InvalidExpression, names_in
from corral.decide.metric_sql import InvalidQuery, Select
from corral.decide.periods import is_period
from corral.decide.statistics import Statistic, parse_statistic
from corral.model.metric import Metric
from corral.services.cloudwatch.naming import ValidationError, dimension_faults, dimensions_of


@dataclass(frozen=True, slots=True)
class MetricStat:
    metric: Metric
    statistic: Statistic
    period_s: int
    said: str  # the statistic as it was written
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    id: str
    what: MetricStat | Expression | Select
    label: str | None = None
    returned: bool = True
    period_s: int | None = None


def parse_queries(listed: Sequence[dict[str, Any]], region: str, member: str = "MetricDataQueries") -> list[Query]:
    """In the order in which they were given."""
    if not listed:
        raise ValidationError(f"The parameter {member} must contain at least one query.")
    queries = [_query(each, region, f"{member}.member.{number}") for number, each in enumerate(listed, 1)]
    if len({query.id for query in queries}) < len(queries):
        raise ValidationError(f"The values for parameter id in {member} are not unique.")
    if sum(isinstance(query.what, Select) for query in queries) > 1:
        raise ValidationError("Only one Metrics Insights query is allowed in a request.")
    in_order(queries)
    return queries


def in_order(queries: Sequence[Query]) -> list[Query]:
    """Each after those that it needs."""
    by_id = {query.id: query for query in queries}
    found: dict[str, Query] = {}
    under_way: set[str] = set()

    def visit(query: Query) -> None:
        if query.id in found:
            return
        if query.id in under_way:
            raise ValidationError(f"Error in expression '{query.id}': The expression refers to itself, directly or through others.")
        under_way.add(query.id)
        for name in needs(query):
            if name not in by_id:
                raise ValidationError(f"Error in expression '{query.id}': There is no query with the id '{name}'.")
            visit(by_id[name])
        found[query.id] = query

    for query in queries:
        visit(query)
    return list(found.values())


def needs(query: Query) -> list[str]:
    """The ids of the queries that it names."""
    return [] if isinstance(query.what, (MetricStat, Select)) else list(dict.fromkeys(names_in(query.what)))


def _query(each: dict[str, Any], region: str, member: str) -> Query:
    id = each["Id"]
    if ("MetricStat" in each) is ("Expression" in each):
        both = f"{member}.MetricStat and {member}.Expression"
        if "Expression" in each:
            raise ValidationError(f"The parameters {both} are mutually exclusive and you have specified both.")
        raise ValidationError(f"At least one of the parameters {both} must be specified.")
    period_s: int | None = each.get("Period")
    if period_s is not None:
        _check_period(period_s, f"{member}.Period")
    what = (
        _metric_stat(each["MetricStat"], region, member) if "MetricStat" in each else _expression(id, each["Expression"], period_s)
    )
    return Query(id, what, each.get("Label"), each.get("ReturnData", True), period_s)


def _metric_stat(each: dict[str, Any], region: str, member: str) -> MetricStat:
    where = f"{member}.MetricStat"
    metric, said, unit = each["Metric"], each["Stat"], each.get("Unit")
    if faults := dimension_faults(metric.get("Dimensions", ()), f"{where}.Metric.Dimensions.member"):
        raise ValidationError("\n".join(faults))
    if not metric.get("Namespace") or not metric.get("MetricName"):
        raise ValidationError(f"The parameters {where}.Metric.Namespace and {where}.Metric.MetricName must be specified.")
    _check_period(each["Period"], f"{where}.Period")
    statistic = parse_statistic(said)
    if statistic is None:
        raise ValidationError(f"The value {said} for parameter {where}.Stat is not supported.")
    series = Metric(region, metric["Namespace"], metric["MetricName"], dimensions_of(metric.get("Dimensions", ())))
    return MetricStat(series, statistic, each["Period"], said, unit)


def _expression(id: str, text: str, period_s: int | None) -> Expression | Select:
    try:
        if not metric_sql.is_query(text):
            return metric_math.parse(text)
        if period_s is None:
            raise InvalidQuery("A Metrics Insights query needs a Period")
        return metric_sql.parse_query(text)
    except (InvalidExpression, InvalidQuery) as error:
        raise ValidationError(f"Error in expression '{id}': {error}.") from None


def _check_period(period_s: int, member: str) -> None:
    if not is_period(period_s):
        raise ValidationError(f"The parameter {member} must be 1, 5, 10, 20, 30 or a multiple of 60.")
