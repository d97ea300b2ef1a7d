"""PutMetricAlarm: what it says is checked, in CloudWatch's words, and kept as it came."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide.alarm.judge import COMPARISONS
from corral.decide.metric_math import Series
from corral.decide.metric_sql import Select
from corral.decide.statistics import parse_statistic
from corral.model.alarm import METRIC, Alarm
from corral.services.caller import Caller
from corral.services.cloudwatch.acting import withdraw_requests
from corral.services.cloudwatch.alarm_members import check_actions, kept_config, other_kind
from corral.services.cloudwatch.computing import compute
from corral.services.cloudwatch.history import say_configured
from corral.services.cloudwatch.naming import (
    InvalidParameterCombination,
    InvalidParameterValue,
    MissingParameter,
    ValidationError,
    alarm_arn,
    dimension_faults,
)
from corral.services.cloudwatch.queries import MetricStat, Query, parse_queries
from corral.services.cloudwatch.tagging import tag_new
from corral.services.cloudwatch.watched import queries_of, watched_by
from corral.telemetry import MetricStore

ONE_METRIC = ("MetricName", "Namespace", "Dimensions", "Period", "Unit", "Statistic", "ExtendedStatistic")
KEPT = (
    "AlarmDescription", "OKActions", "AlarmActions", "InsufficientDataActions", *ONE_METRIC, "EvaluationPeriods",
    "DatapointsToAlarm", "Threshold", "ComparisonOperator", "TreatMissingData", "EvaluateLowSampleCountPercentile", "Metrics",
    "EvaluationWindow", "WarmUpConfiguration", "ActionConfiguration",
)  # fmt: skip
METRICS_MAX = 10
SHORT_PERIODS_S = (10, 20, 30)
DAY_S = 86_400
WEEK_S = 7 * DAY_S
HOUR_S = 3600


def put_metric_alarm(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """A new alarm, or a new configuration of one, whose state stays as it is."""
    name, alarms = params["AlarmName"], tx.store.alarms
    _check_unserved(params)
    _check_what(tx, params, caller.region)
    _check_how(params)
    check_actions(params, ("automate", "swf") if "Metrics" in params else (), "an alarm on several metrics")
    config, enabled = kept_config(params, KEPT), params.get("ActionsEnabled", True)
    before = alarms.get(caller.region, name)
    if before is None:
        alarm = Alarm(
            0, caller.region, name, METRIC, config, tx.now_s, tx.now_s, enabled, updated_s=tx.now_s, transitioned_s=tx.now_s
        )
        alarm = alarms.add(alarm, watched_by(alarm).metrics)
        tag_new(tx, alarm_arn(caller, name), params)
        say_configured(tx, alarm, "Create")
    else:
        if before.kind != METRIC:
            raise other_kind(name)
        alarm = before.but(config=config, configured_s=tx.now_s, actions_enabled=enabled)
        withdraw_requests(tx, before)
        alarms.change(alarm, watched_by(alarm).metrics)
        say_configured(tx, alarm, "Update")
    tx.mark(f"alarm:{alarm.id}")
    return {}


def _check_unserved(params: dict[str, Any]) -> None:
    for member in ("EvaluationCriteria", "EvaluationInterval"):
        if member in params:
            raise ValidationError(f"{member} is not supported: Corral has no PromQL alarms.")
    if "ThresholdMetricId" in params:
        raise ValidationError("ThresholdMetricId is not supported: Corral has no anomaly detection models.")


def _check_what(tx: Tx[MetricStore], params: dict[str, Any], region: str) -> None:
    """One metric with its statistic and period, or queries."""
    if "Metrics" in params:
        for member in ONE_METRIC:
            if member in params:
                raise InvalidParameterCombination(
                    f"The parameters {member} and Metrics are mutually exclusive and you have specified both."
                )
        _check_computes(tx, _check_queries(params["Metrics"], region), region)
        return
    if "MetricName" not in params:
        raise MissingParameter("At least one of the parameters MetricName or Metrics must be specified.")
    for member in ("Namespace", "Period"):
        if member not in params:
            raise MissingParameter(f"The parameter {member} is required.")
    if "Statistic" in params and "ExtendedStatistic" in params:
        raise InvalidParameterCombination(
            "The parameters Statistic and ExtendedStatistic are mutually exclusive and you have specified both."
        )
    if "Statistic" not in params and "ExtendedStatistic" not in params:
        raise MissingParameter("At least one of the parameters Statistic or ExtendedStatistic must be specified.")
    if "ExtendedStatistic" in params:
        _check_statistic(params["ExtendedStatistic"], "ExtendedStatistic")
    _check_dimensions(params.get("Dimensions", []))
    _check_period(params["Period"])


def _check_queries(listed: list[dict[str, Any]], region: str) -> list[Query]:
    queries = parse_queries(listed, region, "Metrics")
    if sum(query.returned for query in queries) != 1:
        raise ValidationError("Exactly one element of the metrics list should return data.")
    stats = [query.what for query in queries if isinstance(query.what, MetricStat)]
    if not stats or any(isinstance(query.what, Select) for query in queries):
        raise ValidationError("Corral has no alarms on Metrics Insights queries: the metrics list needs a MetricStat.")
    if any("SEARCH(" in query.get("Expression", "") for query in listed):
        raise ValidationError("SEARCH is not supported in an alarm.")
    if len(stats) > METRICS_MAX:
        raise ValidationError(f"An alarm may not watch more than {METRICS_MAX} metrics.")
    if len({stat.period_s for stat in stats}) > 1:
        raise ValidationError("Period must be consistent across all metrics in the metrics list.")
    _check_period(stats[0].period_s)
    return queries


def _check_computes(tx: Tx[MetricStore], queries: list[Query], region: str) -> None:
    """An expression that makes no sense is refused now, not when it is judged."""
    results = compute(tx, region, queries, tx.now_s - HOUR_S, tx.now_s).results
    returned = next(query.id for query in queries if query.returned)
    if not isinstance(results[returned], Series):
        raise ValidationError(f"Error in expression '{returned}': The expression of an alarm must return one time series.")


def _check_how(params: dict[str, Any]) -> None:
    """Threshold and periods."""
    for member in ("Threshold", "ComparisonOperator", "EvaluationPeriods"):
        if member not in params:
            raise MissingParameter(f"The parameter {member} is required.")
    if params["ComparisonOperator"] not in COMPARISONS:
        raise ValidationError(
            f"The comparison operator {params['ComparisonOperator']} is not supported: Corral has no anomaly detection models. "
            f"Use one of {', '.join(COMPARISONS)}."
        )
    periods = params["EvaluationPeriods"]
    if params.get("DatapointsToAlarm", 1) > periods:
        raise ValidationError(
            f"DatapointsToAlarm ({params['DatapointsToAlarm']}) must be less than or equal to EvaluationPeriods ({periods})."
        )
    period_s = next(query["MetricStat"]["Period"] for query in queries_of(params) if "MetricStat" in query)
    back_s = periods * period_s
    if back_s > WEEK_S:
        raise ValidationError(
            f"Metrics cannot be checked across more than a week (EvaluationPeriods * Period must be <= {WEEK_S})."
        )
    if back_s > DAY_S and period_s < HOUR_S:
        raise ValidationError(f"Metrics cannot be checked across more than a day (EvaluationPeriods * Period must be <= {DAY_S}).")


def _check_period(period_s: int) -> None:
    if period_s not in SHORT_PERIODS_S and period_s % 60:
        raise ValidationError("Period must be 10, 20, 30 or a multiple of 60.")


def _check_statistic(text: str, member: str) -> None:
    if parse_statistic(text) is None:
        raise ValidationError(f"The value {text} for parameter {member} is not supported.")


def _check_dimensions(listed: list[dict[str, Any]]) -> None:
    if faults := dimension_faults(listed, "Dimensions.member"):
        raise InvalidParameterValue("\n".join(faults))
