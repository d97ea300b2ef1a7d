"""What a metric alarm watches, read from its configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from corral.model.alarm import Alarm, Criteria, Missing
from corral.model.metric import Metric
from corral.services.cloudwatch.queries import MetricStat, Query, parse_queries

MINUTE_S = 60
HIGH_RESOLUTION_STEP_S = 10
DAY_S = 86_400
HOUR_S = 3600
OWN_NAMESPACES = frozenset({"AWS/SQS", "AWS/ECS", "AWS/AutoScaling", "Corral/GPU"})  # what Corral publishes, once a second
ALARMS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Watched:
    criteria: Criteria
    period_s: int
    step_s: int  # windows end at multiples of it
    series: MetricStat | None  # None: an expression
    queries: tuple[Query, ...]
    returned: str  # the id of the query that is judged
    metrics: tuple[Metric, ...]  # all that matter
    own: bool  # Corral makes these metrics itself, once a second
    few_samples: str  # what becomes of a percentile of too few samples: "evaluate" or "ignore"
    warm_up_s: float  # how long a new alarm waits for enough data
    warm_up_whole: bool  # it waits also when there are enough

    def last_end_s(self, now_s: float) -> int:
        """When the newest whole window ended."""
        return int(now_s // self.step_s) * self.step_s


def watched_by(alarm: Alarm) -> Watched:
    return _watched(alarm.region, alarm.config)


@lru_cache(maxsize=ALARMS_KEPT)
def config_of(text: str) -> dict[str, Any]:
    """The configuration of an alarm; not to be changed."""
    found: dict[str, Any] = json.loads(text)
    return found


@lru_cache(maxsize=ALARMS_KEPT)
def _watched(region: str, text: str) -> Watched:
    config = config_of(text)
    queries = parse_queries(queries_of(config), region, "Metrics")
    stats = [query.what for query in queries if isinstance(query.what, MetricStat)]
    metrics = tuple(dict.fromkeys(stat.metric for stat in stats))
    period_s, periods = stats[0].period_s, config["EvaluationPeriods"]
    warm_up = config.get("WarmUpConfiguration", {})
    return Watched(
        criteria=Criteria(
            config["ComparisonOperator"],
            config["Threshold"],
            periods,
            config.get("DatapointsToAlarm", periods),
            Missing(config.get("TreatMissingData", "missing")),
        ),
        period_s=period_s,
        step_s=_step_s(period_s, periods, config),
        series=stats[0] if len(queries) == 1 else None,
        queries=tuple(queries),
        returned=next(query.id for query in queries if query.returned),
        metrics=metrics,
        own=all(metric.namespace in OWN_NAMESPACES for metric in metrics),
        few_samples=config.get("EvaluateLowSampleCountPercentile", "evaluate"),
        warm_up_s=MINUTE_S * warm_up.get("WarmUpPeriodDurationInMinutes", 0),
        warm_up_whole=warm_up.get("OnlyStartEvaluatingAfterWarmUpPeriodEnds", False),
    )


def queries_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Every alarm as a list of MetricDataQuery: what it watches is the one that returns data."""
    if "Metrics" in config:
        return list(config["Metrics"])
    metric = {"Namespace": config["Namespace"], "MetricName": config["MetricName"], "Dimensions": config.get("Dimensions", [])}
    statistic = config.get("Statistic") or config["ExtendedStatistic"]
    unit = {"Unit": config["Unit"]} if "Unit" in config else {}
    return [{"Id": "m1", "MetricStat": {"Metric": metric, "Period": config["Period"], "Stat": statistic, **unit}}]


def _step_s(period_s: int, periods: int, config: dict[str, Any]) -> int:
    """Windows slide: by a minute, by ten seconds where they are shorter, by an hour where they reach back for more than a day."""
    if "WallClockWindow" in config.get("EvaluationWindow", {}):
        return period_s
    if period_s * periods > DAY_S:
        return HOUR_S
    if period_s >= MINUTE_S:
        return MINUTE_S
    return period_s if "Metrics" in config else HIGH_RESOLUTION_STEP_S  # short periods of expressions begin at multiples of theirs
