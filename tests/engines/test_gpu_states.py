"""The contract of the driver's calls that move the state of a process: simulated GPUs keep it, and so does a real GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.cli.checks.finding import OK, WARN
from corral.cli.checks.machine import pauses
from corral.node import procfs
from corral.node.gpu_states import CHECKPOINTED, LOCKED, MIB, NONE, RUNNING, DriverError, GpuStates, NoGpuStates
from corral.node.nvidia_gpu_states import NvidiaGpuStates
from corral.node.simulated_gpu_states import MEMORY, SimulatedGpuStates
from engines.nodes import kill
from eventually import eventually

SIZE = 256 * MIB
COUNT = 'while :; do echo >> "$0"; sleep 0.05; done'
# A program that keeps memory on GPU 0, and counts as long as its content is right.
CUDA_PROGRAM = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    if result:
        sys.exit(f"CUDA error {result}")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
size = int(sys.argv[2])
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(0x600DDA7A), ctypes.c_size_t(size // 4)))
last = ctypes.c_uint()
while True:
    check(cuda.cuMemcpyDtoH_v2(ctypes.byref(last), ctypes.c_uint64(memory.value + size - 4), ctypes.c_size_t(4)))
    if last.value != 0x600DDA7A:
        sys.exit("the memory has changed")
    with open(sys.argv[1], "a") as file:
        file.write("\\n")
    time.sleep(0.05)
"""


class GpuProgram:
    """A process with SIZE bytes on a GPU, which counts."""

    def __init__(self, command: list[str], counter: Path, environment: dict[str, str]) -> None:
        self._counter = counter
        self._process = subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)
        self.pid = self._process.pid
        eventually(lambda: counter.exists() or self._process.poll() is not None, "the program counts", within_s=120.0)
        assert self._process.poll() is None

    def counts_on(self) -> None:
        before = self._counter.stat().st_size
        eventually(lambda: self._counter.stat().st_size > before + 1 or self._process.poll() is not None, "it counts on")
        assert self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(params=["simulated", pytest.param("nvidia", marks=pytest.mark.gpu)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def states(kind: str, tmp_path: Path) -> GpuStates:
    try:
        return SimulatedGpuStates(tmp_path) if kind == "simulated" else NvidiaGpuStates()
    except DriverError as why:
        pytest.skip(str(why))


@pytest.fixture
def program(kind: str, states: GpuStates, tmp_path: Path) -> Iterator[GpuProgram]:
    counter = tmp_path / "counter"
    if kind == "simulated":
        program = GpuProgram(["sh", "-c", COUNT, str(counter)], counter, {MEMORY: str(SIZE // MIB)})
    else:
        program = GpuProgram([sys.executable, "-c", CUDA_PROGRAM, str(counter), str(SIZE)], counter, {})
    yield program
    program.end()


def test_the_state_of_a_process_is_moved_out_and_back(kind: str, states: GpuStates, program: GpuProgram, tmp_path: Path) -> None:
    pid = program.pid
    assert states.state(pid) == RUNNING
    assert states.used([pid])[pid] >= SIZE
    states.lock(pid, 10.0)
    assert states.state(pid) == LOCKED
    states.unlock(pid)
    assert states.state(pid) == RUNNING
    program.counts_on()
    for _ in range(2):
        states.lock(pid, 10.0)
        states.checkpoint(pid)
        assert states.state(pid) == CHECKPOINTED
        assert states.used([pid]).get(pid, 0) <= states.left_bytes
        other = SimulatedGpuStates(tmp_path) if kind == "simulated" else NvidiaGpuStates()  # of the next pause program
        assert other.state(pid) == CHECKPOINTED
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: procfs.is_stopped(pid), "stopped")
        assert states.used([pid]).get(pid, 0) <= states.left_bytes  # also while it is stopped
        os.kill(pid, signal.SIGCONT)
        other.restore(pid)
        assert other.state(pid) == LOCKED
        other.unlock(pid)
        assert states.state(pid) == RUNNING and states.used([pid])[pid] >= SIZE
        program.counts_on()


def test_calls_in_another_order_are_refused_with_the_reason_of_the_driver(states: GpuStates, program: GpuProgram) -> None:
    for call in (states.checkpoint, states.restore):
        with pytest.raises(DriverError, match=f"of process {program.pid}: .*ILLEGAL_STATE"):
            call(program.pid)
        assert states.state(program.pid) == RUNNING
    program.counts_on()


def test_processes_without_a_gpu_have_no_state(states: GpuStates, program: GpuProgram) -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    assert states.state(sleeper.pid) == NONE and states.used([sleeper.pid]) == {}
    with pytest.raises(DriverError, match=f"of process {sleeper.pid}"):
        states.lock(sleeper.pid, 1.0)
    sleeper.kill()
    sleeper.wait()
    assert states.state(sleeper.pid) == NONE
    states.lock(program.pid, 10.0)
    states.checkpoint(program.pid)
    kill(program.pid)
    program.end()
    assert states.state(program.pid) == NONE and states.used([program.pid]) == {}


def test_a_run_without_gpus_needs_no_driver() -> None:
    states = NoGpuStates()
    assert states.state(os.getpid()) == NONE and states.used([os.getpid()]) == {}
    for call in (states.checkpoint, states.restore, states.unlock):
        with pytest.raises(DriverError, match="no GPU"):
            call(os.getpid())


def test_doctor_says_whether_runs_with_gpus_can_be_paused() -> None:
    try:
        NvidiaGpuStates()
        why = ""
    except DriverError as error:
        why = str(error)
    [finding] = pauses()
    assert finding.level == (WARN if why else OK)
    assert why in finding.found
