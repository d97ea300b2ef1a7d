"""Network modes: what a container can reach, how it is reached, and what DescribeTasks shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from command import Cli
from containers.running import Containers, python, shell
from engines.dockerd import Dockerd
from harness import Corral, eventually
from ports import free_port

pytestmark = pytest.mark.xdist_group("docker")

VPC = {"awsvpcConfiguration": {"subnets": ["subnet-1"], "assignPublicIp": "DISABLED"}}
BOTO3 = """
import boto3, json, os, urllib.request
who = boto3.client("sts").get_caller_identity()["Arn"]
about = json.load(urllib.request.urlopen(os.environ["ECS_CONTAINER_METADATA_URI_V4"]))
print(json.dumps([who, about]))
"""


@pytest.mark.parametrize("mode", ["host", "bridge", "awsvpc", "none"])
def test_boto3_inside_needs_no_configuration(run: Containers, mode: str):
    container, volumes = python(BOTO3)
    more = {"networkConfiguration": VPC} if mode == "awsvpc" else {}
    task = run(container, networkMode=mode, volumes=volumes, **more)
    assert task["containers"][0]["exitCode"] == 0, run.printed(task)
    [line] = run.printed(task)
    who, about = json.loads(line)
    task_id = task["taskArn"].rpartition("/")[2]
    assert who.endswith(f"/{task_id}")
    [network] = about["Networks"]
    if mode == "host":
        assert network == {"NetworkMode": "host", "IPv4Addresses": ["127.0.0.1"]}
    else:
        assert network["NetworkMode"] == mode
    assert about["DockerId"] == task["containers"][0]["runtimeId"]


@pytest.fixture
def another_bridge(run: Containers) -> Iterator[Callable[[], None]]:
    """Create an interface like that of another engine, whose route comes before ours. Yield a function that removes it."""

    def remove() -> None:
        subprocess.run(["ip", "link", "delete", "br-left"], capture_output=True)

    run(shell("true"), networkMode="none")  # our network is there
    ip("link", "add", "br-left", "type", "bridge")
    ip("address", "add", "169.254.170.2/24", "dev", "br-left")
    ip("link", "set", "br-left", "up")
    ip("route", "prepend", "169.254.170.0/24", "dev", "br-left", "src", "169.254.170.2")
    yield remove
    remove()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def test_a_bridge_of_another_engine_is_reported(run: Containers, dockerd: Dockerd, own: Cli, another_bridge):
    """Corral's responses to a task in mode none would go to that bridge, and the task would hang without a reason."""
    container, volumes = python(BOTO3)
    task = run(container, networkMode="none", volumes=volumes)
    assert task["stopCode"] == "TaskFailedToStart"
    assert task["stoppedReason"].startswith("CannotStartContainerError: the interface br-left has the same subnet as the network")
    assert task["stoppedReason"].endswith("remove the interface: ip link delete br-left")
    other = run(container, networkMode="bridge", volumes=volumes)
    assert other["containers"][0]["exitCode"] == 0, "a task that does not use that network is not refused"
    told = own("doctor", "--json", env={"DOCKER_HOST": dockerd.host}).stdout
    assert "br-left uses the subnet of the Docker network corral-inside" in told
    ip("route", "delete", "169.254.170.0/24", "dev", "br-left", "proto", "boot")
    for _ in range(2):  # first a route after ours, which does no harm, then no other route
        task = run(container, networkMode="none", volumes=volumes)
        assert task["containers"][0]["exitCode"] == 0, run.printed(task)
        assert "br-left" not in own("doctor", "--json", env={"DOCKER_HOST": dockerd.host}).stdout
        another_bridge()


def test_removed_networks_are_created_again(run: Containers, dockerd: Dockerd):
    """`docker network prune` removes networks without containers."""
    for mode, more in (("bridge", {}), ("none", {}), ("awsvpc", {"networkConfiguration": VPC})):
        for kept in dockerd.containers("label=corral.pause"):
            dockerd("rm", "-f", kept)
        dockerd("network", "prune", "-f")
        assert "corral" not in dockerd("network", "ls")
        task = run(shell("wget -qO- $ECS_CONTAINER_METADATA_URI_V4 | grep -c DockerId"), networkMode=mode, **more)
        assert run.printed(task) == ["1"], (mode, task["stoppedReason"], task["containers"])


def reaches_corral(dockerd: Dockerd, container: str) -> bool:
    """Whether a program in the container can fetch the task's metadata."""
    fetch = ["sh", "-c", "timeout 2 wget -qO- $ECS_CONTAINER_METADATA_URI_V4"]
    done = subprocess.run(["docker", "-H", dockerd.host, "exec", container, *fetch], capture_output=True)
    return done.returncode == 0


def test_networks_removed_under_running_tasks(run: Containers, corral: Corral, dockerd: Dockerd):
    """They are created again and their containers connected again, also if the agent was dead in the meantime."""
    [bridge] = run.start(shell("sleep 3000"), networkMode="bridge")
    [vpc] = run.start(shell("sleep 3000"), networkMode="awsvpc", networkConfiguration=VPC)
    containers = [run.until(arn)["containers"][0]["runtimeId"] for arn in (bridge, vpc)]
    [pause] = dockerd.containers(f"label=corral.pause={vpc.rpartition('/')[2]}")
    assert all(reaches_corral(dockerd, container) for container in containers)

    def restored() -> bool:
        return all(reaches_corral(dockerd, container) for container in containers)

    assert "corral-inside" in dockerd("system", "prune", "-f")
    eventually(restored, "they reach Corral after docker system prune")
    for kill in (False, True):
        if kill:
            corral.kill("corral.node")
        for connected in (containers[0], pause):
            dockerd("network", "disconnect", "-f", "corral", connected)
        eventually(restored, "they reach Corral after they were disconnected")
    inside = dockerd("inspect", "--format", "{{.NetworkSettings.Networks.corral.IPAddress}}", pause)
    eventually(lambda: run.show(vpc)["containers"][0]["networkInterfaces"][0]["privateIpv4Address"] == inside)
    for arn in (bridge, vpc):
        assert run.stop(arn)["containers"][0]["exitCode"] == 137


def test_doctor_reports_removed_networks(run: Containers, corral: Corral, dockerd: Dockerd, own: Cli):
    def told(code: int = 1) -> str:  # 1: the agent is stopped
        where = {"DOCKER_HOST": dockerd.host, "CORRAL_DATA": str(corral.data)}
        return own("doctor", "--json", env=where, code=code).stdout

    [arn] = run.start(shell("sleep 3000"), networkMode="bridge")
    container = run.until(arn)["containers"][0]["runtimeId"]
    [agent] = corral.processes("corral.node")
    os.kill(agent, signal.SIGSTOP)
    try:
        dockerd("network", "disconnect", "-f", "corral", container)
        assert "1 running container not connected to the Docker networks" in told()
        dockerd("network", "prune", "-f")
        missing = [line for line in told().splitlines() if "missing Docker networks" in line]
        assert "corral-inside; 1 running container cannot reach Corral" in missing[0]
    finally:
        os.kill(agent, signal.SIGCONT)
    eventually(lambda: reaches_corral(dockerd, container))
    assert "the Docker networks corral and corral-inside connect 1 running container" in told(0)
    run.stop(arn)


def test_ports_of_a_bridge_are_bound_and_shown(run: Containers):
    server = "mkdir -p /tmp/w; echo hello > /tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    [arn] = run.start(shell(server, portMappings=[{"containerPort": 80}]), networkMode="bridge")
    [container] = run.until(arn)["containers"]
    [binding] = container["networkBindings"]
    assert (binding["containerPort"], binding["protocol"], binding["bindIP"]) == (80, "tcp", "0.0.0.0")
    assert binding["hostPort"] > 0
    assert _fetch(f"http://127.0.0.1:{binding['hostPort']}/") == "hello\n"
    run.stop(arn)


def test_a_port_of_the_host_may_be_chosen(run: Containers):
    free = free_port()
    ports = [{"containerPort": 80, "hostPort": free}, {"containerPort": 53, "protocol": "udp"}, {"containerPortRange": "9000-9001"}]
    [arn] = run.start(shell("sleep 300", portMappings=ports), networkMode="bridge")
    [container] = run.until(arn)["containers"]
    shown = {(binding["containerPort"], binding["protocol"]): binding["hostPort"] for binding in container["networkBindings"]}
    assert shown.keys() == {(80, "tcp"), (53, "udp"), (9000, "tcp"), (9001, "tcp")}
    assert shown[80, "tcp"] == free and all(shown.values())
    taken = run(shell("true", portMappings=ports[:1]), networkMode="bridge")
    assert taken["stoppedReason"].startswith("CannotStartContainerError: Error response from daemon: ")
    assert str(free) in taken["stoppedReason"]
    run.stop(arn)


def test_in_host_mode_a_container_port_is_a_host_port(run: Containers):
    [arn] = run.start(shell("sleep 300", portMappings=[{"containerPort": 18080}]), networkMode="host")
    [container] = run.until(arn)["containers"]
    assert container["networkBindings"] == [{"bindIP": "0.0.0.0", "containerPort": 18080, "hostPort": 18080, "protocol": "tcp"}]
    run.stop(arn)


def test_a_task_in_awsvpc_mode_has_one_address_for_all_its_containers(run: Containers, corral: Corral):
    server = "mkdir -p /tmp/w; echo hello > /tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    client = "until wget -qO- http://127.0.0.1/; do sleep 0.1; done; ip -o addr show eth0; sleep 300"
    containers = [
        shell(server, name="server"),
        shell(client, name="client", dependsOn=[{"containerName": "server", "condition": "START"}]),
    ]
    [arn] = run.start(*containers, networkMode="awsvpc", networkConfiguration=VPC)
    task = run.until(arn)
    [attachment] = task["attachments"]
    details = {pair["name"]: pair["value"] for pair in attachment["details"]}
    assert (attachment["type"], attachment["status"], details["subnetId"]) == ("ElasticNetworkInterface", "ATTACHED", "subnet-1")
    address = details["privateIPv4Address"]
    for container in task["containers"]:
        assert container["networkInterfaces"] == [{"attachmentId": attachment["id"], "privateIpv4Address": address}]
    ec2, named = corral.client("ec2"), {"NetworkInterfaceIds": [details["networkInterfaceId"]]}
    [interface] = ec2.describe_network_interfaces(**named)["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["PrivateIpAddress"], interface["Status"]) == ("subnet-1", address, "in-use")
    assert interface["Description"] == f"arn:aws:ecs:us-east-1:123456789012:attachment/{attachment['id']}"
    assert _fetch(f"http://{address}/") == "hello\n"
    printed = eventually(lambda: len(lines := run.printed(arn, "client")) == 2 and lines)
    assert printed[0] == "hello" and address in printed[1]
    run.stop(arn)
    with pytest.raises(ec2.exceptions.ClientError, match="InvalidNetworkInterfaceID"):
        ec2.describe_network_interfaces(**named)


def test_links_lead_to_the_other_container(run: Containers):
    server = "mkdir -p /tmp/w; echo linked > /tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    client = "until wget -qO- http://db/ && wget -qO- http://server/; do sleep 0.1; done"
    task = run(shell(client, links=["server:db"]), shell(server, name="server", essential=False), networkMode="bridge")
    assert run.printed(task) == ["linked", "linked"]


def test_names_and_the_host_of_its_own(run: Containers):
    task = run(
        shell("hostname; cat /etc/hosts /etc/resolv.conf", hostname="box", dnsServers=["192.0.2.53"], dnsSearchDomains=["x.test"],
              extraHosts=[{"hostname": "far", "ipAddress": "192.0.2.7"}]),
        networkMode="none",
    )  # fmt: skip
    lines = run.printed(task)
    assert lines[0] == "box" and "192.0.2.7\tfar" in lines
    assert "search x.test" in lines


def _fetch(url: str) -> str:
    def fetched() -> str | None:
        try:
            return urllib.request.urlopen(url, timeout=5).read().decode()
        except OSError:
            return None

    return eventually(fetched, url)
