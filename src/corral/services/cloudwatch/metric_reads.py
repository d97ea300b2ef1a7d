"""The operations GetMetricData, GetMetricStatistics and ListMetrics."""

from __future__ import annotations

import json
import re
from math import ceil
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.metrics.label import LabelContext, fill_label, is_dynamic
from corral.decide.metrics.math import Series
from corral.decide.metrics.periods import first_period, is_stored_for
from corral.decide.metrics.statistics import SIMPLE, Statistic, parse_statistic, value_of
from corral.model.durations import HOUR_S, MINUTE_S
from corral.model.json_documents import read_json
from corral.model.metric import Metric, Summary
from corral.operations.pagination import Pagination, token_of
from corral.services.cloudwatch import errors
from corral.services.cloudwatch.common import dimension_faults, dimensions_of
from corral.services.cloudwatch.metric_queries import (
    DATAPOINTS_MAX,
    VISIBLE_S,
    MetricDataQuery,
    MetricStat,
    compute,
    note_reader,
    parse_queries,
    period_fault,
)
from corral.telemetry import MetricStore
from corral.telemetry.metrics import ACTIVE_STEP_S

DATA_PAGES = Pagination(errors.InvalidNextToken, None, "NextToken", "NextToken")
LIST_PAGES = Pagination(errors.InvalidParameterValueException, None, "NextToken", "NextToken", default=500)
STATISTICS_DATAPOINTS_MAX = 1440  # the maximum number of datapoints in a response of GetMetricStatistics
RECENT_S = 3 * HOUR_S  # the time span of RecentlyActive in ListMetrics
TIME_ZONE = re.compile(r"([+-])(\d\d)(\d\d)")
POSITION = re.compile(r"([0-9]{1,6})/([0-9]{0,12})")


# GetMetricData


class LabelledSeries(Struct, frozen=True):
    id: str
    label: str
    points: list[tuple[int, float]]


def get_metric_data(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return many series and results of expressions, in pages of datapoints."""
    queries = parse_queries(params["MetricDataQueries"], caller.region)
    start_s, end_s = params["StartTime"], params["EndTime"]
    if start_s == end_s:
        raise errors.ValidationException("The parameter StartTime must not equal parameter EndTime.")
    if start_s > end_s:
        raise errors.ValidationException("The parameter EndTime must be greater than StartTime.")
    limit = params.get("MaxDatapoints", DATAPOINTS_MAX)
    descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    context = LabelContext(tx.now_s, _utc_offset_s(params), caller.account)
    computed = compute(tx, caller.region, queries, start_s, end_s)
    results = [
        LabelledSeries(query.id, label, sorted(series.values.items(), reverse=descending))
        for query in queries
        if query.returned
        for label, series in _labelled(query, computed.results[query.id], context)
    ]
    page, token = _page(results, limit, _position(params), descending=descending)
    for each in page:
        if units := computed.units.get(each["Id"]):
            each["Messages"] = [{"Code": "MultipleUnits", "Value": f"Multiple units returned: '[{', '.join(units)}]'"}]
    return {
        "MetricDataResults": page,
        "Messages": [{"Code": code, "Value": text} for code, text in dict.fromkeys(computed.messages)],
        **({"NextToken": token} if token is not None else {}),
    }


def _labelled(query: MetricDataQuery, found: Series | tuple[Series, ...], context: LabelContext) -> list[tuple[str, Series]]:
    """Return each series with its label.

    If an expression returns several series and its label is not dynamic, the label of each series begins with this label.
    """
    if isinstance(found, Series):
        default = found.label if isinstance(query.source, MetricStat) else query.id
        return [(default if query.label is None else fill_label(query.label, found, default, context), found)]
    labelled = []
    for series in found:
        label = series.label or query.id
        if query.label is not None:
            dynamic = is_dynamic(query.label)
            label = fill_label(query.label, series, label, context) if dynamic else f"{query.label} {label}".strip()
        labelled.append((label, series))
    return labelled


def _page(
    results: list[LabelledSeries], limit: int, position: tuple[int, int | None], *, descending: bool
) -> tuple[list[dict[str, Any]], str | None]:
    """Return one page of at most `limit` datapoints, and the token of the next page.

    The token contains the index of the next series, and the time of the last datapoint that was returned from it.
    """
    page: list[dict[str, Any]] = []
    at, after_s = position
    while at < len(results) and limit:
        result = results[at]
        rest = [point for point in result.points if after_s is None or (point[0] < after_s if descending else point[0] > after_s)]
        points = rest[:limit]
        limit -= len(points)
        page.append(
            {
                "Id": result.id,
                "Label": result.label,
                "Timestamps": [at_s for at_s, _ in points],
                "Values": [value for _, value in points],
                "StatusCode": "Complete" if len(points) == len(rest) else "PartialData",
            }
        )
        if len(points) < len(rest):
            return page, token_of(f"{at}/{points[-1][0]}")
        at, after_s = at + 1, None
    return page, token_of(f"{at}/") if at < len(results) else None


def _position(params: dict[str, Any]) -> tuple[int, int | None]:
    found = POSITION.fullmatch(DATA_PAGES.after(params) or "0/")
    if found is None:
        raise DATA_PAGES.wrong_token()
    return int(found[1]), int(found[2]) if found[2] else None


def _utc_offset_s(params: dict[str, Any]) -> int:
    text = params.get("LabelOptions", {}).get("Timezone", "+0000")
    zone = TIME_ZONE.fullmatch(text)
    if zone is None:
        raise errors.ValidationException(f"The value {text} for parameter LabelOptions.Timezone is invalid: write it as +0130.")
    seconds = int(zone[2]) * HOUR_S + int(zone[3]) * MINUTE_S
    return -seconds if zone[1] == "-" else seconds


# GetMetricStatistics


def get_metric_statistics(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    listed = params.get("Dimensions", ())
    if faults := dimension_faults(listed, "Dimensions.member"):
        raise errors.InvalidParameterValueException("\n".join(faults))
    statistics = _statistics(params)
    period_s, start_s, end_s = _window(tx, params)
    metric = Metric(caller.region, params["Namespace"], params["MetricName"], dimensions_of(listed))
    note_reader(tx, metric, period_s)
    needs_values = any(statistic.needs_values for statistic in statistics.values())
    found = tx.store.read_by_unit(metric, start_s=start_s, end_s=end_s, period_s=period_s, now_s=tx.now_s, values=needs_values)
    wanted = params.get("Unit")
    points = [
        point
        for unit, summaries in found.items()
        if wanted in (None, unit)
        for at_s, summary in summaries.items()
        if is_stored_for(at_s, period_s, tx.now_s) and (point := _datapoint(at_s, unit, summary, statistics)) is not None
    ]
    points.sort(key=lambda point: (point["Timestamp"], point["Unit"]))
    return {"Label": metric.name, "Datapoints": points}


def _statistics(params: dict[str, Any]) -> dict[str, Statistic]:
    simple, extended = params.get("Statistics", []), params.get("ExtendedStatistics", [])
    if not simple and not extended:
        raise errors.MissingRequiredParameterException(
            "At least one of the parameters Statistics and ExtendedStatistics must be specified."
        )
    found: dict[str, Statistic] = {}
    for name in (*simple, *extended):
        statistic = parse_statistic(name)
        if statistic is None or (name in extended and name in SIMPLE):
            raise errors.InvalidParameterValueException(f"The value {name} for parameter ExtendedStatistics is not supported.")
        found[name] = statistic
    return found


def _window(tx: Tx[MetricStore], params: dict[str, Any]) -> tuple[int, int, int]:
    """Return the period, the start and the end of a request, rounded as CloudWatch rounds them."""
    period_s: int = params["Period"]
    if fault := period_fault(period_s, "Period"):
        raise errors.InvalidParameterValueException(fault)
    if params["StartTime"] >= params["EndTime"]:
        raise errors.InvalidParameterValueException("The parameter StartTime must be less than the parameter EndTime.")
    start_s, end_s = first_period(params["StartTime"], period_s, tx.now_s), ceil(params["EndTime"])
    requested = ceil((params["EndTime"] - params["StartTime"]) / period_s)
    if requested > STATISTICS_DATAPOINTS_MAX:
        raise errors.InvalidParameterCombinationException(
            f"You have requested up to {requested:,} datapoints, which exceeds the limit of {STATISTICS_DATAPOINTS_MAX:,}. "
            "You may reduce the datapoints requested by increasing Period, or decreasing the time range."
        )
    return period_s, start_s, end_s


def _datapoint(at_s: int, unit: str, summary: Summary, statistics: dict[str, Statistic]) -> dict[str, Any] | None:
    """Return a datapoint. Return None if no requested statistic can be computed from the samples."""
    values = {name: value_of(summary, statistic) for name, statistic in statistics.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return None
    simple = {name: value for name, value in known.items() if name in SIMPLE}
    extended = {name: value for name, value in known.items() if name not in SIMPLE}
    return {"Timestamp": at_s, "Unit": unit, **simple, **({"ExtendedStatistics": extended} if extended else {})}


# ListMetrics


def list_metrics(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    filters = params.get("Dimensions", [])
    recently = params.get("RecentlyActive")
    if params.get("OwningAccount", caller.account) != caller.account:
        return {"Metrics": []}

    def listed(after: str, limit: int) -> list[tuple[str, Metric]]:
        found = tx.store.listed(
            caller.region,
            active_since_s=tx.now_s - (RECENT_S + ACTIVE_STEP_S if recently else VISIBLE_S),
            namespace=params.get("Namespace"),
            name=params.get("MetricName"),
            dimensions=[(each["Name"], each.get("Value")) for each in filters],
            after=LIST_PAGES.position(params, lambda token: _metric(caller.region, token)),
            limit=limit,
        )
        return [(json.dumps(metric[1:]), metric) for metric in found]

    page, token = LIST_PAGES.page(params, listed)
    return {
        "Metrics": [_described(metric) for metric in page],
        **({"OwningAccounts": [caller.account] * len(page)} if params.get("IncludeLinkedAccounts") else {}),
        **token,
    }


def _described(metric: Metric) -> dict[str, Any]:
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
    }


def _metric(region: str, token: str) -> Metric | None:
    if not token:
        return None
    try:
        namespace, name, dimensions = read_json(token)
        return Metric(region, str(namespace), str(name), tuple((str(key), str(value)) for key, value in dimensions))
    except TypeError as error:
        raise ValueError(error) from None
