"""Reads the data of a fleet for `corral fleet`: the present state, the last minutes, and the last scale-out.

The number of workers is the number of instances in service for a group, and the number of running tasks for a service. The command
uses AWS's APIs, so it also works on AWS. Corral's operation DescribeQueueWorkers adds facts that AWS does not report: when a
message arrived in the empty queue, when a task received its first message, and how many messages a task holds.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.fleets import history as fleet_history
from corral.cli.fleets.history import WINDOW_S
from corral.cli.fleets.search import WorkerFleet, alarms_of, policies_of_group, policies_of_service
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import server_time

QUEUE_METRICS = {
    "visible": ("ApproximateNumberOfMessagesVisible", "Maximum"),
    "inFlight": ("ApproximateNumberOfMessagesNotVisible", "Maximum"),
    "oldestS": ("ApproximateAgeOfOldestMessage", "Maximum"),
}
STEP_S, AWS_STEP_S = 10, 60  # seconds between two values of a graph, on Corral and on AWS
# A graph repeats the last known value for up to this time. Corral publishes an unchanged value once in each clock minute, so two
# values can be almost two minutes apart.
CARRY_S = 120
ACTIVITIES_MAX, TARGET_ACTIVITIES_MAX = 100, 50  # the sizes of the largest pages
TASKS_MAX = 100  # the most tasks that one request describes


def read_fleet(endpoint: Endpoint, fleet: WorkerFleet) -> dict[str, Any]:
    """Return the present state of a fleet, its history of ten minutes, and the time line of its last scale-out."""
    state = _read_group(endpoint, fleet) if fleet.group is not None else _read_service(endpoint, fleet)
    now, tasks = state["now"], state["tasks"]
    state |= {"queue": fleet.queue, "cluster": fleet.cluster, "visible": None, "inFlight": None, "stepS": _step_s(endpoint)}
    if fleet.queue_url is not None:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = client(endpoint, "sqs").get_queue_attributes(QueueUrl=fleet.queue_url, AttributeNames=names)["Attributes"]
        state |= {"visible": int(counts[names[0]]), "inFlight": int(counts[names[1]])}
    history = _metrics(endpoint, fleet, now)
    history["workers"] = state.pop("workerHistory")(now, WINDOW_S // state["stepS"])
    state |= {
        # The last published age is still listed after the queue has become empty.
        "oldestS": next((value for value in reversed(history["oldestS"]) if value is not None), None)
        if _has_messages(state)
        else None,
        "history": history,
        "waitingTasks": sum(each["state"] == "PROVISIONING" for each in tasks),
        "crashes": fleet_history.crashes(tasks, now),
        "tasks": [each for each in tasks if each["state"] != "STOPPED"],
    }
    return state


def _has_messages(state: dict[str, Any]) -> bool:
    return bool(state["visible"] or state["inFlight"])


def _read_group(endpoint: Endpoint, fleet: WorkerFleet) -> dict[str, Any]:
    scaling = client(endpoint, "autoscaling")
    reply = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[fleet.group])
    if not reply["AutoScalingGroups"]:
        raise CliError(f"the Auto Scaling group {fleet.group} is deleted.")
    group = reply["AutoScalingGroups"][0]
    asked = {"AutoScalingGroupName": fleet.group, "MaxRecords": ACTIVITIES_MAX}
    activities = scaling.describe_scaling_activities(**asked)["Activities"]
    tasks, gpus, wakes = _workers(endpoint, fleet)
    in_service = sum(each["LifecycleState"] == "InService" for each in group["Instances"])
    assert fleet.group is not None
    policies = policies_of_group(endpoint, fleet.group)
    alarm_change = partial(_alarm_change, endpoint)
    return {
        "group": fleet.group,
        "service": None,
        "provider": fleet.provider,
        "now": _now(reply),
        "workers": in_service,
        "desired": group["DesiredCapacity"],
        "min": group["MinSize"],
        "max": group["MaxSize"],
        "gpus": gpus,
        "workerHistory": partial(fleet_history.instance_history, activities, in_service),
        "policies": _policies(endpoint, policies),
        "activity": fleet_history.waiting_activity(activities),
        "tasks": tasks,
        "scaleOut": fleet_history.scale_out_of_group(activities, tasks, wakes, alarm_change),
    }


def _read_service(endpoint: Endpoint, fleet: WorkerFleet) -> dict[str, Any]:
    ecs, scaling = client(endpoint, "ecs"), client(endpoint, "application-autoscaling")
    reply = ecs.describe_services(cluster=fleet.cluster, services=[fleet.service])
    service = next((each for each in reply["services"] if each["status"] == "ACTIVE"), None)
    if service is None:
        raise CliError(f"the service {fleet.name} is deleted.")
    resource = f"service/{fleet.cluster}/{fleet.service}"
    place = {"ServiceNamespace": "ecs", "ResourceId": resource}
    targets = scaling.describe_scalable_targets(ServiceNamespace="ecs", ResourceIds=[resource])["ScalableTargets"]
    activities = scaling.describe_scaling_activities(**place, MaxResults=TARGET_ACTIVITIES_MAX)["ScalingActivities"]
    tasks, gpus, wakes = _workers(endpoint, fleet)
    return {
        "group": None,
        "service": fleet.service,
        "provider": None,
        "now": _now(reply),
        "workers": service["runningCount"],
        "desired": service["desiredCount"],
        "min": targets[0]["MinCapacity"] if targets else None,
        "max": targets[0]["MaxCapacity"] if targets else None,
        "gpus": gpus,
        "workerHistory": partial(fleet_history.task_history, tasks),
        "policies": _policies(endpoint, policies_of_service(endpoint, resource)),
        "activity": _newest_event(service, activities),
        "tasks": tasks,
        "scaleOut": fleet_history.scale_out_of_service(activities, tasks, wakes, partial(_alarm_change, endpoint)),
    }


def _newest_event(service: dict[str, Any], activities: list[dict[str, Any]]) -> str | None:
    """Return what an unfinished scaling activity waits for: the newest event of the service, if it began with or after it."""
    waits = fleet_history.waiting_activity(activities)
    if waits is None or service["runningCount"] == service["desiredCount"]:
        return None
    began = next(each["StartTime"] for each in activities if each["StatusCode"] == "InProgress")
    event = next((each["message"] for each in service.get("events", ()) if each["createdAt"] >= began), None)
    return event or waits


def _now(reply: dict[str, Any]) -> datetime:
    now = server_time(reply)
    if now is None:
        raise CliError("the response of the server has no Date header.")
    return now


def _step_s(endpoint: Endpoint) -> int:
    return AWS_STEP_S if is_aws(endpoint) else STEP_S


def _policies(endpoint: Endpoint, policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    alarms = alarms_of(endpoint, policies)
    return [_policy(each, alarms) for each in policies]


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


# Tasks


def _workers(endpoint: Endpoint, fleet: WorkerFleet) -> tuple[list[dict[str, Any]], int, list[dict[str, Any]]]:
    """Return the tasks of the fleet, including recently stopped tasks, the number of GPUs, and the arrivals in the empty queue.

    The tasks of a group are all tasks of its cluster, and its GPUs are those of the cluster. The GPUs of a service are those of its
    tasks.
    """
    if fleet.cluster is None:
        return [], 0, _queue_workers(endpoint, fleet, [])["wakes"]
    ecs, gpus, ec2_ids, joined = client(endpoint, "ecs"), 0, dict[str, str](), dict[str, datetime]()
    listed = ecs.list_container_instances(cluster=fleet.cluster)["containerInstanceArns"]
    described = ecs.describe_container_instances(cluster=fleet.cluster, containerInstances=listed) if listed else {}
    for each in described.get("containerInstances", ()):
        ec2_ids[each["containerInstanceArn"]] = each.get("ec2InstanceId", "")
        joined[each["containerInstanceArn"]] = each.get("registeredAt")
        gpus += sum(len(one.get("stringSetValue", ())) for one in each["registeredResources"] if one["name"] == "GPU")
    place = {"cluster": fleet.cluster} | ({"serviceName": fleet.service} if fleet.service is not None else {})
    tasks: list[dict[str, Any]] = []
    for status in ("RUNNING", "STOPPED"):
        arns = ecs.list_tasks(**place, desiredStatus=status)["taskArns"][:TASKS_MAX]
        tasks += ecs.describe_tasks(cluster=fleet.cluster, tasks=arns)["tasks"] if arns else []
    found = sorted((_task(each, ec2_ids, joined) for each in tasks), key=lambda each: (each["created"], each["id"]))
    own, owner_of = _queue_workers(endpoint, fleet, [each["id"] for each in found]), _owners(endpoint, fleet.cluster)
    for each in found:
        each |= {**own["tasks"].get(each["id"], {}), "owner": owner_of.get(each["id"])}
    if fleet.service is not None:
        gpus = len({gpu for each in found if each["state"] != "STOPPED" for gpu in each["gpuIds"]})
    return found, gpus, own["wakes"]


def _task(task: dict[str, Any], ec2_ids: dict[str, str], joined: dict[str, datetime]) -> dict[str, Any]:
    codes = [container["exitCode"] for container in task["containers"] if container.get("exitCode") is not None]
    reasons = [container["reason"] for container in task["containers"] if container.get("reason")]
    return {
        "id": task["taskArn"].rpartition("/")[2],
        "instance": ec2_ids.get(task.get("containerInstanceArn", "")),
        "state": task["lastStatus"],
        "definition": task["taskDefinitionArn"].rpartition("/")[2],
        "gpuIds": [gpu for container in task["containers"] for gpu in container.get("gpuIds", ())],
        "created": task.get("createdAt"),
        "started": task.get("startedAt"),
        "stopped": task.get("stoppedAt"),
        "joined": joined.get(task.get("containerInstanceArn", "")),
        "stopCode": task.get("stopCode"),
        "exitCode": next((code for code in codes if code), codes[0] if codes else None),
        "reason": reasons[0] if reasons else task.get("stoppedReason", ""),
    }


def _owners(endpoint: Endpoint, cluster: str) -> dict[str, str]:
    """Return the owners of the unfinished tasks of a cluster. AWS has none."""
    if is_aws(endpoint):
        return {}
    with suppress(CliError):
        found, _ = call(endpoint, "ListRuns", {"cluster": cluster, "maxWaiting": TASKS_MAX})
        return {each["task"]: each["owner"] for each in (*found["running"], *found["waiting"])}
    return {}


def _queue_workers(endpoint: Endpoint, fleet: WorkerFleet, tasks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"wakes": [], "tasks": {}}  # a wake is the arrival of a message in the empty queue
    if fleet.queue and not is_aws(endpoint):
        with suppress(CliError):
            found, _ = call(endpoint, "DescribeQueueWorkers", {"queue": fleet.queue, "tasks": tasks[:TASKS_MAX]})
    return found


# The last minutes


def _metrics(endpoint: Endpoint, fleet: WorkerFleet, now: datetime) -> dict[str, list[float | None]]:
    """Return the values of the last minutes by name, oldest first."""
    step_s = _step_s(endpoint)
    end_s = int(now.timestamp()) // step_s * step_s + step_s
    start_s = end_s - WINDOW_S - CARRY_S
    queries = []
    if fleet.queue is not None:
        dimensions = [{"Name": "QueueName", "Value": fleet.queue}]
        queries = [
            _query(name.lower(), "AWS/SQS", metric, statistic, dimensions, step_s)
            for name, (metric, statistic) in QUEUE_METRICS.items()
        ]
    if fleet.cluster is not None and not is_aws(endpoint):
        of_fleet = [{"Name": "ClusterName", "Value": fleet.cluster}]
        if fleet.service is not None:
            of_fleet.append({"Name": "ServiceName", "Value": fleet.service})
        namespace = "Corral/GPU" if fleet.service is None else "ECS/ContainerInsights/Prometheus"
        queries.append(_query("utilization", namespace, "DCGM_FI_DEV_GPU_UTIL", "Average", of_fleet, step_s))
    start, end = (datetime.fromtimestamp(at, UTC) for at in (start_s, end_s))
    asked = {"MetricDataQueries": queries, "StartTime": start, "EndTime": end, "ScanBy": "TimestampAscending"}
    pages = client(endpoint, "cloudwatch").get_paginator("get_metric_data").paginate(**asked) if queries else ()
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


def _alarm_change(endpoint: Endpoint, alarm: str, state: str, before: datetime) -> datetime | None:
    """Return when the alarm last entered `state`, not later than one second after `before`. Return None if that is not known."""
    items = client(endpoint, "cloudwatch").describe_alarm_history(
        AlarmName=alarm, HistoryItemType="StateUpdate", EndDate=before + timedelta(seconds=1), ScanBy="TimestampDescending"
    )["AlarmHistoryItems"]
    return next((item["Timestamp"] for item in items if item["HistorySummary"].endswith(f" to {state}")), None)
