"""DescribeAlarmHistory, and functions that add items to the history of an alarm."""

from __future__ import annotations

import json
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.alarm import METRIC, Alarm, AlarmState, HistoryItem
from corral.model.json_documents import read_json
from corral.model.numbers import whole_number
from corral.services.cloudwatch.common import ALARM_PAGES, alarm_arn, timestamp
from corral.telemetry import MetricStore

END_OF_TIME_S = 1e11  # later than all items of the history
ACTIONS = ("OKActions", "AlarmActions", "InsufficientDataActions")
PAST_TENSE = {"Create": "created", "Update": "updated", "Delete": "deleted"}


def describe_alarm_history(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    ascending = params.get("ScanBy") == "TimestampAscending"

    def listed(after: str, limit: int) -> list[tuple[str, HistoryItem]]:
        found = tx.store.alarms.history(
            caller.region,
            name=params.get("AlarmName"),
            item=params.get("HistoryItemType"),
            kinds=params.get("AlarmTypes") or [METRIC],
            since_s=params.get("StartDate", 0.0),
            until_s=params.get("EndDate", END_OF_TIME_S),
            after=ALARM_PAGES.position(params, _position),
            ascending=ascending,
            limit=limit,
        )
        return [(f"{item.at_s!r} {number}", item) for number, item in found]

    page, token = ALARM_PAGES.page(params, listed)
    return {"AlarmHistoryItems": [_described(item) for item in page], **token}


def _position(token: str) -> tuple[float, int] | None:
    at, _, digits = token.partition(" ")
    if not token:
        return None
    if (number := whole_number(digits)) is None:
        raise ValueError(digits)
    return float(at), number


def _described(item: HistoryItem) -> dict[str, Any]:
    return {
        "AlarmName": item.alarm,
        "AlarmType": item.kind,
        "Timestamp": item.at_s,
        "HistoryItemType": item.item,
        "HistorySummary": item.summary,
        "HistoryData": item.data,
    }


def add_item(tx: Tx[MetricStore], alarm: Alarm, item: str, summary: str, data: dict[str, Any]) -> None:
    text = json.dumps({"version": "1.0", **data}, separators=(",", ":"))
    tx.store.alarms.add_history(HistoryItem(alarm.region, alarm.name, alarm.kind, tx.now_s, item, summary, text))


def add_configuration_item(tx: Tx[MetricStore], alarm: Alarm, change: str) -> None:
    """Add an item about a change of the configuration. `change` is Create, Update or Delete."""
    params = {member: value for member, value in alarm.config.params.items() if member[0] != "_"}
    config = {
        "alarmName": alarm.name,
        "alarmArn": alarm_arn(alarm.region, tx.settings.account, alarm.name),
        "actionsEnabled": alarm.actions_enabled,
        **{_history_name(member): [] for member in ACTIONS},
        **_history_names(params),
        "stateValue": alarm.state.value,
        "stateUpdatedTimestamp": timestamp(alarm.updated_s),
        "alarmConfigurationUpdatedTimestamp": timestamp(alarm.configured_s),
    }
    data = {"type": change, f"{PAST_TENSE[change]}Alarm": config}
    add_item(tx, alarm, "ConfigurationUpdate", f'Alarm "{alarm.name}" {PAST_TENSE[change]}', data)


def _history_names(value: Any) -> Any:
    """Return parameters of an alarm with the names that HistoryData has for them."""
    if isinstance(value, dict):
        return {_history_name(name): _history_names(each) for name, each in value.items()}
    return [_history_names(each) for each in value] if isinstance(value, list) else value


def _history_name(member: str) -> str:
    return "okactions" if member == "OKActions" else member[0].lower() + member[1:]


def add_state_item(tx: Tx[MetricStore], before: Alarm, after: Alarm) -> None:
    data = {"oldState": _state(before), "newState": _state(after)}
    add_item(tx, after, "StateUpdate", f"Alarm updated from {before.state} to {after.state}", data)


def previous_state(tx: Tx[MetricStore], alarm: Alarm) -> str:
    """Return the state that the alarm had before its last change of state."""
    found = tx.store.alarms.history(
        alarm.region,
        name=alarm.name,
        item="StateUpdate",
        kinds=[alarm.kind],
        since_s=0.0,
        until_s=END_OF_TIME_S,
        after=None,
        ascending=False,
        limit=1,
    )
    return str(json.loads(found[0][1].data)["oldState"]["stateValue"]) if found else AlarmState.INSUFFICIENT_DATA.value


def _state(alarm: Alarm) -> dict[str, Any]:
    data = {"stateReasonData": _json_or_text(alarm.reason_data)} if alarm.reason_data else {}
    return {"stateValue": alarm.state.value, "stateReason": alarm.reason, **data}


def _json_or_text(text: str) -> Any:
    """Return the parsed JSON, or the text itself if it is not JSON."""
    try:
        return read_json(text)
    except ValueError:
        return text
