"""What an alarm does when its state changes.

Nothing that an alarm may call is here yet. Its history says so, by name, each time: nothing is pretended. What an alarm asks of
scaling policies is handed over to the state (reconcile/receivers.py): when it comes into a state, and whenever a value changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.core import Tx
from corral.model.alarm import Alarm, AlarmState, ScalingRequest
from corral.services.cloudwatch.history import say
from corral.services.cloudwatch.watched import config_of
from corral.telemetry import MetricStore

MEMBERS = {
    AlarmState.ALARM: "AlarmActions",
    AlarmState.OK: "OKActions",
    AlarmState.INSUFFICIENT_DATA: "InsufficientDataActions",
}
SCALING = ":autoscaling:"  # in the ARNs of scaling policies
SERVICES = {
    "sns": "Amazon SNS",
    "autoscaling": "Auto Scaling",
    "lambda": "AWS Lambda",
    "automate": "actions on EC2 instances",
    "swf": "actions on EC2 instances",
    "ssm": "AWS Systems Manager",
    "ssm-incidents": "AWS Systems Manager Incident Manager",
}


def actions_of(alarm: Alarm) -> list[str]:
    """Those of its present state."""
    found: list[str] = config_of(alarm.config).get(MEMBERS[alarm.state], [])
    return found


def act(tx: Tx[MetricStore], alarm: Alarm) -> None:
    """The alarm has come into its state."""
    if not alarm.actions_enabled:
        return
    for action in actions_of(alarm):
        service = action.split(":")[2]
        why = f"Corral does not have {SERVICES.get(service, service)} yet: nothing was done."
        data: dict[str, Any] = {"actionState": "Failed", "notificationResource": action, "error": why}
        say(tx, alarm, "Action", f"Failed to execute action {action}. Reason: {why}", data)


def request_scaling(tx: Tx[MetricStore], alarm: Alarm, period_value: float | None, newest_value: float | None) -> None:
    """What the alarm asks of scaling policies from now on."""
    if SCALING in alarm.config:
        policies = [action for action in dict.fromkeys(actions_of(alarm)) if SCALING in action] if alarm.actions_enabled else []
        _request(tx, alarm, [ScalingRequest(policy, alarm.state, period_value, newest_value) for policy in policies])


def request_scaling_again(tx: Tx[MetricStore], alarm: Alarm, newest_value: float) -> None:
    """There is a newer second; the period is as it was."""
    if SCALING in alarm.config:
        known = tx.store.alarms.requested(alarm.id)
        request_scaling(tx, alarm, known[0].period_value if known else None, newest_value)


def withdraw_requests(tx: Tx[MetricStore], alarm: Alarm) -> None:
    """The alarm asks for nothing: it is disabled, deleted or configured anew."""
    if SCALING in alarm.config:
        _request(tx, alarm, [])


def _request(tx: Tx[MetricStore], alarm: Alarm, requests: Sequence[ScalingRequest]) -> None:
    if tx.store.alarms.requested(alarm.id) == tuple(requests):
        return
    tx.store.alarms.set_requested(alarm.id, requests)
    arn = f"arn:aws:cloudwatch:{alarm.region}:{tx.settings.account}:alarm:{alarm.name}"
    said = [(each.policy, each.state.value, each.period_value, each.newest_value) for each in requests]
    tx.hand_over("state", "scaling requests", {"alarm": arn, "requests": said, "asked_s": tx.now_s}, key=arn)
