"""Containers outlive Corral: none is lost, duplicated or left behind, whichever process is killed, and when."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from containers.running import Containers, shell
from engines.dockerd import BUSYBOX, Dockerd
from harness import eventually, wait_stopped

pytestmark = pytest.mark.xdist_group("docker")

KILLS = int(os.environ.get("CORRAL_KILLS", "6"))
CONTAINERS = 8
LINES = "i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit {code}"
PARTS = [["corral.server", "corral.node"], ["corral.node"], ["corral.server"]]


def test_kill_nine_with_many_containers_running(own_docker_corral, dockerd: Dockerd):
    """Each writes numbered lines and ends with a different exit code. Some end while no agent runs."""
    rng = random.Random(7)
    corral = own_docker_corral("--runtime", "docker").start()
    run = Containers(corral)
    foreign = [
        dockerd("run", "-d", "--network", "host", "--label", "corral.run=not-ours", *more, BUSYBOX, "sleep", "3000")
        for more in ((), ("--label", f"corral.host={32 * 'a'}", "--label", "corral.task=not-ours"))
    ]  # one without an owner, and one of a Corral with another data folder
    arns, lines = [], {}
    for code in range(CONTAINERS):
        lines[code] = rng.randint(20, 30 * KILLS)
        arns += run.start(shell(LINES.format(lines=lines[code], code=code)), networkMode="host")
    for at in range(KILLS):
        before = _stopped(run, arns)
        corral.kill(*PARTS[at % len(PARTS)])
        if "corral.server" in PARTS[at % len(PARTS)]:
            corral.start()
        eventually(lambda before=before: _stopped(run, arns) > min(before, CONTAINERS - 1), "more of them have ended")
    tasks = wait_stopped(run.ecs, arns, within_s=60)
    for code, task in enumerate(tasks):
        [container] = task["containers"]
        assert container.get("exitCode") == code, container
        assert run.printed(task) == [f"line {i}" for i in range(lines[code])]
    ids = [task["containers"][0]["runtimeId"] for task in tasks]
    assert len(set(ids)) == CONTAINERS
    ours = dockerd.containers(f"label=corral.host={corral.host_id}")
    assert set(ours) <= set(ids)  # none was started twice, and those that have ended are kept for a while
    assert dockerd("inspect", "--format", "{{.State.Running}}", *foreign).split() == ["true", "true"]
    dockerd("rm", "-f", *foreign)


def _stopped(run: Containers, arns: list[str]) -> int:
    return sum(task["lastStatus"] == "STOPPED" for task in run.ecs.describe_tasks(tasks=arns)["tasks"])


def test_killed_while_they_start(own_docker_corral, dockerd: Dockerd):
    """Each runs once, whichever step of its start was interrupted."""
    corral = own_docker_corral("--runtime", "docker").start()
    run = Containers(corral)
    arns = run.start(shell("echo once; exit 5"), count=10, networkMode="host")
    for _ in range(2):
        eventually(lambda: dockerd.containers(f"label=corral.host={corral.host_id}"))
        corral.kill("corral.node")
    for task in wait_stopped(run.ecs, arns):
        assert task["containers"][0].get("exitCode") == 5, task
        assert run.printed(task) == ["once"]


def test_an_engine_that_restarts(run: Containers, dockerd: Dockerd, tmp_path: Path):
    """With live restore its containers continue; ends are reported afterwards, and pending orders are carried out.

    One ends while the engine is down. It has printed before: Docker loses what a container prints between the two.
    """
    [lives] = run.start(shell("sleep 3000"))
    waits = shell(
        "echo first; echo last; while [ ! -e /gate/open ]; do sleep 0.05; done; exit 4",
        mountPoints=[{"sourceVolume": "gate", "containerPath": "/gate"}],
    )
    [ends] = run.start(waits, volumes=[{"name": "gate", "host": {"sourcePath": str(tmp_path)}}])
    run.until(lives), run.until(ends)
    eventually(lambda: run.printed(ends) == ["first", "last"], "the output")
    dockerd.stop()
    (tmp_path / "open").touch()
    [asked] = run.start(shell("echo hello"))
    dockerd.start()
    task = run.until(ends, "STOPPED")
    assert task["containers"][0]["exitCode"] == 4
    assert run.printed(ends) == ["first", "last"]
    run.until(asked, "STOPPED")
    assert run.printed(asked) == ["hello"]
    assert run.show(lives)["lastStatus"] == "RUNNING"
    run.stop(lives)


def test_a_container_that_is_removed_from_outside(run: Containers, dockerd: Dockerd):
    [arn] = run.start(shell("sleep 3000"))
    dockerd("rm", "-f", run.until(arn)["containers"][0]["runtimeId"])
    assert run.until(arn, "STOPPED")["containers"][0]["exitCode"] == 137


def test_ended_containers_are_removed_when_there_are_many(run: Containers, corral, dockerd: Dockerd):
    """The volumes of a task are removed with its containers."""
    mounts = [{"sourceVolume": "own", "containerPath": "/v"}]
    task = run(shell("true", mountPoints=mounts), volumes=[{"name": "own", "host": {}}])
    volume = f"corral-{task['taskArn'].rpartition('/')[2]}-own"
    assert volume in dockerd("volume", "ls", "-q").split()
    for _ in range(2):  # with the first task, one more than is kept
        wait_stopped(run.ecs, run.start(shell("", command=["true"]), count=10, networkMode="host"))
    eventually(lambda: len(dockerd.containers(f"label=corral.host={corral.host_id}")) <= 20)
    eventually(lambda: volume not in dockerd("volume", "ls", "-q").split())
