"""The addresses of tasks in awsvpc mode: of their interface on the machine of the server, and of their host on other machines."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec.structs import replace

from corral.model.agent_protocol import HostOptions, StartOrder
from corral.model.instance import host_instance_id
from corral.model.run import Observed
from corral.services.ec2.network_interfaces import describe_network_interfaces
from corral.services.ecs import host_reports, task_metadata
from corral.services.ecs.handlers import HANDLERS
from services.test_host_life import Fleet
from simulation.clients import CALLER

ADDRESS, IN_DOCKER = "10.0.0.6", "172.18.0.2"
NETWORK = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
PORTS = {"web": [{"containerPort": 80}], "side": [{"containerPortRange": "9000-9001", "protocol": "udp"}], "idle": []}
BINDING = {"bindIP": ADDRESS, "containerPort": 80, "hostPort": 49153, "protocol": "tcp"}
ABOUT = {"runtimeId": "d", "privateIpv4Address": IN_DOCKER, "macAddress": "02:42:ac:12:00:02"}


class Vpc(Fleet):
    """A core with the host h0, which has joined unless it is that of the server."""

    def __init__(self, runtime: Literal["process", "docker"], *, joined: bool = True, address: str = ADDRESS) -> None:
        super().__init__()
        self.options = HostOptions(runtime=runtime, address=address)
        if joined:
            self.joins(0)
        self.says_hello(self.options)
        image = "corral/host" if runtime == "process" else "busybox"
        containers = [
            {"name": name, "image": image, "command": ["sleep", "9"], "memory": 6, "portMappings": ports}
            for name, ports in PORTS.items()
        ]
        gpu = [{"type": "GPU", "value": "1"}]
        containers[0]["resourceRequirements"] = gpu
        params = {"family": "vpc", "networkMode": "awsvpc", "containerDefinitions": containers}
        self.ask(lambda tx: HANDLERS["RegisterTaskDefinition"](tx, params, CALLER))

    def says_hello(self, options: HostOptions, runs: list[Observed] | None = None) -> None:
        self.ask(lambda tx: host_reports.hello(tx, replace(self.hello(0, 1), options=options, runs=runs or [])))

    def runs(self) -> str:
        params = {"taskDefinition": "vpc", "networkConfiguration": NETWORK}
        return str(self.ask(lambda tx: HANDLERS["RunTask"](tx, params, CALLER))["tasks"][0]["taskArn"])

    def starts(self, arn: str, **about: Any) -> list[Observed]:
        """The containers of a task start. Each becomes a plain process, or a container with these facts."""
        seen = [
            Observed(each["containerArn"].rpartition("/")[2], 1, self.clock.now_s(), about={**ABOUT, **about} if about else None)
            for each in self.shown(arn)["containers"]
        ]
        self.ask(lambda tx: host_reports.report(tx, "h0", seen))
        return seen

    def shown(self, arn: str) -> dict[str, Any]:
        found = self.ask(lambda tx: HANDLERS["DescribeTasks"](tx, {"tasks": [arn]}, CALLER))
        return dict(found["tasks"][0])

    def interfaces(self) -> list[dict[str, Any]]:
        return list(self.ask(lambda tx: describe_network_interfaces(tx, {}, CALLER))["NetworkInterfaces"])

    def orders_of(self, arn: str) -> list[StartOrder]:
        return [each for _, each in self.orders if isinstance(each, StartOrder) and each.spec.task_id == arn.rpartition("/")[2]]

    def metadata(self, arn: str) -> dict[str, Any]:
        run_id = self.shown(arn)["containers"][0]["containerArn"].rpartition("/")[2]
        return dict(self.ask(lambda tx: task_metadata.container_metadata(tx, run_id)))


def check_address(vpc: Vpc, arn: str) -> list[dict[str, Any]]:
    """The task has the address of its host, and no interface. Return its containers."""
    task = vpc.shown(arn)
    [attachment] = task["attachments"]
    assert (attachment["type"], attachment["status"]) == ("ElasticNetworkInterface", "ATTACHED")
    assert attachment["details"] == [{"name": "privateIPv4Address", "value": ADDRESS}]
    shown = [{"attachmentId": attachment["id"], "privateIpv4Address": ADDRESS}]
    assert [each["networkInterfaces"] for each in task["containers"]] == [shown] * len(PORTS)
    assert vpc.interfaces() == []
    return list(task["containers"])


def test_containers_on_another_host_have_its_address() -> None:
    vpc = Vpc("docker")
    first, second = vpc.runs(), vpc.runs()
    assert not vpc.orders_of(second), "the second task waits for the GPU"
    mappings = [
        {"containerPort": 80, "hostPort": 80, "protocol": "tcp"},
        {"containerPortRange": "9000-9001", "protocol": "udp"},
    ]
    for arn in (first, second):
        orders = vpc.orders_of(arn)
        given = [order.spec.settings["task"]["published"] for order in orders if order.spec.settings]
        assert given == [{"address": ADDRESS, "portMappings": mappings}] * len(PORTS)
        vpc.starts(arn, networkBindings=[BINDING])
        assert check_address(vpc, arn)[0]["networkBindings"] == [BINDING]
        about = vpc.metadata(arn)
        assert about["Networks"] == [{"NetworkMode": "awsvpc", "IPv4Addresses": [IN_DOCKER], "MACAddress": ABOUT["macAddress"]}]
        assert about["Ports"] == [{"ContainerPort": 80, "Protocol": "tcp", "HostPort": 49153, "HostIp": ADDRESS}]
        if arn == first:
            seen = [Observed(order.spec.run_id, 1, 1.0, vpc.clock.now_s(), 0) for order in orders]
            vpc.ask(lambda tx, seen=seen: host_reports.report(tx, "h0", seen))


def test_a_running_task_keeps_the_address_at_which_its_ports_are_published() -> None:
    vpc = Vpc("docker")
    arn = vpc.runs()
    seen = vpc.starts(arn, networkBindings=[BINDING])
    vpc.says_hello(replace(vpc.options, address="10.0.0.7"), seen)
    check_address(vpc, arn)


def test_processes_on_another_host_have_its_address_and_their_own_ports() -> None:
    vpc = Vpc("process")
    arn = vpc.runs()
    assert [each["networkBindings"] for each in check_address(vpc, arn)] == [[], [], []]
    vpc.starts(arn)
    web, side, idle = [each["networkBindings"] for each in check_address(vpc, arn)]
    assert web == [{**BINDING, "hostPort": 80}] and idle == []
    assert [(each["hostPort"], each["containerPort"], each["protocol"]) for each in side] == [
        (9000, 9000, "udp"),
        (9001, 9001, "udp"),
    ]
    about = vpc.metadata(arn)
    assert about["Networks"] == [{"NetworkMode": "host", "IPv4Addresses": [ADDRESS]}]
    assert about["Ports"] == [{"ContainerPort": 80, "Protocol": "tcp", "HostPort": 80, "HostIp": ADDRESS}]


@pytest.mark.parametrize("joined, address", [(False, ADDRESS), (True, "")])
def test_a_task_on_the_machine_of_the_server_has_an_interface(joined: bool, address: str) -> None:
    """A joined host without an address has connected by a loopback address, so it is on that machine, too."""
    vpc = Vpc("docker", joined=joined, address=address)
    arn = vpc.runs()
    assert all("published" not in order.spec.settings["task"] for order in vpc.orders_of(arn) if order.spec.settings)
    vpc.starts(arn, imageDigest="sha256:1")
    task, [interface] = vpc.shown(arn), vpc.interfaces()
    details = {each["name"]: each["value"] for each in task["attachments"][0]["details"]}
    assert details["privateIPv4Address"] == interface["PrivateIpAddress"] == IN_DOCKER
    assert details["networkInterfaceId"] == interface["NetworkInterfaceId"]
    assert {each["networkInterfaces"][0]["privateIpv4Address"] for each in task["containers"]} == {IN_DOCKER}
    assert interface["Attachment"]["InstanceId"].removeprefix("i-") in host_instance_id("h0")
