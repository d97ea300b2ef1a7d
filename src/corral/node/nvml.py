"""Real GPUs, which are read through NVIDIA's management library (NVML)."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from corral.model.gpu import FOREIGN_MAX, Foreign, GpuDevice, GpuHealth
from corral.model.gpu_metrics import GpuSample
from corral.node import gpu_topology
from corral.node.gpu_parts import divide, run_of
from corral.node.procfs import is_ours, process_name

HEALTH_S = 5.0  # the interval between two reads of lasting faults
EVENTS_MAX = 100  # the maximum number of Xids that one call of `health` returns
# A value of NVML's enum nvmlDeviceGpuRecoveryAction_t → the action that the driver asks for.
RECOVERY_ACTIONS = {
    1: "reset of the GPU",
    2: "reboot of the machine",
    4: "reset of the GPU",
    6: "reset of the bus",
    7: "reboot of the machine",
}
HELD_S = 2.0  # how long the load of a process is valid
UNEXPLAINED_PERCENT = 10.0  # if a GPU is busier than this, its processes together cannot have no load
# Why the load of a GPU cannot be divided among the runs that share it
NO_LOAD_OF_PROCESSES = "the driver does not report the load of single processes on this GPU"
UNEXPLAINED = "the driver reports a load of the GPU, but no load of single processes"
LOAD_OF_MPS = "the driver reports the load of the MPS server, and not of its clients"
OTHER_PIDS = "the agent runs in a container, and cannot tell to which task a process on the GPU belongs"
LOST = "the GPU is lost: the driver cannot reach it any more"
# The first 15 characters of nvidia-cuda-mps-server, as in /proc/PID/comm. It has a context on each GPU that its clients use.
MPS_SERVER = "nvidia-cuda-mps"
OUTERMOST_PIDS = "pid:[4026531836]"  # the initial pid namespace has this number on every Linux


log = logging.getLogger("corral.node")


class NoDriver(Exception):
    pass


def load() -> Any:
    """Import the Python bindings of NVML. Raises NoDriver if there is no driver."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # check this first, because importing the bindings is slow
        import pynvml
    except OSError:
        raise NoDriver("no NVIDIA driver on this machine (libnvidia-ml.so.1 was not found)") from None
    except ImportError:
        raise NoDriver("the package nvidia-ml-py is not installed") from None
    return pynvml


class NvmlGpus:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._devices: list[GpuDevice] = []
        try:
            nvml.nvmlInit()
            for index in range(nvml.nvmlDeviceGetCount()):
                self._add_unless_lost(index)
        except nvml.NVMLError as error:
            raise NoDriver(f"the NVIDIA driver does not respond ({error})") from None
        if not self._devices:
            raise NoDriver("the NVIDIA driver lists no GPUs")
        self.note = f"{len(self._devices)} × {self._devices[0].model}"
        self._links = self._read_links()
        self._sees_all_pids = os.readlink("/proc/self/ns/pid") == OUTERMOST_PIDS
        self._measured_us: dict[str, int] = {}  # GPU id → the time of the newest load of its processes, on the driver's clock
        self._loads: dict[str, tuple[float, Mapping[int, float]]] = {}  # GPU id → (time, pid → load)
        self._events = self._listen_for_xids()
        self._conditions: dict[str, str] = {}
        self._conditions_at = -HEALTH_S

    def _add_unless_lost(self, index: int) -> None:
        """Add a GPU. A GPU that the driver lists but cannot reach is left out, so that the other GPUs can be used."""
        try:
            self._add(index)
        except self._nvml.NVMLError as error:
            if not self._is_lost(error):
                raise
            log.warning("GPU %s is left out: %s", index, error)

    def _add(self, index: int) -> None:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        gpu_id = _text(self._nvml.nvmlDeviceGetUUID(handle))
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        self._handles[gpu_id] = handle
        self._devices.append(GpuDevice(gpu_id, index, _text(self._nvml.nvmlDeviceGetName(handle)), int(memory.total) // 2**20))

    def devices(self) -> list[GpuDevice]:
        return self._devices

    def links(self) -> list[list[int]] | None:
        return self._links

    def sample(
        self, live: Mapping[str, Mapping[str, int]], ours: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[GpuSample]:
        # A paused run has only the memory on the GPU that the driver leaves there.
        samples = [
            self._sample(gpu_id, handle, self._foreign(handle, ours, leased=gpu_id in live))
            for gpu_id, handle in self._handles.items()
        ]
        return [self._with_parts(sample, live.get(sample.gpu_id, {})) for sample in samples if sample is not None]

    def _with_parts(self, sample: GpuSample, runs: Mapping[str, int]) -> GpuSample:
        """Add the parts of the runs that share a GPU, or the reason why they are not known."""
        if len(runs) < 2:
            return sample
        load = self._load_of_processes(sample.gpu_id)
        if load is None:
            return replace(sample, why_no_parts=NO_LOAD_OF_PROCESSES)
        if sample.utilization_percent > UNEXPLAINED_PERCENT and not any(load.values()):
            return replace(sample, why_no_parts=UNEXPLAINED)
        if any(percent and process_name(pid) == MPS_SERVER for pid, percent in load.items()):
            return replace(sample, why_no_parts=LOAD_OF_MPS)
        found = self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._handles[sample.gpu_id]) or ()
        memory = {int(each.pid): each.usedGpuMemory for each in found if getattr(each, "usedGpuMemory", None) is not None}
        of_run = {pid: run_of(pid, runs) for pid in {*load, *memory}}
        if not self._sees_all_pids and any(percent and not of_run[pid] for pid, percent in load.items()):
            return replace(sample, why_no_parts=OTHER_PIDS)
        loads = [(of_run[pid] or "", percent) for pid, percent in load.items()]
        memory_mib = [(of_run[pid] or "", used / 2**20) for pid, used in memory.items()] if memory else None
        return replace(sample, parts=divide(runs, loads, memory_mib, sample.utilization_percent))

    def _load_of_processes(self, gpu_id: str) -> Mapping[int, float] | None:
        """Return pid → the load of the process in percent of the GPU. Return None if the driver does not report it.

        The driver measures the processes several times in a second or less often, and returns only the processes that have computed
        since the given time. So the last values are valid for HELD_S, unless there are newer ones.
        """
        nvml, samples = self._nvml, []
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handles[gpu_id], self._measured_us.get(gpu_id, 0))
        except nvml.NVMLError as error:
            # The bindings also raise an error for a list without samples.
            if getattr(error, "value", None) not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                return None
        now_s = time.monotonic()
        if samples:
            newest_us = self._measured_us[gpu_id] = max(int(each.timeStamp) for each in samples)
            recent = [each for each in samples if each.timeStamp > newest_us - HELD_S * 1e6 and each.smUtil <= 100]
            recent.sort(key=lambda each: int(each.timeStamp))
            self._loads[gpu_id] = now_s, {int(each.pid): float(each.smUtil) for each in recent}
        at_s, load = self._loads.get(gpu_id, (now_s, {}))
        return load if now_s < at_s + HELD_S else {}

    def _foreign(self, handle: Any, ours: Collection[int], *, leased: bool) -> list[Foreign]:
        """Return the foreign processes on a GPU: they use the GPU for computation and belong to no run.

        If the agent itself runs in a container, the driver may list processes that are not visible in /proc. If a run has the GPU,
        such a process is assumed to belong to the run. Otherwise it counts as foreign. If the agent does not run in a container, a
        process that is not visible has just ended and does not count. The MPS server does not count either: its clients do.
        """
        found = []
        for process in self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            of_ours = is_ours(process.pid, ours)
            if of_ours is False or (of_ours is None and not self._sees_all_pids and not leased):
                found.append((int(process.pid), process_name(process.pid)))
        return sorted((pid, name) for pid, name in found if name != MPS_SERVER)[:FOREIGN_MAX]

    def _read_links(self) -> list[list[int]] | None:
        """Return the distances between the GPUs. Return None for fewer than three GPUs, or if the driver does not report them."""
        handles = list(self._handles.values())
        if len(handles) < 3:
            return None
        rows = [[0 if other is handle else self._distance(handle, other) for other in handles] for handle in handles]
        return None if any(far is None for row in rows for far in row) else rows  # type: ignore[return-value]

    def _distance(self, one: Any, other: Any) -> int | None:
        nvml = self._nvml
        links = self._links_between(one, other)
        joined = self._query(nvml.nvmlDeviceGetP2PStatus, one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK
        if links or joined:  # joined without a direct link: an NVSwitch connects them
            return gpu_topology.NVLINKS if links > 1 else gpu_topology.NVLINK
        level = self._query(nvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
        return gpu_topology.PCI_LEVELS.get(level)

    def _links_between(self, one: Any, other: Any) -> int:
        """Return the number of direct NVLinks between two GPUs."""
        nvml = self._nvml
        there = self._query(nvml.nvmlDeviceGetPciInfo, other)
        count = 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._query(nvml.nvmlDeviceGetNvLinkState, one, link)
            if state is None:
                break  # the GPU has no more links
            if state == nvml.NVML_FEATURE_ENABLED and there is not None:
                remote = self._query(nvml.nvmlDeviceGetNvLinkRemotePciInfo, one, link)
                same = remote is not None and (remote.domain, remote.bus, remote.device) == (there.domain, there.bus, there.device)
                count += same
        return count

    def _sample(self, gpu_id: str, handle: Any, foreign: list[Foreign]) -> GpuSample | None:
        """Measure the load of a GPU. Return None if the driver does not report it, for example with MIG.

        A sample with a load of zero would be wrong.
        """
        nvml = self._nvml
        load = self._query(nvml.nvmlDeviceGetUtilizationRates, handle)
        # Like nvidia-smi and DCGM, the second version of this call reports the memory that the driver reserves as a separate value.
        # Older drivers do not have the second version.
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        memory = memory if memory is not None else self._query(nvml.nvmlDeviceGetMemoryInfo, handle)
        if load is None or memory is None:
            return None
        power_mw = self._query(nvml.nvmlDeviceGetPowerUsage, handle)
        temperature_c = self._query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        clock_mhz = self._query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        return GpuSample(
            gpu_id,
            utilization_percent=float(load.gpu),
            memory_used_mib=int(memory.used) // 2**20,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature_c is None else float(temperature_c),
            memory_reserved_mib=int(getattr(memory, "reserved", 0)) // 2**20,
            sm_clock_mhz=None if clock_mhz is None else int(clock_mhz),
            foreign=foreign,
        )

    # Health

    def health(self) -> GpuHealth:
        if time.monotonic() >= self._conditions_at + HEALTH_S:
            found = {gpu_id: self._condition(handle) for gpu_id, handle in self._handles.items()}
            self._conditions = {gpu_id: text for gpu_id, text in found.items() if text}
            self._conditions_at = time.monotonic()
        return GpuHealth(self._new_xids(), self._conditions)

    def _listen_for_xids(self) -> Any:
        """Return an event set that collects the Xids of all GPUs. Return None if the driver has no events.

        `corral doctor` finds out in the same way whether the driver reports Xids.
        """
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            log.warning("the driver does not report hardware errors (Xids): %s", error)
            return None
        for gpu_id, handle in self._handles.items():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                log.warning("the driver does not report hardware errors (Xids) of %s: %s", gpu_id, error)
        return events

    def _new_xids(self) -> list[tuple[str, int]]:
        """Return the Xids since the last call, without waiting."""
        found: list[tuple[str, int]] = []
        while self._events is not None and len(found) < EVENTS_MAX:
            event = self._query(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # the driver answers with a timeout if there are no more events
                break
            found += [(gpu_id, int(event.eventData)) for gpu_id in self._gpus_of_event(event.device)]
        return found

    def _gpus_of_event(self, device: Any) -> list[str]:
        """Return the GPU of an event. If the driver cannot name it, return all GPUs that it cannot reach."""
        uuid = self._query(self._nvml.nvmlDeviceGetUUID, device)
        if uuid is not None:
            return [_text(uuid)] if _text(uuid) in self._handles else []
        return [gpu_id for gpu_id, handle in self._handles.items() if self._condition(handle) == LOST]

    def _condition(self, handle: Any) -> str:
        """Return the fault that a GPU has now. Return an empty text if it has none."""
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetUUID(handle)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if self._is_lost(error):
                return LOST
        action = self._recovery_action(handle)
        if action:
            return f"the driver asks for a {action}"
        rows = self._query(nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            return "the remapping of a memory row failed; the GPU must be replaced"
        if rows is not None and rows[2]:
            return "a memory row must be remapped; reset the GPU"
        if self._query(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
            return "a memory page must be retired; reset the GPU"
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        errors = self._query(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)
        return f"{errors} uncorrectable memory error{'s' * (errors > 1)} since the last reset; reset the GPU" if errors else ""

    def _recovery_action(self, handle: Any) -> str:
        """Return the action that recovers a GPU, as the driver reports it. Older drivers and bindings do not report it."""
        nvml = self._nvml
        if not hasattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"):
            return ""
        values = self._query(nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return ""
        return RECOVERY_ACTIONS.get(int(values[0].value.uiVal), "")

    def _is_lost(self, error: Exception) -> bool:
        return getattr(error, "value", None) in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings return bytes
