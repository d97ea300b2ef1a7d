"""Reads the data of a fleet for `corral fleet`. A fleet is an Auto Scaling group whose alarm watches an SQS queue.

The data are those of the group, of the queue, and of the tasks in the cluster that the instances join. The number of workers is the
number of instances in service.

The command uses AWS's APIs, so it also works on AWS. Corral's page `/_corral/fleet` adds facts that AWS does not report: when a
message arrived in the empty queue, when a task received its first message, and how many messages a task holds.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from corral.cli.endpoint import Endpoint, client, is_aws, own_page
from corral.cli.errors import CliError
from corral.cli.output import SHORT_ID, server_time

GROUP_TYPE = "AWS::AutoScaling::AutoScalingGroup"
CLUSTER = re.compile(r"^\s*(?:echo\s+)?[\"']?ECS_CLUSTER=([A-Za-z0-9_-]+)", re.MULTILINE)
TRIGGERED = re.compile(
    r"alarm (?P<alarm>.+) in state (?P<state>[A-Z_]+) triggered policy (?P<policy>.+?) "
    r"changing the desired capacity from (?P<before>[0-9]+) to (?P<after>[0-9]+)\."
)
INSTANCE = re.compile(r"i-[0-9a-f]+")
QUEUE_METRICS = {
    "visible": ("ApproximateNumberOfMessagesVisible", "Maximum"),
    "inFlight": ("ApproximateNumberOfMessagesNotVisible", "Maximum"),
    "oldestS": ("ApproximateAgeOfOldestMessage", "Maximum"),
}
WINDOW_S = 600
STEP_S, AWS_STEP_S = 10, 60  # seconds between two values of a graph, on Corral and on AWS
# A graph repeats the last known value for up to this time. Corral publishes an unchanged value once in each clock minute, so two
# values can be almost two minutes apart.
CARRY_S = 120
ACTIVITIES_MAX = 100
TASKS_MAX = 100
S3 = "s3.amazonaws.com"


class QueueFleet(NamedTuple):
    """The names of a fleet's parts. They are looked up once."""

    group: str
    queue: str
    queue_url: str
    cluster: str | None  # None if the user data of the instances names no cluster


def find_fleet(endpoint: Endpoint, name: str) -> QueueFleet:
    """Find the fleet by the name of its Auto Scaling group, or by the name of the stack with the group."""
    scaling = client(endpoint, "autoscaling")
    found = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    names = [name] if found else _groups_of_stack(endpoint, name)
    queues = {each: queue for each in names if (queue := _queue_of(endpoint, each)) is not None}
    if len(queues) != 1:
        reason = "has no scaling policy with an alarm on a queue" if names else "has no Auto Scaling group"
        what = f"the groups {', '.join(queues)} all follow a queue: name one of them" if queues else f"{name} {reason}"
        raise CliError(f"{what}. `corral fleet` needs an Auto Scaling group that follows a queue, or a stack with one.")
    [(group, queue)] = queues.items()
    url = client(endpoint, "sqs").get_queue_url(QueueName=queue)["QueueUrl"]
    described = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]
    named = CLUSTER.search(_user_data(endpoint, described))
    return QueueFleet(group, queue, url, named[1] if named else None)


def _groups_of_stack(endpoint: Endpoint, stack: str) -> list[str]:
    cloudformation = client(endpoint, "cloudformation")
    try:
        pages = list(cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack))
    except cloudformation.exceptions.ClientError as error:
        if "does not exist" in str(error):
            raise CliError(f"no Auto Scaling group and no stack has the name {stack}.") from None
        raise
    listed = [each for page in pages for each in page["StackResourceSummaries"]]
    return [each["PhysicalResourceId"] for each in listed if each["ResourceType"] == GROUP_TYPE and each.get("PhysicalResourceId")]


def _queue_of(endpoint: Endpoint, group: str) -> str | None:
    for alarm in _alarms(endpoint, _policies(endpoint, group)).values():
        stats = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", ()) if "MetricStat" in each]
        for metric in [alarm, *stats]:
            if metric.get("Namespace") == "AWS/SQS":
                return next((each["Value"] for each in metric.get("Dimensions", ()) if each["Name"] == "QueueName"), None)
    return None


def _policies(endpoint: Endpoint, group: str) -> list[dict[str, Any]]:
    pages = client(endpoint, "autoscaling").get_paginator("describe_policies").paginate(AutoScalingGroupName=group)
    return [each for page in pages for each in page["ScalingPolicies"]]


def _alarms(endpoint: Endpoint, policies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = sorted({alarm["AlarmName"] for policy in policies for alarm in policy.get("Alarms", ())})
    found = client(endpoint, "cloudwatch").describe_alarms(AlarmNames=names)["MetricAlarms"] if names else []
    return {each["AlarmName"]: each for each in found}


def _user_data(endpoint: Endpoint, group: dict[str, Any]) -> str:
    source = group.get("LaunchTemplate")
    if source is None and "MixedInstancesPolicy" in group:
        source = group["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
    if source is not None:
        asked = {"LaunchTemplateId": source["LaunchTemplateId"], "Versions": [source.get("Version", "$Default")]}
        versions = client(endpoint, "ec2").describe_launch_template_versions(**asked)["LaunchTemplateVersions"]
        text = versions[0]["LaunchTemplateData"].get("UserData", "") if versions else ""
    else:
        asked = {"LaunchConfigurationNames": [group.get("LaunchConfigurationName", "")]}
        found = client(endpoint, "autoscaling").describe_launch_configurations(**asked)["LaunchConfigurations"]
        text = found[0].get("UserData", "") if found else ""
    return base64.b64decode(text).decode("utf-8", "replace")


def read_fleet(endpoint: Endpoint, fleet: QueueFleet) -> dict[str, Any]:
    """Return the present state of a fleet, its history of ten minutes, and the time line of its last scale-out."""
    scaling, sqs = client(endpoint, "autoscaling"), client(endpoint, "sqs")
    reply = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[fleet.group])
    if not reply["AutoScalingGroups"]:
        raise CliError(f"the Auto Scaling group {fleet.group} is deleted.")
    group, now = reply["AutoScalingGroups"][0], server_time(reply)
    if now is None:
        raise CliError("the response of the server has no Date header.")
    asked = {"AutoScalingGroupName": fleet.group, "MaxRecords": ACTIVITIES_MAX}
    activities = scaling.describe_scaling_activities(**asked)["Activities"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=fleet.queue_url, AttributeNames=names)["Attributes"]
    tasks, gpus = _workers(endpoint, fleet)
    own = _own_page(endpoint, fleet, [each["id"] for each in tasks])
    for each in tasks:
        each |= own["tasks"].get(each["id"], {})
    in_service = sum(each["LifecycleState"] == "InService" for each in group["Instances"])
    history = _metrics(endpoint, fleet, now)
    history["workers"] = _instance_history(activities, in_service, now, len(history["visible"]))
    policies = _policies(endpoint, fleet.group)
    return {
        "group": fleet.group,
        "queue": fleet.queue,
        "cluster": fleet.cluster,
        "now": now,
        "visible": int(counts["ApproximateNumberOfMessages"]),
        "inFlight": int(counts["ApproximateNumberOfMessagesNotVisible"]),
        "oldestS": next((value for value in reversed(history["oldestS"]) if value is not None), None),
        "workers": in_service,
        "desired": group["DesiredCapacity"],
        "min": group["MinSize"],
        "max": group["MaxSize"],
        "gpus": gpus,
        "stepS": _step_s(endpoint),
        "history": history,
        "policies": [_policy(each, _alarms(endpoint, policies)) for each in policies],
        "activity": _waiting_activity(activities),
        "tasks": [each for each in tasks if each["state"] != "STOPPED"],
        "scaleOut": _scale_out(endpoint, activities, tasks, own["wakes"]),
    }


def _step_s(endpoint: Endpoint) -> int:
    return AWS_STEP_S if is_aws(endpoint) else STEP_S


def _policy(policy: dict[str, Any], alarms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found = [alarms[each["AlarmName"]] for each in policy.get("Alarms", ()) if each["AlarmName"] in alarms]
    return {
        "name": policy["PolicyName"],
        "type": policy["PolicyType"],
        "adjustment": policy.get("AdjustmentType"),
        "target": policy.get("TargetTrackingConfiguration", {}).get("TargetValue"),
        "simple": policy.get("ScalingAdjustment"),
        "steps": [
            (each.get("MetricIntervalLowerBound"), each.get("MetricIntervalUpperBound"), each["ScalingAdjustment"])
            for each in policy.get("StepAdjustments", ())
        ],
        "alarms": [
            {
                "name": each["AlarmName"],
                "state": each["StateValue"],
                "since": each["StateUpdatedTimestamp"],
                "threshold": each.get("Threshold", 0.0),
                "reason": each.get("StateReason", ""),
                "watches": [each.get("MetricName")] if "MetricName" in each else _watched(each),
            }
            for each in found
        ],
    }


def _watched(alarm: dict[str, Any]) -> list[str]:
    return [each["MetricStat"]["Metric"]["MetricName"] for each in alarm.get("Metrics", ()) if "MetricStat" in each]


def _workers(endpoint: Endpoint, fleet: QueueFleet) -> tuple[list[dict[str, Any]], int]:
    """Return the tasks of the fleet's cluster, including recently stopped tasks, and the number of GPUs in the cluster."""
    if fleet.cluster is None:
        return [], 0
    ecs, arns, gpus, ec2_ids = client(endpoint, "ecs"), list[str](), 0, dict[str, str]()
    joined = dict[str, datetime]()
    listed = ecs.list_container_instances(cluster=fleet.cluster)["containerInstanceArns"]
    described = ecs.describe_container_instances(cluster=fleet.cluster, containerInstances=listed) if listed else {}
    for each in described.get("containerInstances", ()):
        ec2_ids[each["containerInstanceArn"]] = each.get("ec2InstanceId", "")
        joined[each["containerInstanceArn"]] = each.get("registeredAt")
        gpus += sum(len(one.get("stringSetValue", ())) for one in each["registeredResources"] if one["name"] == "GPU")
    for status in ("RUNNING", "STOPPED"):
        arns += ecs.list_tasks(cluster=fleet.cluster, desiredStatus=status)["taskArns"]
    tasks = ecs.describe_tasks(cluster=fleet.cluster, tasks=arns[:TASKS_MAX])["tasks"] if arns else []
    found = [
        {
            "id": each["taskArn"].rpartition("/")[2],
            "instance": ec2_ids.get(each.get("containerInstanceArn", "")),
            "state": each["lastStatus"],
            "definition": each["taskDefinitionArn"].rpartition("/")[2],
            "gpuIds": [gpu for container in each["containers"] for gpu in container.get("gpuIds", ())],
            "created": each.get("createdAt"),
            "started": each.get("startedAt"),
            "joined": joined.get(each.get("containerInstanceArn", "")),
        }
        for each in tasks
    ]
    return sorted(found, key=lambda each: (each["created"], each["id"])), gpus


def _own_page(endpoint: Endpoint, fleet: QueueFleet, tasks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"wakes": [], "tasks": {}}  # a wake is the arrival of a message in the empty queue
    if not is_aws(endpoint):
        region = client(endpoint, "sqs").meta.region_name
        query = urlencode({"region": region, "queue": fleet.queue, "task": tasks[:TASKS_MAX]}, doseq=True)
        with suppress(CliError):
            found, _ = own_page(endpoint, f"/_corral/fleet?{query}")
    return found


# The last minutes


def _metrics(endpoint: Endpoint, fleet: QueueFleet, now: datetime) -> dict[str, list[float | None]]:
    """Return the values of the last minutes by name, oldest first."""
    step_s = _step_s(endpoint)
    end_s = int(now.timestamp()) // step_s * step_s + step_s
    start_s = end_s - WINDOW_S - CARRY_S
    dimensions = [{"Name": "QueueName", "Value": fleet.queue}]
    queries = [
        _query(name.lower(), "AWS/SQS", metric, statistic, dimensions, step_s)
        for name, (metric, statistic) in QUEUE_METRICS.items()
    ]
    if fleet.cluster is not None and not is_aws(endpoint):
        cluster = [{"Name": "ClusterName", "Value": fleet.cluster}]
        queries.append(_query("utilization", "Corral/GPU", "DCGM_FI_DEV_GPU_UTIL", "Average", cluster, step_s))
    start, end = (datetime.fromtimestamp(at, UTC) for at in (start_s, end_s))
    pages = (
        client(endpoint, "cloudwatch")
        .get_paginator("get_metric_data")
        .paginate(MetricDataQueries=queries, StartTime=start, EndTime=end, ScanBy="TimestampAscending")
    )
    points: dict[str, dict[int, float]] = {}
    for page in pages:
        for each in page["MetricDataResults"]:
            known = points.setdefault(each["Id"], {})
            known |= {int(at.timestamp()): value for at, value in zip(each["Timestamps"], each["Values"])}
    times = range(start_s, end_s, step_s)
    names = {name.lower(): name for name in QUEUE_METRICS} | {"utilization": "gpuUtilizationPercent"}
    shown = WINDOW_S // step_s
    return {name: _filled(points.get(id, {}), times, CARRY_S // step_s)[-shown:] for id, name in names.items()}


def _query(id: str, namespace: str, metric: str, statistic: str, dimensions: list[dict[str, str]], step_s: int) -> dict[str, Any]:
    source = {"Namespace": namespace, "MetricName": metric, "Dimensions": dimensions}
    return {"Id": id, "MetricStat": {"Metric": source, "Period": step_s, "Stat": statistic}}


def _filled(points: dict[int, float], times: range, carry: int) -> list[float | None]:
    """Return a value for each time. A value is repeated for up to `carry` steps: see CARRY_S."""
    found, last, age = list[float | None](), None, 0
    for at in times:
        last, age = (points[at], 0) if at in points else (last, age + 1)
        found.append(last if age < carry else None)
    return found


def _instance_history(activities: list[dict[str, Any]], present: int, now: datetime, size: int) -> list[float | None]:
    """Return the number of instances in service in the last minutes, oldest first, from the group's activities."""
    changes = []
    for each in activities:
        launched = each["Description"].startswith("Launching")
        at = each.get("EndTime") if launched else each["StartTime"]
        if at is not None and each["StatusCode"] not in ("Failed", "Cancelled"):
            changes.append((at, 1 if launched else -1))
    found: list[float | None] = []
    for at in range(size):
        until = now - timedelta(seconds=WINDOW_S * at / size)
        found.append(float(max(0, present - sum(delta for when, delta in changes if when > until))))
    return found[::-1]


def _waiting_activity(activities: list[dict[str, Any]]) -> str | None:
    """Return what the newest unfinished activity with a status message waits for. Return None if there is no such activity."""
    unfinished = [each for each in activities if each["StatusCode"] not in ("Successful", "Failed", "Cancelled")]
    return next((f"{each['Description']}: {each['StatusMessage']}" for each in unfinished if each.get("StatusMessage")), None)


# The last scale-out


def _scale_out(
    endpoint: Endpoint, activities: list[dict[str, Any]], tasks: list[dict[str, Any]], wakes: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the steps of the last scale-out by an alarm, with the milliseconds since the first step.

    Return None if `activities` has no scale-out by an alarm.
    """
    launches = [(each, match) for each in activities if (match := _scale_out_by(each))]
    if not launches:
        return None
    newest, match = launches[0]
    launch = min((each for each, other in launches if other[0] == match[0] and _is_near(each, newest)), key=_start)
    began = launch["StartTime"]
    instance = INSTANCE.search(launch["Description"])
    steps: list[tuple[str, str, datetime | None]] = []
    if match["before"] == "0":
        changed = _alarm_change(endpoint, match["alarm"], match["state"], began)
        woken = [each for each in wakes if each["atMs"] / 1000 <= (changed or began).timestamp()]
        if woken:
            what = "object put, message sent" if woken[-1]["sender"] == S3 else "message sent"
            steps.append(("message", what, _time(woken[-1]["atMs"])))
        steps.append(("alarm", f"alarm {match['alarm']} enters {match['state']}", changed))
    steps.append(("policy", f"policy {match['policy']} sets {match['before']} → {match['after']}", began))
    steps.append(("instance", f"instance {instance[0] if instance else ''} launched", launch.get("EndTime")))
    task = next((each for each in tasks if each["created"] is not None and each["created"] >= began), None)
    if task is not None:
        name = task["id"][:SHORT_ID]
        steps += [
            ("joined", "instance joined the cluster", task["joined"]),
            ("task", f"task {name} created", task["created"]),
            ("running", f"task {name} running", task["started"]),
            ("receive", "first message received", _time(task.get("firstReceiveMs"))),
        ]
    known = sorted(((step, what, at) for step, what, at in steps if at is not None), key=lambda each: each[2])
    first = known[0][2]
    return {
        "at": first,
        "before": int(match["before"]),
        "after": int(match["after"]),
        "steps": [{"step": step, "text": what, "ms": round((at - first).total_seconds() * 1000)} for step, what, at in known],
    }


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _scale_out_by(activity: dict[str, Any]) -> re.Match[str] | None:
    match = TRIGGERED.search(activity["Cause"]) if activity["Description"].startswith("Launching") else None
    return match if match is not None and int(match["after"]) > int(match["before"]) else None


def _start(activity: dict[str, Any]) -> datetime:
    at: datetime = activity["StartTime"]
    return at


def _is_near(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return abs((_start(first) - _start(second)).total_seconds()) < 2


def _alarm_change(endpoint: Endpoint, alarm: str, state: str, before: datetime) -> datetime | None:
    """Return when the alarm last entered `state`, not later than one second after `before`. Return None if that is not known."""
    items = client(endpoint, "cloudwatch").describe_alarm_history(
        AlarmName=alarm, HistoryItemType="StateUpdate", EndDate=before + timedelta(seconds=1), ScanBy="TimestampDescending"
    )["AlarmHistoryItems"]
    return next((item["Timestamp"] for item in items if item["HistorySummary"].endswith(f" to {state}")), None)
