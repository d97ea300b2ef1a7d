"""Tasks that fail: each ends in the state and with the reason of ECS."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.late_engine import LateEngine
from containers.running import Containers, shell
from engines.dockerd import BUSYBOX, Dockerd, processes
from harness import eventually

pytestmark = pytest.mark.xdist_group("docker")


def test_the_exit_code_and_the_log_of_a_container(run: Containers):
    task = run(shell("echo out; echo err >&2; exit 3"))
    [container] = task["containers"]
    assert (task["stopCode"], task["stoppedReason"]) == ("EssentialContainerExited", "Essential container in task exited")
    assert container["exitCode"] == 3
    assert len(container["runtimeId"]) == 64
    assert sorted(run.printed(task)) == ["err", "out"]


def test_a_container_that_exceeds_its_memory(run: Containers):
    """`tail` buffers a line without an end in memory."""
    task = run(shell("head -c 200m /dev/zero | tail", memory=16))
    [container] = task["containers"]
    assert (container["reason"], container["exitCode"]) == ("OutOfMemoryError: Container killed due to memory usage", 137)
    assert (task["stopCode"], task["stoppedReason"]) == ("EssentialContainerExited", "Essential container in task exited")


def test_an_engine_that_reports_the_lack_of_memory_late(own_docker_corral, dockerd: Dockerd, tmp_path: Path):
    engine = LateEngine(dockerd, tmp_path / "late.sock")
    run = Containers(own_docker_corral("--runtime", "docker", DOCKER_HOST=engine.host).start())
    task = run(shell("head -c 200m /dev/zero | tail", memory=16), networkMode="host")
    [container] = task["containers"]
    assert engine.hidden == 1
    assert (container["reason"], container["exitCode"]) == ("OutOfMemoryError: Container killed due to memory usage", 137)
    engine.close()


def test_a_container_that_forks(run: Containers):
    """Its background processes end with it."""
    task = run(shell("for i in 1 2 3 4 5; do (setsid sleep 34567 &) ; done; echo forked; exit 0"))
    assert task["containers"][0]["exitCode"] == 0
    assert run.printed(task) == ["forked"]
    assert processes("sleep\00034567") == []


def test_a_container_that_ignores_sigterm(run: Containers):
    [arn] = run.start(shell("trap '' TERM; echo ready; while :; do sleep 0.1; done", stopTimeout=1))
    eventually(lambda: run.until(arn) and run.printed(arn) == ["ready"])
    task = run.stop(arn)
    assert (task["stopCode"], task["containers"][0]["exitCode"]) == ("UserInitiated", 137)


def test_a_missing_image(run: Containers):
    [arn] = run.start(shell("true", image="localhost:1/nowhere:1"))
    pending = eventually(lambda: (task := run.show(arn)) and task["containers"][0].get("reason") and task)
    assert pending["containers"][0]["reason"].startswith("CannotPullContainerError: Error response from daemon: ")
    task = run.until(arn, "STOPPED")
    assert task["stopCode"] == "TaskFailedToStart"
    assert task["stoppedReason"].startswith("CannotPullContainerError: Error response from daemon: ")
    assert "localhost:1" in task["stoppedReason"]


def test_an_image_that_is_tagged_while_its_task_waits(own_docker_corral, dockerd: Dockerd):
    """A service may be deployed before its image exists."""
    run = Containers(own_docker_corral("--runtime", "docker").start())
    [arn] = run.start(shell("echo came", image="localhost:1/late:1"))
    eventually(lambda: run.show(arn)["containers"][0].get("reason", "").startswith("CannotPullContainerError"))
    dockerd("tag", BUSYBOX, "localhost:1/late:1")
    task = run.until(arn, "STOPPED")
    assert run.printed(task) == ["came"]
    assert "reason" not in task["containers"][0]
    assert task["pullStartedAt"] < task["pullStoppedAt"] <= task["startedAt"]


def test_a_task_stopped_while_it_waits_for_its_image(own_docker_corral):
    run = Containers(own_docker_corral("--runtime", "docker").start())
    [arn] = run.start(shell("true", image="localhost:1/never:1"))
    eventually(lambda: run.show(arn)["containers"][0].get("reason"))
    assert run.stop(arn)["stopCode"] == "UserInitiated"


def test_a_missing_program(run: Containers):
    task = run(shell("", command=["no-such-program"]))
    assert task["stopCode"] == "TaskFailedToStart"
    assert task["stoppedReason"].startswith("CannotStartContainerError: Error response from daemon: ")
    assert '"no-such-program": executable file not found in $PATH' in task["stoppedReason"]


def test_six_megabytes_without_a_newline(run: Containers):
    task = run(shell("head -c 6000000 /dev/zero | tr '\\0' x; echo; echo end"))
    # If much output is left when a task ends, the end is reported first, so that other tasks get its GPUs.
    lines = eventually(lambda: (found := run.printed(task))[-1] == "end" and found, "the whole output is stored")
    assert sum(map(len, lines[:-1])) == 6_000_000
    assert max(map(len, lines)) <= 262_118


def test_a_container_that_ends_at_once(run: Containers):
    tasks = [run.until(arn, "STOPPED") for arn in run.start(shell("", command=["true"]), count=5)]
    assert [task["containers"][0]["exitCode"] for task in tasks] == [0] * 5
    assert all(task["startedAt"] <= task["stoppedAt"] for task in tasks)
