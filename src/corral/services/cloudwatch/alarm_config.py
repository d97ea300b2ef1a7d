"""The configuration of a metric alarm. It is parsed from the stored parameters of PutMetricAlarm.

A window is a time range that is as long as a period of the alarm. Each window gives the alarm one datapoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from msgspec import Struct, structs

from corral.core.errors import ApiError
from corral.decide.metrics.alarm_evaluation import is_conclusive, is_level
from corral.model.alarm import Alarm, Criteria, MissingData, StoredConfig
from corral.model.durations import DAY_S, HOUR_S, MINUTE_S
from corral.model.metric import COLLECTOR_NAMESPACE, Metric
from corral.model.settings import Settings
from corral.services.cloudwatch.errors import ValidationException
from corral.services.cloudwatch.metric_queries import MetricDataQuery, MetricStat, parse_queries

HIGH_RESOLUTION_STEP_S = 10
# Corral publishes the metrics in these namespaces once a second.
OWN_NAMESPACES = frozenset({"AWS/SQS", "AWS/ECS", "AWS/ECS/ManagedScaling", "AWS/AutoScaling", "Corral/GPU", COLLECTOR_NAMESPACE})
# A member of a stored alarm and its two values: whether a target tracking policy uses the alarm for scale-outs or for scale-ins.
# Responses do not contain this member.
TRACKS, TRACKS_OUT, TRACKS_IN = "_tracks", "out", "in"


class AlarmConfig(Struct, frozen=True):
    criteria: Criteria
    period_s: int
    step_s: int  # the end of every window, in seconds since 1970, is a multiple of this number
    series: MetricStat | None  # None if the alarm is on an expression
    queries: tuple[MetricDataQuery, ...]
    returned: str  # the id of the query whose result is evaluated
    metrics: tuple[Metric, ...]  # all metrics that the queries read
    own: bool  # True if Corral publishes all these metrics itself, once a second
    few_samples: str  # what to do with a percentile that has too few samples: "evaluate" or "ignore"
    warm_up_s: float  # a new alarm waits this long for enough data
    slides: bool  # False if the windows start at fixed times of the clock
    warm_up_whole: bool  # True if the alarm waits until the end of the warm-up, even if it has enough data
    tracks: str = ""  # TRACKS_OUT or TRACKS_IN if a target tracking policy has created the alarm

    def last_end_s(self, now_s: float) -> int:
        """Return the end of the newest complete window."""
        return int(now_s // self.step_s) * self.step_s

    @property
    def may_alarm_early(self) -> bool:
        """Whether the alarm can enter ALARM before a window ends."""
        if self.series is None or self.few_samples == "ignore":  # both cases need the samples of a complete window
            return False
        kind = self.series.statistic.kind
        return is_level(kind) or is_conclusive(kind, self.criteria, 0.0)

    @property
    def is_level(self) -> bool:
        """Whether a few seconds of data can represent a whole window, for all metrics of the alarm."""
        return all(is_level(each.source.statistic.kind) for each in self.queries if isinstance(each.source, MetricStat))


def alarm_config(alarm: Alarm) -> AlarmConfig:
    config = alarm.config
    if config.parsed is None:
        config.parsed = _parse(alarm.region, config.params)
    parsed: AlarmConfig = config.parsed
    return parsed


def timed_config(alarm: Alarm, settings: Settings) -> AlarmConfig:
    """Return the configuration of an alarm with the windows that Corral evaluates.

    These windows differ from the configured windows in one case: the alarm is for the scale-in of a target tracking policy, and
    `alarm_timing` is "fast". Then the windows together cover `target_tracking_in_s` seconds. The default is 15 minutes, as on AWS.
    """
    config = alarm_config(alarm)
    if config.tracks != TRACKS_IN or settings.alarm_timing != "fast":
        return config
    seconds = max(1, ceil(settings.scaling.target_tracking_in_s))
    if alarm.config.timed is None or alarm.config.timed[0] != seconds:
        alarm.config.timed = seconds, _low_for(config, seconds)
    low: AlarmConfig = alarm.config.timed[1]
    return low


def _low_for(parsed: AlarmConfig, seconds: int) -> AlarmConfig:
    """Return a configuration whose windows together cover this number of seconds, for an alarm that causes scale-ins.

    The windows are shorter than the period of the alarm only if a few seconds can represent a whole window (`is_level`).
    """
    periods = max(1, ceil(seconds / parsed.period_s))
    criteria = structs.replace(parsed.criteria, periods=periods, to_alarm=periods)
    if not parsed.is_level:
        return structs.replace(parsed, criteria=criteria)
    period_s = ceil(seconds / periods)
    if period_s < parsed.period_s:  # a short window between two datapoints has no data, and must not change the state
        criteria = structs.replace(criteria, missing=MissingData.IGNORE)
    # The windows of an expression end at multiples of the period.
    step_s = max(1, min(parsed.step_s, seconds // 3 if parsed.series is not None else period_s))
    return structs.replace(parsed, criteria=criteria, period_s=period_s, step_s=step_s)


def stored_config(params: Mapping[str, Any], members: Iterable[str]) -> StoredConfig:
    """Return the given members of a request. An update of the alarm replaces all of them."""
    return StoredConfig(json.dumps({member: params[member] for member in members if member in params}, separators=(",", ":")))


def other_alarm_type(name: str) -> ApiError:
    return ValidationException(f"An alarm with the name {name} and of another type exists already.")


def _parse(region: str, params: dict[str, Any]) -> AlarmConfig:
    queries = parse_queries(queries_of(params), region, "Metrics")
    stats = [query.source for query in queries if isinstance(query.source, MetricStat)]
    metrics = tuple(dict.fromkeys(stat.metric for stat in stats))
    period_s, periods = stats[0].period_s, params["EvaluationPeriods"]
    warm_up = params.get("WarmUpConfiguration", {})
    return AlarmConfig(
        criteria=Criteria(
            params["ComparisonOperator"],
            params["Threshold"],
            periods,
            params.get("DatapointsToAlarm", periods),
            MissingData(params.get("TreatMissingData", "missing")),
        ),
        period_s=period_s,
        step_s=_step_s(period_s, periods, params),
        series=stats[0] if len(queries) == 1 else None,
        queries=tuple(queries),
        returned=next(query.id for query in queries if query.returned),
        metrics=metrics,
        own=all(metric.namespace in OWN_NAMESPACES for metric in metrics),
        few_samples=params.get("EvaluateLowSampleCountPercentile", "evaluate"),
        warm_up_s=MINUTE_S * warm_up.get("WarmUpPeriodDurationInMinutes", 0),
        slides="WallClockWindow" not in params.get("EvaluationWindow", {}),
        warm_up_whole=warm_up.get("OnlyStartEvaluatingAfterWarmUpPeriodEnds", False),
        tracks=params.get(TRACKS, ""),
    )


def queries_of(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the MetricDataQueries of an alarm. An alarm on one metric has one query."""
    if "Metrics" in params:
        return list(params["Metrics"])
    metric = {"Namespace": params["Namespace"], "MetricName": params["MetricName"], "Dimensions": params.get("Dimensions", [])}
    statistic = params.get("Statistic") or params["ExtendedStatistic"]
    unit = {"Unit": params["Unit"]} if "Unit" in params else {}
    return [{"Id": "m1", "MetricStat": {"Metric": metric, "Period": params["Period"], "Stat": statistic, **unit}}]


def _step_s(period_s: int, periods: int, params: dict[str, Any]) -> int:
    """Return the distance between the ends of two windows, in seconds.

    The distance is the period if the alarm has a WallClockWindow. Otherwise, it is an hour if all periods together are longer than
    a day, and a minute if they are not. But if the period is shorter than a minute, the distance is ten seconds, or the period if
    the alarm is on an expression.
    """
    if "WallClockWindow" in params.get("EvaluationWindow", {}):
        return period_s
    if period_s * periods > DAY_S:
        return HOUR_S
    if period_s >= MINUTE_S:
        return MINUTE_S
    # The windows of an expression with a short period end at multiples of the period.
    return period_s if "Metrics" in params else HIGH_RESOLUTION_STEP_S
