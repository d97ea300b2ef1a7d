"""kill -9 of the server while a capacity provider launches instances for waiting tasks, and while it terminates idle instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from eventually import eventually
from harness import Corral, container

SIZE, GPUS = 3, 4


class Fleet:
    """A cluster whose tasks run on the instances of a group that a capacity provider scales."""

    def __init__(self, corral: Corral) -> None:
        self.corral = corral
        join = "#!/bin/sh\necho ECS_CLUSTER=fleet >> /etc/ecs/ecs.config\n"
        scaling, ecs = corral.client("autoscaling"), corral.client("ecs")
        scaling.create_launch_configuration(
            LaunchConfigurationName="one", ImageId="ami-1", InstanceType="p3.2xlarge", UserData=join
        )  # fmt: skip
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="fleet", LaunchConfigurationName="one", MinSize=0, MaxSize=SIZE,
            AvailabilityZones=["us-east-1a"], NewInstancesProtectedFromScaleIn=True,
        )  # fmt: skip
        provider = {"autoScalingGroupArn": "fleet", "managedScaling": {"status": "ENABLED"}}
        ecs.create_capacity_provider(
            name="gpus", autoScalingGroupProvider={**provider, "managedTerminationProtection": "ENABLED"}
        )  # fmt: skip
        strategy = [{"capacityProvider": "gpus", "weight": 1}]
        ecs.create_cluster(clusterName="fleet", capacityProviders=["gpus"], defaultCapacityProviderStrategy=strategy)
        ecs.register_task_definition(family="work", containerDefinitions=[container(["sleep", "600"], 1, stopTimeout=2)])

    def states(self) -> list[str] | None:
        """The lifecycle states of the instances, or None if the server could not answer."""
        found = self.ask("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=["fleet"])
        return [each["LifecycleState"] for each in found["AutoScalingGroups"][0]["Instances"]] if found else None

    def statuses(self, tasks: list[str]) -> list[str]:
        return [each["lastStatus"] for each in self.ask("ecs", "describe_tasks", cluster="fleet", tasks=tasks).get("tasks", ())]

    def ask(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """The response, or nothing if the server could not answer."""
        try:
            found: dict[str, Any] = getattr(self.corral.client(service, connect_timeout=5, read_timeout=20), operation)(**params)
            return found
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            return {}

    def kill(self) -> None:
        self.corral.kill("corral.server")
        self.corral.start()


@pytest.mark.timeout(120)
def test_a_provider_scales_out_and_in_under_kills(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral(f"sim:{GPUS}")
    corral.data.mkdir(parents=True, exist_ok=True)
    (corral.data / "corral.toml").write_text("[scaling]\ncapacity_provider_in_s = 1\n")
    fleet = Fleet(corral.start())
    started = corral.client("ecs").run_task(cluster="fleet", taskDefinition="work", count=SIZE)["tasks"]
    tasks = [task["taskArn"] for task in started]
    fleet.kill()
    eventually(lambda: fleet.statuses(tasks) == ["RUNNING"] * SIZE, "all tasks run")
    assert fleet.states() == ["InService"] * SIZE
    described = corral.client("ecs").describe_tasks(cluster="fleet", tasks=tasks)["tasks"]
    gpus = {gpu for task in described for each in task["containers"] for gpu in each["gpuIds"]}
    assert len(gpus) == SIZE, "each task has a GPU of its own"
    for task in tasks[1:]:
        corral.client("ecs").stop_task(cluster="fleet", task=task)
    eventually(lambda: fleet.statuses(tasks[1:]) == ["STOPPED"] * (SIZE - 1), "the tasks have stopped")
    fleet.kill()  # the delay of the scale-in has begun
    eventually(lambda: fleet.states() == ["InService"], "the idle instances are terminated")
    assert fleet.statuses(tasks[:1]) == ["RUNNING"], "managed termination protection keeps the instance with a task"
    corral.client("ecs").stop_task(cluster="fleet", task=tasks[0])
    fleet.kill()
    eventually(lambda: fleet.states() == [], "the group is empty")
    ecs = corral.client("ecs")
    host = ecs.list_container_instances(cluster="default")["containerInstanceArns"]
    [own] = ecs.describe_container_instances(cluster="default", containerInstances=host)["containerInstances"]
    assert len(own["gpuDevices"]) == GPUS and all(gpu["sharingMode"] == "IDLE" for gpu in own["gpuDevices"])
    activities = corral.client("autoscaling").describe_scaling_activities(AutoScalingGroupName="fleet")["Activities"]
    assert len(activities) == 2 * SIZE and all("EndTime" in each for each in activities), "no launch was repeated"
