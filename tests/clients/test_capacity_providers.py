"""A capacity provider with managed scaling on simulated GPUs, by boto3: the group follows the tasks from zero and back to zero."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eventually import eventually
from harness import Corral, container

CLUSTER = "fleet"
USER_DATA = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={CLUSTER} >> /etc/ecs/ecs.config\n".encode()).decode()


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    data = tmp_path_factory.mktemp("corral") / "data"
    data.mkdir()
    (data / "corral.toml").write_text("[scaling]\ncapacity_provider_in_s = 1\nprovisioning_wait_s = 2\n")
    running = Corral(data, "sim:4").start()
    autoscaling, ecs = running.client("autoscaling"), running.client("ecs")
    autoscaling.create_launch_configuration(
        LaunchConfigurationName="joins", ImageId="ami-0123456789abcdef0", InstanceType="g5.xlarge", UserData=USER_DATA
    )
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName="gpus", LaunchConfigurationName="joins", MinSize=0, MaxSize=3, AvailabilityZones=["us-east-1a"],
        NewInstancesProtectedFromScaleIn=True,
    )  # fmt: skip
    ecs.create_capacity_provider(
        name="gpus",
        autoScalingGroupProvider={
            "autoScalingGroupArn": "gpus",
            "managedScaling": {"status": "ENABLED"},
            "managedTerminationProtection": "ENABLED",
        },
    )
    strategy = [{"capacityProvider": "gpus", "weight": 1}]
    ecs.create_cluster(clusterName=CLUSTER, capacityProviders=["gpus"], defaultCapacityProviderStrategy=strategy)
    ecs.register_task_definition(family="worker", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    yield running
    running.clear()


def instances(corral: Corral) -> list[dict[str, Any]]:
    [group] = corral.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["gpus"])["AutoScalingGroups"]
    return [each for each in group["Instances"] if each["LifecycleState"] == "InService"]


def test_the_group_follows_a_service_from_zero_to_three_and_back(corral: Corral) -> None:
    ecs = corral.client("ecs")
    assert instances(corral) == []
    ecs.create_service(cluster=CLUSTER, serviceName="workers", taskDefinition="worker", desiredCount=3)
    ecs.get_waiter("services_stable").wait(
        cluster=CLUSTER, services=["workers"], WaiterConfig={"Delay": 0.1, "MaxAttempts": 600}
    )  # fmt: skip
    assert [each["ProtectedFromScaleIn"] for each in instances(corral)] == [True] * 3

    ecs.update_service(cluster=CLUSTER, service="workers", desiredCount=1)
    eventually(lambda: len(instances(corral)) == 1, "the idle instances are terminated")
    [service] = ecs.describe_services(cluster=CLUSTER, services=["workers"])["services"]
    assert service["runningCount"] == 1
    [task] = ecs.describe_tasks(cluster=CLUSTER, tasks=ecs.list_tasks(cluster=CLUSTER)["taskArns"])["tasks"]
    assert task["capacityProviderName"] == "gpus"

    ecs.update_service(cluster=CLUSTER, service="workers", desiredCount=0)
    eventually(lambda: not instances(corral), "the last instance is terminated")
    activities = corral.client("autoscaling").describe_scaling_activities(AutoScalingGroupName="gpus")["Activities"]
    assert all("the capacity provider gpus, whose tasks need " in each["Cause"] for each in activities) and len(activities) == 6
    ecs.delete_service(cluster=CLUSTER, service="workers")


def test_the_reservation_is_a_metric(corral: Corral) -> None:
    cloudwatch = corral.client("cloudwatch")
    names = [{"Name": "CapacityProviderName", "Value": "gpus"}, {"Name": "ClusterName", "Value": CLUSTER}]

    def values() -> list[dict[str, Any]]:
        now = datetime.now(UTC)
        found = cloudwatch.get_metric_statistics(
            Namespace="AWS/ECS/ManagedScaling", MetricName="CapacityProviderReservation", Dimensions=names, Period=60,
            Statistics=["Maximum"], StartTime=now - timedelta(minutes=5), EndTime=now + timedelta(minutes=1),
        )  # fmt: skip
        return list(found["Datapoints"])

    assert eventually(values, "the metric is published")[0]["Unit"] == "Percent"


def test_tasks_wait_with_a_reason_and_not_longer_than_allowed(corral: Corral) -> None:
    ecs = corral.client("ecs")
    started = ecs.run_task(cluster=CLUSTER, taskDefinition="worker", count=4)["tasks"]
    arns = [task["taskArn"] for task in started]

    def tasks(status: str) -> list[dict[str, Any]]:
        return [each for each in ecs.describe_tasks(cluster=CLUSTER, tasks=arns)["tasks"] if each["lastStatus"] == status]

    eventually(lambda: len(tasks("RUNNING")) == 3, "three tasks run")
    [stopped] = eventually(lambda: tasks("STOPPED"), "the task that waits is stopped")
    assert stopped["stopCode"] == "TaskFailedToStart"
    assert "it waited for an instance for 2 seconds (provisioning_wait_s)" in stopped["stoppedReason"]
    assert "the group gpus of the capacity provider gpus has reached its maximum size 3" in stopped["stoppedReason"]
    for task in tasks("RUNNING"):
        ecs.stop_task(cluster=CLUSTER, task=task["taskArn"])
    eventually(lambda: not instances(corral), "the group is empty again")
