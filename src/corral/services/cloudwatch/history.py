"""The history of alarms: what happened to them, for a month."""

from __future__ import annotations

import json
from typing import Any

from corral.core import Tx
from corral.model.alarm import METRIC, Alarm, HistoryItem
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import PAGES
from corral.telemetry import MetricStore

FOR_EVER_S = 1e11
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
            until_s=params.get("EndDate", FOR_EVER_S),
            after=PAGES.position(params, _place),
            ascending=ascending,
            limit=limit,
        )
        return [(f"{item.at_s!r} {number}", item) for number, item in found]

    page, token = PAGES.page(params, listed)
    return {"AlarmHistoryItems": [_shown(item) for item in page], **token}


def _place(token: str) -> tuple[float, int] | None:
    at, _, number = token.partition(" ")
    return (float(at), int(number)) if token else None


def _shown(item: HistoryItem) -> dict[str, Any]:
    return {
        "AlarmName": item.alarm,
        "AlarmType": item.kind,
        "Timestamp": item.at_s,
        "HistoryItemType": item.item,
        "HistorySummary": item.summary,
        "HistoryData": item.data,
    }


def say(tx: Tx[MetricStore], alarm: Alarm, item: str, summary: str, data: dict[str, Any]) -> None:
    text = json.dumps({"version": "1.0", **data}, separators=(",", ":"))
    tx.store.alarms.remember(HistoryItem(alarm.region, alarm.name, alarm.kind, tx.now_s, item, summary, text))


def say_configured(tx: Tx[MetricStore], alarm: Alarm, word: str) -> None:
    """`word`: Create, Update or Delete."""
    config = {"alarmName": alarm.name, "actionsEnabled": alarm.actions_enabled, **json.loads(alarm.config)}
    data = {"type": word, f"{PAST_TENSE[word]}Alarm": config}
    say(tx, alarm, "ConfigurationUpdate", f'Alarm "{alarm.name}" {PAST_TENSE[word]}', data)


def say_state(tx: Tx[MetricStore], before: Alarm, after: Alarm) -> None:
    data = {"oldState": _state(before), "newState": _state(after)}
    say(tx, after, "StateUpdate", f"Alarm updated from {before.state} to {after.state}", data)


def _state(alarm: Alarm) -> dict[str, Any]:
    data = {"stateReasonData": _readable(alarm.reason_data)} if alarm.reason_data else {}
    return {"stateValue": alarm.state.value, "stateReason": alarm.reason, **data}


def _readable(text: str) -> Any:
    """SetAlarmState takes any text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
