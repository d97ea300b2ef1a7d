"""Settings of a task definition that give its containers access to the host. With such a setting, a task can control the machine.

`corral up --isolate` refuses these settings. If a program in a container launches a task with such a setting, a policy must allow
`corral:RunOnHost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from corral.model.task import is_host_image
from corral.services.ecs.errors import ClientException

HOST = "host"
# Linux capabilities that let a container control the host. Other capabilities affect only the container itself.
STRONG_CAPABILITIES = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "MAC_ADMIN", "MAC_OVERRIDE", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE",
     "SYS_PTRACE", "SYS_RAWIO", "SYS_TIME", "SYSLOG"}
)  # fmt: skip


def setting_with_host_access(definition: Mapping[str, Any]) -> str | None:
    """Return the first setting in a task definition that gives access to the host. Return None if there is none."""
    return next(_settings(definition), None)


def check_isolated(definition: Mapping[str, Any]) -> None:
    """Refuse a task definition that gives access to the host. Called with `--isolate` only."""
    setting = setting_with_host_access(definition)
    if setting is not None:
        raise ClientException(refusal(setting))


def refusal(setting: str) -> str:
    return (
        f"{setting} gives a task access to the host, which `corral up --isolate` forbids. "
        "Remove the setting, or start Corral with --no-isolate."
    )


def _settings(definition: Mapping[str, Any]) -> Iterator[str]:
    for member in ("networkMode", "pidMode", "ipcMode"):
        if definition.get(member) == HOST:
            yield f"{member}: host"
    for volume in definition.get("volumes") or ():
        name = volume.get("name")
        if (path := (volume.get("host") or {}).get("sourcePath")) is not None:
            yield f"host.sourcePath {path} of volume {name}"
        docker = volume.get("dockerVolumeConfiguration") or {}
        if "device" in (docker.get("driverOpts") or {}):  # the volume driver `local` can mount any path or device of the host
            yield f"dockerVolumeConfiguration.driverOpts of volume {name}"
    for container in definition.get("containerDefinitions") or ():
        for setting in _container_settings(container):
            yield f"{setting} of container {container.get('name')}"


def _container_settings(container: Mapping[str, Any]) -> Iterator[str]:
    image, linux = container.get("image") or "", container.get("linuxParameters") or {}
    if is_host_image(image):
        yield f"image: {image}"
    if container.get("privileged"):
        yield "privileged: true"
    for device in linux.get("devices") or ():
        yield f"linuxParameters.devices: {device.get('hostPath')}"
    for capability in (linux.get("capabilities") or {}).get("add") or ():
        if capability.upper().removeprefix("CAP_") in STRONG_CAPABILITIES:
            yield f"linuxParameters.capabilities.add: {capability}"
    for option in container.get("dockerSecurityOptions") or ():
        if "unconfined" in option.lower() or "disable" in option.lower():
            yield f"dockerSecurityOptions: {option}"
