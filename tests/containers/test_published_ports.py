"""Ports of tasks in awsvpc mode that the pause container publishes at the address of the host."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.clock import VirtualClock
from corral.node.docker_engine import DockerEngine
from engines.dockerd import BUSYBOX, Dockerd
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec
from eventually import eventually
from ports import free_port

pytestmark = pytest.mark.xdist_group("docker")

ADDRESS = "127.0.0.6"
SERVE = "mkdir -p /tmp/w; echo {0} > /tmp/w/index.html; httpd -f -p {0} -h /tmp/w"


@pytest.fixture
def node(tmp_path: Any) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


def engine(node: NodeFolder, dockerd: Dockerd) -> Driver:
    return Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, VirtualClock()), node)


def start(driver: Driver, task_id: str, ports: list[int], address: str = ADDRESS) -> list[dict[str, Any]]:
    """Start a task with a container per port. Return the bindings of each container."""
    mappings = [{"containerPort": port, "hostPort": port, "protocol": "tcp"} for port in ports]
    task = {"networkMode": "awsvpc", "published": {"address": address, "portMappings": mappings}}
    runs = [f"{task_id}-{port}" for port in ports]
    for run_id, port, mapping in zip(runs, ports, mappings, strict=True):
        given = settings(task, command=["sh", "-c", SERVE.format(port)], portMappings=[mapping])
        driver.engine.start([replace(spec(run_id), image=BUSYBOX, task_id=task_id, settings=given, stop_grace_s=0)])
    for run_id in runs:
        driver.started(run_id)
    found = [driver.engine.observe()[run_id].observed.about["networkBindings"] for run_id in runs]
    return [binding for [binding] in found]


def stop(driver: Driver) -> None:
    alive = [run_id for run_id, run in driver.engine.observe().items() if run.alive]
    driver.engine.stop(alive)
    for run_id in alive:
        driver.ended(run_id)
    driver.close()


def fetch(binding: dict[str, Any], address: str = "") -> str:
    url = f"http://{address or binding['bindIP']}:{binding['hostPort']}/"

    def answer() -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return str(response.read().decode())
        except OSError:  # the server has not started
            return ""

    return eventually(answer)


def test_a_port_that_is_taken_is_replaced_by_a_free_one(node: NodeFolder, dockerd: Dockerd) -> None:
    driver = engine(node, dockerd)
    shared, taken, own = free_port(ADDRESS), socket.create_server((ADDRESS, 0)), free_port(ADDRESS)
    ports = [shared, taken.getsockname()[1]]
    first = start(driver, "first", ports)
    assert first[0] == {"bindIP": ADDRESS, "containerPort": shared, "hostPort": shared, "protocol": "tcp"}
    assert first[1]["containerPort"] == ports[1] != first[1]["hostPort"]
    second = start(driver, "second", [shared, own])
    assert second[0]["containerPort"] == shared and second[0]["hostPort"] not in (0, shared)
    assert second[1]["hostPort"] == own
    for binding in (*first, *second):
        assert fetch(binding) == f"{binding['containerPort']}\n"
    taken.close()
    stop(driver)


def test_a_host_may_have_an_address_that_no_interface_has(node: NodeFolder, dockerd: Dockerd) -> None:
    """For example, behind a translation of addresses. Then all addresses of the machine have the ports."""
    driver = engine(node, dockerd)
    [binding] = start(driver, "one", [free_port(ADDRESS)], "192.0.2.1")
    assert binding["bindIP"] == "0.0.0.0" and fetch(binding, "127.0.0.1") == f"{binding['containerPort']}\n"
    stop(driver)


def test_a_later_agent_knows_the_ports(node: NodeFolder, dockerd: Dockerd) -> None:
    """It also reports them after someone has disconnected the pause container. Then the engine may choose other ports."""
    driver, taken = engine(node, dockerd), socket.create_server((ADDRESS, 0))
    before = start(driver, "one", [free_port(ADDRESS), taken.getsockname()[1]])
    driver.close()
    driver = engine(node, dockerd)
    known = lambda: [driver.engine.observe()[f"one-{each['containerPort']}"].observed.about for each in before]  # noqa: E731
    driver.until(lambda: all(known()) and [about["networkBindings"] for about in known()] == [[each] for each in before])
    [pause] = dockerd.containers("label=corral.pause=one")
    dockerd("network", "disconnect", "-f", "corral", pause)
    connected = "{{.NetworkSettings.Networks.corral.IPAddress}}"
    driver.until(lambda: "." in dockerd("inspect", "-f", connected, pause))
    bound = dockerd("port", pause)
    driver.until(lambda: all(f"{ADDRESS}:{about['networkBindings'][0]['hostPort']}" in bound for about in known()))
    after = [binding for about in known() for binding in about["networkBindings"]]
    assert after[0] == before[0] and [fetch(each) for each in after] == [f"{each['containerPort']}\n" for each in before]
    taken.close()
    stop(driver)
