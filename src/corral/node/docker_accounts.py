"""Containers that run as the Unix account of their task's owner: those of tasks that mount paths of the host.

Such a container has the user and one group of the account, no capability, and no way to get more rights, so that a setuid program
of its image is harmless. This holds for the commands of ExecuteCommand and for health checks, too: the engine starts them with the
same user and the same settings. If one container of a task mounts a path of the host, this applies to all containers of the task,
because they can share namespaces. All functions are pure.

The root file system is read-only, except /tmp and /var/tmp. Otherwise the container could change its file /etc/group, in which
Docker looks up the group when it starts a command in the container (`docker_image_groups.py`).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from corral.model.run import RunSpec
from corral.node.docker_options import binds, container_of, mount_points, task_of
from corral.node.host_mounts import BoundPaths, HostPath

NO_NEW_PRIVILEGES = "no-new-privileges"
WRITABLE = ("/tmp", "/var/tmp")


def acts_as_account(spec: RunSpec) -> bool:
    """Whether the container must run as `spec.account`."""
    return bool(spec.account) and any(_host_path(volume) is not None for volume in task_of(spec).get("volumes", ()))


def refused_setting(spec: RunSpec) -> str:
    """Return a setting of the container that an account must not have. Return an empty text if there is none."""
    container = container_of(spec)
    linux = container.get("linuxParameters") or {}
    if container.get("privileged"):
        return "privileged: true"
    if added := (linux.get("capabilities") or {}).get("add"):
        return f"linuxParameters.capabilities.add: {added[0]}"
    if devices := linux.get("devices"):
        return f"linuxParameters.devices: {devices[0].get('hostPath')}"
    if sources := container.get("volumesFrom"):
        return f"volumesFrom: {sources[0].get('sourceContainer')} (use mountPoints)"
    return ""


def host_paths(spec: RunSpec) -> list[HostPath]:
    """Return the paths of the host that the container mounts."""
    found = ((_host_path(volume), mount) for volume, mount in mount_points(spec))
    return [HostPath(path, bool(mount.get("readOnly"))) for path, mount in found if path is not None]


def restrict(body: dict[str, Any], spec: RunSpec, bound: BoundPaths) -> None:
    """Change the request that creates a container: it runs as the account, and mounts what has been bound for it."""
    config = body["HostConfig"]
    options = [each for each in config["SecurityOpt"] if not each.startswith(NO_NEW_PRIVILEGES)]
    body["User"] = f"{bound.uid}:{bound.gid}"
    config |= {
        "Privileged": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "SecurityOpt": [*options, NO_NEW_PRIVILEGES],
        "Devices": [],
        "VolumesFrom": [],
        "ReadonlyRootfs": True,
    }
    points = mount_points(spec)
    config["Binds"] = binds(spec, [each for each in points if _host_path(each[0]) is None])
    mounted = [mount for volume, mount in points if _host_path(volume) is not None]
    config["Mounts"] = [
        {
            "Type": "bind",  # unlike an element of Binds, it fails if the source is missing
            "Source": path.source,
            "Target": mount["containerPath"],
            "ReadOnly": path.read_only,
            "BindOptions": {"Propagation": "rprivate"},
        }
        for mount, path in zip(mounted, bound.paths, strict=True)
    ]
    taken = {str(PurePosixPath(each)) for each in (*(mount["containerPath"] for _, mount in points), *config["Tmpfs"])}
    config["Mounts"] += [{"Type": "volume", "Target": path} for path in WRITABLE if path not in taken]


def _host_path(volume: dict[str, Any]) -> str | None:
    """Return the path of the host that a volume mounts. A volume without a path is a volume of Docker."""
    return (volume.get("host") or {}).get("sourcePath") or None
