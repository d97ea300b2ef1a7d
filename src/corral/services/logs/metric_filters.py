"""Metric filters: kept and shown, and tested against messages. What comes in while they are there makes metrics (`taking`)."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.logs.filtering import parsed
from corral.services.logs.naming import (
    PAGES,
    InvalidParameterException,
    LimitExceededException,
    ResourceNotFoundException,
    existing_group,
    now_ms,
)
from corral.telemetry import LogStore, MetricFilter

FILTERS_MAX = 100  # of a group
WITH_REGEX_MAX = 5
KEPT = (
    "filterPattern",
    "metricTransformations",
    "applyOnTransformedLogs",
    "fieldSelectionCriteria",
    "emitSystemFieldDimensions",
)


def put_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, name = existing_group(tx, caller, params["logGroupName"]), params["filterName"]
    pattern = parsed(params["filterPattern"])
    _check_transformations(params["metricTransformations"], dimensions=pattern.has_fields)
    others = [known for known in tx.store.metric_filters(caller.region, group.name) if known.name != name]
    if len(others) >= FILTERS_MAX:
        raise LimitExceededException(f"Resource limit exceeded: a log group has at most {FILTERS_MAX} metric filters.")
    if pattern.regexes and sum(parsed(known.details["filterPattern"]).regexes > 0 for known in others) >= WITH_REGEX_MAX:
        raise LimitExceededException(
            f"Resource limit exceeded: a log group has at most {WITH_REGEX_MAX} metric filters with regular expressions."
        )
    tx.store.put_metric_filter(group.id, name, {key: params[key] for key in KEPT if key in params}, now_ms(tx))
    return {}


def describe_metric_filters(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = params.get("logGroupName")
    if group is not None:
        existing_group(tx, caller, group)
    metric = (params.get("metricNamespace"), params.get("metricName"))
    if (metric[0] is None) != (metric[1] is None):
        raise InvalidParameterException("Give metricName and metricNamespace together.")
    prefix = params.get("filterNamePrefix", "") if group is not None else ""  # AWS looks at it only beside a group

    def listed(after: str, limit: int) -> list[tuple[str, MetricFilter]]:
        after_name, _, after_group = after.partition(":")  # which no name contains
        found = [
            (":".join(_place(known)), known)
            for known in tx.store.metric_filters(caller.region, group, prefix)
            if _place(known) > (after_name, after_group) and (metric[0] is None or metric in _metrics(known))
        ]
        return found[:limit]

    page, token = PAGES.page(params, listed)
    return {"metricFilters": [_shown(known) for known in page], **token}


def delete_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    if not tx.store.drop_metric_filter(group.id, params["filterName"]):
        raise ResourceNotFoundException("The specified metric filter does not exist.")
    return {}


def test_metric_filter(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    pattern, messages = parsed(params["filterPattern"]), params["logEventMessages"]
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


def _place(known: MetricFilter) -> tuple[str, str]:
    """Filters are listed by name and group."""
    return known.name, known.group


def _metrics(known: MetricFilter) -> list[tuple[str, str]]:
    return [(each["metricNamespace"], each["metricName"]) for each in known.details["metricTransformations"]]


def _shown(known: MetricFilter) -> dict[str, Any]:
    return {"filterName": known.name, "logGroupName": known.group, "creationTime": known.created_ms, **known.details}
