"""State changes of alarms: stores the new state, adds a history item, and runs actions.

The texts of StateReason have the same form as on CloudWatch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from corral.core.transactions import Tx
from corral.decide.metrics.alarm_evaluation import breaches, needed_windows, suppress
from corral.model.alarm import COMPOSITE, METRIC, Alarm, AlarmEvaluation, AlarmState, Criteria, MissingData, Suppression
from corral.services.cloudwatch.alarm_actions import run_actions
from corral.services.cloudwatch.alarm_config import alarm_config
from corral.services.cloudwatch.alarm_history import add_state_item
from corral.services.cloudwatch.common import alarm_name, timestamp
from corral.telemetry import MetricStore

COMPARISON_TEXTS = {
    "GreaterThanOrEqualToThreshold": "greater than or equal to",
    "GreaterThanThreshold": "greater than",
    "LessThanThreshold": "less than",
    "LessThanOrEqualToThreshold": "less than or equal to",
}
FILLED_TEXTS = {MissingData.BREACHING: "Breaching", MissingData.NOT_BREACHING: "NonBreaching"}


# State changes


def set_state(tx: Tx[MetricStore], alarm: Alarm, state: AlarmState, reason: str, data: str) -> Alarm:
    """Store the state and its reason. If the state has changed, add a history item, run the actions and evaluate parent alarms."""
    changed = state is not alarm.state
    transitioned_s = tx.now_s if changed else alarm.transitioned_s
    after = alarm.but(state=state, reason=reason, reason_data=data, updated_s=tx.now_s, transitioned_s=transitioned_s)
    tx.store.alarms.update(after)
    if not changed:
        return after
    add_state_item(tx, alarm, after)
    report_to_watchers(tx, after)
    for parent in tx.store.alarms.parents(alarm.region, alarm.name):
        tx.mark(f"alarm:{parent.id}")
    if alarm.kind == METRIC:
        run_actions(tx, after)
        return after
    waited = after.suppression.by == "WaitPeriod"  # the wait period belonged to the previous state
    return run_composite_actions(tx, after.but(suppression=Suppression()) if waited else after)


def run_composite_actions(tx: Tx[MetricStore], alarm: Alarm) -> Alarm:
    """Run the actions of a composite alarm.

    They do not run if they already ran for this state, or if the suppressor alarm prevents them.
    """
    if alarm.acted_state is alarm.state:
        return _write(tx, alarm, alarm.but(suppression=Suppression()))
    params = alarm.config.params
    suppression = Suppression()
    if "ActionsSuppressor" in params:
        suppressor = tx.store.alarms.get(alarm.region, alarm_name(params["ActionsSuppressor"]))
        suppression = suppress(
            alarm.suppression,
            suppressor_in_alarm=suppressor is not None and suppressor.state is AlarmState.ALARM,
            wait_s=params["ActionsSuppressorWaitPeriod"],
            extension_s=params["ActionsSuppressorExtensionPeriod"],
            now_s=tx.now_s,
        )
    if suppression.by:
        if suppression.until_s is not None:
            tx.store.alarms.wake(alarm.id, suppression.until_s)
        return _write(tx, alarm, alarm.but(suppression=suppression))
    run_actions(tx, alarm)
    return _write(tx, alarm, alarm.but(suppression=suppression, acted_state=alarm.state))


def _write(tx: Tx[MetricStore], before: Alarm, after: Alarm) -> Alarm:
    if after != before:
        tx.store.alarms.update(after)
    return after


# Texts of StateReason


def reason_of(evaluation: AlarmEvaluation, criteria: Criteria, *, counted: bool) -> str:
    """Return the StateReason of a metric alarm.

    `counted` is True if the alarm has DatapointsToAlarm. The text then says how many of the last datapoints
    decided the state, and how many are needed.
    """
    points, filled = evaluation.points, evaluation.filled
    if evaluation.state is AlarmState.INSUFFICIENT_DATA:
        return f"Insufficient Data: {_many(filled, 'datapoint')} {_were(filled)} unknown."
    treated = ""
    if filled and criteria.missing in FILLED_TEXTS:
        treated = f" and {_many(filled, 'missing datapoint')} {_were(filled)} treated as [{FILLED_TEXTS[criteria.missing]}]"
    alarming = evaluation.state is AlarmState.ALARM
    deciding = [point for point in reversed(points) if breaches(point[1], criteria) is alarming]
    if treated and not deciding:
        received = (
            f"{_many(len(points), 'datapoint') if points else 'no datapoints'} {_were(len(points)) if points else 'were'} received"
        )
        return f"Threshold Crossed: {received} for {_many(criteria.periods, 'period')}{treated}."
    return _crossed(deciding, criteria, alarming=alarming, counted=counted, treated=treated)


def _crossed(points: Sequence[tuple[float, float]], criteria: Criteria, *, alarming: bool, counted: bool, treated: str = "") -> str:
    """Return the text for the datapoints that decided the state. `points` are sorted, newest first.

    `treated` says how missing datapoints were treated.
    """
    listed = ", ".join(f"{value!r} ({datetime.fromtimestamp(at_s, UTC):%d/%m/%y %H:%M:%S})" for at_s, value in points)
    many = f"{len(points)} out of the last {criteria.periods} datapoints" if counted else _many(len(points), "datapoint")
    comparison = f"{'' if alarming else 'not '}{COMPARISON_TEXTS[criteria.comparison]} the threshold ({criteria.threshold!r})"
    least = needed_windows(criteria, AlarmState.ALARM if alarming else AlarmState.OK)
    way = "OK -> ALARM" if alarming else "ALARM -> OK"
    minimum = f" (minimum {_many(least, 'datapoint')} for {way} transition)" if counted else ""
    return f"Threshold Crossed: {many} [{listed}] {_were(len(points))} {comparison}{treated}{minimum}."


def newest_second_reason(at_s: float, value: float, criteria: Criteria) -> str:
    """Return the StateReason of an alarm that entered ALARM because of a value of the last seconds, before its period ended."""
    one = Criteria(criteria.comparison, criteria.threshold, 1, 1)
    return _crossed([(at_s, value)], one, alarming=True, counted=False)


def reason_data(
    evaluation: AlarmEvaluation,
    criteria: Criteria,
    *,
    now_s: float,
    period_s: int,
    statistic: str | None,
    unit: str | None,
    counts: Mapping[float, float],
    **more: Any,
) -> str:
    """Return StateReasonData: the reason of a state as JSON, for programs. `counts` has the sample counts of windows."""
    points = evaluation.points
    deciding = evaluation.deciding or tuple(reversed(points))
    return json.dumps(
        {
            "version": "1.0",
            "queryDate": timestamp(now_s),
            **({"startDate": timestamp(points[0][0])} if points else {}),
            **({"unit": unit} if unit else {}),
            **({"statistic": statistic} if statistic else {}),
            "period": period_s,
            "recentDatapoints": [value for _, value in points],
            "threshold": criteria.threshold,
            "evaluatedDatapoints": [_evaluated(at_s, value, counts.get(at_s)) for at_s, value in deciding],
            **more,
        },
        separators=(",", ":"),
    )


def _evaluated(at_s: float, value: float | None, count: float | None) -> dict[str, Any]:
    """Return an element of `evaluatedDatapoints`. A window without data has only its time."""
    samples = {"sampleCount": count} if count is not None else {}
    return {"timestamp": timestamp(at_s), **samples, **({"value": value} if value is not None else {})}


def composite_reason(child: Alarm, arn: str) -> str:
    at = datetime.fromtimestamp(child.transitioned_s, UTC)
    return f"{arn} transitioned to {child.state} at {at:%A %d %B, %Y %H:%M:%S} UTC"


def composite_reason_data(children: Sequence[tuple[str, Alarm]]) -> str:
    """Return StateReasonData of a composite alarm. `children` are the ARNs and the alarms that decided the rule."""
    listed = [
        {"arn": arn, "state": {"value": child.state.value, "timestamp": timestamp(child.transitioned_s)}} for arn, child in children
    ]
    return json.dumps({"triggeringAlarms": listed}, separators=(",", ":"))


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def receive_alarm_watches(tx: Tx[MetricStore], payload: dict[str, Any]) -> None:
    """Replace the alarms that a deployment (the watcher) watches. Without alarms, delete the watcher."""
    watcher, region = payload["watcher"], payload["region"]
    tx.store.alarms.set_watches(watcher, region, payload["alarms"])
    if payload["alarms"]:
        # A report with a key replaces an earlier report with the same key that has not been received yet. The first report has no
        # key, because the watcher needs it: the watcher ignores alarms that are in ALARM at the start.
        _report(tx, watcher, region, key=None)


def report_to_watchers(tx: Tx[MetricStore], alarm: Alarm) -> None:
    for watcher in tx.store.alarms.watchers_of(alarm.region, alarm.name):
        _report(tx, watcher, alarm.region, key=watcher)


def _report(tx: Tx[MetricStore], watcher: str, region: str, *, key: str | None) -> None:
    found = [alarm for name in tx.store.alarms.watches(watcher) if (alarm := tx.store.alarms.get(region, name)) is not None]
    in_alarm = [alarm.name for alarm in found if alarm.state is AlarmState.ALARM]
    window_s = max((_window_s(alarm) for alarm in found), default=0)
    tx.hand_over("state", "watched alarms", {"watcher": watcher, "in_alarm": in_alarm, "window_s": window_s}, key=key)


def _window_s(alarm: Alarm) -> int:
    """Return how many seconds an evaluation of the alarm covers. The result is 0 for a composite alarm."""
    if alarm.kind == COMPOSITE:
        return 0
    config = alarm_config(alarm)
    return config.period_s * config.criteria.periods
