"""The actions of alarms: checks at creation, execution on a state change, and requests to scaling policies.

Corral supports no target of actions yet. So every execution is recorded in the history of the alarm as failed, with the name of the
missing service. Requests to scaling policies are sent to the state lane, the thread that writes state.db
(`reconcile/receivers.py`). They are sent when the state of the alarm changes, and again when a value changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.core import Tx
from corral.model.alarm import Alarm, AlarmState, ScalingRequest
from corral.services.cloudwatch.alarm_config import stored_params
from corral.services.cloudwatch.alarm_history import add_item
from corral.services.cloudwatch.common import alarm_arn
from corral.services.cloudwatch.errors import ValidationException
from corral.telemetry import MetricStore

ACTION_MEMBERS = {
    AlarmState.OK: "OKActions",
    AlarmState.ALARM: "AlarmActions",
    AlarmState.INSUFFICIENT_DATA: "InsufficientDataActions",
}
SCALING = ":autoscaling:"  # every ARN of a scaling policy contains this text
SERVICES = {
    "sns": "Amazon SNS",
    "autoscaling": "Auto Scaling",
    "lambda": "AWS Lambda",
    "automate": "actions on EC2 instances",
    "swf": "actions on EC2 instances",
    "ssm": "AWS Systems Manager",
    "ssm-incidents": "AWS Systems Manager Incident Manager",
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
    """Run the actions for the new state of the alarm."""
    if not alarm.actions_enabled:
        return
    for action in _current_actions(alarm):
        service = action.split(":")[2]
        why = f"Corral does not serve {SERVICES.get(service, service)} yet: nothing was done."
        data: dict[str, Any] = {"actionState": "Failed", "notificationResource": action, "error": why}
        add_item(tx, alarm, "Action", f"Failed to execute action {action}. Reason: {why}", data)


def request_scaling(tx: Tx[MetricStore], alarm: Alarm, period_value: float | None, newest_value: float | None) -> None:
    """Replace the requests of the alarm to scaling policies."""
    if SCALING in alarm.config:
        actions = dict.fromkeys(_current_actions(alarm)) if alarm.actions_enabled else ()
        policies = [action for action in actions if SCALING in action]
        _request(tx, alarm, [ScalingRequest(policy, alarm.state, period_value, newest_value) for policy in policies])


def update_newest_value(tx: Tx[MetricStore], alarm: Alarm, newest_value: float) -> None:
    """Send the requests of the alarm again, with the value of the newest second and an unchanged period value."""
    if SCALING in alarm.config:
        known = tx.store.alarms.requested(alarm.id)
        request_scaling(tx, alarm, known[0].period_value if known else None, newest_value)


def withdraw_requests(tx: Tx[MetricStore], alarm: Alarm) -> None:
    """Withdraw the requests of an alarm when the alarm is disabled, deleted or changed."""
    if SCALING in alarm.config:
        _request(tx, alarm, [])


def _current_actions(alarm: Alarm) -> list[str]:
    """Return the actions for the current state of the alarm."""
    found: list[str] = stored_params(alarm.config).get(ACTION_MEMBERS[alarm.state], [])
    return found


def _request(tx: Tx[MetricStore], alarm: Alarm, requests: Sequence[ScalingRequest]) -> None:
    if tx.store.alarms.requested(alarm.id) == tuple(requests):
        return
    tx.store.alarms.set_requested(alarm.id, requests)
    arn = alarm_arn(alarm.region, tx.settings.account, alarm.name)
    rows = [(each.policy, each.state.value, each.period_value, each.newest_value) for each in requests]
    tx.hand_over("state", "scaling requests", {"alarm": arn, "requests": rows, "asked_s": tx.now_s}, key=arn)
