"""What the Docker engine says of itself (`/info`): how it gives GPUs to containers, and whether it uses a user namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gpu_request_style(info: Mapping[str, Any]) -> str:
    """Return how to request GPUs from this engine.

    `cdi`: the engine supports NVIDIA's CDI devices. `nvidia`: the engine uses the runtime of the NVIDIA Container Toolkit.
    """
    devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
    if any(device.startswith("nvidia.com/gpu=") for device in devices):
        return "cdi"
    return "cdi" if info.get("CDISpecDirs") and "nvidia" not in (info.get("Runtimes") or {}) else "nvidia"


def maps_ids(info: Mapping[str, Any]) -> bool:
    """Whether users of containers have other ids on the host, because the engine uses a user namespace."""
    return any(f"name={mode}" in option for option in info.get("SecurityOptions") or () for mode in ("userns", "rootless"))
