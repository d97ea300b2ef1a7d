"""Pause containers and volumes: whichever step an agent dies at, its task still runs, and nothing is left after the task."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from command import processes_about
from containers.running import Containers, shell
from corral.core.clock import VirtualClock
from corral.model.run import RunSpec
from corral.node import pause_image
from corral.node.docker_cleanup import RESOURCES_KEPT_S
from corral.node.docker_engine import DockerEngine
from corral.server.deleted_folder import EXIT_CODE
from engines.dockerd import BUSYBOX, Dockerd
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec
from harness import eventually

pytestmark = pytest.mark.xdist_group("docker")

PAUSE = f"ancestor={pause_image.IMAGE}:{pause_image.TAG}"
VPC = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
VOLUMES = [{"name": "own", "host": {}}]
MOUNTS = [{"sourceVolume": "own", "containerPath": "/own"}]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


def in_vpc(node: NodeFolder, image: str = BUSYBOX, *command: str) -> RunSpec:
    """A run in awsvpc mode with a volume of its task."""
    task = {"networkMode": "awsvpc", "volumes": VOLUMES}
    about = settings(task, command=[*command] or ["echo", "hello"], mountPoints=MOUNTS)
    return replace(spec("one"), task_id=f"task{node.host_id}", image=image, ships_logs=True, settings=about)


def agent(node: NodeFolder, dockerd: Dockerd, clock: VirtualClock | None = None) -> Driver:
    clock = clock or VirtualClock()
    return Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": dockerd.host}, clock), node)


def pauses(dockerd: Dockerd, node: NodeFolder) -> list[str]:
    return dockerd.containers(f"label=corral.pause=task{node.host_id}")


def volumes(dockerd: Dockerd, node: NodeFolder) -> list[str]:
    return dockerd("volume", "ls", "-q", "--filter", f"label=corral.host={node.host_id}").split()


def create_pause(dockerd: Dockerd, node: NodeFolder) -> str:
    """The pause container as an agent leaves it that dies before it starts it."""
    labels = ["--label", f"corral.host={node.host_id}", "--label", f"corral.pause=task{node.host_id}"]
    name = f"corral-{node.host_id[:8]}-task{node.host_id}-pause"
    return dockerd("create", "--name", name, "--network", "none", *labels, BUSYBOX, "sleep", "3000")


def test_an_agent_that_dies_before_it_starts_a_pause_container(node: NodeFolder, dockerd: Dockerd):
    create_pause(dockerd, node)
    driver = agent(node, dockerd)
    observed = driver.run(in_vpc(node)).observed
    driver.close()
    assert (observed.exit_code, observed.reason) == (0, None)
    assert node.output("one") == "hello\n"
    assert "privateIpv4Address" in observed.about


def test_a_pause_container_that_died_or_was_removed_is_replaced(node: NodeFolder, dockerd: Dockerd):
    """A later container of the task would otherwise fail: cannot join network of a non running container."""
    driver, first = agent(node, dockerd), in_vpc(node)
    assert driver.run(first).observed.exit_code == 0
    for at, command in enumerate((["kill"], ["rm", "-f"])):
        dockerd(*command, *pauses(dockerd, node))
        observed = driver.run(replace(first, run_id=f"later{at}")).observed
        assert (observed.exit_code, observed.reason) == (0, None)
    driver.close()


def test_a_task_that_was_stopped_while_no_agent_ran(node: NodeFolder, dockerd: Dockerd):
    """The agent died when it had created the volume and the pause container, and the task is not ordered again."""
    first = agent(node, dockerd)
    first.engine.start([in_vpc(node, "localhost:1/none:1")])
    first.until(lambda: pauses(dockerd, node) and volumes(dockerd, node), "both were created")
    first.close()
    assert pauses(dockerd, node) and volumes(dockerd, node), "its run was alive"
    clock = VirtualClock()
    second = agent(node, dockerd, clock)
    assert not second.engine.observe()
    second.run(replace(spec("two"), image=BUSYBOX, settings=settings({"networkMode": "host"}, command=["true"])))
    assert volumes(dockerd, node), "the order may still come"

    def gone() -> bool:
        clock.advance(1.0)
        return not pauses(dockerd, node) and not volumes(dockerd, node)

    second.until(gone, "both are removed")
    second.close()


def test_what_the_engine_creates_after_its_agent_died(node: NodeFolder, dockerd: Dockerd):
    """A request of a killed agent may be carried out after the next agent has listed all containers."""
    clock = VirtualClock()
    driver = agent(node, dockerd, clock)
    ours = f"corral.host={node.host_id}"
    task = ["--label", f"corral.task=task{node.host_id}"]
    create_pause(dockerd, node)
    dockerd("create", "--network", "none", "--label", ours, "--label", "corral.run=late", *task, BUSYBOX, "true")
    dockerd("volume", "create", "--label", ours, *task, f"corral-task{node.host_id}-own")

    def gone() -> bool:
        clock.advance(RESOURCES_KEPT_S / 4)
        return not dockerd.containers(f"label={ours}") and not volumes(dockerd, node)

    driver.until(gone, "nothing is left")
    driver.close()


def test_volumes_go_when_docker_removed_the_ended_containers(node: NodeFolder, dockerd: Dockerd):
    clock = VirtualClock()
    driver = agent(node, dockerd, clock)
    driver.run(in_vpc(node))
    driver.engine.forget(["one"])
    dockerd("container", "prune", "-f")
    driver.until(lambda: clock.advance(1.0) or not volumes(dockerd, node), "the volume is removed")
    driver.close()


def test_a_container_that_is_pruned_before_it_starts(node: NodeFolder, dockerd: Dockerd):
    """`docker system prune` removes containers that are created and not yet started. Each still runs exactly once."""
    driver = agent(node, dockerd)
    runs = [replace(in_vpc(node), run_id=f"run{at}", task_id=f"task{node.host_id}{at}") for at in range(4)]
    driver.engine.start(runs)

    def ended() -> bool:
        dockerd("container", "prune", "-f")
        return all(not run.alive for run in driver.engine.observe().values())

    driver.until(ended, "all have ended")
    for run in runs:
        observed = driver.engine.observe()[run.run_id].observed
        assert (observed.exit_code, observed.started_at_s is not None) == (0, True), observed
    driver.close()


def test_down_leaves_no_pause_container_of_an_ended_task(own_docker_corral, dockerd: Dockerd):
    corral = own_docker_corral("--runtime", "docker").start()
    run, held = Containers(corral), f"label=corral.host={corral.host_id}"
    run(shell("true"), networkMode="awsvpc", networkConfiguration=VPC)
    [lives] = run.start(shell("sleep 3000"), networkMode="awsvpc", networkConfiguration=VPC)
    run.until(lives)
    assert len(dockerd.containers(PAUSE, held, "status=running")) == 2
    corral.stop()
    left = eventually(lambda: len(found := dockerd.containers(PAUSE, held)) == 1 and found)
    corral.start()
    assert dockerd.containers(PAUSE, held) == left, "a running task keeps its network"
    run.stop(lives)


def test_containers_end_with_the_data_folder(own_docker_corral, dockerd: Dockerd):
    corral = own_docker_corral("--runtime", "docker").start()
    run, ours = Containers(corral), f"label=corral.host={corral.host_id}"
    stubborn = shell("trap '' TERM; while :; do sleep 0.1; done", stopTimeout=60, mountPoints=MOUNTS)
    for network in ({"networkMode": "awsvpc", "networkConfiguration": VPC}, {"networkMode": "host"}):
        [lives] = run.start(stubborn, volumes=VOLUMES, **network)
        run.until(lives)
    run(shell("true"), networkMode="host")
    assert len(dockerd.containers(ours)) == 4, "two tasks, the network of one, and a container that has ended"
    while corral.data.exists():  # processes still make files
        shutil.rmtree(corral.data, ignore_errors=True)
    eventually(lambda: not dockerd.containers(ours), "the containers are removed")
    eventually(lambda: not dockerd("volume", "ls", "-q", "--filter", ours).split(), "the volumes are removed")
    assert corral.process and corral.process.wait(30) == EXIT_CODE
    eventually(lambda: not processes_about(corral.data), "the agent ends")
    assert not corral.data.exists()
