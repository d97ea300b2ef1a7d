"""Composite alarms: their state follows the states of others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from corral.core import Tx
from corral.decide.alarm import Rule, RuleError, alarms_of, evaluate, parse_rule
from corral.model.alarm import COMPOSITE, Alarm, AlarmState
from corral.services.caller import Caller
from corral.services.cloudwatch.alarm_members import check_actions, kept_config, other_kind
from corral.services.cloudwatch.history import say_configured
from corral.services.cloudwatch.naming import ValidationError, alarm_arn
from corral.services.cloudwatch.reasons import composite_reason, composite_reason_data
from corral.services.cloudwatch.tagging import tag_new
from corral.services.cloudwatch.transitions import name_of, set_state, settle
from corral.services.cloudwatch.watched import config_of
from corral.telemetry import MetricStore

KEPT = (
    "AlarmDescription", "AlarmRule", "OKActions", "AlarmActions", "InsufficientDataActions", "ActionsSuppressor",
    "ActionsSuppressorWaitPeriod", "ActionsSuppressorExtensionPeriod", "ActionConfiguration",
)  # fmt: skip
PERIODS = ("ActionsSuppressorWaitPeriod", "ActionsSuppressorExtensionPeriod")
UNFIT = ("autoscaling", "automate", "swf")  # what composite alarms may not call
RULES_KEPT = 1000


def put_composite_alarm(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, alarms = params["AlarmName"], tx.store.alarms
    check_actions(params, UNFIT, "a composite alarm")
    _check_suppressor(tx, params, caller)
    try:
        rule = parse_rule(params["AlarmRule"])
    except RuleError as error:
        raise ValidationError(f"Invalid AlarmRule, Syntax error {error}.") from None
    named = rule_names(rule)
    missing = [each for each in named if alarms.get(caller.region, each) is None and each != name]
    if missing:
        raise ValidationError(f"Could not save the composite alarm as alarms [{', '.join(missing)}] in the alarm rule do not exist")
    children = [(child, True) for child in named]
    if "ActionsSuppressor" in params:
        children.append((name_of(params["ActionsSuppressor"]), False))
    config, arn, enabled = kept_config(params, KEPT), alarm_arn(caller, name), params.get("ActionsEnabled", True)
    before = alarms.get(caller.region, name)
    if before is None:
        alarm = alarms.add(Alarm(0, caller.region, name, COMPOSITE, config, tx.now_s, tx.now_s, enabled,
                                 updated_s=tx.now_s, transitioned_s=tx.now_s), children=children)  # fmt: skip
        tag_new(tx, arn, params)
        say_configured(tx, alarm, "Create")
        told = f"{arn} was created and its alarm rule evaluates to"
    else:
        if before.kind != COMPOSITE:
            raise other_kind(name)
        alarm = before.but(config=config, configured_s=tx.now_s, actions_enabled=enabled)
        alarms.change(alarm, children=children)
        say_configured(tx, alarm, "Update")
        told = f"{arn} was updated and its new alarm rule evaluates to"
    look_at_composite(tx, alarm, told)
    return {}


def _check_suppressor(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> None:
    if "ActionsSuppressor" not in params:
        for member in PERIODS:
            if member in params:
                raise ValidationError(f"{member} can only be specified together with ActionsSuppressor.")
        return
    for member in PERIODS:
        if member not in params:
            raise ValidationError(f"{member} is required when ActionsSuppressor is specified.")
    suppressor = name_of(params["ActionsSuppressor"])
    if tx.store.alarms.get(caller.region, suppressor) is None:
        raise ValidationError(f"Could not save the composite alarm as its actions suppressor [{suppressor}] does not exist")


def look_at_composite(tx: Tx[MetricStore], alarm: Alarm, told: str | None = None) -> None:
    """Its rule, and whether it may act. `told`: why somebody looks, if it is not because an alarm of the rule has changed."""
    alarms, rule = tx.store.alarms, _rule(config_of(alarm.config)["AlarmRule"])
    if not _in_cycle(tx, alarm):
        children = {name: child for name in rule_names(rule) if (child := alarms.get(alarm.region, name)) is not None}
        states = {name: child.state for name, child in children.items()}
        state = AlarmState.ALARM if evaluate(rule, lambda each: states.get(name_of(each))) else AlarmState.OK
        if state is not alarm.state:
            latest = max(children.values(), key=lambda child: child.transitioned_s, default=alarm)
            spoke = [latest] if told is None else list(children.values())
            reason = composite_reason(latest, _arn(tx, latest)) if told is None else f"{told} {state}"
            set_state(tx, alarm, state, reason, composite_reason_data([(_arn(tx, child), child) for child in spoke]))
            return
    settle(tx, alarm)


def _in_cycle(tx: Tx[MetricStore], alarm: Alarm) -> bool:
    """Whether it depends on itself: CloudWatch does not evaluate such an alarm either."""
    seen, ahead = set[str](), rule_names(_rule(config_of(alarm.config)["AlarmRule"]))
    while ahead:
        name = ahead.pop()
        child = tx.store.alarms.get(alarm.region, name)
        if name == alarm.name:
            return True
        if name not in seen and child is not None and child.kind == COMPOSITE:
            ahead += rule_names(_rule(config_of(child.config)["AlarmRule"]))
        seen.add(name)
    return False


def rule_names(rule: Rule) -> list[str]:
    """The names of the alarms in a rule, each once."""
    return list(dict.fromkeys(name_of(each) for each in alarms_of(rule)))


def children_of(alarm: Alarm) -> list[str]:
    return rule_names(_rule(config_of(alarm.config)["AlarmRule"]))


@lru_cache(maxsize=RULES_KEPT)
def _rule(text: str) -> Rule:
    return parse_rule(text)


def _arn(tx: Tx[MetricStore], alarm: Alarm) -> str:
    return f"arn:aws:cloudwatch:{alarm.region}:{tx.settings.account}:alarm:{alarm.name}"


def suppression_shown(alarm: Alarm) -> dict[str, Any]:
    by = alarm.suppression.by
    return {"ActionsSuppressedBy": by, "ActionsSuppressedReason": f"Actions suppressed by {by}"} if by else {}
