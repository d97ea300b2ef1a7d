"""Why an alarm is in its state, in CloudWatch's words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from corral.decide.alarm import breaches
from corral.model.alarm import Alarm, AlarmState, Criteria, Missing, Verdict

WORDS = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}
FILLED = {Missing.BREACHING: "Breaching", Missing.NOT_BREACHING: "NonBreaching"}


def reason_of(verdict: Verdict, criteria: Criteria, *, counted: bool) -> str:
    """`counted`: the alarm says how many of its datapoints must breach."""
    if verdict.state is AlarmState.INSUFFICIENT_DATA:
        return f"Insufficient Data: {_many(verdict.filled, 'datapoint')} {_were(verdict.filled)} unknown."
    if verdict.filled and criteria.missing in FILLED:
        received = f"{_many(len(verdict.points), 'datapoint') if verdict.points else 'no datapoints'}"
        received += f" {_were(len(verdict.points)) if verdict.points else 'were'} received for {_many(criteria.periods, 'period')}"
        filled = f"{_many(verdict.filled, 'missing datapoint')} {_were(verdict.filled)} treated as [{FILLED[criteria.missing]}]"
        return f"Threshold Crossed: {received} and {filled}."
    alarming = verdict.state is AlarmState.ALARM
    meant = [point for point in reversed(verdict.points) if breaches(point[1], criteria) is alarming]
    return _crossed(meant, criteria, alarming=alarming, counted=counted)


def _crossed(points: Sequence[tuple[float, float]], criteria: Criteria, *, alarming: bool, counted: bool) -> str:
    """`points`: the newest first."""
    listed = ", ".join(f"{value!r} ({datetime.fromtimestamp(at_s, UTC):%d/%m/%y %H:%M:%S})" for at_s, value in points)
    many = f"{len(points)} out of the last {criteria.periods} datapoints" if counted else _many(len(points), "datapoint")
    said = f"{_were(len(points))} {'' if alarming else 'not '}{WORDS[criteria.comparison]} the threshold ({criteria.threshold!r})"
    least, way = (criteria.to_alarm, "OK -> ALARM") if alarming else (criteria.periods - criteria.to_alarm + 1, "ALARM -> OK")
    minimum = f" (minimum {_many(least, 'datapoint')} for {way} transition)" if counted else ""
    return f"Threshold Crossed: {many} [{listed}] {said}{minimum}."


def newest_second_reason(at_s: float, value: float, criteria: Criteria) -> str:
    """Of an alarm that did not wait for its period."""
    one = Criteria(criteria.comparison, criteria.threshold, 1, 1)
    return _crossed([(at_s, value)], one, alarming=True, counted=False)


def reason_data(
    verdict: Verdict, criteria: Criteria, *, now_s: float, period_s: int, statistic: str | None, unit: str | None, **more: Any
) -> str:
    """JSON, for programs: what a scaling policy would read."""
    start = {"startDate": moment(verdict.points[0][0])} if verdict.points else {}
    return json.dumps(
        {
            "version": "1.0",
            "queryDate": moment(now_s),
            **start,
            **({"unit": unit} if unit else {}),
            **({"statistic": statistic} if statistic else {}),
            "period": period_s,
            "recentDatapoints": [value for _, value in verdict.points],
            "threshold": criteria.threshold,
            **more,
        },
        separators=(",", ":"),
    )


def composite_reason(child: Alarm, arn: str) -> str:
    at = datetime.fromtimestamp(child.transitioned_s, UTC)
    return f"{arn} transitioned to {child.state} at {at:%A %d %B, %Y %H:%M:%S} UTC"


def composite_reason_data(children: Sequence[tuple[str, Alarm]]) -> str:
    """`children`: those that made the rule what it is, with their ARNs."""
    listed = [
        {"arn": arn, "state": {"value": child.state.value, "timestamp": moment(child.transitioned_s)}} for arn, child in children
    ]
    return json.dumps({"triggeringAlarms": listed}, separators=(",", ":"))


def moment(at_s: float) -> str:
    """2019-10-01T13:56:40.985+0000"""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}.{int(at_s * 1000) % 1000:03d}+0000"


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
