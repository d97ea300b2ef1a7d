"""A service that follows a metric: how long it takes from the metric above its target until a new GPU task runs.

Each round has its own service of one GPU task with a target tracking policy. A metric is put once a second, as Corral publishes its
own metrics: first below the target, then, from a random time of a second on, above it. In the second row, each service has a
capacity provider, and the new task needs a new instance of its Auto Scaling group.
"""

from __future__ import annotations

import statistics
import time
from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from client import ACCESS_KEY, REGION, SECRET_KEY
from local import corral
from rows import Bench, Row, percentile

from corral.cli.client.endpoint import Endpoint, client

GPUS = "sim:16"
NAMESPACE, METRIC = "Bench", "GpuUtilization"
BELOW, ABOVE, TARGET = 10.0, 100.0, 75.0
BEFORE = 3  # how many values are below the target
RUNNING_MAX_S = 3.0
GIVE_UP_S = 60.0
POLL_S = 0.02
STEPS = {"alarm": "alarm", "count": "desired count", "created": "task created", "running": "task running"}
STEPS_WITH_INSTANCE = {
    "alarm": "alarm",
    "count": "desired count",
    "created": "task created",
    "joined": "instance joined",
    "running": "task running",
}
INSTANCE_TYPE = "g5.xlarge"  # has one GPU
OWN = "default"  # the cluster that this machine joins


def rows(bench: Bench) -> list[Row]:
    what = "metric above its target to a new GPU task RUNNING"
    return [
        _row(bench, "service-scaling", f"{what}, p50", STEPS, lambda endpoint, name: OWN),
        _row(bench, "provider-scaling", f"{what} on a new instance of a capacity provider, p50", STEPS_WITH_INSTANCE, _provide),
    ]


def _row(bench: Bench, folder: str, what: str, steps: dict[str, str], prepare: Callable[[Endpoint, str], str]) -> Row:
    """Measure some rounds. `prepare` creates the cluster of a round, and returns it."""
    rounds = bench.size(8, 3)
    random = Random(0)
    with corral(bench, folder, GPUS) as local:
        endpoint = Endpoint(f"http://127.0.0.1:{local.port}", REGION, ACCESS_KEY, SECRET_KEY)
        client(endpoint, "ecs").register_task_definition(
            family="scaled",
            containerDefinitions=[
                {
                    "name": "main",
                    "image": "corral/host",
                    "memory": 64,
                    "command": ["sleep", "600"],
                    "resourceRequirements": [{"type": "GPU", "value": "1"}],
                }
            ],
        )
        services = []
        for number in range(rounds):
            name = f"scaled-{number}"
            cluster = prepare(endpoint, name)
            services.append(Scaled(endpoint, cluster, name, _serve(endpoint, cluster, name)))
        lines = [_cross(service, steps, random.random()) for service in services]
    running = [line["running"] for line in lines]
    middle = {step: statistics.median(line[step] for line in lines) for step in steps}
    time_line = ", ".join(f"{name} {middle[step]:.0f} ms" for step, name in steps.items())
    note = f"p90 {percentile(running, 90):.0f} ms; medians after the metric was put: {time_line}; {rounds} rounds; AWS: minutes"
    return Row(what, middle["running"] / 1000, "s", budget=RUNNING_MAX_S, note=note)


class Scaled(NamedTuple):
    endpoint: Endpoint
    cluster: str
    name: str
    alarm: str  # the name of the alarm for a scale-out


def _provide(endpoint: Endpoint, name: str) -> str:
    """Create a cluster whose tasks run on the instances of a group without instances. Return the cluster."""
    ecs, groups = client(endpoint, "ecs"), client(endpoint, "autoscaling")
    user_data = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={name} >> /etc/ecs/ecs.config\n".encode()).decode()
    groups.create_launch_configuration(
        LaunchConfigurationName=name, ImageId="ami-0123456789abcdef0", InstanceType=INSTANCE_TYPE, UserData=user_data
    )
    groups.create_auto_scaling_group(
        AutoScalingGroupName=name, LaunchConfigurationName=name, MinSize=0, MaxSize=2, AvailabilityZones=[f"{REGION}a"]
    )
    ecs.create_capacity_provider(
        name=name, autoScalingGroupProvider={"autoScalingGroupArn": name, "managedScaling": {"status": "ENABLED"}}
    )
    strategy = [{"capacityProvider": name, "weight": 1}]
    ecs.create_cluster(clusterName=name, capacityProviders=[name], defaultCapacityProviderStrategy=strategy)
    return name


def _serve(endpoint: Endpoint, cluster: str, name: str) -> str:
    """Create a service with one task and a target tracking policy. Return the name of the alarm for a scale-out."""
    ecs, scaling = client(endpoint, "ecs"), client(endpoint, "application-autoscaling")
    ecs.create_service(cluster=cluster, serviceName=name, taskDefinition="scaled", desiredCount=1)
    place = {"ServiceNamespace": "ecs", "ResourceId": f"service/{cluster}/{name}", "ScalableDimension": "ecs:service:DesiredCount"}
    scaling.register_scalable_target(**place, MinCapacity=1, MaxCapacity=2)
    metric = {
        "Namespace": NAMESPACE,
        "MetricName": METRIC,
        "Dimensions": [{"Name": "ServiceName", "Value": name}],
        "Statistic": "Average",
    }
    made = scaling.put_scaling_policy(
        **place,
        PolicyName="gpu",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={"CustomizedMetricSpecification": metric, "TargetValue": TARGET},
    )
    _until(lambda: len(_tasks(endpoint, cluster, name)) == 1, "the first task runs")
    return str(made["Alarms"][0]["AlarmName"])


def _cross(service: Scaled, steps: dict[str, str], wait_s: float) -> dict[str, float]:
    """Put values below the target, then values above it. Return the milliseconds from the first of those to each step."""
    endpoint, cluster, name, alarm = service
    time.sleep(wait_s)  # a random time of a second
    for _ in range(BEFORE):
        _put(endpoint, name, BELOW)
        time.sleep(1)  # the rate of the metric
    sent = next_put = time.time()
    give_up = sent + GIVE_UP_S
    while len(tasks := _tasks(endpoint, cluster, name)) < 2:
        if time.time() > give_up:
            raise RuntimeError(f"not within {GIVE_UP_S:.0f} s: the second task of {name} runs")
        if time.time() >= next_put:
            _put(endpoint, name, ABOVE)
            next_put += 1
        time.sleep(POLL_S)  # between two polls
    newest = max(tasks, key=lambda task: task["createdAt"])
    ecs, alarms = client(endpoint, "ecs"), client(endpoint, "cloudwatch")
    [state] = alarms.describe_alarms(AlarmNames=[alarm])["MetricAlarms"]
    activities = client(endpoint, "application-autoscaling").describe_scaling_activities(
        ServiceNamespace="ecs", ResourceId=f"service/{cluster}/{name}"
    )["ScalingActivities"]
    moments = {
        "alarm": state["StateTransitionedTimestamp"],
        "count": activities[0]["StartTime"],
        "created": newest["createdAt"],
        "running": newest["startedAt"],
    }
    if "joined" in steps:
        arns = [newest["containerInstanceArn"]]
        [joined] = ecs.describe_container_instances(cluster=cluster, containerInstances=arns)["containerInstances"]
        moments["joined"] = joined["registeredAt"]
    return {step: (moments[step].timestamp() - sent) * 1000 for step in steps}


def _put(endpoint: Endpoint, name: str, value: float) -> None:
    datum = {
        "MetricName": METRIC,
        "Dimensions": [{"Name": "ServiceName", "Value": name}],
        "Value": value,
        "StorageResolution": 1,
    }
    client(endpoint, "cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=[datum])


def _tasks(endpoint: Endpoint, cluster: str, name: str) -> list[dict[str, Any]]:
    """The running tasks of a service."""
    ecs = client(endpoint, "ecs")
    arns = ecs.list_tasks(cluster=cluster, serviceName=name)["taskArns"]
    found = ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []
    return [task for task in found if task["lastStatus"] == "RUNNING"]


def _until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + GIVE_UP_S
    while not holds():
        if time.monotonic() > give_up:
            raise RuntimeError(f"not within {GIVE_UP_S:.0f} s: {what}")
        time.sleep(POLL_S)  # between two polls
