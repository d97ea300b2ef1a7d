"""Containers that were removed while no agent ran: each has run once, and its exit code is found in the engine's past events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from containers.removing_engine import RemovingEngine
from containers.running import Containers, shell
from corral.core.clock import WallClock
from corral.model.run import RunSpec
from corral.node.docker_engine import DockerEngine
from corral.node.docker_options import container_name, labels
from corral.node.docker_past_events import past_containers
from corral.node.docker_runs import CONTAINER_LOST, DockerRuns
from engines.dockerd import BUSYBOX, Dockerd
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec
from harness import eventually, wait_stopped

pytestmark = pytest.mark.xdist_group("docker")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFolder]:
    node = NodeFolder(tmp_path / "data")
    yield node
    node.clean_up()


def agent(node: NodeFolder, host: str) -> Driver:
    return Driver(lambda *_: DockerEngine(node.node, node.host_id, {"DOCKER_HOST": host}, WallClock()), node)


def on_host(script: str) -> RunSpec:
    about = settings({"networkMode": "host"}, command=["sh", "-c", script], memory=64)
    return replace(spec("one"), image=BUSYBOX, ships_logs=True, settings=about)


def end_without_agent(node: NodeFolder, dockerd: Dockerd, run: RunSpec, go: Path) -> str:
    """Start a run, end its agent, and let the container end and be pruned. Return the id of the container."""
    first = agent(node, dockerd.host)
    first.engine.start([run])
    started = first.started("one")
    first.printed("one", "hello")
    first.close()
    container = str(started.observed.about["runtimeId"])
    go.touch()
    dockerd("wait", container)
    dockerd("container", "prune", "-f")
    assert container not in dockerd.containers()
    return container


def waiting(go: Path, code: int) -> RunSpec:
    """A run that ends when the file exists."""
    run = on_host(f"echo hello; until [ -e /go/{go.name} ]; do sleep 0.05; done; exit {code}")
    assert run.settings is not None
    run.settings["container"]["mountPoints"] = [{"sourceVolume": "go", "containerPath": "/go"}]
    run.settings["task"]["volumes"] = [{"name": "go", "host": {"sourcePath": str(go.parent)}}]
    return run


def test_the_exit_code_of_a_container_that_was_pruned(node: NodeFolder, dockerd: Dockerd, tmp_path: Path):
    container = end_without_agent(node, dockerd, waiting(tmp_path / "go", 7), tmp_path / "go")
    second = agent(node, dockerd.host)
    observed = second.ended("one").observed
    assert (observed.exit_code, observed.reason) == (7, None)
    assert observed.about == {"runtimeId": container}
    assert observed.started_at_s < observed.stopped_at_s <= WallClock().now_s()
    assert node.output("one") == "hello\n"
    second.engine.forget(["one"])
    second.close()
    assert [path.name for path in (node.node / "containers").iterdir()] == ["used"]  # which says that there have been containers


def test_a_pruned_container_is_not_started_again(node: NodeFolder, dockerd: Dockerd, tmp_path: Path):
    """An engine that was restarted has no past events. The exit code is lost then, but the run must not run a second time."""
    end_without_agent(node, dockerd, waiting(tmp_path / "go", 7), tmp_path / "go")
    dockerd.stop()
    dockerd.start()
    second = agent(node, dockerd.host)
    observed = second.ended("one").observed
    assert (observed.exit_code, observed.reason) == (None, CONTAINER_LOST)
    second.close()


def test_a_container_that_was_pruned_before_its_agent_could_start_it(node: NodeFolder, dockerd: Dockerd):
    """The agent died when it was about to start the container. The core may order the run again."""
    run = on_host("echo hello")
    marks = labels(run, node.host_id)
    runs = DockerRuns(node.node, WallClock())
    runs.write("one", marks)
    runs.request_start("one")
    given = [word for name, value in marks.items() for word in ("--label", f"{name}={value}")]
    dockerd("create", "--name", container_name(node.host_id, "one"), "--network", "host", *given, BUSYBOX, "true")
    dockerd("container", "prune", "-f")
    driver = agent(node, dockerd.host)
    assert not driver.engine.observe()
    assert driver.run(run).observed.exit_code == 0
    driver.close()


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_container_that_the_engine_is_removing(node: NodeFolder, dockerd: Dockerd, tmp_path: Path, refusals: int):
    """A start is refused while `docker system prune` removes the container. The container is created again."""
    busy = RemovingEngine(dockerd, tmp_path / "busy.sock", refusals)
    driver = agent(node, busy.host)
    observed = driver.run(on_host("echo hello; exit 3")).observed
    driver.close()
    busy.close()
    assert (observed.exit_code, observed.reason) == (3, None)
    assert node.output("one") == "hello\n"


def test_a_container_that_never_ran_and_is_being_removed(node: NodeFolder, dockerd: Dockerd, tmp_path: Path):
    """It must not count as ended with exit code 0, which is what the engine shows for it."""
    run = on_host("echo hello; exit 3")
    marks = labels(run, node.host_id)
    given = [word for name, value in marks.items() for word in ("--label", f"{name}={value}")]
    dockerd("create", "--name", container_name(node.host_id, "one"), "--network", "host", *given, BUSYBOX, "true")
    DockerRuns(node.node, WallClock()).write("one", marks)
    busy = RemovingEngine(dockerd, tmp_path / "busy.sock", refusals=2)
    driver = agent(node, busy.host)
    assert not driver.engine.observe()
    dockerd("container", "prune", "-f")
    assert driver.run(run).observed.exit_code == 3
    driver.close()
    busy.close()


def test_a_task_whose_container_was_pruned_while_corral_was_killed(own_docker_corral, dockerd: Dockerd, tmp_path: Path):
    corral = own_docker_corral("--runtime", "docker").start()
    run, go = Containers(corral), tmp_path / "go"
    script = f"echo once; until [ -e /go/{go.name} ]; do sleep 0.05; done; exit 9"
    volumes = [{"name": "go", "host": {"sourcePath": str(tmp_path)}}]
    container = shell(script, mountPoints=[{"sourceVolume": "go", "containerPath": "/go"}])
    [arn] = run.start(container, networkMode="host", volumes=volumes)
    runtime_id = run.until(arn)["containers"][0]["runtimeId"]
    eventually(lambda: run.printed(arn) == ["once"])
    corral.kill("corral.server", "corral.node")
    go.touch()
    dockerd("wait", runtime_id)
    dockerd("system", "prune", "-f")
    corral.start()
    [task] = wait_stopped(run.ecs, [arn])
    assert task["containers"][0].get("exitCode") == 9, task
    assert task["stoppedReason"] == "Essential container in task exited"
    assert run.printed(arn) == ["once"]


def event(action: str, container: str, at_s: float, run: str = "one", **more: str) -> dict[str, object]:
    actor = {"ID": container, "Attributes": {"corral.run": run, "corral.host": "h", **more}}
    return {"Type": "container", "Action": action, "Actor": actor, "timeNano": int(at_s * 1e9)}


def test_past_containers():
    found = past_containers(
        [
            event("die", "old", 1, "cut", exitCode="4"),
            event("create", "a", 2),
            event("create", "b", 3),
            event("start", "b", 4),
            event("oom", "b", 5),
            event("die", "b", 6, exitCode="137"),
            event("create", "c", 7),
            event("create", "d", 8, "never"),
            event("start", "e", 9, "runs"),
            event("start", "f", 9, "runs"),
        ]
    )
    assert (found["cut"].exit_code, found["cut"].started_at_s, found["cut"].never_ran) == (4, None, False)
    one = found["one"]
    assert (one.id, one.started_at_s, one.ended_at_s, one.exit_code, one.out_of_memory) == ("b", 4.0, 6.0, 137, True)
    assert found["never"].never_ran
    assert (found["runs"].id, found["runs"].never_ran, found["runs"].ended_at_s) == ("e", False, None)
