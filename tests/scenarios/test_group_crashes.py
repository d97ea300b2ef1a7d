"""kill -9 of server, agent and spawner while a group with a DAEMON and a REPLICA service goes from 0 to 3 instances and back.

Nothing is doubled or leaked, and all counts are right in the end. Four kills; CORRAL_KILLS=60 is a long run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from eventually import eventually
from harness import Corral, container

KILLS = int(os.environ.get("CORRAL_KILLS", "4"))
EACH = 2  # kills while the group grows, and while it shrinks
SIZE = 3
GPUS = 8
VICTIMS = (("corral.server",), ("corral.node",), ("corral.node.spawner",), ("corral.server", "corral.node", "corral.node.spawner"))

# A task takes a lock that only the holder of its GPU may have. The shell stays, so that its processes can be counted.
SCRIPT = """
exec 9>"$SHARED/gpu-$CUDA_VISIBLE_DEVICES"
flock -n 9 || echo "$CUDA_VISIBLE_DEVICES" >> "$SHARED/doubled"
sleep 600 & wait
"""


class Fleet:
    """A group of instances of one GPU, with a service of each kind on its cluster."""

    def __init__(self, corral: Corral, shared: Path) -> None:
        self.corral = corral
        self._rng = random.Random(KILLS)
        join = "#!/bin/sh\necho ECS_CLUSTER=fleet >> /etc/ecs/ecs.config\n"
        scaling, ecs = corral.client("autoscaling"), corral.client("ecs")
        scaling.create_launch_configuration(
            LaunchConfigurationName="one", ImageId="ami-1", InstanceType="p3.2xlarge", UserData=join
        )  # fmt: skip
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="fleet", LaunchConfigurationName="one", MinSize=0, MaxSize=SIZE, AvailabilityZones=["us-east-1a"]
        )
        ecs.create_cluster(clusterName="fleet")
        for name, gpus, script in (("replica", 1, SCRIPT), ("daemon", 0, "sleep 600 & wait")):
            command = ["sh", "-c", script, name, str(corral.data)]
            environment = [{"name": "SHARED", "value": str(shared)}]
            ecs.register_task_definition(
                family=name, containerDefinitions=[container(command, gpus, environment=environment, stopTimeout=2)]
            )
        service = {"cluster": "fleet", "launchType": "EC2"}
        ecs.create_service(**service, serviceName="replica", taskDefinition="replica", desiredCount=SIZE)
        ecs.create_service(**service, serviceName="daemon", taskDefinition="daemon", schedulingStrategy="DAEMON")

    def go_to(self, size: int, kills: int) -> None:
        """Set the size, kill processes at moments that depend on the progress, and wait until the size is reached."""
        before = self.progress()
        eventually(
            lambda: self.ask("autoscaling", "set_desired_capacity", AutoScalingGroupName="fleet", DesiredCapacity=size) != {}
        )
        step = 1 if size else -1
        for _ in range(kills):
            moment = before + step * self._rng.randrange(2 * SIZE)
            eventually(lambda moment=moment: (self.progress() - moment) * step >= 0 or self.is_at(size), "progress")
            victims = self._rng.choice(VICTIMS)
            self.corral.kill(*victims)
            if "corral.server" in victims:
                self.corral.start()
        eventually(lambda: self.is_at(size), f"{size} instances with their tasks", 60)

    def progress(self) -> int:
        """How many tasks of the services run."""
        found = self.services()
        return sum(service["runningCount"] for service in found) if found else 0

    def is_at(self, size: int) -> bool:
        found = self.ask("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=["fleet"])
        states = [each["LifecycleState"] for each in found.get("AutoScalingGroups", [{}])[0].get("Instances", ["unknown"])]
        counts = [(service["desiredCount"], service["runningCount"]) for service in self.services()]
        joined = self.ask("ecs", "list_container_instances", cluster="fleet").get("containerInstanceArns")
        return (
            states == ["InService"] * size and counts == [(SIZE, size), (size, size)] and joined is not None and len(joined) == size
        )

    def services(self) -> list[dict[str, Any]]:
        return self.ask("ecs", "describe_services", cluster="fleet", services=["replica", "daemon"]).get("services", [])

    def ask(self, service: str, operation: str, **params: Any) -> dict[str, Any]:
        """The response, or nothing if the server could not answer."""
        try:
            return getattr(self.corral.client(service, connect_timeout=5, read_timeout=20), operation)(**params)
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
            return {}


@pytest.mark.timeout(600)
def test_a_group_grows_and_shrinks_under_kills(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    corral = own_corral(f"sim:{GPUS}").start()
    fleet = Fleet(corral, shared)
    for _ in range(max(1, KILLS // (2 * EACH))):
        fleet.go_to(SIZE, EACH)
        check_full(corral)
        fleet.go_to(0, EACH)
        check_empty(corral)
    assert not (shared / "doubled").exists(), f"a GPU was given to two tasks: {(shared / 'doubled').read_text()}"


def check_full(corral: Corral) -> None:
    """Each instance has one task of each service and its own GPU; no other task or process is left."""
    ecs = corral.client("ecs")
    instances = described(ecs, "fleet")
    gpus = [gpu["gpuId"] for instance in instances for gpu in instance["gpuDevices"]]
    assert len(set(gpus)) == len(gpus) == SIZE, "each instance owns one GPU"
    tasks = ecs.describe_tasks(cluster="fleet", tasks=ecs.list_tasks(cluster="fleet")["taskArns"])["tasks"]
    homes = {(task["group"], task["containerInstanceArn"]) for task in tasks}
    assert len(homes) == len(tasks) == 2 * SIZE, tasks
    for name in ("replica", "daemon"):
        eventually(lambda name=name: len(corral.processes(name)) == SIZE, f"{SIZE} processes of {name}: {corral.processes(name)}")


def check_empty(corral: Corral) -> None:
    """The host owns all GPUs again, all activities have ended, and no process is left."""
    ecs, scaling, ec2 = (corral.client(service) for service in ("ecs", "autoscaling", "ec2"))
    [host] = described(ecs, "default")
    assert len(host["gpuDevices"]) == GPUS and all(gpu["sharingMode"] == "IDLE" for gpu in host["gpuDevices"])
    assert all("EndTime" in each for each in scaling.describe_scaling_activities(AutoScalingGroupName="fleet")["Activities"])
    found = [each for reservation in ec2.describe_instances()["Reservations"] for each in reservation["Instances"]]
    assert {each["State"]["Name"] for each in found} <= {"terminated"}
    tasks = ecs.describe_tasks(cluster="fleet", tasks=ecs.list_tasks(cluster="fleet")["taskArns"])["tasks"]
    assert [(task["lastStatus"], task["group"]) for task in tasks] == [("PROVISIONING", "service:replica")] * SIZE
    for name in ("replica", "daemon"):
        eventually(lambda name=name: not corral.processes(name), f"no process of {name} is left")


def described(ecs: Any, cluster: str) -> list[dict[str, Any]]:
    arns = ecs.list_container_instances(cluster=cluster)["containerInstanceArns"]
    return list(ecs.describe_container_instances(cluster=cluster, containerInstances=arns)["containerInstances"])
