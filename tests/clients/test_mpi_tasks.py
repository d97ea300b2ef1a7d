"""The MPI example in one ECS task: `mpirun` starts one rank per GPU of the task."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tasks import messages, register

from harness import Corral, container, wait_stopped

PROGRAM = Path(__file__).parents[2] / "examples" / "mpi" / "allreduce.py"
# mpirun refuses to run as root, and to start more ranks than there are cores, unless it is told to.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
LINE = re.compile(r"rank (\d) of 4 on node 0 has (GPU-\S+); the sum of all ranks is 6")


@pytest.fixture(scope="module")
def four_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    running = Corral(tmp_path_factory.mktemp("four") / "data", "sim:4xT4").start()
    yield running
    running.clear()


def train(four_gpus: Corral, ranks: int) -> tuple[dict, list[str]]:
    """Run the program with this number of ranks in a task with four GPUs. Return the stopped task and its log."""
    ecs, logs = four_gpus.client("ecs"), four_gpus.client("logs")
    environment = [{"name": name, "value": value} for name, value in MPIRUN.items()]
    register(ecs, "train", container(["mpirun", "-np", "1"], 4, "mpi", memoryReservation=16, memory=4096, environment=environment))
    command = ["mpirun", "-np", str(ranks), sys.executable, str(PROGRAM)]
    overrides = {"containerOverrides": [{"name": "main", "command": command}]}
    task = ecs.run_task(taskDefinition="train", overrides=overrides)["tasks"][0]
    [done] = wait_stopped(ecs, [task["taskArn"]])
    return done, messages(logs, f"mpi/main/{task['taskArn'].rpartition('/')[2]}")


def test_mpirun_uses_all_four_gpus_of_a_task(four_gpus):
    task, lines = train(four_gpus, 4)
    assert task["containers"][0]["exitCode"] == 0, lines
    found = [matched.groups() for line in lines if (matched := LINE.fullmatch(line))]
    assert sorted(rank for rank, _ in found) == ["0", "1", "2", "3"]
    assert {gpu for _, gpu in found} == set(task["containers"][0]["gpuIds"]) and len(found) == 4


def test_a_rank_without_a_gpu_fails_the_task(four_gpus):
    task, lines = train(four_gpus, 5)
    assert task["containers"][0]["exitCode"] != 0
    assert any("rank 4 of this node has no GPU: the node has 4" in line for line in lines)
