"""The state of processes on NVIDIA's GPUs: the calls of libcuda for checkpoints of processes (driver 570 and newer)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from typing import Any

from corral.node import nvml
from corral.node.gpu_states import CHECKPOINTED, FAILED, LOCKED, MIB, NONE, RUNNING, DriverError

STATES = (RUNNING, LOCKED, CHECKPOINTED, FAILED)  # by the driver's numbers
LEFT_BYTES = 600 * MIB
SLOWEST_BYTES_PER_S = 256 * MIB  # an H200 moves 2 GiB per second and more
CALLS = ("cuCheckpointProcessGetState", "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint")
TOO_OLD = "the driver cannot move the state of a process on a GPU: version 570 or newer is needed"


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs of cuda.h."""

    _fields_ = (("timeoutMs", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class NvidiaGpuStates:
    left_bytes = LEFT_BYTES

    def __init__(self) -> None:
        self._cuda = load_cuda()
        try:
            self._nvml = nvml.load()
            self._nvml.nvmlInit()
        except nvml.NoDriver as why:
            raise DriverError(str(why)) from None
        except self._nvml.NVMLError as error:
            raise DriverError(f"the NVIDIA driver does not respond ({error})") from None

    def state(self, pid: int) -> str:
        number = ctypes.c_int(-1)
        result = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(number))
        if result:  # the driver knows only processes that use CUDA
            return NONE
        return STATES[number.value] if 0 <= number.value < len(STATES) else FAILED

    def reason(self, pid: int) -> str:
        result = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(ctypes.c_int()))
        return f"cuCheckpointProcessGetState: {error_text(self._cuda, result)}" if result else ""

    def used(self, pids: Collection[int]) -> dict[int, int]:
        api, found = self._nvml, dict[int, int]()
        try:
            handles = [api.nvmlDeviceGetHandleByIndex(index) for index in range(api.nvmlDeviceGetCount())]
            for handle in handles:
                of_gpu = dict[int, int]()
                for read in (api.nvmlDeviceGetComputeRunningProcesses, api.nvmlDeviceGetGraphicsRunningProcesses):
                    for process in self._processes(read, handle):
                        size = getattr(process, "usedGpuMemory", None)
                        if size is None:  # the driver does not say it: at most everything that is used on the GPU
                            size = api.nvmlDeviceGetMemoryInfo(handle).used
                        of_gpu[int(process.pid)] = max(of_gpu.get(int(process.pid), 0), int(size))
                for pid, size in of_gpu.items():
                    found[pid] = found.get(pid, 0) + size
        except api.NVMLError as error:
            raise DriverError(f"the driver does not list the processes on the GPUs ({error})") from None
        return {pid: size for pid, size in found.items() if pid in pids}

    def _processes(self, read: Any, handle: Any) -> list[Any]:
        try:
            return list(read(handle))
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return []  # graphics on a GPU without them
            raise

    def move_s(self, pid: int, size: int) -> float:
        return size / SLOWEST_BYTES_PER_S

    def lock(self, pid: int, timeout_s: float) -> None:
        arguments = LockArguments(timeoutMs=int(1000 * timeout_s))
        self._call("cuCheckpointProcessLock", pid, ctypes.byref(arguments))

    def checkpoint(self, pid: int) -> None:
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int) -> None:
        self._call("cuCheckpointProcessRestore", pid, None)

    def unlock(self, pid: int) -> None:
        self._call("cuCheckpointProcessUnlock", pid, None)

    def _call(self, name: str, pid: int, arguments: Any) -> None:
        result = getattr(self._cuda, name)(pid, arguments)
        if result:
            raise DriverError(f"{name} of process {pid}: {error_text(self._cuda, result)}")


def ignore_cuda_variables() -> None:
    """Remove the variables of CUDA, for example of an MPS daemon, so that those of the agent do not change what libcuda does."""
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        del os.environ[name]


def load_cuda() -> Any:
    """Load the driver's library for checkpoints of processes. Raises DriverError if that is not possible, with the reason."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DriverError("no NVIDIA driver on this machine (libcuda.so.1 was not found)") from None
    if not all(hasattr(cuda, name) for name in CALLS):
        raise DriverError(TOO_OLD)
    if result := cuda.cuInit(0):
        raise DriverError(f"cuInit: {error_text(cuda, result)}")
    return cuda


def error_text(cuda: Any, result: int) -> str:
    """Return the driver's name and description of an error."""
    texts = []
    for read in (cuda.cuGetErrorName, cuda.cuGetErrorString):
        text = ctypes.c_char_p()
        if not read(result, ctypes.byref(text)) and text.value:
            texts.append(text.value.decode(errors="replace"))
    return f"{texts[0]} ({texts[1]})" if len(texts) == 2 else f"error {result}"
