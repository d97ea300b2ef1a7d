"""Pauses of the runs of one engine, and programs whose progress a test can see."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from corral.model.agent_protocol import PauseOrder
from corral.model.run import RunPause, RunSpec
from corral.node import procfs
from corral.node.gpu_states import NONE
from corral.node.host import kernel_boot_id
from corral.node.pause_marks import PauseMark, PauseMarks
from corral.node.pause_program import find_run
from corral.node.pauses import Pauses
from corral.node.run_freezer import STOPPED
from corral.node.simulated_gpu_states import ALL_SPEEDS, FOLDER, SimulatedGpuStates
from engines.drivers import Driver, MakeEngine, process_engine
from engines.nodes import NodeFolder, kill, shell

# A step of the program needs little CPU time. It writes to a file, because the output of containers is copied later.
COUNT = "while :; do echo >> {}; sleep 0.05; done"


class PausingDriver:
    """A driver with the agent's part of pauses. `gpus` is the kind of the host's GPUs."""

    def __init__(self, driver: Driver, gpus: str = "simulated", make: MakeEngine = process_engine, environment=None) -> None:
        """`make` and `environment` make the engine of the next agent."""
        self.driver = driver
        self._make, self._environment, self._next = make, environment, None
        self.node = driver.node
        self.engine = driver.engine
        self.marks = PauseMarks(self.node.node)
        self.changes: list[str] = []
        self.number = 0
        self.pauses = Pauses(self.node.node, kernel_boot_id(), gpus, self.engine, self.changes.append)
        self._call(self.pauses.open)

    def _call(self, function, *arguments) -> None:
        """Call a function in the loop of the engine."""

        def called() -> bool:
            function(*arguments)
            return True

        self.driver.until(called)

    def counter(self, run_id: str) -> Path:
        return self.node.data / f"count-{run_id}"

    def start(self, run_id: str, script: str = "{count}", *, gpus: int = 1, **more) -> RunSpec:
        """Start a run whose script has `{count}` where it begins to count, and wait until it counts."""
        path = self.counter(run_id)
        spec = shell(run_id, script.replace("{count}", COUNT.replace("{}", str(path))), **more)
        environment = {**variables(self.node, run_id), **spec.environment}
        spec = replace(spec, environment=environment, gpu_ids=[f"SIM-GPU-{number}" for number in range(gpus)])
        self.engine.start([spec])
        self.driver.until(path.exists, f"{run_id} counts")
        self.driver.started(run_id)
        return spec

    def set_speed(self, gib_per_s: str) -> None:
        set_speed(self.node, gib_per_s)

    def states(self, run_id: str) -> set[str]:
        """Return the states of the processes of a run on GPUs."""
        gpus = SimulatedGpuStates(self.node.node)
        return {gpus.state(pid) for pid in self.pids(run_id)} - {NONE}

    def give(self, order: PauseOrder) -> None:
        self._call(self.pauses.order, order)

    def ended(self, *run_ids: str) -> None:
        """Do what the agent does when runs have ended."""
        self._call(self.pauses.ended, run_ids)

    def begin(self, run_id: str, *, paused: bool) -> int:
        self.number += 1
        self._call(self.pauses.order, PauseOrder(run_id, self.number, paused))
        return self.number

    def answer(self, run_id: str, number: int) -> RunPause:
        self.driver.until(
            lambda: run_id in self.pauses.answers and self.pauses.answers[run_id].number >= number, f"answer {number} of {run_id}"
        )
        answer = self.pauses.answers[run_id]
        assert answer.number == number
        return answer

    def pause(self, run_id: str) -> RunPause:
        return self.answer(run_id, self.begin(run_id, paused=True))

    def resume(self, run_id: str) -> RunPause:
        return self.answer(run_id, self.begin(run_id, paused=False))

    def mark(self, run_id: str) -> PauseMark:
        mark = self.marks.read(run_id)
        assert mark is not None
        return mark

    def until_calling(self, run_id: str, call: str) -> int:
        """Wait until the pause program makes this call of the driver. Return the pid of the program."""
        self.driver.until(lambda: self.mark(run_id).call.startswith(call), f"{call} of {run_id}")
        return self.program(run_id)

    def program(self, run_id: str) -> int:
        assert self.marks.has_program(run_id)
        return int((self.node.node / "paused" / f"{run_id},program").read_text())

    def kill_program(self, run_id: str) -> None:
        kill(self.program(run_id))

    def count(self, run_id: str) -> int:
        return self.counter(run_id).stat().st_size

    def counts_on(self, run_id: str) -> None:
        since = self.count(run_id)
        self.driver.until(lambda: self.count(run_id) > since + 1, f"{run_id} counts on")

    def stands_still(self, run_id: str) -> bool:
        return stands_still(self.node, run_id)

    def pids(self, run_id: str) -> list[int]:
        return pids(self.node, run_id)

    def memory_limits(self, run_id: str) -> list[int]:
        """Return the limits of the memory of a run, as the pause program sees them."""
        target = self.engine.pause_target(run_id)
        assert target is not None
        mark = PauseMark(run_id, 0, True, "", engine=target.engine, container=target.container)
        run = find_run(self.node.node, mark)
        assert run is not None
        return [limit for limit, _ in run.memory().values()]

    def with_next_agent(self) -> PausingDriver:
        """Replace the agent: the old one ends without any order. Return the next one."""
        self.driver._loop.run_until_complete(self.pauses.close())
        self.driver.close()
        driver = Driver(self._make, self.node, environment=self._environment)
        self._next = PausingDriver(driver, make=self._make, environment=self._environment)
        self._next.number = self.number
        return self._next

    def close_all(self) -> None:
        """Close the last agent and its engine."""
        last = self
        while last._next is not None:
            last = last._next
        last.close()
        last.driver.close()

    def close(self) -> None:
        """Kill the runs first: they start processes all the time."""
        alive = [run_id for run_id, run in self.engine.observe().items() if run.alive]
        self.engine.signal(alive, "SIGKILL")
        for run_id in alive:
            self.driver.ended(run_id)
        self.driver._loop.run_until_complete(self.pauses.close())


def variables(node: NodeFolder, run_id: str) -> dict[str, str]:
    """Return the variables by which `pids` finds the processes of a run."""
    return {"TEST_RUN": f"{node.host_id}/{run_id}"}


def pids(node: NodeFolder, run_id: str) -> list[int]:
    """Return the pids of the processes of a run."""
    return [pid for pid, value in procfs.with_variable("TEST_RUN").items() if value == f"{node.host_id}/{run_id}"]


def stands_still(node: NodeFolder, run_id: str) -> bool:
    """Whether no process of a paused run can execute anything: each is stopped or frozen, and has no memory on a GPU.

    A shell whose new child was stopped before it executed its program waits for this child in the kernel (state D).
    """
    found, states, mark = pids(node, run_id), SimulatedGpuStates(node.node), PauseMarks(node.node).read(run_id)
    assert found, "the run has ended"
    assert mark is not None
    if mark.gpus != "none":
        assert all(size <= states.left_bytes for size in states.used(found).values())
    return all(procfs.state(pid) in STOPPED or is_frozen(pid) for pid in found)


def set_speed(node: NodeFolder, gib_per_s: str) -> None:
    """Set how fast the memory of runs is moved from and to simulated GPUs."""
    path = node.node / FOLDER / ALL_SPEEDS
    path.parent.mkdir(exist_ok=True)
    path.write_text(gib_per_s)


def is_frozen(pid: int) -> bool:
    """Whether the process is in a frozen cgroup of either version."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for file in (
            f"/sys/fs/cgroup/unified{path}/cgroup.events" if not names else "",
            f"/sys/fs/cgroup{path}/cgroup.events" if not names else "",
            f"/sys/fs/cgroup/freezer{path}/freezer.state" if "freezer" in names.split(",") else "",
        ):
            if file and os.path.exists(file) and any(word in Path(file).read_text() for word in ("frozen 1", "FROZEN")):
                return True
    return False
