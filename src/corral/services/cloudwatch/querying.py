"""GetMetricData: many series and expressions over them in one call, in pages of datapoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from corral.core import Tx
from corral.decide.metric_label import Surroundings, filled, is_dynamic
from corral.decide.metric_math import Series
from corral.services.caller import Caller
from corral.services.cloudwatch.computing import DATAPOINTS_MAX, compute
from corral.services.cloudwatch.naming import InvalidNextToken, ValidationError
from corral.services.cloudwatch.queries import MetricStat, Query, parse_queries
from corral.services.pagination import Pagination, token_of
from corral.telemetry import MetricStore

PAGES = Pagination(InvalidNextToken, None, "NextToken", "NextToken")
ZONE = re.compile(r"([+-])(\d\d)(\d\d)")
POSITION = re.compile(r"([0-9]{1,6})/([0-9]{0,12})")


@dataclass(frozen=True, slots=True)
class Result:
    id: str
    label: str
    points: list[tuple[int, float]]


def get_metric_data(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queries = parse_queries(params["MetricDataQueries"], caller.region)
    start_s, end_s = params["StartTime"], params["EndTime"]
    if start_s == end_s:
        raise ValidationError("The parameter StartTime must not equal parameter EndTime.")
    if start_s > end_s:
        raise ValidationError("The parameter EndTime must be greater than StartTime.")
    limit = params.get("MaxDatapoints", DATAPOINTS_MAX)
    descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    around = Surroundings(tx.now_s, _zone_s(params), caller.account)
    computed = compute(tx, caller.region, queries, start_s, end_s)
    results = [
        Result(query.id, label, sorted(series.values.items(), reverse=descending))
        for query in queries
        if query.returned
        for label, series in _labelled(query, computed.results[query.id], around)
    ]
    page, token = _page(results, limit, _position(params), descending=descending)
    return {
        "MetricDataResults": page,
        "Messages": [{"Code": code, "Value": text} for code, text in dict.fromkeys(computed.messages)],
        **({"NextToken": token} if token is not None else {}),
    }


def _labelled(query: Query, found: Series | tuple[Series, ...], around: Surroundings) -> list[tuple[str, Series]]:
    """Each series and its label. Several of one expression have the expression's label before their own."""
    if isinstance(found, Series):
        default = found.label if isinstance(query.what, MetricStat) else query.id
        return [(default if query.label is None else filled(query.label, found, default, around), found)]
    labelled = []
    for series in found:
        label = series.label or query.id
        if query.label is not None:
            dynamic = is_dynamic(query.label)
            label = filled(query.label, series, label, around) if dynamic else f"{query.label} {label}".strip()
        labelled.append((label, series))
    return labelled


def _page(
    results: list[Result], limit: int, position: tuple[int, int | None], *, descending: bool
) -> tuple[list[dict[str, Any]], str | None]:
    """Results one after the other until the page is full. The token says which one goes on, and after which time."""
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
    found = POSITION.fullmatch(PAGES.after(params) or "0/")
    if found is None:
        raise PAGES.wrong_token()
    return int(found[1]), int(found[2]) if found[2] else None


def _zone_s(params: dict[str, Any]) -> int:
    text = params.get("LabelOptions", {}).get("Timezone", "+0000")
    zone = ZONE.fullmatch(text)
    if zone is None:
        raise ValidationError(f"The value {text} for parameter LabelOptions.Timezone is invalid: write it as +0130.")
    seconds = int(zone[2]) * 3600 + int(zone[3]) * 60
    return -seconds if zone[1] == "-" else seconds
