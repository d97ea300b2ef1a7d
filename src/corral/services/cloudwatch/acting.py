"""What an alarm does when its state changes.

Nothing that an alarm may call is here yet. Its history says so, by name, each time: nothing is pretended. What an alarm asks of a
scaling policy is kept beside it, with both values, for as long as it stays in its state; whoever scales reads it there.
"""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.alarm import Alarm, AlarmState, Ask
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


def ask(tx: Tx[MetricStore], alarm: Alarm, period_value: float | None, newest_value: float | None) -> None:
    """What the alarm asks of scaling policies from now on: said again whenever a value changes, as long as the state stays."""
    if SCALING not in alarm.config:
        return
    policies = [action for action in actions_of(alarm) if SCALING in action] if alarm.actions_enabled else []
    tx.store.alarms.set_asks(alarm, [Ask(action, alarm.state, period_value, newest_value) for action in policies], tx.now_s)


def ask_again(tx: Tx[MetricStore], alarm: Alarm, newest_value: float) -> None:
    """There is a newer second; the period is as it was."""
    if SCALING in alarm.config:
        known = tx.store.alarms.asks(alarm)
        ask(tx, alarm, known[0].period_value if known else None, newest_value)
