"""The alarms of target tracking policies: one for a scale-out and, unless DisableScaleIn is set, one for a scale-in.

They are ordinary alarms of CloudWatch. They are stored in metrics.db, so the thread that writes to metrics.db (the metrics lane)
creates and deletes them. Auto Scaling groups and ECS services have such policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.scaling.target_tracking import SCALE_IN_LEVEL
from corral.services.cloudwatch.alarm_config import OWN_NAMESPACES, TRACKS, TRACKS_IN, TRACKS_OUT
from corral.services.cloudwatch.common import alarm_arn
from corral.services.cloudwatch.metric_alarms import check_config
from corral.store import Store
from corral.store.stored_resources import Document

PERIOD_S = 60
HIGH, LOW = "AlarmHigh", "AlarmLow"
CRITERIA = {HIGH: ("GreaterThanThreshold", 3), LOW: ("LessThanThreshold", 15)}  # alarm → (comparison, periods)
DIRECTIONS = {HIGH: TRACKS_OUT, LOW: TRACKS_IN}
REQUESTS = "ALBRequestCountPerTarget"
TARGET_GROUP = "targetgroup/"
PREDEFINED, CUSTOMIZED = "PredefinedMetricSpecification", "CustomizedMetricSpecification"


class PredefinedMetric(Struct, frozen=True):
    namespace: str
    name: str
    statistic: str = "Average"
    period_s: int = PERIOD_S


class Tracked(Struct, frozen=True):
    """The group or service that a target tracking policy scales, and the rules of its AWS service."""

    region: str
    label: str  # the name of the group, or the resource id. It is part of the names of the alarms.
    predefined: Mapping[str, PredefinedMetric]  # PredefinedMetricType → the metric
    dimensions: Mapping[str, str]  # the dimensions of the predefined metrics
    configuration: str  # the member of a policy that has the configuration
    invalid: type[ApiError]


def check_configuration(tracked: Tracked, configuration: Document) -> None:
    metrics = [each for each in (PREDEFINED, CUSTOMIZED) if configuration.get(each)]
    if len(metrics) != 1:
        raise tracked.invalid(f"A {tracked.configuration} must have either a {PREDEFINED} or a {CUSTOMIZED}.")
    if configuration["TargetValue"] <= 0:
        raise tracked.invalid(f"TargetValue must be greater than 0: {configuration['TargetValue']} is not valid.")
    try:
        check_config(_criteria(HIGH, configuration["TargetValue"]) | metric_of(tracked, configuration), tracked.region)
    except ApiError as refusal:
        raise tracked.invalid(f"{metrics[0]} is not valid: {refusal.message}") from None


def alarms_of(policy: Document) -> list[Document]:
    """Return the alarms that a policy has created, each with AlarmName and AlarmARN."""
    found: list[Document] = policy.get("_TrackingAlarms", [])
    return found


def put_alarms(tx: Tx[Store], tracked: Tracked, policy: Document, before: Document | None, owner: str) -> list[Document]:
    """Create the alarms of a target tracking policy, or update those of its previous version. Return their names and ARNs."""
    configuration, known = policy[tracked.configuration], alarms_of(before) if before is not None else []
    kinds = (HIGH,) if configuration.get("DisableScaleIn") else (HIGH, LOW)
    source, found, requests = metric_of(tracked, configuration), [], []
    for kind in kinds:
        prefix = f"TargetTracking-{tracked.label}-{kind}-"
        name = next((each["AlarmName"] for each in known if each["AlarmName"].startswith(prefix)), prefix + tx.ids.uuid())
        criteria = _criteria(kind, configuration["TargetValue"])
        description = f"DO NOT EDIT OR DELETE. For TargetTrackingScaling policy {policy['PolicyARN']}.{_note(source)}"
        actions = {"AlarmActions": [policy["PolicyARN"]], "AlarmDescription": description, TRACKS: DIRECTIONS[kind]}
        requests.append({"AlarmName": name, **source, **criteria, **actions})
        arn = alarm_arn(tracked.region, tx.settings.account, name)
        tx.store.scaling.set_policies(arn, [policy["PolicyARN"]])
        found.append({"AlarmName": name, "AlarmARN": arn})
    stale = [each["AlarmName"] for each in known if each not in found]
    change = {"region": tracked.region, "owner": owner, "put": requests, "delete": stale}
    tx.hand_over("metrics", "tracking alarms", change)
    return found


def delete_alarms(tx: Tx[Store], region: str, policy: Document) -> None:
    """Delete the alarms that a policy has created. Alarms of users stay."""
    names = [each["AlarmName"] for each in alarms_of(policy)]
    if names:
        tx.hand_over("metrics", "tracking alarms", {"region": region, "put": [], "delete": names})


def metric_of(tracked: Tracked, configuration: Document) -> dict[str, Any]:
    """Return the members of PutMetricAlarm that select the metric of a policy."""
    if predefined := configuration.get(PREDEFINED):
        return _predefined_metric(tracked, predefined)
    given = configuration[CUSTOMIZED]
    if "Metrics" in given:
        if extra := sorted(given.keys() & {"MetricName", "Namespace", "Dimensions", "Statistic", "Unit", "Period"}):
            raise tracked.invalid(f"A {CUSTOMIZED} with Metrics must not have {', '.join(extra)}.")
        return {"Metrics": [_query(each) for each in given["Metrics"]]}
    if missing := [member for member in ("MetricName", "Namespace", "Statistic") if member not in given]:
        raise tracked.invalid(f"A {CUSTOMIZED} without Metrics needs {', '.join(missing)}.")
    return {"Period": PERIOD_S, **given}


def _query(given: Document) -> Document:
    """Return a MetricDataQuery of CloudWatch. If the policy has no period for a metric, the period is a minute."""
    if "MetricStat" not in given:
        return given
    return {**given, "MetricStat": {"Period": PERIOD_S, **given["MetricStat"]}}


def _predefined_metric(tracked: Tracked, given: Document) -> dict[str, Any]:
    kind, label = given["PredefinedMetricType"], given.get("ResourceLabel", "")
    if kind not in tracked.predefined:
        raise tracked.invalid(f"PredefinedMetricType must be one of {', '.join(tracked.predefined)}: {kind} is not valid.")
    metric, dimensions = tracked.predefined[kind], tracked.dimensions
    if kind == REQUESTS:
        if TARGET_GROUP not in label:
            raise tracked.invalid(f"{REQUESTS} needs a ResourceLabel of the form app/NAME/ID/targetgroup/NAME/ID.")
        dimensions = {"TargetGroup": TARGET_GROUP + label.partition(TARGET_GROUP)[2]}
    elif label:
        raise tracked.invalid(f"ResourceLabel is not valid with the PredefinedMetricType {kind}.")
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "Statistic": metric.statistic,
        "Period": metric.period_s,
    }


def _criteria(kind: str, target: float) -> dict[str, Any]:
    comparison, periods = CRITERIA[kind]
    threshold = target if kind == HIGH else target * SCALE_IN_LEVEL
    return {"ComparisonOperator": comparison, "EvaluationPeriods": periods, "Threshold": threshold}


def _note(source: dict[str, Any]) -> str:
    """Return a sentence for AlarmDescription if Corral does not publish the metric, although AWS would."""
    namespace = source.get("Namespace", "")
    if not namespace.startswith("AWS/") or namespace in OWN_NAMESPACES:
        return ""
    return (
        f" Corral does not publish {namespace} {source['MetricName']}. The policy does nothing unless PutMetricData publishes it."
    )
