"""The actions of alarms: checks at creation, execution on a state change, and requests to scaling policies.

Corral runs actions with two kinds of targets: scaling policies and SNS topics. Requests to scaling policies and messages to topics
are sent to the state lane, the thread that writes state.db. The state lane sends back the results, and `receive_action_results`
adds them to the history of the alarm. A request to a scaling policy is sent when the state of the alarm changes, and again when the
metric has a new value (`reconcile/scaling.py`). An action with another target is recorded in the history as failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from corral.core.transactions import Tx
from corral.model.alarm import Alarm, AlarmState, ScalingRequest
from corral.services.cloudwatch.alarm_history import add_item
from corral.services.cloudwatch.alarm_notifications import notify
from corral.services.cloudwatch.common import alarm_arn
from corral.services.cloudwatch.errors import ValidationException
from corral.telemetry import MetricStore

ACTION_MEMBERS = {
    AlarmState.OK: "OKActions",
    AlarmState.ALARM: "AlarmActions",
    AlarmState.INSUFFICIENT_DATA: "InsufficientDataActions",
}
SCALING = ":autoscaling:"  # every ARN of a scaling policy contains this text
TARGETS = {  # service in the ARN of an action that Corral does not run → words for the history
    "lambda": "Lambda functions as actions",
    "automate": "actions on EC2 instances",
    "swf": "actions on EC2 instances",
    "ssm": "actions of AWS Systems Manager",
    "ssm-incidents": "actions of AWS Systems Manager Incident Manager",
}


def check_actions(params: Mapping[str, Any], unsupported: Sequence[str], alarm: str) -> None:
    """Refuse duplicate actions, and actions of services that this type of alarm cannot call."""
    for member in ACTION_MEMBERS.values():
        actions = params.get(member, [])
        if len(set(actions)) < len(actions):
            raise ValidationException(f"{member} must not contain the same action twice.")
        for action in actions:
            if action.split(":")[2] in unsupported:
                raise ValidationException(f"The action {action} is not supported for {alarm}.")


def run_actions(tx: Tx[MetricStore], alarm: Alarm) -> None:
    """Run the actions for the new state of the alarm, except scaling policies."""
    if not alarm.actions_enabled:
        return
    for action in _current_actions(alarm):
        service = action.split(":")[2]
        if service == "sns":
            notify(tx, alarm, action)
        elif SCALING not in action:
            target = TARGETS.get(service, f"actions of {service}")
            add_result(tx, alarm, action, f"Corral does not run {target}: nothing was done.")


def add_result(tx: Tx[MetricStore], alarm: Alarm, action: str, error: str) -> None:
    """Add the result of an action to the history of the alarm. `error` is empty if the action succeeded."""
    data: dict[str, Any] = {
        "actionState": "Failed" if error else "Succeeded",
        "stateUpdateTimestamp": int(alarm.transitioned_s * 1000),
        "notificationResource": action,
        "publishedMessage": None,
        "error": error or None,
    }
    failed = f"Failed to execute action {action}. Reason: {error}"
    add_item(tx, alarm, "Action", failed if error else f"Successfully executed action {action}", data)


# Requests to scaling policies


def request_scaling(
    tx: Tx[MetricStore],
    alarm: Alarm,
    period_value: float | None,
    newest_value: float | None,
    peak_value: float | None = None,
    *,
    whole: bool = True,
    measured_s: float | None = None,
) -> None:
    """Replace the requests of the alarm to scaling policies. ScalingRequest describes the parameters."""
    if SCALING in alarm.config.text:
        actions = dict.fromkeys(_current_actions(alarm)) if alarm.actions_enabled else ()
        threshold = alarm.config.params["Threshold"]
        values = period_value, newest_value, peak_value, threshold, alarm.transitioned_s, whole, measured_s
        policies = [action for action in actions if SCALING in action]
        _request(tx, alarm, [ScalingRequest(policy, alarm.state, *values) for policy in policies])


def update_newest_value(tx: Tx[MetricStore], alarm: Alarm, newest_value: float, measured_s: float | None = None) -> None:
    """Send the requests of an alarm in ALARM again, with the value of the newest second. The period value does not change."""
    if SCALING not in alarm.config.text:
        return
    last = _last_request(tx, alarm)
    if last is None:
        request_scaling(tx, alarm, None, newest_value, newest_value, whole=False, measured_s=measured_s)
        return
    peak = newest_value if last.peak_value is None else peak_of([last.peak_value, newest_value], alarm)
    request_scaling(tx, alarm, last.period_value, newest_value, peak, whole=last.whole, measured_s=measured_s)


def last_period_value(tx: Tx[MetricStore], alarm: Alarm) -> float | None:
    """Return the period value of the last requests in the current state of the alarm, or None if there are no such requests."""
    last = _last_request(tx, alarm)
    return last.period_value if last is not None else None


def _last_request(tx: Tx[MetricStore], alarm: Alarm) -> ScalingRequest | None:
    known = tx.store.alarms.requested(alarm.id)
    return known[0] if known and known[0].since_s == alarm.transitioned_s else None


def peak_of(values: Sequence[float], alarm: Alarm) -> float | None:
    """Return the value that is furthest in the direction of the alarm's comparison: the largest or the smallest.

    Return None if there are no values.
    """
    extreme = max if alarm.config.params["ComparisonOperator"].startswith("Greater") else min
    return extreme(values, default=None)


def announce_policies(tx: Tx[MetricStore], alarm: Alarm, before: Alarm | None = None) -> None:
    """Send the ARNs of the policies of a new or changed alarm to the state lane, and withdraw the requests of the alarm.

    The next evaluation of the alarm sends new requests. The last window is evaluated again for this, because an alarm without new
    datapoints has no later evaluation.
    """
    if SCALING in alarm.config.text or (before is not None and SCALING in before.config.text):
        _request(tx, alarm, [], again=True)
        tx.store.alarms.set_evaluated(alarm.id, 0.0)
        tx.mark(f"alarm:{alarm.id}")


def withdraw_requests(tx: Tx[MetricStore], alarm: Alarm, *, deleted: bool = False) -> None:
    if SCALING in alarm.config.text:
        _request(tx, alarm, [], again=deleted, deleted=deleted)


def _current_actions(alarm: Alarm) -> list[str]:
    found: list[str] = alarm.config.params.get(ACTION_MEMBERS[alarm.state], [])
    return found


def _request(
    tx: Tx[MetricStore], alarm: Alarm, requests: Sequence[ScalingRequest], *, again: bool = False, deleted: bool = False
) -> None:
    """Send the requests of an alarm, and the ARNs of all its policies. Unless `again` is set, unchanged requests are not sent."""
    if not again and tx.store.alarms.requested(alarm.id) == tuple(requests):
        return
    tx.store.alarms.set_requested(alarm.id, requests)
    arn = alarm_arn(alarm.region, tx.settings.account, alarm.name)
    params = alarm.config.params
    actions = () if deleted else (action for member in ACTION_MEMBERS.values() for action in params.get(member, ()))
    policies = list(dict.fromkeys(action for action in actions if SCALING in action))
    payload = {"alarm": arn, "policies": policies, "requests": [astuple(each) for each in requests], "asked_s": tx.now_s}
    tx.hand_over("state", "scaling requests", payload, key=arn)


def receive_action_results(tx: Tx[MetricStore], payload: dict[str, Any]) -> None:
    """Add the result of an action that the state lane executed to the history of the alarm."""
    region, _, _, name = payload["alarm"].split(":", 6)[3:]
    alarm = tx.store.alarms.get(region, name)
    if alarm is not None:
        add_result(tx, alarm, payload["action"], payload["error"])
