"""Docker images: progress of pulls, digests, and removal above the disk limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from containers.running import Containers, shell
from containers.small_registry import SmallRegistry
from corral.core.clock import WallClock
from corral.node.docker_engine import DockerEngine
from engines.dockerd import BUSYBOX, Dockerd
from engines.drivers import Driver, settings
from engines.nodes import NodeFolder, spec
from harness import eventually

pytestmark = pytest.mark.xdist_group("docker")


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with SmallRegistry() as registry:
        yield registry


def of(image: str, **more: Any) -> dict[str, Any]:
    """A container with the command of its image."""
    return {key: value for key, value in shell("", image=image, **more).items() if key != "command"}


def test_a_pull_shows_its_progress(run: Containers, registry: SmallRegistry, dockerd: Dockerd):
    digest = registry.push("app:1", "hello\n")
    registry.may_go_on.clear()
    [arn] = run.start(of(f"{registry.address}/app:1"))
    told = eventually(lambda: run.show(arn)["containers"][0].get("reason"), "it tells of the pull")
    assert re.fullmatch(rf"pulling {registry.address}/app:1: \d+ of \d+ MB", told)
    pending = run.show(arn)
    assert pending["lastStatus"] == "PENDING" and "pullStartedAt" in pending
    registry.may_go_on.set()
    task = run.until(arn, "STOPPED")
    assert run.printed(task) == ["hello"]
    assert task["containers"][0]["imageDigest"] == digest
    dockerd("rmi", "-f", f"{registry.address}/app:1")
    by_digest = run(of(f"{registry.address}/app@{digest}"))
    assert run.printed(by_digest) == ["hello"]
    assert by_digest["containers"][0]["imageDigest"] == digest


def test_a_task_may_be_run_before_its_image_is_pushed(own_docker_corral, registry: SmallRegistry):
    run = Containers(own_docker_corral("--runtime", "docker").start())
    [arn] = run.start(of(f"{registry.address}/late:1"))
    told = eventually(lambda: run.show(arn)["containers"][0].get("reason"))
    assert told.startswith("CannotPullContainerError: Error response from daemon: ") and "manifest unknown" in told
    registry.push("late:1", "came\n")
    assert run.printed(run.until(arn, "STOPPED")) == ["came"]


def test_the_least_recently_used_images_are_removed_above_the_limit(own_docker_corral, registry: SmallRegistry, dockerd: Dockerd):
    """Except images in use, and those that a person pulled or built."""
    run = Containers(own_docker_corral("--runtime", "docker", CORRAL_IMAGES_MAX_GB="0.003").start())
    names = [f"{registry.address}/{name}:1" for name in ("a", "b", "c", "mine")]
    for name in ("a", "b", "c", "mine"):
        registry.push(f"{name}:1", name)
    dockerd("pull", names[3])
    [used] = run.start(shell("sleep 300", image=names[0]))
    run.until(used)
    done = run(of(names[1]))
    dockerd("rm", done["containers"][0]["runtimeId"])
    run(of(names[2]))
    listed = dockerd("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    assert [name in listed for name in (*names, BUSYBOX)] == [True, False, True, True, True]
    run.stop(used)


def test_a_tag_that_moved_does_not_take_the_new_image_with_it(registry: SmallRegistry, dockerd: Dockerd, tmp_path: Path):
    node, name = NodeFolder(tmp_path / "data"), f"{registry.address}/moving:1"
    environment = {"DOCKER_HOST": dockerd.host, "CORRAL_IMAGES_MAX_GB": "0.003"}
    driver = Driver(lambda *_: DockerEngine(node.node, node.host_id, environment, WallClock()), node)
    ids = []
    for at in range(3):
        registry.push("moving:1", f"{at}\n")
        run = replace(spec(f"run{at}"), image=name, pull_always=True, ships_logs=True, settings=settings({"networkMode": "host"}))
        container = driver.run(run).observed.about["runtimeId"]
        assert node.output(f"run{at}") == f"{at}\n"
        ids.append(dockerd("image", "inspect", "--format", "{{.Id}}", name))
        dockerd("rm", container)
        if at == 0:
            dockerd("tag", name, "kept:1")
    driver.close()
    node.clean_up()
    there = dockerd("images", "-a", "-q", "--no-trunc").split()
    assert [each in there for each in ids] == [True, False, True], "a person's name for the first one keeps it"
    dockerd("rmi", name, "kept:1")
