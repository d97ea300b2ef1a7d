"""Metric filters: creation, listing, deletion, and TestMetricFilter. `ingestion.py` applies them to new events."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.logs.common import PAGES, existing_group, now_ms
from corral.services.logs.errors import InvalidParameterException, LimitExceededException, ResourceNotFoundException
from corral.services.logs.event_search import parse_pattern
from corral.services.logs.groups import check_class
from corral.telemetry import LogStore, MetricFilter

FILTERS_MAX = 100  # per log group
WITH_REGEX_MAX = 5  # per log group
STORED_MEMBERS = (
    "filterPattern",
    "metricTransformations",
    "applyOnTransformedLogs",
    "fieldSelectionCriteria",
    "emitSystemFieldDimensions",
)


def put_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, name = existing_group(tx, caller, params["logGroupName"]), params["filterName"]
    check_class(group, "PutMetricFilter")
    pattern = parse_pattern(params["filterPattern"])
    _check_transformations(params["metricTransformations"], dimensions=pattern.has_fields)
    others = [known for known in tx.store.metric_filters(caller.region, group.name) if known.name != name]
    if len(others) >= FILTERS_MAX:
        raise LimitExceededException(f"Resource limit exceeded: a log group has at most {FILTERS_MAX} metric filters.")
    if pattern.regexes and sum(parse_pattern(known.details["filterPattern"]).regexes > 0 for known in others) >= WITH_REGEX_MAX:
        raise LimitExceededException(
            f"Resource limit exceeded: a log group has at most {WITH_REGEX_MAX} metric filters with regular expressions."
        )
    tx.store.put_metric_filter(group.id, name, {key: params[key] for key in STORED_MEMBERS if key in params}, now_ms(tx))
    return {}


def describe_metric_filters(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = params.get("logGroupName")
    if group is not None:
        existing_group(tx, caller, group)
    metric = (params.get("metricNamespace"), params.get("metricName"))
    if (metric[0] is None) != (metric[1] is None):
        raise InvalidParameterException("Specify metricName and metricNamespace together.")
    prefix = params.get("filterNamePrefix", "") if group is not None else ""  # without logGroupName, AWS ignores the prefix

    def listed(after: str, limit: int) -> list[tuple[str, MetricFilter]]:
        after_name, _, after_group = after.partition(":")  # no name contains a colon
        found = [
            (":".join(_sort_key(known)), known)
            for known in tx.store.metric_filters(caller.region, group, prefix)
            if _sort_key(known) > (after_name, after_group) and (metric[0] is None or metric in _metrics(known))
        ]
        return found[:limit]

    page, token = PAGES.page(params, listed)
    return {"metricFilters": [_described(known) for known in page], **token}


def delete_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    if not tx.store.drop_metric_filter(group.id, params["filterName"]):
        raise ResourceNotFoundException("The specified metric filter does not exist.")
    return {}


def test_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    pattern, messages = parse_pattern(params["filterPattern"]), params["logEventMessages"]
    return {
        "matches": [
            {"eventNumber": number, "eventMessage": message, "extractedValues": pattern.extract(message)}
            for number, message in enumerate(messages, 1)
            if pattern.matches(message)
        ]
    }


def _check_transformations(transformations: list[dict[str, Any]], *, dimensions: bool) -> None:
    [given] = transformations
    if not given.get("dimensions"):
        return
    if not dimensions:
        raise InvalidParameterException("The specified filter pattern does not support dimensions")
    if "defaultValue" in given:
        raise InvalidParameterException("Invalid metric transformation: dimensions and default value are mutually exclusive.")


def _sort_key(known: MetricFilter) -> tuple[str, str]:
    return known.name, known.group


def _metrics(known: MetricFilter) -> list[tuple[str, str]]:
    return [(each["metricNamespace"], each["metricName"]) for each in known.details["metricTransformations"]]


def _described(known: MetricFilter) -> dict[str, Any]:
    return {
        "filterName": known.name,
        "logGroupName": known.group,
        "creationTime": known.created_ms,
        "applyOnTransformedLogs": False,
        **known.details,
    }
