"""Failed GPUs: no task gets them, their tasks are told, their instances are replaced, and healed GPUs come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import Cli
from eventually import eventually

FAULT = "Xid 79: the GPU has fallen off the bus"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    made("up", "-d", "--port", "0", "--gpus", "sim:3")
    yield made
    made.clear()


def gpus(cli: Cli) -> list[dict[str, Any]]:
    return list(cli.json("status")["hosts"][0]["gpus"])


def register(ecs: Any, family: str, command: str, count: str = "1") -> None:
    container = {
        "name": "main", "image": "corral/host", "memory": 64, "command": ["sh", "-c", command],
        "resourceRequirements": [{"type": "GPU", "value": count}],
        "logConfiguration": {"logDriver": "awslogs", "options": {
            "awslogs-group": "/fail", "awslogs-region": "us-east-1", "awslogs-stream-prefix": "x", "awslogs-create-group": "true",
        }},
    }  # fmt: skip
    ecs.register_task_definition(family=family, containerDefinitions=[container])


def described(ecs: Any, arn: str) -> dict[str, Any]:
    return dict(ecs.describe_tasks(tasks=[arn])["tasks"][0])


def health(ecs: Any, *instances: str) -> dict[str, Any]:
    arns = list(instances) or ecs.list_container_instances()["containerInstanceArns"]
    reply = ecs.describe_container_instances(containerInstances=arns, include=["CONTAINER_INSTANCE_HEALTH"])
    return dict(reply["containerInstances"][0]["healthStatus"])


def test_a_failed_gpu_is_set_aside_and_its_task_is_told(cli: Cli) -> None:
    ecs, logs = cli.client("ecs"), cli.client("logs")
    register(ecs, "holder", "while [ ! -e end ]; do sleep 0.05; done; exit 3")
    task = ecs.run_task(taskDefinition="holder")["tasks"][0]
    [gpu_id] = task["containers"][0]["gpuIds"]
    eventually(lambda: described(ecs, task["taskArn"])["lastStatus"] == "RUNNING")
    assert health(ecs)["overallStatus"] == "OK"

    assert f"failed: {FAULT}" in cli("gpu", "fail", gpu_id).stdout
    status = health(ecs)
    [check] = [each for each in status["details"] if each["type"] == "ACCELERATED_COMPUTE"]
    assert (status["overallStatus"], check["status"]) == ("IMPAIRED", "IMPAIRED")
    assert check["statusReason"] == f"{gpu_id} failed: {FAULT}"
    assert f"failed: {FAULT}" in " ".join(cli("status").stdout.split())
    assert 'corral_gpus{Hostname="' in cli("metrics").stdout and ',state="failed"} 1' in cli("metrics").stdout

    def lines() -> list[str]:
        return [event["message"] for event in logs.filter_log_events(logGroupName="/fail")["events"]]

    eventually(lambda: lines() == [f"corral: {gpu_id} failed: {FAULT}"], "its log has the fault")
    # Its task keeps the GPU. When the task ends with an error, the reason names the fault.
    register(ecs, "three", "true", "3")
    waiting = ecs.run_task(taskDefinition="three")["tasks"][0]
    assert f"1 GPU is withheld: failed: {FAULT}" in waiting["containers"][0]["reason"]
    [work] = eventually(lambda: list((cli.data / "node" / "work").glob("*")))
    (work / "end").touch()
    eventually(lambda: described(ecs, task["taskArn"])["lastStatus"] == "STOPPED")
    assert described(ecs, task["taskArn"])["containers"][0]["reason"] == f"{gpu_id} failed: {FAULT}"
    assert described(ecs, waiting["taskArn"])["lastStatus"] == "PROVISIONING", "no task gets the GPU"

    # The fault survives a crash of the agent and of the server.
    os.kill(cli.pid("agent.lock"), signal.SIGKILL)
    cli("down")
    cli("up", "-d", "--port", "0", "--gpus", "sim:3")
    assert [gpu["fault"] for gpu in gpus(cli) if gpu["id"] == gpu_id] == [FAULT]
    assert f"{gpu_id}) is free for tasks again" in cli("gpu", "heal", gpu_id).stdout
    ecs = cli.client("ecs")
    eventually(lambda: described(ecs, waiting["taskArn"])["lastStatus"] == "STOPPED", "the waiting task ran on all GPUs")
    assert health(ecs)["overallStatus"] == "OK"


def test_errors_of_applications_set_no_gpu_aside(cli: Cli) -> None:
    assert "Xid 31 does not set a GPU aside: GPU 0 (" in cli("gpu", "fail", "0", "--xid", "31").stdout
    assert [gpu["fault"] for gpu in gpus(cli)] == [None] * 3
    xid = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",'
    eventually(lambda: [line[-3:] for line in cli("metrics").stdout.splitlines() if line.startswith(xid)] == [" 31"], "shown")
    assert "no GPU matches 7. The GPUs are: GPU 0 (GPU-" in cli("gpu", "fail", "7", code=1).stderr
    assert cli.json("gpu", "heal", "0")["fault"] is None, "a GPU that works stays as it is"


def test_a_group_replaces_the_instance_of_a_failed_gpu(cli: Cli) -> None:
    scaling, ec2 = cli.client("autoscaling"), cli.client("ec2")
    scaling.create_launch_configuration(LaunchConfigurationName="one", ImageId="ami-0123456789abcdef0", InstanceType="g5.xlarge")
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="fleet", LaunchConfigurationName="one", MinSize=1, MaxSize=1, AvailabilityZones=["us-east-1a"]
    )

    def in_service() -> str | None:
        [group] = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["fleet"])["AutoScalingGroups"]
        found = [each["InstanceId"] for each in group["Instances"] if each["LifecycleState"] == "InService"]
        return found[0] if found else None

    first = eventually(in_service)
    [gpu] = [gpu for gpu in gpus(cli) if gpu["instance"] == first]
    cli("gpu", "fail", gpu["id"], "--xid", "48")
    eventually(lambda: in_service() not in (None, first), "another instance serves")
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[first])
    [other] = [gpu for gpu in gpus(cli) if gpu["instance"] == in_service()]
    assert other["id"] != gpu["id"] and other["fault"] is None
    causes = [each["Cause"] for each in scaling.describe_scaling_activities(AutoScalingGroupName="fleet")["Activities"]]
    wanted = f"in response to a failed GPU ({gpu['id']}: Xid 48: an uncorrectable memory error)"
    assert any(wanted in cause for cause in causes), causes
