"""Alarms as they are shown, deleted, set for a test, enabled and disabled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.alarm import COMPOSITE, METRIC, Alarm, AlarmState
from corral.model.metric import Metric
from corral.services.caller import Caller
from corral.services.cloudwatch.acting import request_scaling, withdraw_requests
from corral.services.cloudwatch.alarm_members import ACTIONS
from corral.services.cloudwatch.composites import children_of, suppression_shown
from corral.services.cloudwatch.history import say_configured
from corral.services.cloudwatch.naming import PAGES, ValidationError, alarm_arn, dimensions_of
from corral.services.cloudwatch.transitions import set_state
from corral.services.cloudwatch.watched import config_of, watched_by
from corral.telemetry import MetricStore

InvalidFormat = api_error("InvalidFormatFault")
ResourceNotFound = api_error("ResourceNotFound", 404)
RELATIVES = ("ChildrenOfAlarmName", "ParentsOfAlarmName")
FILTERS = ("AlarmNames", "AlarmNamePrefix", "AlarmTypes", "StateValue", "ActionPrefix")
Shown = Callable[[Alarm], dict[str, Any]]


def describe_alarms(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """By name. Composite alarms are shown only to those who ask for them."""
    relative = next((member for member in RELATIVES if member in params), None)
    if relative is not None:
        return _relatives(tx, params, caller, relative)
    if "AlarmNames" in params and "AlarmNamePrefix" in params:
        raise ValidationError("AlarmNamePrefix and AlarmNames are mutually exclusive parameters.")
    kinds, state, prefix = params.get("AlarmTypes") or [METRIC], params.get("StateValue"), params.get("ActionPrefix", "")
    found = (
        alarm
        for alarm in _named(tx, params, caller, PAGES.after(params))
        if alarm.kind in kinds
        and (state is None or alarm.state == state)
        and (not prefix or any(action.startswith(prefix) for action in _all_actions(alarm)))
    )
    return _page(params, found, lambda alarm: _shown(alarm, caller))


def describe_alarms_for_metric(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Alarms on this very metric; those on expressions are not shown, as on CloudWatch."""
    metric = Metric(caller.region, params["Namespace"], params["MetricName"], dimensions_of(params.get("Dimensions", ())))
    wanted = {member: params[member] for member in ("Statistic", "ExtendedStatistic", "Period", "Unit") if member in params}
    found = [
        alarm
        for alarm in tx.store.alarms.watchers(metric)
        if "Metrics" not in (config := config_of(alarm.config)) and wanted.items() <= config.items()
    ]
    return {"MetricAlarms": [_shown(alarm, caller) for alarm in sorted(found, key=lambda alarm: alarm.name)]}


def delete_alarms(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """All of them or none. One that is not there is no error beside others that are."""
    names = dict.fromkeys(params["AlarmNames"])
    found = [alarm for name in names if (alarm := tx.store.alarms.get(caller.region, name)) is not None]
    if names and not found:
        raise ResourceNotFound(f"Alarms do not exist: {', '.join(names)}")
    if sum(alarm.kind == COMPOSITE for alarm in found) > 1:
        raise ValidationError("Only one composite alarm can be deleted at a time.")
    for alarm in sorted(found, key=lambda alarm: alarm.kind == METRIC):  # a composite alarm first: it may be what keeps others
        if tx.store.alarms.named_in_rules(caller.region, alarm.name):
            raise ValidationError(f"Cannot delete {alarm.name} as there are composite alarm(s) depending on it.")
        withdraw_requests(tx, alarm)
        tx.store.alarms.remove(alarm)
        tx.store.tags.put(alarm_arn(caller, alarm.name), {})
        say_configured(tx, alarm, "Delete")
        for parent in tx.store.alarms.parents(caller.region, alarm.name):
            tx.mark(f"alarm:{parent.id}")
    return {}


def set_alarm_state(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """For a while: a metric alarm is judged again when a window ends, a composite one when an alarm of its rule changes."""
    alarm = tx.store.alarms.get(caller.region, params["AlarmName"])
    if alarm is None:
        raise ResourceNotFound(f"Alarm {params['AlarmName']} does not exist.")
    data = params.get("StateReasonData", "")
    if data and not _is_object(data):
        raise InvalidFormat("StateReasonData was not valid JSON.")
    if params["StateValue"] not in list(AlarmState):
        raise ValidationError(f"The value {params['StateValue']} for parameter StateValue is not supported.")
    after = set_state(tx, alarm, AlarmState(params["StateValue"]), params["StateReason"], data)
    if alarm.kind == METRIC:
        request_scaling(tx, after, _newest_said(data), None)
        watched = watched_by(after)
        tx.store.alarms.set_judged(alarm.id, 0.0)
        tx.store.alarms.wake(alarm.id, watched.last_end_s(tx.now_s) + watched.step_s)
    return {}


def enable_alarm_actions(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_enabled(tx, params, caller, enabled=True)


def disable_alarm_actions(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_enabled(tx, params, caller, enabled=False)


def _set_enabled(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, *, enabled: bool) -> dict[str, Any]:
    """Names that are not there are passed over, as on CloudWatch."""
    for name in params["AlarmNames"]:
        alarm = tx.store.alarms.get(caller.region, name)
        if alarm is not None and alarm.actions_enabled is not enabled:
            after = alarm.but(actions_enabled=enabled, configured_s=tx.now_s)
            tx.store.alarms.update(after)
            say_configured(tx, after, "Update")
            if not enabled:
                withdraw_requests(tx, after)
    return {}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _newest_said(data: str) -> float | None:
    """What a scaling policy is to go by when somebody sets a state."""
    recent = json.loads(data).get("recentDatapoints") if data else None
    last = recent[-1] if isinstance(recent, list) and recent else None
    return float(last) if isinstance(last, int | float) else None


# What is shown


def _named(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, after: str) -> Iterator[Alarm]:
    alarms = tx.store.alarms
    if "AlarmNames" not in params:
        return alarms.listed(caller.region, prefix=params.get("AlarmNamePrefix", ""), after=after)
    names = sorted({name for name in params["AlarmNames"] if name > after})
    return (alarm for name in names if (alarm := alarms.get(caller.region, name)) is not None)


def _relatives(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, member: str) -> dict[str, Any]:
    """Children are shown with their states, parents by name alone, as on CloudWatch."""
    if len([each for each in (*RELATIVES, *FILTERS) if each in params]) > 1:
        raise ValidationError(f"{member} cannot be specified together with other parameters except MaxRecords and NextToken.")
    alarms, name, after = tx.store.alarms, params[member], PAGES.after(params)
    if alarms.get(caller.region, name) is None:
        raise ResourceNotFound(f"Alarm {name} does not exist.")
    if member == "ParentsOfAlarmName":
        parents = [alarm for alarm in alarms.parents(caller.region, name) if name in children_of(alarm)]
        found = sorted((alarm for alarm in parents if alarm.name > after), key=lambda alarm: alarm.name)
        return _page(params, found, lambda alarm: _identity(alarm, caller))
    own = alarms.get(caller.region, name)
    names = sorted(children_of(own)) if own is not None and own.kind == COMPOSITE else []
    children = [alarm for child in names if child > after and (alarm := alarms.get(caller.region, child)) is not None]

    def shown(alarm: Alarm) -> dict[str, Any]:
        return {**_identity(alarm, caller), "StateValue": alarm.state.value, "StateUpdatedTimestamp": alarm.updated_s}

    return _page(params, children, shown)


def _page(params: dict[str, Any], found: Iterable[Alarm], shown: Shown) -> dict[str, Any]:
    page, token = PAGES.page(params, lambda _, limit: [(alarm.name, alarm) for alarm in islice(found, limit)])
    return {
        "MetricAlarms": [shown(alarm) for alarm in page if alarm.kind == METRIC],
        "CompositeAlarms": [shown(alarm) for alarm in page if alarm.kind == COMPOSITE],
        "LogAlarms": [],
        **token,
    }


def _all_actions(alarm: Alarm) -> list[str]:
    config = config_of(alarm.config)
    return [action for member in ACTIONS for action in config.get(member, ())]


def _identity(alarm: Alarm, caller: Caller) -> dict[str, Any]:
    return {"AlarmName": alarm.name, "AlarmArn": alarm_arn(caller, alarm.name)}


def _shown(alarm: Alarm, caller: Caller) -> dict[str, Any]:
    config = config_of(alarm.config)
    lists = ACTIONS if "Metrics" in config or alarm.kind == COMPOSITE else (*ACTIONS, "Dimensions")
    return {
        **_identity(alarm, caller),
        **{member: [] for member in lists},
        **config,
        "ActionsEnabled": alarm.actions_enabled,
        "AlarmConfigurationUpdatedTimestamp": alarm.configured_s,
        "StateValue": alarm.state.value,
        "StateReason": alarm.reason,
        **({"StateReasonData": alarm.reason_data} if alarm.reason_data else {}),
        "StateUpdatedTimestamp": alarm.updated_s,
        "StateTransitionedTimestamp": alarm.transitioned_s,
        **suppression_shown(alarm),
    }
