"""Real GPUs, through NVIDIA's management library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from corral.model.run import GpuDevice, GpuSample


class NoDriver(Exception):
    pass


class NvmlGpus:
    def __init__(self) -> None:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")  # before the bindings, which are large
            import pynvml
        except OSError:
            raise NoDriver("no NVIDIA driver on this machine (libnvidia-ml.so.1 is not there)") from None
        except ImportError:
            raise NoDriver("the package nvidia-ml-py is not installed") from None
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._devices: list[GpuDevice] = []
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._add(index)
        except pynvml.NVMLError as error:
            raise NoDriver(f"the NVIDIA driver does not answer ({error})") from None
        if not self._devices:
            raise NoDriver("the NVIDIA driver shows none")
        self.note = f"{len(self._devices)} × {self._devices[0].model}"

    def _add(self, index: int) -> None:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        gpu_id = _text(self._nvml.nvmlDeviceGetUUID(handle))
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        self._handles[gpu_id] = handle
        self._devices.append(GpuDevice(gpu_id, index, _text(self._nvml.nvmlDeviceGetName(handle)), int(memory.total) // 2**20))

    def devices(self) -> list[GpuDevice]:
        return self._devices

    def sample(self, live: Mapping[str, Iterable[int]]) -> list[GpuSample]:
        samples = [self._sample(gpu_id, handle) for gpu_id, handle in self._handles.items()]
        return [sample for sample in samples if sample is not None]

    def _sample(self, gpu_id: str, handle: Any) -> GpuSample | None:
        """None where load cannot be read, as with MIG: nothing is better than a zero that is not true."""
        nvml = self._nvml
        load = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        if load is None or memory is None:
            return None
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        temperature_c = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return GpuSample(
            gpu_id,
            utilization_percent=float(load.gpu),
            memory_used_mib=int(memory.used) // 2**20,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature_c is None else float(temperature_c),
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings gave bytes
