"""GetMetricStatistics: statistics of one series."""

from __future__ import annotations

from math import ceil
from typing import Any

from corral.core import Tx
from corral.decide.periods import first_period, is_kept, is_period
from corral.decide.statistics import SIMPLE, Statistic, parse_statistic, value_of
from corral.model.metric import Metric, Summary
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import (
    InvalidParameterCombination,
    InvalidParameterValue,
    MissingParameter,
    dimension_faults,
    dimensions_of,
)
from corral.telemetry import MetricStore

DATAPOINTS_MAX = 1440


def get_metric_statistics(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    listed = params.get("Dimensions", ())
    if faults := dimension_faults(listed, "Dimensions.member"):
        raise InvalidParameterValue("\n".join(faults))
    statistics = _statistics(params)
    period_s, start_s, end_s = _window(tx, params)
    metric = Metric(caller.region, params["Namespace"], params["MetricName"], dimensions_of(listed))
    needs_values = any(statistic.needs_values for statistic in statistics.values())
    found = tx.store.read_by_unit(metric, start_s=start_s, end_s=end_s, period_s=period_s, now_s=tx.now_s, values=needs_values)
    wanted = params.get("Unit")
    points = [
        point
        for unit, summaries in found.items()
        if wanted in (None, unit)
        for at_s, summary in summaries.items()
        if is_kept(at_s, period_s, tx.now_s) and (point := _datapoint(at_s, unit, summary, statistics)) is not None
    ]
    points.sort(key=lambda point: (point["Timestamp"], point["Unit"]))
    return {"Label": metric.name, "Datapoints": points}


def _statistics(params: dict[str, Any]) -> dict[str, Statistic]:
    simple, extended = params.get("Statistics", []), params.get("ExtendedStatistics", [])
    if not simple and not extended:
        raise MissingParameter("At least one of the parameters Statistics and ExtendedStatistics must be specified.")
    found: dict[str, Statistic] = {}
    for name in (*simple, *extended):
        statistic = parse_statistic(name)
        if statistic is None or (name in extended and name in SIMPLE):
            raise InvalidParameterValue(f"The value {name} for parameter ExtendedStatistics is not supported.")
        found[name] = statistic
    return found


def _window(tx: Tx[MetricStore], params: dict[str, Any]) -> tuple[int, int, int]:
    """(period, start, end), rounded as CloudWatch does."""
    period_s: int = params["Period"]
    if not is_period(period_s):
        raise InvalidParameterValue("The parameter Period must be 1, 5, 10, 20, 30 or a multiple of 60.")
    if params["StartTime"] >= params["EndTime"]:
        raise InvalidParameterValue("The parameter StartTime must be less than the parameter EndTime.")
    start_s, end_s = first_period(params["StartTime"], period_s, tx.now_s), ceil(params["EndTime"])
    asked = ceil((params["EndTime"] - params["StartTime"]) / period_s)
    if asked > DATAPOINTS_MAX:
        raise InvalidParameterCombination(
            f"You have requested up to {asked:,} datapoints, which exceeds the limit of {DATAPOINTS_MAX:,}. You may reduce the "
            "datapoints requested by increasing Period, or decreasing the time range."
        )
    return period_s, start_s, end_s


def _datapoint(at_s: int, unit: str, summary: Summary, statistics: dict[str, Statistic]) -> dict[str, Any] | None:
    """None: nothing that was asked for can be told."""
    values = {name: value_of(summary, statistic) for name, statistic in statistics.items()}
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return None
    simple = {name: value for name, value in known.items() if name in SIMPLE}
    extended = {name: value for name, value in known.items() if name not in SIMPLE}
    return {"Timestamp": at_s, "Unit": unit, **simple, **({"ExtendedStatistics": extended} if extended else {})}
