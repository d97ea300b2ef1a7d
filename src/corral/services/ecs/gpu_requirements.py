"""GPU requirements: which GPUs the containers of a task need, according to their definitions.

A container requires whole GPUs (`value`), or memory of one GPU that it shares with other containers (`sharingStrategy`). If a
container requires no GPU, but is privileged or sets NVIDIA_VISIBLE_DEVICES, it gets free GPUs: those that the variable names, or
all if the variable is not set.

The sharing strategy is NVIDIA's Multi-Process Service (MPS). Two environment variables tell MPS the limits of a container. Without
an MPS daemon on the host, the processes still share the GPU, but the driver does not enforce these limits.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from corral.model.numbers import whole_number
from corral.model.task import ALL_GPUS, FREE_GPUS
from corral.services.ecs.errors import ClientException

GPUS_MAX = 64  # GPUs that one container can require
GPU_MEMORY_MAX_MIB = 2**31 - 1
DECIMAL = re.compile(r"\d*\.\d+")


def gpu_count(container: dict[str, Any]) -> int:
    """How many GPUs a container requires, or ALL_GPUS. A container that shares a GPU requires one."""
    required = _requirement(container)
    if required is None:
        return 0
    if "sharingStrategy" in required:
        return 1
    value = required.get("value", "")
    if value == "ALL":
        return ALL_GPUS
    if DECIMAL.fullmatch(value):
        raise ClientException(
            f"Invalid GPU value '{value}' for container {container['name']}: a container gets whole GPUs. To share a GPU, give "
            "sharingStrategy in place of value."
        )
    count = whole_number(value, GPUS_MAX)
    if not count:
        raise ClientException(
            f"Invalid GPU value '{value}' for container {container['name']}: give a whole number from 1 to {GPUS_MAX}, or ALL."
        )
    return count


def _requirement(container: dict[str, Any]) -> dict[str, Any] | None:
    needs: Collection[dict[str, Any]] = container.get("resourceRequirements", ())
    for need in needs:
        if need["type"] != "GPU" and "sharingStrategy" in need:
            raise ClientException(f"Container {container['name']}: sharingStrategy requires the type GPU, not {need['type']}.")
    required = [need for need in needs if need["type"] == "GPU"]
    if len(required) > 1:
        raise ClientException(f"Container {container['name']}: at most one GPU resource requirement is allowed.")
    return required[0] if required else None


def sharing_strategy(container: dict[str, Any]) -> dict[str, Any] | None:
    """The sharing strategy of a container in ECS's form, after a check. None: the container does not share a GPU."""
    required = _requirement(container)
    if required is None or "sharingStrategy" not in required:
        return None
    strategy: dict[str, Any] = required["sharingStrategy"]
    name, allocation = container["name"], strategy.get("nvidiaMps")
    if "value" in required:
        raise ClientException(f"Container {name}: a GPU requirement has either value or sharingStrategy, not both.")
    if allocation is None:
        raise ClientException(f"Container {name}: sharingStrategy must have the member nvidiaMps.")
    memory_mib, percent = allocation.get("memory"), allocation.get("maxComputePercent", 100)
    if not isinstance(memory_mib, int) or not 1 <= memory_mib <= GPU_MEMORY_MAX_MIB:
        raise ClientException(
            f"Container {name}: the memory of nvidiaMps must be from 1 to {GPU_MEMORY_MAX_MIB} MiB, not {memory_mib}."
        )
    if not isinstance(percent, int) or not 1 <= percent <= 100:
        raise ClientException(f"Container {name}: maxComputePercent of nvidiaMps must be from 1 to 100, not {percent}.")
    return strategy


def gpu_memory_of_run(container: dict[str, Any]) -> int:
    """The memory in MiB that a container requires of a shared GPU. 0: the container does not share a GPU."""
    strategy = sharing_strategy(container)
    return int(strategy["nvidiaMps"]["memory"]) if strategy is not None else 0


def gpus_required(containers: Collection[dict[str, Any]]) -> tuple[int, int]:
    """How many GPUs the containers of a task require together, or ALL_GPUS; and how much memory in MiB of a shared GPU.

    Containers that share a GPU get the same GPU. The memory is 0 if they get whole GPUs.
    """
    counts = [count for container in containers if (count := gpu_count(container))]
    shares = [memory_mib for container in containers if (memory_mib := gpu_memory_of_run(container))]
    if shares and len(shares) != len(counts):
        raise ClientException("The containers of a task that require GPUs must all use value, or must all use sharingStrategy.")
    if shares:
        if sum(shares) > GPU_MEMORY_MAX_MIB:
            raise ClientException(f"The containers of a task can share at most {GPU_MEMORY_MAX_MIB} MiB of a GPU together.")
        return 1, sum(shares)
    if ALL_GPUS in counts and len(counts) > 1:
        raise ClientException(
            "If a container of a task requires ALL GPUs of its instance, no other container of the task can require a GPU."
        )
    return (ALL_GPUS if ALL_GPUS in counts else sum(counts)), 0


def sharing_environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables that ECS sets in a container that shares a GPU. MPS reads them.

    The container sees only this GPU, so the index of the GPU is 0.
    """
    strategy = sharing_strategy(container)
    if strategy is None:
        return {}
    allocation = strategy["nvidiaMps"]
    limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={allocation['memory']}M"}
    if "maxComputePercent" in allocation:
        limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(allocation["maxComputePercent"])
    return limits


def gpus_of_run(container: dict[str, Any]) -> int:
    """The value of `Run.gpus` for a container: the required number of GPUs, ALL_GPUS or FREE_GPUS.

    FREE_GPUS is for containers that require no GPU, but are privileged or set NVIDIA_VISIBLE_DEVICES.
    """
    return gpu_count(container) or (FREE_GPUS if visible_gpus(container) else 0)


def visible_gpus(container: dict[str, Any]) -> str | None:
    """The GPUs that NVIDIA_VISIBLE_DEVICES names: `all`, or indexes and ids separated by commas. None: no GPU.

    If the variable is not set, a privileged container sees all GPUs.
    """
    for pair in container["environment"]:
        if pair["name"] == "NVIDIA_VISIBLE_DEVICES":
            value = str(pair.get("value", "")).strip()
            return None if value in ("", "none", "void") else value
    return "all" if container.get("privileged") else None


def sets_visible_devices(container: dict[str, Any]) -> bool:
    """Whether the container's environment sets NVIDIA_VISIBLE_DEVICES. The value does not matter."""
    return any(pair["name"] == "NVIDIA_VISIBLE_DEVICES" for pair in container["environment"])
