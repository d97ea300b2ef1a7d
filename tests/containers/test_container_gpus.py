"""GPUs in containers: exactly those that are pinned, regardless of the image; and the old way of requesting them.

NVIDIA's hook is replaced by a program that does nothing: the container receives the same request as the hook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from containers.ignoring_engine import IgnoringEngine
from containers.running import Containers, shell
from corral.core.clock import WallClock
from corral.node.docker_engine import DockerEngine
from corral.node.docker_info import gpu_request_style
from corral.node.docker_options import CreateContext, create_body
from engines.dockerd import BUSYBOX, GREEDY, SYS_RESOURCE, Dockerd, lacking_capabilities
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec
from harness import Corral, eventually

pytestmark = pytest.mark.xdist_group("docker")

NEEDS_CAPABILITIES = pytest.mark.skipif(
    lacking_capabilities() & ~SYS_RESOURCE != 0,
    reason="this machine lacks capabilities, so no engine can start a privileged container",
)
RUN = replace(spec("one", gpu_ids=["GPU-a", "GPU-b"]), image=GREEDY, ships_logs=True, settings=settings({"networkMode": "host"}))


@pytest.fixture
def node(tmp_path) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


@pytest.fixture
def driver(node: NodeFolder, dockerd: Dockerd) -> Iterator[Driver]:
    """A docker engine that believes its machine has real GPUs."""
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, WallClock()), node)
    yield driver
    driver.close()


def variables(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name, []).append(value)
    return found


def test_a_container_gets_exactly_its_pinned_gpus(driver: Driver, dockerd: Dockerd):
    run = driver.run(RUN)
    assert run.observed.exit_code == 0 and run.gpu_ids == ("GPU-a", "GPU-b")
    inside = variables(driver.node.output("one"))
    assert inside["NVIDIA_VISIBLE_DEVICES"] == ["GPU-a,GPU-b"]
    assert inside["CUDA_VISIBLE_DEVICES"] == ["GPU-a,GPU-b"]
    asked = json.loads(dockerd("inspect", "--format", "{{json .HostConfig.DeviceRequests}}", run.observed.about["runtimeId"]))
    assert [(request["Driver"], request["DeviceIDs"]) for request in asked] == [("nvidia", ["GPU-a", "GPU-b"])]


def test_no_gpu_without_a_request(driver: Driver, dockerd: Dockerd):
    run = driver.run(replace(RUN, gpu_ids=[]))
    inside = variables(driver.node.output("one"))
    assert (inside["NVIDIA_VISIBLE_DEVICES"], inside["CUDA_VISIBLE_DEVICES"]) == (["void"], [""])
    assert dockerd("inspect", "--format", "{{len .HostConfig.DeviceRequests}}", run.observed.about["runtimeId"]) == "0"


def test_an_image_that_asks_waits_for_an_order_that_says_what_it_gets(driver: Driver):
    driver.engine.start([replace(RUN, gpu_ids=[], image_may_ask=True)])
    driver.until(lambda: driver.engine.observe()["one"].observed.asks_gpus == "all")
    driver.engine.start([replace(RUN, gpu_ids=[], image_may_ask=True)])  # the same order again is no answer
    driver.engine.start([replace(RUN, gpu_ids=["GPU-b"])])
    assert driver.ended("one").gpu_ids == ("GPU-b",)
    assert variables(driver.node.output("one"))["NVIDIA_VISIBLE_DEVICES"] == ["GPU-b"]


def test_a_run_stopped_while_it_waits_for_that_order(driver: Driver):
    driver.engine.start([replace(RUN, gpu_ids=[], image_may_ask=True)])
    driver.until(lambda: driver.engine.observe()["one"].observed.asks_gpus == "all")
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.reason == "stopped before it was started"


def test_a_privileged_container_requests_the_gpus_it_holds():
    """It gets those that were free when it was placed: test_the_old_way_of_asking."""
    body = create_body(replace(RUN, settings=settings(privileged=True)), CreateContext("host", 2, "nvidia", {}, {}, None))
    assert body["HostConfig"]["Privileged"]
    assert body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-a", "GPU-b"]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b" in body["Env"]


def test_gpus_are_requested_through_cdi_if_the_engine_supports_it():
    around = CreateContext("host", 2, "cdi", {}, {}, None)
    [request] = create_body(RUN, around)["HostConfig"]["DeviceRequests"]
    assert request == {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"]}
    known = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}], "Runtimes": {"nvidia": {}}}
    assert [gpu_request_style(info) for info in (known, {"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"runc": {}}}, {})] == [
        "cdi", "cdi", "nvidia",
    ]  # fmt: skip
    assert gpu_request_style({"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"nvidia": {}}}) == "nvidia"


def test_an_engine_that_ignores_the_request_is_refused(node: NodeFolder, tmp_path):
    with IgnoringEngine(tmp_path / "sock") as ignoring:
        environment = {"DOCKER_HOST": f"unix://{tmp_path}/sock"}
        driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, environment, WallClock()), node)
        observed = driver.run(RUN).observed
        driver.close()
    assert observed.started_at_s is None
    assert observed.reason.startswith("CannotCreateContainerError: this engine ignores requests for GPUs")
    assert ignoring.removed == ["c1"]


# --- a whole Corral, with simulated GPUs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "container",
    [
        shell("", command=["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; sleep 300"], image=GREEDY),
        pytest.param(shell("echo $NVIDIA_VISIBLE_DEVICES; sleep 300", privileged=True), marks=NEEDS_CAPABILITIES),
        shell("echo $NVIDIA_VISIBLE_DEVICES; sleep 300", environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    ],
    ids=["image", "privileged", "environment"],
)
def test_the_old_way_of_asking(run: Containers, corral: Corral, container: dict):
    """The container sees the free GPUs, and holds them."""
    pinned = shell("sleep 300", resourceRequirements=[{"type": "GPU", "value": "1"}])
    [first] = run.start(pinned)
    [gpu] = run.until(first)["containers"][0]["gpuIds"]
    [second] = run.start(container)
    shown = run.until(second)["containers"][0]["gpuIds"]
    assert len(shown) == 1 and gpu not in shown
    assert eventually(lambda: run.printed(second)) == shown
    assert (
        run.ecs.run_task(taskDefinition=run.show(first)["taskDefinitionArn"], launchType="EC2")["failures"][0]["reason"]
        == "RESOURCE:GPU"
    )
    run.stop(second)
    [third] = run.start(pinned)
    assert run.until(third)["containers"][0]["gpuIds"] == shown
    run.stop(first), run.stop(third)


def test_an_image_that_asks_when_nothing_is_free_sees_none(run: Containers):
    [first] = run.start(shell("sleep 300", resourceRequirements=[{"type": "GPU", "value": "2"}]))
    task = run(shell("", command=["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"], image=GREEDY))
    assert run.printed(task) == ["void"]
    run.stop(first)


def test_an_ordinary_image_sees_none(run: Containers):
    task = run(shell("echo $NVIDIA_VISIBLE_DEVICES", image=BUSYBOX))
    assert run.printed(task) == ["void"]
    assert "gpuIds" not in task["containers"][0]
