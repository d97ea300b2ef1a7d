"""--runtime: whether images run, and the messages if they do not. These tests need no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from containers.running import Containers, shell
from harness import Corral, eventually


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Containers]]:
    """A Corral with a runtime, on a machine without an engine."""
    made: list[Corral] = []

    def make(runtime: str) -> Containers:
        nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
        made.append(Corral(tmp_path / "data", "none", "--runtime", runtime, environment=nowhere).start())
        return Containers(made[0])

    yield make
    made[0].clear()


@pytest.mark.parametrize("runtime", ["process", "auto"])
def test_without_an_engine_images_are_ignored(start, runtime: str):
    run = start(runtime)
    assert run.printed(run(shell("cat /proc/1/comm"))) == [Path("/proc/1/comm").read_text().strip()]
    for container, why in (
        (shell("", command=[]), "it has no command, so it needs the command of an image"),
        (shell("true", links=["other"]), "links works in Docker containers only"),
    ):
        with pytest.raises(run.ecs.exceptions.ClientException, match=why):
            run.start(container, shell("true", name="other"))


@pytest.mark.xdist_group("docker")
def test_a_container_does_not_become_a_process(own_docker_corral: Callable[..., Corral]):
    """With `auto`, tasks with images wait for an engine if there has been one. A container could have defined these tasks."""
    corral = own_docker_corral("--runtime", "auto").start()
    run = Containers(corral)
    assert run(shell("true"))["containers"][0]["exitCode"] == 0
    corral.stop()
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    later = Corral(corral.data, "sim:2", "--runtime", "auto", environment=nowhere).start()
    try:
        run = Containers(later)
        [arn] = run.start(shell("cat /proc/1/comm"))
        reason = eventually(lambda: run.show(arn)["containers"][0].get("reason"))
        assert reason.startswith("CannotStartContainerError: no Docker engine answers at unix:///nowhere/docker.sock")
        assert run.stop(arn)["stopCode"] == "UserInitiated"
    finally:
        later.clear()


def test_docker_waits_for_an_engine_and_reports_it(start):
    run = start("docker")
    [arn] = run.start(shell("true"))
    reason = eventually(lambda: run.show(arn)["containers"][0].get("reason"))
    assert reason.startswith("CannotStartContainerError: no Docker engine answers at unix:///nowhere/docker.sock")
    assert run.show(arn)["lastStatus"] == "PENDING"
    assert run.stop(arn)["stopCode"] == "UserInitiated"
    plain = run({"name": "main", "image": "corral/host", "command": ["true"], "memory": 16})
    assert plain["containers"][0]["exitCode"] == 0
