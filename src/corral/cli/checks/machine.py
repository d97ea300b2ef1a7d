"""Checks of the machine for `corral doctor`: the NVIDIA driver, Docker, cgroups and limits."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corral.cli.checks.finding import Finding, fail, ok, warn
from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import endpoint_of_folder, get_status
from corral.cli.printing.output import count
from corral.cli.runs.tasks import spans
from corral.cli.server.docker_socket import INSIDE_NETWORK, NETWORKS, docker_get, engine_address, running_containers

FILES_MIN = 4096  # the spawner needs about two descriptors per task
INSTANCES_MIN = 16  # inotify instances
PAUSES_MAX_S = 60.0  # the first call of the driver loads its module
INSIDE_SUBNET = ("00AAFEA9", "00FFFFFF")  # 169.254.170.0/24 in the format of /proc/net/route


def check_driver(data: DataFolder) -> Iterator[Finding]:
    devices = sorted(glob.glob("/dev/nvidia[0-9]*"))
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if devices:
            yield fail(f"{count(len(devices), 'device')} in /dev, but no libnvidia-ml.so.1", "install the driver's libraries.")
        elif (flag := _gpus_flag(data)).startswith("sim"):
            yield ok(f"no NVIDIA driver (libnvidia-ml.so.1): Corral simulates GPUs (--gpus {flag})")
        else:
            command = "corral join" if data_folder.joined_host(data) else "corral up"
            yield warn(
                "no NVIDIA driver (libnvidia-ml.so.1)",
                f"`{command} --gpus sim:8` simulates GPUs; tasks without GPUs do not need a driver.",
            )
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield fail(f"the driver does not respond: {error}", "load its module (modprobe nvidia), or reboot after an update.")
        return
    yield ok(f"NVIDIA driver {_text(pynvml.nvmlSystemGetDriverVersion())}")
    closed = [path for path in (*devices, *filter(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia-uvm"))) if not _opens(path)]
    if closed:
        yield fail(f"no permission for {', '.join(closed)}", "join the group that owns them (often `video`), then log in again.")
    if not os.path.exists("/dev/nvidia-uvm"):
        yield warn("/dev/nvidia-uvm does not exist", "CUDA needs it: run `nvidia-modprobe -u`, or any CUDA program once as root.")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    for index, handle in enumerate(handles):
        yield ok(f"GPU {index}: {_text(pynvml.nvmlDeviceGetName(handle))} {_text(pynvml.nvmlDeviceGetUUID(handle))}")
    yield ok(_mps_text())
    if not all(_measures_processes(pynvml, handle) for handle in handles):
        yield warn(
            "the driver does not report the load of single processes",
            "tasks that share a GPU have no utilization of their own, and scaling policies on it do nothing.",
        )
    if any(_persistence(pynvml, handle) is False for handle in handles):
        yield warn("persistence mode is off", "the first CUDA call of a task takes seconds: run `nvidia-smi -pm 1` as root.")
    yield from hardware_error_reports(pynvml, handles)
    yield from pauses()
    yield from _same_gpus(data, [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles])


def _gpus_flag(data: DataFolder) -> str:
    """Return the option --gpus of the server that runs, or of a joined host. Empty: neither."""
    if (about := data_folder.running(data)) is not None:
        return str(about["gpusFlag"])
    if data_folder.joined_host(data) is None:
        return ""
    from corral.configuration.file import ConfigurationError, read_file

    try:
        return str(read_file(data.path).values()["join.gpus"])
    except ConfigurationError:
        return ""  # `check_configuration` reports the error


def hardware_error_reports(nvml: Any, handles: list[Any]) -> Iterator[Finding]:
    """Check whether the driver reports hardware errors of GPUs (Xids) to this process. The agent registers for them, too."""
    silent: dict[int, str] = {}
    try:
        events = nvml.nvmlEventSetCreate()
        for index, handle in enumerate(handles):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                silent[index] = str(error)
        nvml.nvmlEventSetFree(events)
    except nvml.NVMLError as error:
        silent = dict.fromkeys(range(len(handles)), str(error))
    if not silent:
        yield ok("the driver reports hardware errors (Xids)")
        return
    gpus = f"GPU{'s' * (len(silent) > 1)} {spans(silent)}"
    yield warn(
        f"the driver does not report hardware errors (Xids) of {gpus}: {', '.join(dict.fromkeys(silent.values()))}",
        "Corral may give a failed GPU to tasks, unless the driver shows the fault in another way. Errors are in the kernel's log: "
        "dmesg | grep Xid. Hold a failed GPU: corral hold INDEX",
    )


def pauses() -> Iterator[Finding]:
    """Check whether runs with GPUs can be paused. Another program calls the driver, because a call may hang."""
    command = [sys.executable, "-P", "-m", "corral.node.pause_support"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PAUSES_MAX_S, check=False)
        why = done.stdout.strip() if not done.returncode else (done.stderr.strip().splitlines() or ["the check fails"])[-1]
    except subprocess.TimeoutExpired:
        why = f"the driver does not answer within {PAUSES_MAX_S:g} s"
    if why:
        yield warn(
            f"runs with GPUs cannot be paused: {why}",
            "install driver 570 or newer. Until then, `corral pause` refuses such runs; runs without GPUs can be paused.",
        )
    elif os.geteuid():
        yield ok("runs with GPUs can be paused, if their processes belong to this user; those of containers belong to root")
    else:
        yield ok("runs with GPUs can be paused: the driver moves their memory to the memory of this machine")


def _mps_text() -> str:
    """Return a text that says whether an MPS daemon enforces the limits of tasks that share a GPU."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")  # the default of MPS
    try:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        os.stat(f"/proc/{pid}")
    except (OSError, ValueError):
        return "no MPS daemon: tasks that share a GPU take turns on it, and their memory limits are not enforced"
    return f"an MPS daemon runs (process {pid}): the memory limits of tasks that share a GPU are enforced"


def _measures_processes(pynvml: Any, handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except pynvml.NVMLError as error:  # if no process has computed, the bindings raise one of these two errors
        return getattr(error, "value", None) in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND)
    return True


def _same_gpus(data: DataFolder, driver: list[str]) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is None:
        return
    if about["gpusFlag"] != "auto":
        yield warn(
            f"Corral was started with --gpus {about['gpusFlag']}",
            "to use the real GPUs: corral config unset up.gpus, then restart Corral.",
        )
        return
    seen = {gpu["id"] for host in get_status(endpoint_of_folder(data))[0]["hosts"] for gpu in host["gpus"]}
    missing = [gpu_id for gpu_id in driver if gpu_id not in seen]
    if missing:
        yield fail(f"Corral does not see {', '.join(missing)}", "restart it: corral down, corral up (tasks keep running).")
    else:
        yield ok(f"Corral sees {count(len(driver), 'GPU')} of {len(driver)}")


def check_docker(data: DataFolder) -> Iterator[Finding]:
    path = engine_address()
    if not path.startswith("/"):
        yield warn(f"DOCKER_HOST is {path}", "Corral uses only a Docker engine on this machine, with a unix:// address.")
    elif not os.path.exists(path):
        yield ok(f"no engine at {path}; images are ignored, and all tasks run as processes on this machine")
    else:
        try:
            version = docker_get(path, "/version").get("Version", "?")
            yield ok(f"engine {version} at {path}; tasks with an image run as containers")
            yield from _inside_network(docker_get(path, f"/networks/{INSIDE_NETWORK}"))
            yield from _task_networks(path, data)
        except PermissionError:
            yield warn(
                f"no permission for {path}",
                "join the group `docker` to run images; until then all tasks run as processes on this machine.",
            )


def _inside_network(about: dict[str, Any]) -> Iterator[Finding]:
    """Warn if another network interface uses the subnet of `corral-inside`, the Docker network of tasks in network mode `none`."""
    own = (about.get("Options") or {}).get("com.docker.network.bridge.name") or f"br-{about.get('Id', '')[:12]}"
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    ways = sorted((int(route[6]), at, route[0]) for at, route in enumerate(routes) if (route[1], route[7]) == INSIDE_SUBNET)
    interfaces = [interface for _, _, interface in ways]
    elsewhere = "Id" in about and own not in interfaces  # the interfaces of a rootless engine are not visible here
    if interfaces and interfaces[0] != own and not elsewhere:
        yield warn(
            f"{interfaces[0]} uses the subnet of the Docker network {INSIDE_NETWORK}: Corral refuses tasks in network mode `none`",
            "stop the Docker engine that owns this interface. If that engine was killed, delete the interface: ip link delete "
            + interfaces[0],
        )


def _task_networks(path: str, data: DataFolder) -> Iterator[Finding]:
    """Warn if a running container of a task has no network, because then the task cannot reach Corral."""
    about = data.path / "node" / "host.json"
    if not about.exists():
        return
    containers = running_containers(path, json.loads(about.read_text())["host_id"])
    modes = [(each, each["HostConfig"]["NetworkMode"]) for each in containers]
    using = [each for each, mode in modes if "corral.run" in each["Labels"] and mode != "host"]
    there = {network["Name"] for network in docker_get(path, "/networks")}
    missing = [name for name in NETWORKS if name not in there]
    cut = [each for each, mode in modes if mode in there and mode in NETWORKS and mode not in each["NetworkSettings"]["Networks"]]
    advice = "Corral restores the networks within seconds. If it does not, restart it: corral down, corral up (tasks keep running)."
    if using and missing:
        running = count(len(using), "running container")
        yield warn(f"missing Docker networks: {', '.join(missing)}; {running} cannot reach Corral", advice)
    if cut:
        yield warn(f"{count(len(cut), 'running container')} not connected to the Docker networks {' and '.join(NETWORKS)}", advice)
    if using and not missing and not cut:
        yield ok(f"the Docker networks {' and '.join(NETWORKS)} connect {count(len(using), 'running container')}")


def check_cgroups(data: DataFolder) -> Iterator[Finding]:
    """Report how Corral finds and limits the processes of a task.

    The spawner writes the paths of its cgroup folders to the file `node/cgroups` in the data folder.
    """
    version, parent = _own_cgroup()
    note = data.path / "node" / "cgroups"
    folders = note.read_text().splitlines() if note.exists() else []
    used = [folder for folder in folders if os.path.isdir(folder)]
    if not used and not os.access(parent, os.W_OK):
        yield warn(
            f"version {version}, not writable by you: Corral finds the processes of a task by a lock and by their environment, and "
            "memory and CPU limits of process tasks are not enforced",
            "run Corral as root, or where systemd delegates cgroups to you: systemd-run --user --scope corral up --detach",
        )
    elif not used:
        yield ok(f"version {version}, writable: each process task gets a cgroup")
    elif any(glob.glob(f"{folder}/spawner/memory.*") for folder in used):
        yield ok(f"version {version}: each process task has a cgroup, which enforces its memory and CPU limits")
    else:
        yield warn(
            f"version {version}: each process task has a cgroup without limits, because memory is not delegated to you",
            "start Corral where systemd delegates memory to you: systemd-run --user --scope corral up --detach",
        )


def _own_cgroup() -> tuple[int, str]:
    """Return the cgroup version (1 or 2) of the memory controller, and the cgroup folder of this process."""
    unified = ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return 1, f"/sys/fs/cgroup/memory{path}"
        unified = path if not controllers else unified
    return 2, f"/sys/fs/cgroup{unified}"


def check_limits(data: DataFolder) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"open files: {soft} (at most {hard})"
    yield (ok(found) if soft >= FILES_MIN else warn(found, f"too few for hundreds of tasks: ulimit -n {min(hard, 65_536)}"))
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    if instances.exists():
        most = int(instances.read_text())
        found = f"limit of inotify instances: {most}"
        advice = (
            "all programs of a user share this limit, and the agent needs one instance: sysctl fs.inotify.max_user_instances=128"
        )
        yield (ok(found) if most >= INSTANCES_MIN else warn(found, advice))


def _opens(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _persistence(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetPersistenceMode(handle))
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
