"""The shipped template of a GPU service, with containers: its image is pushed later, and a collector writes the metric of its GPUs.

The collector is not the CloudWatch agent, which needs a registry of AWS. A shell script in an image under its name, as in a pull
through cache of ECR, writes the same log events.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.test_docker_push_pull import Docker
from engines.dockerd import Dockerd, busybox_files
from harness import Corral, eventually

pytestmark = pytest.mark.xdist_group("docker")

TEMPLATE = Path(__file__).parent.parent.parent / "templates" / "gpu-service.yaml"
STACK = "gpus"
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
COLLECTOR = "ecr-public/cloudwatch-agent/cloudwatch-agent"
METRIC = {"Namespace": "ECS/ContainerInsights/Prometheus", "MetricName": "DCGM_FI_DEV_GPU_UTIL"}
# It reads the names from its configuration, as the agent does, and writes the format of the agent. Only the resolution of a second
# differs: a value of the agent counts from the next minute on, because Corral has published its own values in the current one.
COLLECT = r"""#!/bin/sh
trap exit TERM
label() { echo "$PROMETHEUS_CONFIG_CONTENT" | sed -n "s/.*$1: //p"; }
echo "$CW_CONFIG_CONTENT" | grep -q '"prometheus_config_path": "env:PROMETHEUS_CONFIG_CONTENT"' || exit 1
while true; do
  echo '{"CloudWatchMetrics":[{"Namespace":"ECS/ContainerInsights/Prometheus","Dimensions":[["ClusterName","ServiceName"]],' \
    '"Metrics":[{"Name":"DCGM_FI_DEV_GPU_UTIL","StorageResolution":1}]}],"Version":"0","Timestamp":"'$(date +%s)000'",' \
    '"ClusterName":"'$(label ClusterName)'","ServiceName":"'$(label ServiceName)'","DCGM_FI_DEV_GPU_UTIL":90}'
  sleep 1
done
"""


def create_stack(corral: Corral, **parameters: str) -> None:
    given = [{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()]
    corral.client("cloudformation").create_stack(
        StackName=STACK, TemplateBody=TEMPLATE.read_text(), Parameters=given, Capabilities=["CAPABILITY_IAM"]
    )


def status(corral: Corral) -> str:
    return str(corral.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]["StackStatus"])


def physical_id(corral: Corral, logical_id: str) -> str | None:
    """The id of a resource of the stack, once it was created."""
    cloudformation = corral.client("cloudformation")
    try:
        found = cloudformation.describe_stack_resource(StackName=STACK, LogicalResourceId=logical_id)["StackResourceDetail"]
    except cloudformation.exceptions.ClientError:
        return None
    return found.get("PhysicalResourceId")


def reasons(ecs: Any, cluster: str) -> str:
    arns = [arn for state in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(cluster=cluster, desiredStatus=state)["taskArns"]]
    tasks = ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []
    return " ".join(container.get("reason", "") for task in tasks for container in task["containers"])


def ended(ecs: Any, cluster: str, task: str) -> list[dict[str, Any]]:
    return [each for each in ecs.describe_tasks(cluster=cluster, tasks=[task])["tasks"] if each["lastStatus"] == "STOPPED"]


def test_a_service_starts_when_its_image_is_pushed_and_follows_a_collector(
    own_docker_corral: Callable[..., Corral], dockerd: Dockerd, tmp_path: Path
) -> None:
    corral = own_docker_corral().start()
    docker, ecs = Docker(dockerd, tmp_path, corral), corral.client("ecs")
    corral.client("ecr").create_repository(repositoryName=COLLECTOR)
    files, links = busybox_files()
    dockerd.make_image("collector:1", files | {"collect": COLLECT.encode()}, links, 'CMD ["/collect"]')
    docker.push(COLLECTOR, "latest", "collector:1")

    image = f"{REGISTRY}/{COLLECTOR}:latest"
    command = "trap 'exit 7' TERM; while sleep 0.1; do :; done"  # the shell of the template passes SIGTERM on to it
    create_stack(corral, Collector="true", CollectorImage=image, TasksMax="2", TaskMemory="128", Cooldown="4", Command=command)
    eventually(lambda: physical_id(corral, "Service"), "the service was created")
    cluster, repository = physical_id(corral, "Cluster"), physical_id(corral, "Repository")
    assert cluster is not None and repository is not None
    eventually(lambda: "CannotPullContainerError" in reasons(ecs, cluster), "the first task waits for its image")
    assert status(corral) == "CREATE_IN_PROGRESS"
    docker.push(repository, "latest")
    eventually(lambda: status(corral) == "CREATE_COMPLETE", "the stack is stable", 60)

    name = [{"Name": "ClusterName", "Value": cluster}, {"Name": "ServiceName", "Value": STACK}]
    cloudwatch = corral.client("cloudwatch")
    eventually(lambda: cloudwatch.list_metrics(**METRIC, Dimensions=name)["Metrics"], "the collector writes the metric")

    def counts() -> tuple[int, int]:
        [service] = ecs.describe_services(cluster=cluster, services=[STACK])["services"]
        return service["desiredCount"], service["runningCount"]

    eventually(lambda: counts() == (2, 2), "90 percent of one GPU needs a second task", 90)
    [task, _] = ecs.list_tasks(cluster=cluster)["taskArns"]
    ecs.stop_task(cluster=cluster, task=task)
    [stopped] = eventually(lambda: ended(ecs, cluster, task), "the task ends before it is killed", 60)
    assert [each["exitCode"] for each in stopped["containers"] if each["name"] == "gpu"] == [7]
    corral.client("cloudformation").delete_stack(StackName=STACK)
    eventually(lambda: physical_id(corral, "Cluster") is None, "the stack is deleted", 60)
    assert dockerd.containers(f"label=corral.host={corral.host_id}", "status=running") == []
