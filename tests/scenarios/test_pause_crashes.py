"""kill -9 of server, agent, spawner and pause programs while runs are paused and continue: no run is lost, and no GPU has two.

CORRAL_KILLS=100 is a long run.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.cli.printing.errors import CliError
from harness import Corral, container, eventually

KILLS = int(os.environ.get("CORRAL_KILLS", "6"))
SERVER, AGENT, SPAWNER, PROGRAM = "corral.server", "corral.node", "corral.node.spawner", "corral.node.pause_program"
VICTIMS = [(SERVER,), (AGENT,), (SPAWNER,), (PROGRAM,), (SERVER, PROGRAM), (AGENT, SPAWNER), (SERVER, AGENT, SPAWNER, PROGRAM)]
MOVING = ("pausing", "resuming")
# Counts for as long as it computes. The guest checks that the lender does not count while the guest has the GPU.
COUNT = """
at=0
while [ ! -e "$SHARED/stop" ]; do at=$((at + 1)); echo $at >> "$SHARED/$NAME"; sleep 0.02; done
"""
GUEST = 'test "$(wc -l < "$SHARED/lender")" -eq "$SEEN" && echo used >> "$SHARED/guest"'


class Shared:
    def __init__(self, corral: Corral, folder: Path) -> None:
        self.corral = corral
        self.folder = folder
        self.guests = 0

    def count(self) -> int:
        path = self.folder / "lender"
        return path.read_text().count("\n") if path.exists() else 0

    def launch(self, family: str, **variables: str) -> str:
        environment = {"SHARED": str(self.folder), "NAME": family, **variables}
        override = {"name": "main", "environment": [{"name": key, "value": value} for key, value in environment.items()]}
        answer = self.corral.client("ecs").run_task(taskDefinition=family, overrides={"containerOverrides": [override]})
        assert answer["failures"] == []
        return str(answer["tasks"][0]["taskArn"])

    def pause_of(self, task: str) -> dict[str, Any]:
        return self.corral.own("DescribeTaskPause", task=task)

    def order(self, operation: str, task: str) -> None:
        """Send an order as soon as the agent is connected. A killed one may need longer than the request waits."""

        def is_accepted() -> bool:
            try:
                self.corral.own(operation, task=task)
            except CliError as error:
                assert "not connected" in error.message, error
                return False
            return True

        eventually(is_accepted, "the order is accepted", 60)

    def settled(self, task: str) -> str:
        """Wait until the host has carried out the last order. Return the phase."""
        eventually(lambda: self.pause_of(task)["phase"] not in MOVING, "the order is carried out", 60)
        return str(self.pause_of(task)["phase"])

    def use_the_gpu(self) -> None:
        """Another task gets the GPU, and finds that the paused run does not compute."""
        self.guests += 1
        guest = self.launch("guest", SEEN=str(self.count()))
        ended = eventually(lambda: self.stopped(guest), "the guest ends", 60)
        assert ended["containers"][0]["exitCode"] == 0, "the paused run went on"

    def stopped(self, task: str) -> dict[str, Any] | None:
        [found] = self.corral.client("ecs").describe_tasks(tasks=[task])["tasks"]
        return found if found["lastStatus"] == "STOPPED" else None

    def kill(self, victims: tuple[str, ...]) -> None:
        self.corral.kill(*victims)
        if SERVER in victims:
            self.corral.start()


@pytest.mark.timeout(300 + 10 * KILLS)
def test_kills_while_runs_are_paused_and_continue(own_corral: Any, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    rng, folder = Random(seed), tmp_path / "shared"
    folder.mkdir()
    corral = own_corral("sim:1").start()
    ecs, shared = corral.client("ecs"), Shared(corral, folder)
    moves = [{"name": "CORRAL_SIM_GPU_MEMORY_MIB", "value": "1024"}, {"name": "CORRAL_SIM_PAUSE_GIB_PER_S", "value": "5"}]
    ecs.register_task_definition(
        family="lender", containerDefinitions=[container(["sh", "-c", COUNT], 1, environment=moves, stopTimeout=2)]
    )
    ecs.register_task_definition(family="guest", containerDefinitions=[container(["sh", "-c", GUEST], 1)])
    task = shared.launch("lender")
    eventually(lambda: ecs.describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING" and shared.count(), "the run counts")
    order = rng.sample(VICTIMS, len(VICTIMS))
    for kill in range(KILLS):
        shared.order("PauseTask", task)
        if rng.random() < 0.5:  # else the kill is as early as possible
            eventually(lambda: corral.processes(PROGRAM) or shared.pause_of(task)["phase"] != "pausing", "the move begins")
        shared.kill(order[kill % len(order)])
        assert shared.settled(task) == "paused", shared.pause_of(task)
        shared.use_the_gpu()
        before = shared.count()
        shared.order("ResumeTask", task)
        if rng.random() < 0.5:
            eventually(lambda: corral.processes(PROGRAM) or shared.pause_of(task)["phase"] == "running", "the move begins")
        shared.kill(order[(kill + 1) % len(order)])
        assert shared.settled(task) == "running", shared.pause_of(task)
        eventually(lambda: shared.count() > before, "the run goes on")  # noqa: B023
    (folder / "stop").touch()
    ended = eventually(lambda: shared.stopped(task), "the run ends")
    assert ended["containers"][0].get("exitCode") == 0 or "exit status" in str(ended["containers"][0].get("reason")), ended
    counted = (folder / "lender").read_text().splitlines()
    assert counted == [str(at) for at in range(1, len(counted) + 1)], "no step was lost, and none happened twice"
    assert (folder / "guest").read_text().count("used") == shared.guests
    assert shared.pause_of(task)["pauses"] == KILLS
