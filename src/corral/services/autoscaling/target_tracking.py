"""The alarms of target tracking policies: one for a scale-out and, unless DisableScaleIn is set, one for a scale-in.

They are ordinary alarms of CloudWatch. The metrics lane, the thread that writes metrics.db, creates and deletes them.
"""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide.scaling_policies import SCALE_IN_MARGIN
from corral.errors import ApiError
from corral.model.group import Group
from corral.services.autoscaling.errors import ValidationError
from corral.services.cloudwatch.alarm_config import OWN_NAMESPACES
from corral.services.cloudwatch.common import alarm_arn
from corral.services.cloudwatch.metric_alarms import check_config
from corral.store import Store
from corral.store.stored_resources import Document

PERIOD_S = 60
HIGH, LOW = "AlarmHigh", "AlarmLow"
CRITERIA = {HIGH: ("GreaterThanThreshold", 3), LOW: ("LessThanThreshold", 15)}  # comparison, number of datapoints
PREDEFINED = {  # type → namespace, metric, statistic
    "ASGAverageCPUUtilization": ("AWS/EC2", "CPUUtilization", "Average"),
    "ASGAverageNetworkIn": ("AWS/EC2", "NetworkIn", "Average"),
    "ASGAverageNetworkOut": ("AWS/EC2", "NetworkOut", "Average"),
    "ALBRequestCountPerTarget": ("AWS/ApplicationELB", "RequestCountPerTarget", "Sum"),
}
TARGET_GROUP = "targetgroup/"


def check_configuration(group: Group, configuration: Document) -> None:
    metrics = [each for each in ("PredefinedMetricSpecification", "CustomizedMetricSpecification") if configuration.get(each)]
    if len(metrics) != 1:
        raise ValidationError(
            "A TargetTrackingConfiguration must have either a PredefinedMetricSpecification or a CustomizedMetricSpecification."
        )
    if configuration["TargetValue"] <= 0:
        raise ValidationError(f"TargetValue must be greater than 0: {configuration['TargetValue']} is not valid.")
    try:
        check_config(_criteria(HIGH, configuration["TargetValue"]) | metric_of(group, configuration), group.region)
    except ApiError as refusal:
        raise ValidationError(f"{metrics[0]} is not valid: {refusal.message}") from None


def alarms_of(policy: Document) -> list[Document]:
    """Return the alarms that a policy has created, each with AlarmName and AlarmARN."""
    found: list[Document] = policy.get("_TrackingAlarms", [])
    return found


def put_alarms(tx: Tx[Store], group: Group, policy: Document, before: Document | None) -> list[Document]:
    """Create the alarms of a target tracking policy, or update those of its previous version. Return their names and ARNs."""
    configuration, known = policy["TargetTrackingConfiguration"], alarms_of(before) if before is not None else []
    kinds = (HIGH,) if configuration.get("DisableScaleIn") else (HIGH, LOW)
    source, found, requests = metric_of(group, configuration), [], []
    for kind in kinds:
        prefix = f"TargetTracking-{group.name}-{kind}-"
        name = next((each["AlarmName"] for each in known if each["AlarmName"].startswith(prefix)), prefix + tx.ids.uuid())
        criteria = _criteria(kind, configuration["TargetValue"])
        description = f"DO NOT EDIT OR DELETE. For TargetTrackingScaling policy {policy['PolicyARN']}.{_note(source)}"
        actions = {"AlarmActions": [policy["PolicyARN"]], "AlarmDescription": description}
        requests.append({"AlarmName": name, **source, **criteria, **actions})
        arn = alarm_arn(group.region, tx.settings.account, name)
        tx.store.scaling.set_policies(arn, [policy["PolicyARN"]])
        found.append({"AlarmName": name, "AlarmARN": arn})
    stale = [each["AlarmName"] for each in known if each not in found]
    tx.hand_over("metrics", "tracking alarms", {"region": group.region, "put": requests, "delete": stale})
    return found


def delete_alarms(tx: Tx[Store], region: str, policy: Document) -> None:
    """Delete the alarms that a policy has created. Alarms of users stay."""
    names = [each["AlarmName"] for each in alarms_of(policy)]
    if names:
        tx.hand_over("metrics", "tracking alarms", {"region": region, "put": [], "delete": names})


def metric_of(group: Group, configuration: Document) -> dict[str, Any]:
    """Return the members of PutMetricAlarm that select the metric of a policy."""
    if predefined := configuration.get("PredefinedMetricSpecification"):
        return _predefined_metric(group, predefined)
    given = configuration["CustomizedMetricSpecification"]
    if "Metrics" in given:
        if extra := sorted(given.keys() & {"MetricName", "Namespace", "Dimensions", "Statistic", "Unit", "Period"}):
            raise ValidationError(f"A CustomizedMetricSpecification with Metrics must not have {', '.join(extra)}.")
        return {"Metrics": [_query(each) for each in given["Metrics"]]}
    if missing := [member for member in ("MetricName", "Namespace", "Statistic") if member not in given]:
        raise ValidationError(f"A CustomizedMetricSpecification without Metrics needs {', '.join(missing)}.")
    return {"Period": PERIOD_S, **given}


def _query(given: Document) -> Document:
    """Return a MetricDataQuery of CloudWatch. Target tracking may omit the period of a metric, which is then a minute."""
    if "MetricStat" not in given:
        return given
    return {**given, "MetricStat": {"Period": PERIOD_S, **given["MetricStat"]}}


def _predefined_metric(group: Group, given: Document) -> dict[str, Any]:
    kind, label = given["PredefinedMetricType"], given.get("ResourceLabel", "")
    if kind not in PREDEFINED:
        raise ValidationError(f"PredefinedMetricType must be one of {', '.join(PREDEFINED)}: {kind} is not valid.")
    namespace, name, statistic = PREDEFINED[kind]
    dimensions = [{"Name": "AutoScalingGroupName", "Value": group.name}]
    if kind == "ALBRequestCountPerTarget":
        if TARGET_GROUP not in label:
            raise ValidationError("ALBRequestCountPerTarget needs a ResourceLabel of the form app/NAME/ID/targetgroup/NAME/ID.")
        dimensions = [{"Name": "TargetGroup", "Value": TARGET_GROUP + label.partition(TARGET_GROUP)[2]}]
    elif label:
        raise ValidationError(f"ResourceLabel is not valid with the PredefinedMetricType {kind}.")
    return {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions, "Statistic": statistic, "Period": PERIOD_S}


def _criteria(kind: str, target: float) -> dict[str, Any]:
    comparison, periods = CRITERIA[kind]
    threshold = target if kind == HIGH else target * (1 - SCALE_IN_MARGIN)
    return {"ComparisonOperator": comparison, "EvaluationPeriods": periods, "Threshold": threshold}


def _note(source: dict[str, Any]) -> str:
    """Return a sentence for AlarmDescription if Corral does not publish the metric, although AWS would."""
    namespace = source.get("Namespace", "")
    if not namespace.startswith("AWS/") or namespace in OWN_NAMESPACES:
        return ""
    return (
        f" Corral does not publish {namespace} {source['MetricName']}. The policy does nothing unless PutMetricData publishes it."
    )
