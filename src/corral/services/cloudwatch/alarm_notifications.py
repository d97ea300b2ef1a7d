"""The messages of alarms to SNS topics. They have the same form as on CloudWatch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corral.core.transactions import Tx
from corral.model.alarm import METRIC, Alarm
from corral.model.json_documents import read_json
from corral.operations.regions import region_title
from corral.services.cloudwatch.alarm_history import previous_state
from corral.services.cloudwatch.common import alarm_arn, timestamp
from corral.telemetry import MetricStore

SUBJECT_MAX_CHARACTERS = 100
STATISTICS = {
    "Average": "AVERAGE", "Maximum": "MAXIMUM", "Minimum": "MINIMUM", "SampleCount": "SAMPLE_COUNT", "Sum": "SUM",
}  # fmt: skip


def notify(tx: Tx[MetricStore], alarm: Alarm, topic_arn: str) -> None:
    """Send a message about the new state of an alarm to the state lane, which publishes it and sends back the result."""
    region = region_title(alarm.region)
    subject = f'{alarm.state.value}: "{alarm.name}" in {region}'
    payload = {
        "alarm": alarm_arn(alarm.region, tx.settings.account, alarm.name),
        "topic": topic_arn,
        "subject": "".join(each if each.isprintable() else "?" for each in subject[:SUBJECT_MAX_CHARACTERS]),
        "message": json.dumps(_message(tx, alarm, region)),
    }
    tx.hand_over("state", "notifications", payload)


def _message(tx: Tx[MetricStore], alarm: Alarm, region: str) -> dict[str, Any]:
    params = alarm.config.params
    about = {
        "AlarmName": alarm.name,
        "AlarmDescription": params.get("AlarmDescription"),
        "AWSAccountId": tx.settings.account,
        "AlarmConfigurationUpdatedTimestamp": timestamp(alarm.configured_s),
        "NewStateValue": alarm.state.value,
        "NewStateReason": alarm.reason,
        "StateChangeTime": timestamp(alarm.transitioned_s),
        "Region": region,
        "AlarmArn": alarm_arn(alarm.region, tx.settings.account, alarm.name),
        "OldStateValue": previous_state(tx, alarm),
        **{member: params.get(member, []) for member in ("OKActions", "AlarmActions", "InsufficientDataActions")},
    }
    if alarm.kind == METRIC:
        return {**about, "Trigger": _trigger(params)}
    return {**about, "AlarmRule": params["AlarmRule"], "TriggeringChildren": _children(alarm)}


def _trigger(params: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what a metric alarm evaluates."""
    criteria = {
        "EvaluationPeriods": params["EvaluationPeriods"],
        **({"DatapointsToAlarm": params["DatapointsToAlarm"]} if "DatapointsToAlarm" in params else {}),
        "ComparisonOperator": params["ComparisonOperator"],
        "Threshold": params["Threshold"],
        "TreatMissingData": params.get("TreatMissingData", "missing"),
        "EvaluateLowSampleCountPercentile": params.get("EvaluateLowSampleCountPercentile", ""),
    }
    if "Metrics" in params:
        return {**criteria, "Metrics": [_query(query) for query in params["Metrics"]]}
    kind = "ExtendedStatistic" if "ExtendedStatistic" in params else "Statistic"
    return {
        **_metric(params),
        "StatisticType": kind,
        kind: params[kind] if kind == "ExtendedStatistic" else STATISTICS[params[kind]],
        "Unit": params.get("Unit"),
        "Period": params["Period"],
        **criteria,
    }


def _query(query: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in query.items() if name != "MetricStat"}
    if "MetricStat" in query:
        shown["MetricStat"] = {**query["MetricStat"], "Metric": _metric(query["MetricStat"]["Metric"])}
    return {"ReturnData": True, **shown}


def _metric(params: Mapping[str, Any]) -> dict[str, Any]:
    dimensions = [{"value": each["Value"], "name": each["Name"]} for each in params.get("Dimensions", [])]
    return {"MetricName": params["MetricName"], "Namespace": params["Namespace"], "Dimensions": dimensions}


def _children(alarm: Alarm) -> list[dict[str, Any]]:
    """Return the alarms that decided the rule of a composite alarm.

    The result is empty if StateReasonData does not list them. This can happen after SetAlarmState.
    """
    try:
        found = read_json(alarm.reason_data)["triggeringAlarms"]
        return [
            {"Arn": each["arn"], "State": {"Value": each["state"]["value"], "Timestamp": each["state"]["timestamp"]}}
            for each in found
        ]
    except (ValueError, LookupError, TypeError):
        return []
