"""A whole GPU cluster by template: deploy, run 1-GPU tasks until no GPU is free, redeploy with larger instances, delete.

All commands are those of the stock `aws` command. Tasks run as processes, whatever image they name.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forkserver
from eventually import eventually
from harness import Corral

TEMPLATE = str(Path(__file__).parent / "templates" / "cluster-cpu-gpu.yml")
STACK = "tensorflow-test"
CLUSTER_QUERY = "Stacks[0].Outputs[?OutputKey==`ClusterName`].OutputValue"


def run(corral: Corral, *arguments: str, code: int = 0) -> str:
    """Run the stock aws command, and return what it prints."""
    program = forkserver.program("aws")
    done = subprocess.run([program, *arguments], env=corral.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"aws {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def deploy(corral: Corral, *parameters: str) -> None:
    overrides = ("--parameter-overrides", *parameters) if parameters else ()
    capabilities = ("--capabilities", "CAPABILITY_IAM")
    run(corral, "cloudformation", "deploy", "--stack-name", STACK, "--template-file", TEMPLATE, *overrides, *capabilities)


def cluster_of(corral: Corral) -> str:
    query = ("--query", CLUSTER_QUERY, "--output", "text")
    return run(corral, "cloudformation", "describe-stacks", "--stack-name", STACK, *query).strip()


def register(corral: Corral, folder: Path, gpus: int, memory: str) -> None:
    container = {
        "name": "tensorflow",
        "image": "example/tensorflow-benchmark:latest",
        "entryPoint": ["sh", "-c"],
        "command": ["echo devices $NVIDIA_VISIBLE_DEVICES; exec sleep 600"],
        "resourceRequirements": [{"type": "GPU", "value": str(gpus)}],
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {"awslogs-group": "tensorflow", "awslogs-region": "us-east-1", "awslogs-stream-prefix": f"gpu-{gpus}"},
        },
        "essential": True,
    }
    definition = {"family": f"tensorflow-{gpus}-gpu", "cpu": "1024", "memory": memory, "containerDefinitions": [container]}
    file = folder / f"gpu-{gpus}-taskdef.json"
    file.write_text(json.dumps(definition))
    run(corral, "ecs", "register-task-definition", "--cli-input-json", f"file://{file}")


def run_task(corral: Corral, cluster: str, gpus: int) -> dict[str, Any]:
    return corral.aws("ecs", "run-task", "--cluster", cluster, "--task-definition", f"tensorflow-{gpus}-gpu")


def gpus_of(reply: dict[str, Any]) -> list[str]:
    assert not reply["failures"], reply["failures"]
    [task] = reply["tasks"]
    return task["containers"][0]["gpuIds"]


def members(corral: Corral, group: str) -> set[str]:
    """The ids of the instances of a group, which is named by its logical id."""
    physical = corral.client("cloudformation").describe_stack_resource(StackName=STACK, LogicalResourceId=group)
    name = physical["StackResourceDetail"]["PhysicalResourceId"]
    [found] = corral.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return {each["InstanceId"] for each in found["Instances"] if each["LifecycleState"] == "InService"}


def live_instances(corral: Corral) -> list[str]:
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]}]
    reply = corral.client("ec2").describe_instances(Filters=filters)
    return [each["InstanceId"] for reservation in reply["Reservations"] for each in reservation["Instances"]]


def stop_all(corral: Corral, cluster: str) -> None:
    ecs = corral.client("ecs")
    arns = ecs.list_tasks(cluster=cluster)["taskArns"]
    for arn in arns:
        ecs.stop_task(cluster=cluster, task=arn)
    eventually(
        lambda: all(task["lastStatus"] == "STOPPED" for task in ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"]),
        "all tasks stopped",
    )


def delete(corral: Corral) -> None:
    run(corral, "cloudformation", "delete-stack", "--stack-name", STACK)
    eventually(lambda: STACK not in stacks(corral), "the stack is deleted", 60)


def stacks(corral: Corral) -> list[str]:
    return [each["StackName"] for each in corral.client("cloudformation").describe_stacks()["Stacks"]]


def status(corral: Corral) -> dict[str, Any]:
    done = subprocess.run(
        [forkserver.program("corral"), "status", "--json", "--data", str(corral.data)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def assert_nothing_left(corral: Corral) -> None:
    assert live_instances(corral) == []
    ecs = corral.client("ecs")
    active = ecs.describe_clusters(clusters=ecs.list_clusters()["clusterArns"])["clusters"]
    assert [each["clusterName"] for each in active if each["status"] == "ACTIVE"] in ([], ["default"])
    assert corral.client("logs").describe_log_groups(logGroupNamePrefix="tensorflow")["logGroups"] == []
    assert corral.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert corral.client("cloudformation").list_exports()["Exports"] == []
    vpcs = corral.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])
    assert vpcs["Vpcs"] == []
    assert corral.client("iam").list_instance_profiles()["InstanceProfiles"] == []
    gpus = [gpu for host in status(corral)["hosts"] for gpu in host["gpus"]]
    assert gpus and not any(gpu.get("task") or gpu.get("instance") for gpu in gpus), gpus


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Any]:
    started: list[Corral] = []

    def start(gpus: str, configuration: str = "") -> Corral:
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        if configuration:
            (data / "corral.toml").write_text(configuration)
        started.append(Corral(data, gpus, "--runtime", "process").start())
        return started[-1]

    yield start
    for each in started:
        each.clear()


def test_a_gpu_cluster_from_deploy_to_delete(machine: Any, tmp_path: Path) -> None:
    corral = machine("sim:16")
    deploy(corral)
    cluster = cluster_of(corral)
    assert re.fullmatch(rf"{STACK}-ECSCluster-[A-Za-z0-9]+", cluster)
    exports = corral.client("cloudformation").list_exports()["Exports"]
    assert {each["Name"]: each["Value"] for each in exports}[f"{STACK}:ClusterName"] == cluster
    cpu, gpu = members(corral, "CPUGroup"), members(corral, "GPUGroup")
    assert len(cpu) == len(gpu) == 2

    register(corral, tmp_path, 1, "6144")
    first, second = (gpus_of(run_task(corral, cluster, 1)) for _ in range(2))
    assert len(first) == len(second) == 1 and first != second
    refused = run_task(corral, cluster, 1)
    assert refused["tasks"] == [] and {failure["reason"] for failure in refused["failures"]} == {"RESOURCE:GPU"}
    stop_all(corral, cluster)
    gpus_of(run_task(corral, cluster, 1))  # works again, and still runs when its group is replaced

    deploy(corral, "GPUInstanceType=p3.16xlarge")
    assert cluster_of(corral) == cluster and members(corral, "CPUGroup") == cpu
    larger = members(corral, "GPUGroup")
    assert len(larger) == 2 and not larger & gpu
    register(corral, tmp_path, 4, "8192")
    register(corral, tmp_path, 8, "131072")
    four, eight = run_task(corral, cluster, 4), run_task(corral, cluster, 8)
    assert len(gpus_of(four)) == 4 and len(gpus_of(eight)) == 8 and not set(gpus_of(four)) & set(gpus_of(eight))
    logs = corral.client("logs")

    def printed() -> bool:
        events = logs.filter_log_events(logGroupName="tensorflow", filterPattern="devices")["events"]
        devices = [event["message"].removeprefix("devices ").split(",") for event in events]
        return sorted(map(len, devices))[-2:] == [4, 8]

    eventually(printed, "both tasks have printed their GPUs")

    delete(corral)
    assert_nothing_left(corral)
    kept = corral.client("cloudformation").list_stacks(StackStatusFilter=["DELETE_COMPLETE"])["StackSummaries"]
    assert [each["StackName"] for each in kept] == [STACK]


def test_a_template_for_large_instances_runs_on_a_small_machine(machine: Any, tmp_path: Path) -> None:
    corral = machine("sim:4", "[instance-types]\np3.16xlarge = {gpus = 2}\n")
    deploy(corral)
    cluster = cluster_of(corral)
    deploy(corral, "GPUInstanceType=p3.16xlarge")
    for gpus, memory in ((1, "6144"), (4, "8192"), (8, "131072")):
        register(corral, tmp_path, gpus, memory)
    assert len({gpu for _ in range(4) for gpu in gpus_of(run_task(corral, cluster, 1))}) == 4
    stop_all(corral, cluster)
    for gpus in (4, 8):
        refused = run_task(corral, cluster, gpus)
        assert refused["tasks"] == [] and {failure["reason"] for failure in refused["failures"]} == {"RESOURCE:GPU"}
    shown = subprocess.run(
        [forkserver.program("corral"), "status", "--data", str(corral.data)], capture_output=True, text=True, check=True
    ).stdout
    assert "p3.16xlarge = {gpus = 2}" in shown
    delete(corral)
    assert_nothing_left(corral)
