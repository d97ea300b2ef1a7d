"""Composite alarms: PutCompositeAlarm, and the evaluation of a rule over the states of other alarms."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.metrics.alarm_rule import AlarmRule, AlarmRuleError, alarms_of, evaluate_rule, parse_rule
from corral.model.alarm import COMPOSITE, Alarm, AlarmState
from corral.services.cloudwatch.alarm_actions import check_actions
from corral.services.cloudwatch.alarm_config import other_alarm_type, stored_config
from corral.services.cloudwatch.alarm_history import add_configuration_item
from corral.services.cloudwatch.alarm_state import composite_reason, composite_reason_data, run_composite_actions, set_state
from corral.services.cloudwatch.common import alarm_arn, alarm_name
from corral.services.cloudwatch.errors import ValidationException
from corral.services.cloudwatch.tags import tag_new
from corral.telemetry import MetricStore

STORED_MEMBERS = (
    "AlarmDescription", "AlarmRule", "OKActions", "AlarmActions", "InsufficientDataActions", "ActionsSuppressor",
    "ActionsSuppressorWaitPeriod", "ActionsSuppressorExtensionPeriod", "ActionConfiguration",
)  # fmt: skip
PERIODS = ("ActionsSuppressorWaitPeriod", "ActionsSuppressorExtensionPeriod")
UNSUPPORTED_ACTIONS = ("autoscaling", "automate", "swf")  # a composite alarm cannot call these services


def put_composite_alarm(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, alarms = params["AlarmName"], tx.store.alarms
    check_actions(params, UNSUPPORTED_ACTIONS, "a composite alarm")
    _check_suppressor(tx, params, caller)
    try:
        rule = parse_rule(params["AlarmRule"])
    except AlarmRuleError as error:
        raise ValidationException(f"Invalid AlarmRule, Syntax error {error}.") from None
    named = _names_in(rule)
    missing = [each for each in named if alarms.get(caller.region, each) is None and each != name]
    if missing:
        raise ValidationException(
            f"Could not save the composite alarm as alarms [{', '.join(missing)}] in the alarm rule do not exist"
        )
    children = [(child, True) for child in named]
    if "ActionsSuppressor" in params:
        children.append((alarm_name(params["ActionsSuppressor"]), False))
    config, enabled = stored_config(params, STORED_MEMBERS), params.get("ActionsEnabled", True)
    arn = alarm_arn(caller.region, caller.account, name)
    before = alarms.get(caller.region, name)
    if before is None:
        alarm = alarms.add(Alarm(0, caller.region, name, COMPOSITE, config, tx.now_s, tx.now_s, enabled,
                                 updated_s=tx.now_s, transitioned_s=tx.now_s, owner=caller.owner), children=children)  # fmt: skip
        tag_new(tx, arn, params)
        add_configuration_item(tx, alarm, "Create")
        cause = f"{arn} was created and its alarm rule evaluates to"
    else:
        if before.kind != COMPOSITE:
            raise other_alarm_type(name)
        alarm = before.but(config=config, configured_s=tx.now_s, actions_enabled=enabled)
        alarms.change(alarm, children=children)
        add_configuration_item(tx, alarm, "Update")
        cause = f"{arn} was updated and its new alarm rule evaluates to"
    evaluate_composite(tx, alarm, cause)
    return {}


def _check_suppressor(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> None:
    if "ActionsSuppressor" not in params:
        for member in PERIODS:
            if member in params:
                raise ValidationException(f"{member} can only be specified together with ActionsSuppressor.")
        return
    for member in PERIODS:
        if member not in params:
            raise ValidationException(f"{member} is required when ActionsSuppressor is specified.")
    suppressor = alarm_name(params["ActionsSuppressor"])
    if tx.store.alarms.get(caller.region, suppressor) is None:
        raise ValidationException(f"Could not save the composite alarm as its actions suppressor [{suppressor}] does not exist")


def evaluate_composite(tx: Tx[MetricStore], alarm: Alarm, cause: str | None = None) -> None:
    """Evaluate the rule, then run or suppress the actions.

    `cause` is the beginning of StateReason after the alarm was created or updated. It is None if an alarm in the rule has changed
    its state.
    """
    alarms, rule = tx.store.alarms, _rule_of(alarm)
    if not _in_cycle(tx, alarm):
        children = {name: child for name in _names_in(rule) if (child := alarms.get(alarm.region, name)) is not None}
        states = {name: child.state for name, child in children.items()}
        state = AlarmState.ALARM if evaluate_rule(rule, lambda each: states.get(alarm_name(each))) else AlarmState.OK
        if state is not alarm.state:
            latest = max(children.values(), key=lambda child: child.transitioned_s, default=alarm)
            triggering = [latest] if cause is None else list(children.values())
            reason = composite_reason(latest, _arn(tx, latest)) if cause is None else f"{cause} {state}"
            set_state(tx, alarm, state, reason, composite_reason_data([(_arn(tx, child), child) for child in triggering]))
            return
    run_composite_actions(tx, alarm)


def _in_cycle(tx: Tx[MetricStore], alarm: Alarm) -> bool:
    """Whether the alarm depends on itself. As on CloudWatch, such an alarm is not evaluated."""
    seen, ahead = set[str](), rule_alarm_names(alarm)
    while ahead:
        name = ahead.pop()
        child = tx.store.alarms.get(alarm.region, name)
        if name == alarm.name:
            return True
        if name not in seen and child is not None and child.kind == COMPOSITE:
            ahead += rule_alarm_names(child)
        seen.add(name)
    return False


def rule_alarm_names(alarm: Alarm) -> list[str]:
    """Return the names of the alarms in the rule of a composite alarm, without duplicates."""
    return _names_in(_rule_of(alarm))


def suppression_members(alarm: Alarm) -> dict[str, Any]:
    """Return the members of DescribeAlarms that explain why actions are suppressed."""
    by = alarm.suppression.by
    return {"ActionsSuppressedBy": by, "ActionsSuppressedReason": f"Actions suppressed by {by}"} if by else {}


def _names_in(rule: AlarmRule) -> list[str]:
    return list(dict.fromkeys(alarm_name(each) for each in alarms_of(rule)))


def _rule_of(alarm: Alarm) -> AlarmRule:
    if alarm.config.parsed is None:
        alarm.config.parsed = parse_rule(alarm.config.params["AlarmRule"])
    rule: AlarmRule = alarm.config.parsed
    return rule


def _arn(tx: Tx[MetricStore], alarm: Alarm) -> str:
    return alarm_arn(alarm.region, tx.settings.account, alarm.name)
