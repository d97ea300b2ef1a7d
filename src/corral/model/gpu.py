"""GPUs: devices and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

# Xids of NVIDIA's catalogue that need a reset, a reboot or another GPU. No task gets a GPU with such an Xid. Most other Xids are
# errors of an application (13, 31, 43, 45, 68, 109), and are over when the application has ended. Others are notes of the driver:
# 63 and 94 lead to a pending row remap, and Corral asks the driver for pending remaps.
HARDWARE_XIDS = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    62: "a microcontroller of the GPU halted",
    64: "a memory row or page could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "the GPU's system processor does not respond",
    120: "the GPU's system processor failed",
    136: "the training of a link failed",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialized",
    158: "a fatal timeout of the GPU",
}
XID_MAX = 100_000
SIMULATED_MAX = 64  # GPUs of a host
# The models of GPUs that Corral can simulate → the name and the memory in MiB that NVML reports.
MODELS: dict[str, tuple[str, int]] = {
    "B200": ("NVIDIA B200", 183_359),
    "H200": ("NVIDIA H200", 143_771),
    "H100": ("NVIDIA H100 80GB HBM3", 81_559),
    "A100": ("NVIDIA A100-SXM4-40GB", 40_960),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 81_920),
    "L40S": ("NVIDIA L40S", 46_068),
    "L4": ("NVIDIA L4", 23_034),
    "A10G": ("NVIDIA A10G", 23_028),
    "T4": ("Tesla T4", 15_360),
    "V100": ("Tesla V100-SXM2-16GB", 16_384),
    "V100-32GB": ("Tesla V100-SXM2-32GB", 32_768),
    "P100": ("Tesla P100-PCIE-16GB", 16_280),
    "M60": ("Tesla M60", 7_618),
    "K80": ("Tesla K80", 11_441),
}

Foreign = tuple[int, str]  # pid and name of a process that uses a GPU and belongs to no run
FOREIGN_MAX = 4  # maximum number of foreign processes that are listed per GPU


class GpuDevice(Struct, frozen=True):
    gpu_id: str
    index: int
    model: str
    memory_mib: int
    simulated: bool = False
    excluded: bool = False  # excluded by --exclude-gpus: clients see the GPU, but tasks do not get it


class GpuFault(Struct, frozen=True):
    """A fault of a GPU. While a GPU has a fault, no task gets it."""

    text: str
    at_s: float
    owner: str  # the id of the instance that owns the GPU


class GpuHealth(Struct, frozen=True):
    xids: Sequence[tuple[str, int]] = ()  # (GPU id, Xid) of new errors; an Xid is an error number of NVIDIA
    conditions: Mapping[str, str] = {}  # GPU id → a fault that the driver reports for as long as it lasts


def xid_text(xid: int) -> str | None:
    """Return the fault of a GPU with this Xid. Return None if tasks can still use the GPU."""
    about = HARDWARE_XIDS.get(xid)
    return None if about is None else f"Xid {xid}: {about}"
