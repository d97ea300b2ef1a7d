"""Real GPUs, which are read through NVIDIA's management library (NVML)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from corral.model.run import Foreign, GpuDevice, GpuSample
from corral.node import gpu_topology
from corral.node.gpus import FOREIGN_MAX
from corral.node.procfs import is_ours, process_name

OUTERMOST_PIDS = "pid:[4026531836]"  # the initial pid namespace has this number on every Linux


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
                self._add(index)
        except nvml.NVMLError as error:
            raise NoDriver(f"the NVIDIA driver does not respond ({error})") from None
        if not self._devices:
            raise NoDriver("the NVIDIA driver lists no GPUs")
        self.note = f"{len(self._devices)} × {self._devices[0].model}"
        self._links = self._read_links()
        self._sees_all_pids = os.readlink("/proc/self/ns/pid") == OUTERMOST_PIDS

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

    def sample(self, live: Mapping[str, Iterable[int]], ours: Collection[int] = ()) -> list[GpuSample]:
        samples = [
            self._sample(gpu_id, handle, self._foreign(handle, ours, leased=gpu_id in live))
            for gpu_id, handle in self._handles.items()
        ]
        return [sample for sample in samples if sample is not None]

    def _foreign(self, handle: Any, ours: Collection[int], *, leased: bool) -> list[Foreign]:
        """Return the foreign processes on a GPU: those that use it for computation and belong to no run.

        If the agent itself runs in a container, the driver may list processes that are not visible in /proc. If a run has the GPU,
        such a process is assumed to belong to the run. Otherwise it counts as foreign. If the agent does not run in a container, a
        process that is not visible has just ended and does not count.
        """
        found = []
        for process in self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            of_ours = is_ours(process.pid, ours)
            if of_ours is False or (of_ours is None and not self._sees_all_pids and not leased):
                found.append((int(process.pid), process_name(process.pid)))
        return sorted(found)[:FOREIGN_MAX]

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
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, handle)
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
            sm_clock_mhz=None if clock_mhz is None else int(clock_mhz),
            foreign=foreign,
        )

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings return bytes
