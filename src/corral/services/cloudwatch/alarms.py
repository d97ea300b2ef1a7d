"""Operations on alarms of all types: describe and delete them, set their state, and enable or disable their actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.alarm import COMPOSITE, METRIC, Alarm, AlarmState
from corral.model.json_documents import read_json
from corral.model.metric import Metric
from corral.model.principal import ROOT
from corral.services.cloudwatch.alarm_actions import ACTION_MEMBERS, announce_policies, request_scaling, withdraw_requests
from corral.services.cloudwatch.alarm_config import alarm_config
from corral.services.cloudwatch.alarm_history import add_configuration_item
from corral.services.cloudwatch.alarm_state import set_state
from corral.services.cloudwatch.common import ALARM_PAGES, alarm_arn, dimensions_of
from corral.services.cloudwatch.composite_alarms import rule_alarm_names, suppression_members
from corral.services.cloudwatch.errors import InvalidFormatFault, ResourceNotFound, ValidationException
from corral.services.cloudwatch.metric_alarms import store_alarm
from corral.telemetry import MetricStore

RELATIVES = ("ChildrenOfAlarmName", "ParentsOfAlarmName")
FILTERS = ("AlarmNames", "AlarmNamePrefix", "AlarmTypes", "StateValue", "ActionPrefix")
Describe = Callable[[Alarm], dict[str, Any]]


def describe_alarms(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe alarms, sorted by name. Composite alarms are included only if AlarmTypes contains their type."""
    relative = next((member for member in RELATIVES if member in params), None)
    if relative is not None:
        return _describe_relatives(tx, params, caller, relative)
    if "AlarmNames" in params and "AlarmNamePrefix" in params:
        raise ValidationException("AlarmNamePrefix and AlarmNames are mutually exclusive parameters.")
    kinds, state, prefix = params.get("AlarmTypes") or [METRIC], params.get("StateValue"), params.get("ActionPrefix", "")
    found = (
        alarm
        for alarm in _listed(tx, params, caller, ALARM_PAGES.after(params))
        if alarm.kind in kinds
        and (state is None or alarm.state == state)
        and (not prefix or any(action.startswith(prefix) for action in _all_actions(alarm)))
    )
    return _page(params, found, lambda alarm: _described(alarm, caller))


def describe_alarms_for_metric(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe the alarms on one metric. As on CloudWatch, alarms on expressions are omitted."""
    metric = Metric(caller.region, params["Namespace"], params["MetricName"], dimensions_of(params.get("Dimensions", ())))
    wanted = {member: params[member] for member in ("Statistic", "ExtendedStatistic", "Period", "Unit") if member in params}
    found = [
        alarm
        for alarm in tx.store.alarms.watchers(metric)
        if "Metrics" not in (stored := alarm.config.params) and wanted.items() <= stored.items()
    ]
    return {"MetricAlarms": [_described(alarm, caller) for alarm in sorted(found, key=lambda alarm: alarm.name)]}


def delete_alarms(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete all named alarms, or none if one of them cannot be deleted. As on CloudWatch, unknown names are ignored."""
    names = dict.fromkeys(params["AlarmNames"])
    found = [alarm for name in names if (alarm := tx.store.alarms.get(caller.region, name)) is not None]
    if sum(alarm.kind == COMPOSITE for alarm in found) > 1:
        raise ValidationException("Only one composite alarm can be deleted at a time.")
    # Composite alarms are deleted first, because their rules may name the other alarms.
    depended: list[str] = []
    for alarm in sorted(found, key=lambda alarm: alarm.kind == METRIC):
        if tx.store.alarms.named_in_rules(caller.region, alarm.name):
            depended.append(alarm.name)
        else:
            _delete(tx, alarm)
    if depended:
        them = "it" if len(depended) == 1 else "them"
        raise ValidationException(f"Cannot delete {','.join(depended)} as there are composite alarm(s) depending on {them}.")
    return {}


def _delete(tx: Tx[MetricStore], alarm: Alarm) -> None:
    withdraw_requests(tx, alarm, deleted=True)
    tx.store.alarms.remove(alarm)
    tx.store.tags.put(alarm_arn(alarm.region, tx.settings.account, alarm.name), {})
    add_configuration_item(tx, alarm, "Delete")
    for parent in tx.store.alarms.parents(alarm.region, alarm.name):
        tx.mark(f"alarm:{parent.id}")


def receive_tracking_alarms(tx: Tx[MetricStore], payload: dict[str, Any]) -> None:
    """Create, update and delete the alarms of target tracking policies."""
    for name in payload["delete"]:
        alarm = tx.store.alarms.get(payload["region"], name)
        if alarm is not None:
            _delete(tx, alarm)
    for params in payload["put"]:
        store_alarm(tx, params, payload["region"], payload.get("owner", ROOT))


def set_alarm_state(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Set a state, which is valid until the next evaluation.

    A metric alarm is evaluated again at the end of its current window. A composite alarm is evaluated again when an alarm in its
    rule changes.
    """
    alarm = tx.store.alarms.get(caller.region, params["AlarmName"])
    if alarm is None:
        raise ResourceNotFound(f"Alarm {params['AlarmName']} does not exist.")
    data = params.get("StateReasonData", "")
    if data and not _is_object(data):
        raise InvalidFormatFault("StateReasonData was not valid JSON.")
    if params["StateValue"] not in list(AlarmState):
        raise ValidationException(f"The value {params['StateValue']} for parameter StateValue is not supported.")
    after = set_state(tx, alarm, AlarmState(params["StateValue"]), params["StateReason"], data)
    if alarm.kind == METRIC:
        request_scaling(tx, after, _last_datapoint(data), None)
        config = alarm_config(after)
        tx.store.alarms.set_evaluated(alarm.id, 0.0)
        tx.store.alarms.wake(alarm.id, config.last_end_s(tx.now_s) + config.step_s)
    return {}


def enable_alarm_actions(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_enabled(tx, params, caller, enabled=True)


def disable_alarm_actions(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_enabled(tx, params, caller, enabled=False)


def _set_enabled(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, *, enabled: bool) -> dict[str, Any]:
    """Enable or disable the actions of alarms. Unknown names are ignored, as on CloudWatch."""
    for name in params["AlarmNames"]:
        alarm = tx.store.alarms.get(caller.region, name)
        if alarm is not None and alarm.actions_enabled is not enabled:
            after = alarm.but(actions_enabled=enabled, configured_s=tx.now_s)
            tx.store.alarms.update(after)
            add_configuration_item(tx, after, "Update")
            if enabled:
                announce_policies(tx, after)
            else:
                withdraw_requests(tx, after)
    return {}


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except ValueError:
        return False


def _last_datapoint(data: str) -> float | None:
    """Return the last of `recentDatapoints` in StateReasonData. Scaling policies use this value after SetAlarmState."""
    recent = read_json(data).get("recentDatapoints") if data else None
    last = recent[-1] if isinstance(recent, list) and recent else None
    return float(last) if isinstance(last, int | float) else None


# Descriptions of alarms


def _listed(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, after: str) -> Iterator[Alarm]:
    alarms = tx.store.alarms
    if "AlarmNames" not in params:
        return alarms.listed(caller.region, prefix=params.get("AlarmNamePrefix", ""), after=after)
    names = sorted({name for name in params["AlarmNames"] if name > after})
    return (alarm for name in names if (alarm := alarms.get(caller.region, name)) is not None)


def _describe_relatives(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller, member: str) -> dict[str, Any]:
    """Describe the children or the parents of an alarm.

    As on CloudWatch, a child has a name and a state, and a parent only a name.
    """
    if len([each for each in (*RELATIVES, *FILTERS) if each in params]) > 1:
        raise ValidationException(f"{member} cannot be specified together with other parameters except MaxRecords and NextToken.")
    alarms, name, after = tx.store.alarms, params[member], ALARM_PAGES.after(params)
    if alarms.get(caller.region, name) is None:
        raise ResourceNotFound(f"Alarm {name} does not exist.")
    if member == "ParentsOfAlarmName":
        parents = [alarm for alarm in alarms.parents(caller.region, name) if name in rule_alarm_names(alarm)]
        found = sorted((alarm for alarm in parents if alarm.name > after), key=lambda alarm: alarm.name)
        return _page(params, found, lambda alarm: _identity(alarm, caller))
    own = alarms.get(caller.region, name)
    names = sorted(rule_alarm_names(own)) if own is not None and own.kind == COMPOSITE else []
    children = [alarm for child in names if child > after and (alarm := alarms.get(caller.region, child)) is not None]

    def described(alarm: Alarm) -> dict[str, Any]:
        return {**_identity(alarm, caller), "StateValue": alarm.state.value, "StateUpdatedTimestamp": alarm.updated_s}

    return _page(params, children, described)


def _page(params: dict[str, Any], found: Iterable[Alarm], describe: Describe) -> dict[str, Any]:
    page, token = ALARM_PAGES.page(params, lambda _, limit: [(alarm.name, alarm) for alarm in islice(found, limit)])
    return {
        "MetricAlarms": [describe(alarm) for alarm in page if alarm.kind == METRIC],
        "CompositeAlarms": [describe(alarm) for alarm in page if alarm.kind == COMPOSITE],
        "LogAlarms": [],
        **token,
    }


def _all_actions(alarm: Alarm) -> list[str]:
    stored = alarm.config.params
    return [action for member in ACTION_MEMBERS.values() for action in stored.get(member, ())]


def _identity(alarm: Alarm, caller: Caller) -> dict[str, Any]:
    return {"AlarmName": alarm.name, "AlarmArn": _arn(alarm, caller)}


def _arn(alarm: Alarm, caller: Caller) -> str:
    return alarm_arn(caller.region, caller.account, alarm.name)


def _described(alarm: Alarm, caller: Caller) -> dict[str, Any]:
    stored = {member: value for member, value in alarm.config.params.items() if member[0] != "_"}
    one_metric = "Metrics" not in stored and alarm.kind == METRIC
    return {
        **_identity(alarm, caller),
        **{member: [] for member in ACTION_MEMBERS.values()},
        **({"Dimensions": []} if one_metric else {}),
        **stored,
        "ActionsEnabled": alarm.actions_enabled,
        "AlarmConfigurationUpdatedTimestamp": alarm.configured_s,
        "StateValue": alarm.state.value,
        "StateReason": alarm.reason,
        **({"StateReasonData": alarm.reason_data} if alarm.reason_data else {}),
        "StateUpdatedTimestamp": alarm.updated_s,
        "StateTransitionedTimestamp": alarm.transitioned_s,
        **suppression_members(alarm),
    }
