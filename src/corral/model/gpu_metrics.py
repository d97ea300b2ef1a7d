"""What a host measures of its GPUs, and the metrics that are made of it. Metrics have the names that NVIDIA's DCGM uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from corral.model.gpu import Foreign


class GpuPart(Struct, frozen=True, array_like=True):
    """The part of the load of a GPU that one of several runs on the GPU causes."""

    utilization_percent: float  # of the whole GPU: the parts of all runs together are at most the load of the GPU
    memory_used_mib: int | None = None  # None: the driver does not report it


# Without `gc`, the garbage collector need not look at the samples of thousands of GPUs. They cannot refer to themselves.
class GpuSample(Struct, frozen=True, omit_defaults=True, gc=False):
    gpu_id: str
    utilization_percent: float
    memory_used_mib: int
    power_w: float | None = None
    temperature_c: float | None = None
    foreign: list[Foreign] = field(default_factory=list)
    sm_clock_mhz: int | None = None
    memory_reserved_mib: int = 0  # memory that the driver reserves, which is neither used nor free
    last_xid: int = 0  # the last Xid (error) since the agent started, also one that an application caused; 0: none
    # Run id → its part, if several runs share the GPU. None if not, or if the parts are not known.
    parts: dict[str, GpuPart] | None = None
    why_no_parts: str = ""  # why the parts of the runs that share the GPU are not known; empty if they are known


class GpuMetric(Struct, frozen=True):
    name: str
    help: str  # the text that Prometheus shows
    value: Callable[[GpuSample, int], float | None]  # from a sample and the memory of the GPU in MiB; None: not measured
    unit: str = "None"
    in_cloudwatch: bool = True  # False: only Prometheus gets it
    of_part: Callable[[GpuPart], float | None] | None = None  # the value of one of several tasks on the GPU; None: that of the GPU


GPU_METRICS = (
    GpuMetric(
        "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda gpu, _: gpu.utilization_percent, "Percent",
        of_part=lambda part: part.utilization_percent,
    ),
    GpuMetric(
        "DCGM_FI_DEV_FB_USED", "Frame buffer memory used (in MiB).", lambda gpu, _: gpu.memory_used_mib, "Megabytes",
        of_part=lambda part: part.memory_used_mib,
    ),
    GpuMetric(
        "DCGM_FI_DEV_FB_FREE", "Frame buffer memory free (in MiB).",
        lambda gpu, memory_mib: memory_mib - gpu.memory_used_mib - gpu.memory_reserved_mib, "Megabytes",
    ),
    GpuMetric("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda gpu, _: gpu.power_w),
    GpuMetric("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda gpu, _: gpu.temperature_c),
    GpuMetric("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda gpu, _: gpu.sm_clock_mhz),
    GpuMetric(
        "DCGM_FI_DEV_XID_ERRORS", "Value of the last Xid error, also of errors of applications. 0: none since the agent started.",
        lambda gpu, _: gpu.last_xid, in_cloudwatch=False,
    ),
)  # fmt: skip
CLOUDWATCH_METRICS = tuple(metric for metric in GPU_METRICS if metric.in_cloudwatch)


def gpu_values(sample: GpuSample, memory_mib: int, metrics: Sequence[GpuMetric] = GPU_METRICS) -> list[tuple[GpuMetric, float]]:
    """Return each of these metrics of a GPU that the host has measured."""
    return [(metric, value) for metric in metrics if (value := metric.value(sample, memory_mib)) is not None]
