"""`corral up --cluster NAME --instance-type TYPE`: the machine joins the named cluster, as an EC2 instance does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Cli
from harness import container, eventually


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("lab"))
    cli("up", "--detach", "--port", "0", "--gpus", "sim:2", "--cluster", "ml", "--instance-type", "p3.8xlarge")
    yield cli
    cli("down", "--stop-tasks")


def test_the_cluster_has_the_machine_in_every_region(lab: Cli) -> None:
    ecs = lab.client("ecs")
    assert [arn.rpartition("/")[2] for arn in ecs.list_clusters()["clusterArns"]] == ["default", "ml"]
    [ours, default] = ecs.describe_clusters(clusters=["ml", "default"])["clusters"]
    assert (ours["registeredContainerInstancesCount"], default["registeredContainerInstancesCount"]) == (1, 0)
    assert ours["capacityProviders"] == ["host"]
    assert ours["defaultCapacityProviderStrategy"] == [{"capacityProvider": "host", "weight": 1, "base": 0}]
    [arn] = ecs.list_container_instances(cluster="ml")["containerInstanceArns"]
    [instance] = ecs.describe_container_instances(cluster="ml", containerInstances=[arn])["containerInstances"]
    assert {"name": "ecs.instance-type", "value": "p3.8xlarge"} in instance["attributes"]
    assert instance["ec2InstanceId"].startswith("i-") and len(instance["ec2InstanceId"]) == 19
    assert ecs.list_container_instances()["containerInstanceArns"] == []
    with pytest.raises(ecs.exceptions.ClientException, match="cannot be deleted"):
        ecs.delete_cluster(cluster="ml")


def test_a_member_of_expression_on_the_instance_type(lab: Cli) -> None:
    ecs = lab.client("ecs")
    ecs.register_task_definition(family="typed", containerDefinitions=[container(["true"], 1)])

    def run(expression: str) -> dict:
        rule = {"type": "memberOf", "expression": expression}
        return ecs.run_task(cluster="ml", taskDefinition="typed", launchType="EC2", placementConstraints=[rule])

    assert run("attribute:ecs.instance-type =~ p3.*")["tasks"][0]["containers"][0]["gpuIds"]
    [failure] = run("attribute:ecs.instance-type == g5.xlarge")["failures"]
    assert failure["reason"] == "MemberOf placement constraint unsatisfied."
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="No Container Instances were found"):
        ecs.run_task(taskDefinition="typed")


def test_verbs_mean_the_cluster_of_the_machine(lab: Cli) -> None:
    task = lab("run", "--detach", "--name", "here", "--gpus", "1", "--", "sleep", "600").stdout.strip()
    [listed] = [each for each in lab.json("ps") if each["taskArn"].endswith(task)]
    assert listed["clusterArn"].endswith(":cluster/ml")
    assert "export CORRAL_CLUSTER=ml" in lab("env").stdout
    held = lab("hold", "1", "--for", "me").stdout
    assert "held: me" in held
    lab("hold", "1", "--release")
    assert lab("run", "--name", "quick", "--", "echo", "done here").stdout == "done here\n"
    assert lab("ps", "--cluster", "default").stdout.startswith("No tasks")
    lab("stop", "--wait", task)


def test_a_restart_with_another_name_moves_the_machine(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    up = ("up", "--detach", "--port", "0", "--gpus", "sim:1")
    cli(*up, "--cluster", "first")
    running = cli("run", "--detach", "--gpus", "1", "--name", "long", "--", "sleep", "600").stdout.strip()
    agent = cli.pid("agent.lock")
    os.kill(json.loads((cli.data / "server.json").read_text())["pid"], signal.SIGKILL)
    cli(*up, "--cluster", "second")
    assert cli.pid("agent.lock") != agent, "the agent has outlived its server, but has other options than the next one"
    waiting = cli("run", "--detach", "--gpus", "1", "--name", "next", "--", "true").stdout.strip()
    ecs = cli.client("ecs")
    assert "first" in [arn.rpartition("/")[2] for arn in ecs.list_clusters()["clusterArns"]]
    assert ecs.describe_tasks(cluster="first", tasks=[running])["tasks"][0]["lastStatus"] == "RUNNING"
    assert ecs.describe_tasks(cluster="second", tasks=[waiting])["tasks"][0]["lastStatus"] == "PROVISIONING"
    ecs.stop_task(cluster="first", task=running)
    eventually(lambda: ecs.describe_tasks(cluster="second", tasks=[waiting])["tasks"][0]["lastStatus"] == "STOPPED")
    cli("down")


@pytest.mark.parametrize(("option", "value"), [("--cluster", "no spaces"), ("--instance-type", "large")])
def test_bad_names_are_refused_before_anything_starts(tmp_path: Path, option: str, value: str) -> None:
    assert option in Cli(tmp_path)("up", "--detach", option, value, code=2).stderr
