"""PutMetricAlarm: checks the parameters, with CloudWatch's error texts, and stores them unchanged."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.metrics.alarm_evaluation import COMPARISONS
from corral.decide.metrics.math import Series
from corral.decide.metrics.sql import Select
from corral.decide.metrics.statistics import parse_statistic
from corral.model.alarm import METRIC, Alarm
from corral.model.durations import DAY_S, HOUR_S, MINUTE_S, WEEK_S
from corral.services.cloudwatch import errors
from corral.services.cloudwatch.alarm_actions import announce_policies, check_actions
from corral.services.cloudwatch.alarm_config import TRACKS, alarm_config, other_alarm_type, queries_of, stored_config
from corral.services.cloudwatch.alarm_history import add_configuration_item
from corral.services.cloudwatch.common import alarm_arn, dimension_faults
from corral.services.cloudwatch.metric_queries import MetricDataQuery, MetricStat, compute, parse_queries
from corral.services.cloudwatch.tags import tag_new
from corral.telemetry import MetricStore

ONE_METRIC = ("MetricName", "Namespace", "Dimensions", "Period", "Unit", "Statistic", "ExtendedStatistic")
STORED_MEMBERS = (
    "AlarmDescription", "OKActions", "AlarmActions", "InsufficientDataActions", *ONE_METRIC, "EvaluationPeriods",
    "DatapointsToAlarm", "Threshold", "ComparisonOperator", "TreatMissingData", "EvaluateLowSampleCountPercentile", "Metrics",
    "EvaluationWindow", "WarmUpConfiguration", "ActionConfiguration", TRACKS,
)  # fmt: skip
METRICS_MAX = 10
ALARM_SHORT_PERIODS_S = (10, 20, 30)


def put_metric_alarm(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create an alarm, or replace the configuration of an existing alarm. An existing alarm keeps its state."""
    if queries := check_config(params, caller.region):
        _check_computes(tx, queries, caller.region)
    store_alarm(tx, params, caller.region, caller.owner)
    return {}


def check_config(params: dict[str, Any], region: str) -> list[MetricDataQuery]:
    """Check the parameters of PutMetricAlarm. Return the queries in Metrics."""
    _check_unserved(params)
    queries = _check_source(params, region)
    _check_criteria(params)
    check_actions(params, ("automate", "swf") if "Metrics" in params else (), "an alarm on several metrics")
    return queries


def store_alarm(tx: Tx[MetricStore], params: dict[str, Any], region: str, owner: str) -> None:
    name, alarms = params["AlarmName"], tx.store.alarms
    config, enabled = stored_config(params, STORED_MEMBERS), params.get("ActionsEnabled", True)
    before = alarms.get(region, name)
    if before is None:
        alarm = Alarm(0, region, name, METRIC, config, tx.now_s, tx.now_s, enabled,
                      updated_s=tx.now_s, transitioned_s=tx.now_s, owner=owner)  # fmt: skip
        alarm = alarms.add(alarm, alarm_config(alarm).metrics)
        tag_new(tx, alarm_arn(region, tx.settings.account, name), params)
        add_configuration_item(tx, alarm, "Create")
    else:
        if before.kind != METRIC:
            raise other_alarm_type(name)
        alarm = before.but(config=config, configured_s=tx.now_s, actions_enabled=enabled)
        alarms.change(alarm, alarm_config(alarm).metrics)
        add_configuration_item(tx, alarm, "Update")
    announce_policies(tx, alarm, before)
    tx.mark(f"alarm:{alarm.id}")


def _check_unserved(params: dict[str, Any]) -> None:
    for member in ("EvaluationCriteria", "EvaluationInterval"):
        if member in params:
            raise errors.ValidationException(f"{member} is not supported: Corral has no PromQL alarms.")
    if "ThresholdMetricId" in params:
        raise errors.ValidationException("ThresholdMetricId is not supported: Corral has no anomaly detection models.")


def _check_source(params: dict[str, Any], region: str) -> list[MetricDataQuery]:
    """Check what the alarm evaluates: one metric with a statistic and a period, or the queries in Metrics.

    Return the parsed queries. The list is empty for one metric.
    """
    if "Metrics" in params:
        for member in ONE_METRIC:
            if member in params:
                raise errors.InvalidParameterCombinationException(
                    f"The parameters {member} and Metrics are mutually exclusive and you have specified both."
                )
        return _check_queries(params["Metrics"], region)
    if "MetricName" not in params:
        raise errors.MissingRequiredParameterException("At least one of the parameters MetricName or Metrics must be specified.")
    for member in ("Namespace", "Period"):
        if member not in params:
            raise errors.MissingRequiredParameterException(f"The parameter {member} is required.")
    if "Statistic" in params and "ExtendedStatistic" in params:
        raise errors.InvalidParameterCombinationException(
            "The parameters Statistic and ExtendedStatistic are mutually exclusive and you have specified both."
        )
    if "Statistic" not in params and "ExtendedStatistic" not in params:
        raise errors.MissingRequiredParameterException(
            "At least one of the parameters Statistic or ExtendedStatistic must be specified."
        )
    if "ExtendedStatistic" in params:
        _check_statistic(params["ExtendedStatistic"], "ExtendedStatistic")
    _check_dimensions(params.get("Dimensions", []))
    _check_period(params["Period"])
    return []


def _check_queries(listed: list[dict[str, Any]], region: str) -> list[MetricDataQuery]:
    queries = parse_queries(listed, region, "Metrics")
    if sum(query.returned for query in queries) != 1:
        raise errors.ValidationException("Exactly one element of the metrics list should return data.")
    stats = [query.source for query in queries if isinstance(query.source, MetricStat)]
    if any(isinstance(query.source, Select) for query in queries):
        raise errors.ValidationException("Corral has no alarms on Metrics Insights queries: use MetricStat.")
    if any("SEARCH(" in query.get("Expression", "") for query in listed):
        raise errors.ValidationException("SEARCH is not supported in an alarm.")
    if not stats:
        raise errors.ValidationException("The metrics list of an alarm must have a MetricStat.")
    if len(stats) > METRICS_MAX:
        raise errors.ValidationException(f"An alarm may not watch more than {METRICS_MAX} metrics.")
    if len({stat.period_s for stat in stats}) > 1:
        raise errors.ValidationException("Period must be consistent across all metrics in the metrics list.")
    _check_period(stats[0].period_s)
    return queries


def _check_computes(tx: Tx[MetricStore], queries: list[MetricDataQuery], region: str) -> None:
    """Refuse an invalid expression when the alarm is created. Otherwise its first evaluation would fail."""
    results = compute(tx, region, queries, tx.now_s - HOUR_S, tx.now_s).results
    returned = next(query.id for query in queries if query.returned)
    if not isinstance(results[returned], Series):
        raise errors.ValidationException(
            f"Error in expression '{returned}': The expression of an alarm must return one time series."
        )


def _check_criteria(params: dict[str, Any]) -> None:
    for member in ("Threshold", "ComparisonOperator", "EvaluationPeriods"):
        if member not in params:
            raise errors.MissingRequiredParameterException(f"The parameter {member} is required.")
    if params["ComparisonOperator"] not in COMPARISONS:
        raise errors.ValidationException(
            f"The comparison operator {params['ComparisonOperator']} is not supported: Corral has no anomaly detection models. "
            f"Use one of {', '.join(COMPARISONS)}."
        )
    periods = params["EvaluationPeriods"]
    if params.get("DatapointsToAlarm", 1) > periods:
        raise errors.ValidationException(
            f"DatapointsToAlarm ({params['DatapointsToAlarm']}) must be less than or equal to EvaluationPeriods ({periods})."
        )
    period_s = next(query["MetricStat"]["Period"] for query in queries_of(params) if "MetricStat" in query)
    back_s = periods * period_s
    if back_s > WEEK_S:
        raise errors.ValidationException(
            f"Metrics cannot be checked across more than a week (EvaluationPeriods * Period must be <= {WEEK_S})."
        )
    if back_s > DAY_S and period_s < HOUR_S:
        raise errors.ValidationException(
            f"Metrics cannot be checked across more than a day (EvaluationPeriods * Period must be <= {DAY_S})."
        )


def _check_period(period_s: int) -> None:
    if period_s not in ALARM_SHORT_PERIODS_S and period_s % MINUTE_S:
        raise errors.ValidationException("Period must be 10, 20, 30 or a multiple of 60.")


def _check_statistic(text: str, member: str) -> None:
    if parse_statistic(text) is None:
        raise errors.ValidationException(f"The value {text} for parameter {member} is not supported.")


def _check_dimensions(listed: list[dict[str, Any]]) -> None:
    if faults := dimension_faults(listed, "Dimensions.member"):
        raise errors.InvalidParameterValueException("\n".join(faults))
