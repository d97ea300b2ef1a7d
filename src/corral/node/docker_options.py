"""Translate an ECS container definition into the Docker request that creates the container. All functions are pure.

`spec.settings` contains the container definition and the necessary members of the task definition, both in the form of ECS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from corral.model.container_network import GATEWAY
from corral.model.run import RunSpec
from corral.model.units import CPU_UNITS_PER_CORE, MIB

NETWORK = "corral"  # the Docker network of tasks in network mode bridge or awsvpc
# The Docker network of tasks in network mode none. Its gateway is GATEWAY, and it has no route to other networks.
INSIDE_NETWORK = "corral-inside"

LABEL_HOST = "corral.host"  # the id of the host, which identifies the data folder to which a container belongs
LABEL_RUN = "corral.run"
LABEL_TASK = "corral.task"
LABEL_PAUSE = "corral.pause"  # the task of a pause container; empty for all other containers
LABEL_CONTAINER = "com.amazonaws.ecs.container-name"
LABEL_RECORD = "corral.kept"  # a RunRecord as JSON

CPU_SHARES_MIN = 2
CPU_PERIOD_US = 100_000
LOG_FILE_BYTES = 256 * 1024 * 1024  # the engine keeps two log files of this size per container
NANOSECONDS = 10**9
PORT_TAKEN = ("port is already allocated", "address already in use")  # in the engine's errors
RAW_PACKETS = "NET_RAW"  # the capability to send packets with any sender


class RunRecord(Struct, frozen=True):
    """The facts about a run that a later agent needs. They are stored in a label of the container."""

    ships_logs: bool
    gpu_ids: tuple[str, ...]
    stop_grace_s: float
    has_terminal: bool
    has_volumes: bool  # the container mounts volumes that are removed when the task has ended
    fence_s: float | None = None  # end the container if the server has not answered for so long (`fences.py`)
    ports: tuple[str, ...] = ()  # the container ports, such as `80/tcp`, that the pause container publishes


class CreateContext(Struct, frozen=True):
    """Facts about the engine and about the other containers of the task."""

    host_id: str
    cpus: int  # number of CPUs of the engine's machine
    gpus: str  # how to request GPUs from this engine: nvidia or cdi; empty: GPUs are simulated and not requested
    addresses: Mapping[str, str]  # container name → address; contains every container to which this container links
    names: Mapping[str, str]  # container name → Docker's id; contains every container in `volumesFrom`
    pause: str | None  # the id of the task's pause container, if it has one


def container_name(host_id: str, run_id: str) -> str:
    return f"corral-{host_id[:8]}-{run_id}"


def network_mode(spec: RunSpec) -> str:
    return str(task_of(spec).get("networkMode") or "bridge")


def needs_pause(spec: RunSpec) -> bool:
    """Whether the task needs a pause container.

    The containers of such a task share a namespace (network, processes or IPC). The pause container owns the namespace, so that
    the namespace exists as long as the task.
    """
    task = task_of(spec)
    return network_mode(spec) == "awsvpc" or task.get("pidMode") == "task" or task.get("ipcMode") == "task"


def create_body(spec: RunSpec, context: CreateContext) -> dict[str, Any]:
    """Return the body of the request `POST /containers/create`."""
    container = container_of(spec)
    linux = container.get("linuxParameters", {})
    body: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in environment(spec).items()],
        "Labels": labels(spec, context.host_id),
        "Healthcheck": _health_check(spec),
        "Tty": bool(container.get("pseudoTerminal")),
        "OpenStdin": bool(container.get("interactive")),
        "NetworkDisabled": bool(container.get("disableNetworking")),
        "HostConfig": _host_config(spec, context),
    }
    optional = {
        "Cmd": container.get("command"),
        "Entrypoint": container.get("entryPoint"),
        "WorkingDir": container.get("workingDirectory"),
        "User": container.get("user"),
        "Hostname": container.get("hostname"),
    }
    body |= {name: value for name, value in optional.items() if value}
    if network_mode(spec) == "bridge":
        publish(body, _ports(container_of(spec)))
    if linux.get("initProcessEnabled") and context.pause is None:
        body["HostConfig"]["Init"] = True
    return body


def publish(body: dict[str, Any], ports: Mapping[str, int], address: str = "") -> None:
    """Add ports to the body of a request that creates a container. Without an address, all addresses of the host have the ports."""
    body["ExposedPorts"] = {port: {} for port in ports}
    body["HostConfig"]["PortBindings"] = {
        port: [{"HostIp": address, "HostPort": str(host_port or "")}] for port, host_port in ports.items()
    }


def published_ports(spec: RunSpec) -> dict[str, int]:
    """Return the ports of all containers of a task that the pause container publishes, as `_ports` does.

    These are tasks in network mode awsvpc on a host other than that of the server. As on ECS, a port of the host is the port of the
    container.
    """
    published = task_of(spec).get("published") if network_mode(spec) == "awsvpc" else None
    return {port: int(port.partition("/")[0]) for port in _ports(published)} if published else {}


def published_address(spec: RunSpec) -> str:
    return str(task_of(spec)["published"]["address"])


def taken_ports(ports: Mapping[str, int], fault: str) -> list[str]:
    """Return the container ports whose host port is taken, as the engine's error says. Return an empty list for other errors.

    If the error does not name a port, return all container ports for which a host port was requested.
    """
    if not any(text in fault for text in PORT_TAKEN):
        return []
    numbers = set(map(int, re.findall(r":(\d+)", fault)))
    requested = [port for port, host_port in ports.items() if host_port]
    return [port for port in requested if ports[port] in numbers] or requested


def environment(spec: RunSpec) -> dict[str, str]:
    """Return the environment of the container: the variables of the task, and the variables that select the GPUs.

    The GPU variables always have a value, so that neither the task nor the image can select other GPUs.
    """
    inside = spec.environment
    if network_mode(spec) != "host" and spec.endpoint_url:
        port = urlsplit(spec.endpoint_url).port
        url = f"http://{GATEWAY}:{port}"
        inside = {name: value.replace(spec.endpoint_url, url, 1) for name, value in inside.items()}
    gpu_ids = ",".join(spec.gpu_ids)
    chosen = {"NVIDIA_VISIBLE_DEVICES": gpu_ids or "void", "CUDA_VISIBLE_DEVICES": gpu_ids}
    if spec.gpu_indexes:  # the container has only the GPUs of the run, and numbers them from 0
        chosen |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(spec.gpu_ids)))), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**inside, **chosen}


def read_record(labels: Mapping[str, str]) -> RunRecord:
    """Read the record that `create_body` stored in a label."""
    record = msgspec.json.decode(labels.get(LABEL_RECORD, "{}"))
    return RunRecord(
        ships_logs=bool(record.get("ships_logs")),
        gpu_ids=tuple(record.get("gpu_ids", ())),
        stop_grace_s=float(record.get("stop_grace_s", 30.0)),
        has_terminal=bool(record.get("has_terminal")),
        has_volumes=bool(record.get("has_volumes")),
        fence_s=record.get("fence_s"),
        ports=tuple(record.get("ports", ())),
    )


def record_of(spec: RunSpec) -> RunRecord:
    terminal = bool(container_of(spec).get("pseudoTerminal"))
    own = any(LABEL_TASK in volume["Labels"] for volume in volumes(spec, ""))
    ports = tuple(_ports(container_of(spec))) if published_ports(spec) else ()
    return RunRecord(spec.ships_logs, tuple(spec.gpu_ids), spec.stop_grace_s, terminal, own, spec.fence_s, ports)


def labels(spec: RunSpec, host_id: str) -> dict[str, str]:
    """Return the labels that ECS sets, and the labels by which Corral finds the container.

    Each label that Corral reads has a value here. Otherwise the task definition or the image could set it.
    """
    task = task_of(spec)
    return {
        **container_of(spec).get("dockerLabels", {}),
        "com.amazonaws.ecs.cluster": task["cluster"],
        LABEL_CONTAINER: spec.container,
        "com.amazonaws.ecs.task-arn": task["arn"],
        "com.amazonaws.ecs.task-definition-family": task["family"],
        "com.amazonaws.ecs.task-definition-version": task["revision"],
        LABEL_HOST: host_id,
        LABEL_RUN: spec.run_id,
        LABEL_TASK: spec.task_id,
        LABEL_PAUSE: "",
        LABEL_RECORD: msgspec.json.encode(record_of(spec)).decode(),
    }


def bindings(spec: RunSpec) -> list[dict[str, Any]]:
    """Return the port bindings in network mode host, where each container port is the same port of the host.

    Return an empty list in other network modes.
    """
    if network_mode(spec) != "host":
        return []
    return [_binding(port, number) for port in _ports(container_of(spec)) for number in [int(port.partition("/")[0])]]


def reported_bindings(ports: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the port bindings that Docker reports for a running container.

    IPv6 bindings are left out, because ECS does not show them.
    """
    return [
        _binding(port, int(given["HostPort"]), given.get("HostIp") or "0.0.0.0")
        for port, all_given in sorted(ports.items())
        for given in all_given or ()
        if ":" not in given.get("HostIp", "")
    ]


def volumes(spec: RunSpec, host_id: str) -> list[dict[str, Any]]:
    """Return the bodies of the requests `POST /volumes/create` for the Docker volumes that this container mounts.

    A volume of scope `task` has labels with its host and its task, so that any agent of this host can remove it.
    """
    made = []
    for volume in _mounted(spec):
        about = volume.get("dockerVolumeConfiguration", {})
        if volume.get("host", {}).get("sourcePath") or not _is_created(about):
            continue
        own = about.get("scope", "task") == "task"
        made.append(
            {
                "Name": _volume_name(spec, volume),
                "Driver": about.get("driver", "local"),
                "DriverOpts": about.get("driverOpts", {}),
                "Labels": {**about.get("labels", {}), **({LABEL_HOST: host_id, LABEL_TASK: spec.task_id} if own else {})},
            }
        )
    return made


def required_volumes(spec: RunSpec) -> list[str]:
    """Return the shared volumes that must already exist, because autoprovision is off."""
    return [
        volume["name"]
        for volume in _mounted(spec)
        if "dockerVolumeConfiguration" in volume and not _is_created(volume["dockerVolumeConfiguration"])
    ]


def links(spec: RunSpec) -> list[tuple[str, str]]:
    """Return (container, alias) of each link. An empty alias means that the link has none."""
    return [(link.partition(":")[0], link.partition(":")[2]) for link in container_of(spec).get("links", ())]


def volume_sources(spec: RunSpec) -> list[str]:
    return [source["sourceContainer"] for source in container_of(spec).get("volumesFrom", ())]


def _is_created(about: Mapping[str, Any]) -> bool:
    return about.get("scope", "task") == "task" or bool(about.get("autoprovision"))


def container_of(spec: RunSpec) -> dict[str, Any]:
    assert spec.settings is not None
    container: dict[str, Any] = spec.settings["container"]
    return container


def task_of(spec: RunSpec) -> dict[str, Any]:
    assert spec.settings is not None
    task: dict[str, Any] = spec.settings["task"]
    return task


def _health_check(spec: RunSpec) -> dict[str, Any]:
    """Return the health check of the task definition. As on ECS, the health check of the image is not used."""
    check = container_of(spec).get("healthCheck") or {}
    if spec.health is None or not check:
        return {"Test": ["NONE"]}
    return {
        "Test": check["command"],
        "Interval": round(spec.health.interval_s * NANOSECONDS),
        "Timeout": round(spec.health.timeout_s * NANOSECONDS),
        "Retries": spec.health.retries,
        "StartPeriod": round(spec.health.start_period_s * NANOSECONDS),
    }


def _host_config(spec: RunSpec, context: CreateContext) -> dict[str, Any]:
    container, task = container_of(spec), task_of(spec)
    linux = container.get("linuxParameters", {})
    capabilities = linux.get("capabilities", {})
    config: dict[str, Any] = {
        "NetworkMode": _network(spec, context),
        "CpuShares": max(CPU_SHARES_MIN, container.get("cpu", 0)),
        "Privileged": bool(container.get("privileged")),
        "ReadonlyRootfs": bool(container.get("readonlyRootFilesystem")),
        "CapAdd": capabilities.get("add", []),
        "CapDrop": _dropped(capabilities),
        "SecurityOpt": container.get("dockerSecurityOptions", []),
        "Dns": container.get("dnsServers", []),
        "DnsSearch": container.get("dnsSearchDomains", []),
        "ExtraHosts": _extra_hosts(spec, context),
        "Sysctls": {pair["namespace"]: pair["value"] for pair in container.get("systemControls", ())},
        "Ulimits": [
            {"Name": limit["name"], "Soft": limit["softLimit"], "Hard": limit["hardLimit"]}
            for limit in container.get("ulimits", ())
        ],
        "Devices": [_device(device) for device in linux.get("devices", ())],
        "Tmpfs": {mount["containerPath"]: _tmpfs(mount) for mount in linux.get("tmpfs", ())},
        "Binds": binds(spec, mount_points(spec)),
        "VolumesFrom": [
            context.names[source["sourceContainer"]] + (":ro" if source.get("readOnly") else "")
            for source in container.get("volumesFrom", ())
        ],
        "LogConfig": _log_config(spec),
        "DeviceRequests": _device_requests(spec, context),
        **_memory(container, task),
        **_cpu_quota(task, context.cpus),
    }
    if linux.get("sharedMemorySize"):
        config["ShmSize"] = linux["sharedMemorySize"] * MIB
    for field, mode in (("PidMode", task.get("pidMode")), ("IpcMode", task.get("ipcMode"))):
        if mode == "task":
            config[field] = f"container:{context.pause}"
        elif mode is not None:
            config[field] = mode
    return config


def _dropped(capabilities: Mapping[str, Any]) -> list[str]:
    """Return the capabilities that the container does not get. NET_RAW is one of them, unless the definition adds it.

    With NET_RAW, a program can redirect the packets of all containers on its network to itself, and read their credentials.
    """
    dropped: list[str] = capabilities.get("drop", [])
    added = {each.upper().removeprefix("CAP_") for each in capabilities.get("add", ())}
    return dropped if added & {"ALL", RAW_PACKETS} else list(dict.fromkeys([*dropped, RAW_PACKETS]))


def _network(spec: RunSpec, context: CreateContext) -> str:
    match network_mode(spec):
        case "host":
            return "host"
        case "awsvpc":
            return f"container:{context.pause}"
        case "none":
            return INSIDE_NETWORK
        case _:
            return NETWORK


def _memory(container: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, int]:
    """Return the memory limit of the container. A container without its own limit gets the limit of the task.

    ECS instead applies the limit of the task to all its containers together.
    """
    linux, config = container.get("linuxParameters", {}), {}
    hard = container.get("memory") or int(task.get("memory") or 0)
    if hard:
        config["Memory"] = hard * MIB
        if "maxSwap" in linux:
            config["MemorySwap"] = (hard + linux["maxSwap"]) * MIB
            if linux["maxSwap"] and "swappiness" in linux:
                config["MemorySwappiness"] = linux["swappiness"]
    if container.get("memoryReservation"):
        config["MemoryReservation"] = container["memoryReservation"] * MIB
    return config


def _cpu_quota(task: Mapping[str, Any], cpus: int) -> dict[str, int]:
    """Limit the CPU of a container to the CPU size of the task. As on ECS, the `cpu` of a container itself is not a limit."""
    cores = int(task.get("cpu") or 0) / CPU_UNITS_PER_CORE
    if not 0 < cores < cpus:
        return {}
    return {"CpuPeriod": CPU_PERIOD_US, "CpuQuota": round(cores * CPU_PERIOD_US)}


def _extra_hosts(spec: RunSpec, context: CreateContext) -> list[str]:
    container = container_of(spec)
    if network_mode(spec) == "awsvpc":
        return []  # the pause container has these hosts, and containers that use its network also use its /etc/hosts
    named = {host: context.addresses[name] for name, alias in links(spec) for host in {name: None, alias or name: None}}
    return [f"{host['hostname']}:{host['ipAddress']}" for host in container.get("extraHosts", ())] + [
        f"{name}:{address}" for name, address in named.items()
    ]


def _device(device: Mapping[str, Any]) -> dict[str, str]:
    permissions = device.get("permissions") or ["read", "write", "mknod"]
    return {
        "PathOnHost": device["hostPath"],
        "PathInContainer": device.get("containerPath") or device["hostPath"],
        "CgroupPermissions": "".join({"read": "r", "write": "w", "mknod": "m"}[permission] for permission in permissions),
    }


def _tmpfs(mount: Mapping[str, Any]) -> str:
    return ",".join([*mount.get("mountOptions", ()), f"size={mount['size']}m"])


def _mounted(spec: RunSpec) -> list[dict[str, Any]]:
    by_name = {volume["name"]: volume for volume in task_of(spec).get("volumes", ())}
    return [by_name[name] for name in dict.fromkeys(mount["sourceVolume"] for mount in container_of(spec).get("mountPoints", ()))]


def mount_points(spec: RunSpec) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each mount point of the container with its volume."""
    by_name = {volume["name"]: volume for volume in _mounted(spec)}
    return [(by_name[mount["sourceVolume"]], mount) for mount in container_of(spec).get("mountPoints", ())]


def binds(spec: RunSpec, points: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    return [
        f"{_source(spec, volume)}:{mount['containerPath']}" + (":ro" if mount.get("readOnly") else "") for volume, mount in points
    ]


def _source(spec: RunSpec, volume: Mapping[str, Any]) -> str:
    return volume.get("host", {}).get("sourcePath") or _volume_name(spec, volume)


def _volume_name(spec: RunSpec, volume: Mapping[str, Any]) -> str:
    """Return the Docker name of a volume. Only the name of a volume of scope `task` contains the id of the task."""
    if volume.get("dockerVolumeConfiguration", {}).get("scope", "task") == "shared":
        return str(volume["name"])
    return f"corral-{spec.task_id}-{volume['name']}"


def _log_config(spec: RunSpec) -> dict[str, Any]:
    """Return the log configuration. A log driver other than awslogs and awsfirelens is passed to the engine.

    Otherwise the engine uses its driver json-file, from which Corral copies the log.
    """
    logging = container_of(spec).get("logConfiguration")
    if logging and logging["logDriver"] not in ("awslogs", "awsfirelens"):
        return {"Type": logging["logDriver"], "Config": logging.get("options", {})}
    return {"Type": "json-file", "Config": {"max-size": str(LOG_FILE_BYTES), "max-file": "2"}}


def _device_requests(spec: RunSpec, context: CreateContext) -> list[dict[str, Any]]:
    if not spec.gpu_ids or not context.gpus:
        return []
    if context.gpus == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu_id}" for gpu_id in spec.gpu_ids]}]
    return [{"Driver": "nvidia", "DeviceIDs": list(spec.gpu_ids), "Capabilities": [["gpu", "utility", "compute"]]}]


def _ports(container: Mapping[str, Any]) -> dict[str, int]:
    """Return a mapping from each container port, such as `80/tcp`, to the requested host port. 0 means any free port."""
    ports: dict[str, int] = {}
    for mapping in container.get("portMappings", ()):
        protocol = mapping.get("protocol", "tcp")
        if "containerPort" in mapping:
            ports[f"{mapping['containerPort']}/{protocol}"] = mapping.get("hostPort", 0)
        else:
            first, _, last = mapping["containerPortRange"].partition("-")
            ports |= {f"{port}/{protocol}": 0 for port in range(int(first), int(last) + 1)}
    return ports


def _binding(port: str, host_port: int, address: str = "0.0.0.0") -> dict[str, Any]:
    number, _, protocol = port.partition("/")
    return {"bindIP": address, "containerPort": int(number), "hostPort": host_port, "protocol": protocol}
