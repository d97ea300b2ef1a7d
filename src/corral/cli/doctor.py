"""`corral doctor` checks whether Corral can run on this machine, and advises what to fix.

Each check is a function that yields findings. If a check raises an exception, the exception becomes a finding, and the other checks
still run.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

import corral
from corral.cli import data_folder
from corral.cli.aws import HOW_TO_INSTALL, aws_program, aws_version
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import conflicting_variables, endpoint_of_folder, status_page
from corral.cli.errors import CliError, error_line
from corral.cli.output import console, count, format_bytes, parsed_date, print_json
from corral.cli.status import problem_line

PORT = 4566
PYTHON_MIN = (3, 11)
FREE_FAIL_BYTES, FREE_WARN_BYTES = 200 * 2**20, 2 * 2**30
FOLDER_WARN_BYTES = 20 * 2**30
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 300.0  # a difference of more than five minutes is a failure
SLOW_S = 0.25
FILES_MIN = 4096  # the spawner needs about two descriptors per task
INSTANCES_MIN = 16
# SQLite's file locks are not reliable on these file systems.
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "beegfs"}
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
SOCKET_S = 2.0
INSIDE_NETWORK = "corral-inside"
NETWORKS = ("corral", INSIDE_NETWORK)
INSIDE_SUBNET = ("00AAFEA9", "00FFFFFF")  # 169.254.170.0/24 in the format of /proc/net/route
OK, WARN, FAIL = "ok", "warning", "failure"
SIGNS = {OK: ("✓", "green"), WARN: ("!", "yellow"), FAIL: ("✗", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: str
    found: str
    advice: str = ""


@click.command(short_help="Check this machine, and advise what to fix.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON: check, level, found, advice.")
def doctor(data: DataFolder, as_json: bool) -> None:
    """Check driver, GPUs, disk, clock, ports and more, and advise what to fix. The exit code is 1 if Corral cannot work."""
    findings = [finding for check in CHECKS for finding in _examined(check, data)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    sys.exit(any(finding.level == FAIL for finding in findings))


def _examined(check: Callable[[DataFolder], Iterator[Finding]], data: DataFolder) -> Iterator[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        for finding in check(data):
            yield Finding(name, finding.level, finding.found, finding.advice)
    except Exception as error:
        reason = error.message if isinstance(error, CliError) else error_line(error) or repr(error)
        yield Finding(name, WARN, f"could not be checked: {reason}")


def _print(findings: list[Finding]) -> None:
    from rich.table import Table

    from corral.cli.safe_text import SafeText

    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    previous = ""
    for finding in findings:
        sign, style = SIGNS[finding.level]
        text = SafeText(finding.found)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="cyan")
        table.add_row(SafeText(sign, style=style), finding.check if finding.check != previous else "", text)
        previous = finding.check
    out.print(table)
    failures, warnings = (sum(finding.level == level for finding in findings) for level in (FAIL, WARN))
    out.print(f"\n{count(failures, 'failure')}, {count(warnings, 'warning')}")


def ok(found: str) -> Finding:
    return Finding("", OK, found)


def warn(found: str, advice: str = "") -> Finding:
    return Finding("", WARN, found, advice)


def fail(found: str, advice: str) -> Finding:
    return Finding("", FAIL, found, advice)


# -- Corral itself ---------------------------------------------------------------------------------------------------


def _version(data: DataFolder) -> Iterator[Finding]:
    found = f"Corral {corral.__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.version_info < PYTHON_MIN:
        yield fail(found, "Corral needs Python 3.11 or later.")
    elif sys.platform != "linux":
        yield fail(found, "Corral runs on Linux.")
    else:
        yield ok(found)


def _data_folder(data: DataFolder) -> Iterator[Finding]:
    folder = data.path
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK) or not there.is_dir():
        yield fail(f"{there} is not a folder you can write to", "choose another folder with --data or $CORRAL_DATA.")
        return
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        yield fail(f"{folder} belongs to another user", "start Corral as its owner, or choose another folder with --data.")
    kind = _file_system(there)
    if kind in NETWORK_FILE_SYSTEMS:
        yield fail(f"{folder} is on {kind}", "file locks are not safe on a network file system: choose a local disk with --data.")
    elif kind == "tmpfs":
        yield warn(f"{folder} is on tmpfs", "a reboot deletes its content: choose a folder on a disk with --data.")
    free = shutil.disk_usage(there).free
    size = _size(folder) if folder.exists() else 0
    found = f"{folder}: {format_bytes(size)} used ({kind}), {format_bytes(free)} free on the disk"
    if free < FREE_FAIL_BYTES:
        yield fail(found, "delete files on this disk: when the disk is full, Corral refuses every change.")
    elif free < FREE_WARN_BYTES:
        yield warn(found, "delete files before the disk is full.")
    elif size > FOLDER_WARN_BYTES:
        yield warn(found, "delete log groups that you do not need; logs usually take most of the space.")
    else:
        yield ok(found)
    parts = [("state", "state.db*"), ("logs", "logs.db*"), ("metrics", "metrics.db*"), ("running tasks' output", "node/output/*")]
    sizes = [f"{name} {format_bytes(total)}" for name, pattern in parts if (total := sum(map(_file_size, folder.glob(pattern))))]
    if sizes:
        yield ok(", ".join(sizes))


def _server(data: DataFolder) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is None:
        yield warn(f"Corral is not running on {data.path}", f"start it: {data_folder.start_command(data)}")
        return
    endpoint = endpoint_of_folder(data)
    status_page(endpoint)  # the first request takes longer, because it connects and imports modules
    began_s = time.monotonic()
    page, date = status_page(endpoint)
    took_s = time.monotonic() - began_s
    found = f"{about['url']} responds in {took_s * 1000:.0f} ms (process {about['pid']}, version {page['version']})"
    if page["version"] != corral.__version__:
        yield warn(found, f"this command is version {corral.__version__}: restart Corral with `corral down` and `corral up`.")
    elif took_s > SLOW_S:
        yield warn(found, "the machine may be overloaded.")
    else:
        yield ok(found)
    hosts = page["hosts"]
    silent = [host["name"] for host in hosts if not host["connected"]]
    if not hosts or silent:
        agent_log = data.path / "node" / "agent.log"
        yield fail(f"not connected: {', '.join(silent) or 'this machine'}", f"no new tasks start on this host; see {agent_log}.")
    for problem in page.get("problems", ()):
        node = data.path / "node"
        advice = f"tasks do not start or stop until this is solved; see {node / 'agent.log'} and {node / 'spawner.log'}."
        yield fail(problem_line(problem).removeprefix("PROBLEM: "), advice)
    yield from _skew(date)


def _skew(date: str | None) -> Iterator[Finding]:
    server = parsed_date(date)
    if server is None:
        return
    # Compare the wall clock of this machine with the server's clock.
    skew_s = time.clock_gettime(time.CLOCK_REALTIME) - server.timestamp()
    # Ignore less than 2 s, because the Date header has only whole seconds.
    off_s = abs(skew_s) if skew_s < 0 or skew_s >= 2 else 0.0
    found = f"the clock of this machine and the server's clock differ by {off_s:.0f} s"
    if off_s > SKEW_FAIL_S:
        yield fail(found, "the server refuses signed requests: set the clock (timedatectl set-ntp true).")
    elif off_s > SKEW_WARN_S:
        yield warn(found, "set the clock (timedatectl set-ntp true).")
    else:
        yield ok(found)


def _port(data: DataFolder) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is not None:
        yield ok(f"Corral listens on {about['url'].rpartition('//')[2]}")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            owner = _listener(PORT)
            yield warn(f"port {PORT} is in use{f' by {owner}' if owner else ''}", "choose a free port: corral up --port 0")
            return
    yield ok(f"port {PORT} is free")


# -- GPUs ------------------------------------------------------------------------------------------------------------


def _nvidia_driver(data: DataFolder) -> Iterator[Finding]:
    devices = sorted(glob.glob("/dev/nvidia[0-9]*"))
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if devices:
            yield fail(f"{count(len(devices), 'device')} in /dev, but no libnvidia-ml.so.1", "install the driver's libraries.")
        else:
            yield warn(
                "no NVIDIA driver (libnvidia-ml.so.1)",
                "`corral up --gpus sim:8` simulates GPUs; tasks without GPUs do not need a driver.",
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
        yield fail(f"no permission for {', '.join(closed)}", "join the group that owns it (often `video`), then log in again.")
    if not os.path.exists("/dev/nvidia-uvm"):
        yield warn("/dev/nvidia-uvm does not exist", "CUDA needs it: run `nvidia-modprobe -u`, or any CUDA program once as root.")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    for index, handle in enumerate(handles):
        yield ok(f"GPU {index}: {_text(pynvml.nvmlDeviceGetName(handle))} {_text(pynvml.nvmlDeviceGetUUID(handle))}")
    if any(_persistence(pynvml, handle) is False for handle in handles):
        yield warn("persistence mode is off", "the first CUDA call of a task takes seconds: run `nvidia-smi -pm 1` as root.")
    yield from _same_gpus(data, [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles])


def _same_gpus(data: DataFolder, driver: list[str]) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is None:
        return
    if about["gpusFlag"] != "auto":
        yield warn(f"Corral was started with --gpus {about['gpusFlag']}", "start it without --gpus to use the real GPUs.")
        return
    seen = {gpu["id"] for host in status_page(endpoint_of_folder(data))[0]["hosts"] for gpu in host["gpus"]}
    missing = [gpu_id for gpu_id in driver if gpu_id not in seen]
    if missing:
        yield fail(f"Corral does not see {', '.join(missing)}", "restart it: corral down, corral up (tasks keep running).")
    else:
        yield ok(f"Corral sees {count(len(driver), 'GPU')} of {len(driver)}")


# -- the machine -----------------------------------------------------------------------------------------------------


def _docker(data: DataFolder) -> Iterator[Finding]:
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    if not path.startswith("/"):
        yield warn(f"DOCKER_HOST is {path}", "Corral uses only a Docker engine on this machine, with a unix:// address.")
    elif not os.path.exists(path):
        yield ok(f"no engine at {path}; images are ignored, and all tasks run as processes on this machine")
    else:
        try:
            version = _docker_get(path, "/version").get("Version", "?")
            yield ok(f"engine {version} at {path}; tasks with an image run as containers")
            yield from _inside_network(_docker_get(path, f"/networks/{INSIDE_NETWORK}"))
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
    ours = {"label": [f"corral.host={json.loads(about.read_text())['host_id']}"], "status": ["running"]}
    containers = _docker_get(path, f"/containers/json?filters={quote(json.dumps(ours))}")
    modes = [(each, each["HostConfig"]["NetworkMode"]) for each in containers]
    using = [each for each, mode in modes if "corral.run" in each["Labels"] and mode != "host"]
    there = {network["Name"] for network in _docker_get(path, "/networks")}
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


def _docker_get(path: str, what: str) -> Any:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(SOCKET_S)
        engine.connect(path)
        engine.sendall(f"GET {what} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        response = b""
        while part := engine.recv(65_536):
            response += part
    return json.loads(response.partition(b"\r\n\r\n")[2])


def _cgroups(data: DataFolder) -> Iterator[Finding]:
    """Report how Corral finds and limits the processes of a task.

    A file of the spawner lists the paths of its cgroup folders.
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


def _limits(data: DataFolder) -> Iterator[Finding]:
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


def _proxy(data: DataFolder) -> Iterator[Finding]:
    names = [name for name in PROXIES if os.environ.get(name)]
    excepted = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    if names and not {"127.0.0.1", "*"} & set(excepted):
        yield warn(
            f"{', '.join(names)} is set, but no_proxy does not contain 127.0.0.1",
            'clients would send their requests to the proxy, not to Corral: eval "$(corral env)" sets no_proxy.',
        )
    else:
        yield ok("no proxy is set" if not names else "a proxy is set, and no_proxy excepts 127.0.0.1")


def _aws_environment(data: DataFolder) -> Iterator[Finding]:
    names = conflicting_variables(os.environ)
    if names:
        yield warn(f"clients would use {', '.join(names)} and not reach Corral", 'eval "$(corral env)" unsets them.')
    url, about = os.environ.get("AWS_ENDPOINT_URL"), data_folder.running(data)
    if url and about and url.rstrip("/") != about["url"]:
        yield warn(f"AWS_ENDPOINT_URL is {url}, not {about['url']}", 'run eval "$(corral env)" again to use this Corral.')
    elif os.environ.get("AWS_PROFILE") and not url:
        yield warn(f"AWS_PROFILE is {os.environ['AWS_PROFILE']}", "corral commands use that profile, which may be for AWS.")
    elif not names:
        yield ok("AWS_ENDPOINT_URL is this Corral" if url and about else "no conflicting variables")


def _aws_command(data: DataFolder) -> Iterator[Finding]:
    try:
        program = aws_program()
    except CliError:
        yield warn("there is no aws command on PATH; Corral does not need it", f"to use it, {HOW_TO_INSTALL}")
        return
    major, text = aws_version(program)
    if major is None:
        yield warn(f"{program} does not print its version", f"check that it works: {program} --version")
    elif major == 1:
        yield warn(
            f"{text} ({program}) is version 1: `aws sqs` ignores AWS_ENDPOINT_URL, and there is no `aws logs tail`",
            "use `corral aws sqs` and `corral logs -f`, or install version 2 "
            "(https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html).",
        )
    else:
        yield ok(f"{text} ({program})")


CHECKS: list[Callable[[DataFolder], Iterator[Finding]]] = [
    _version, _data_folder, _server, _port, _nvidia_driver, _docker, _cgroups, _limits, _proxy, _aws_environment, _aws_command,
]  # fmt: skip


# -- helpers ---------------------------------------------------------------------------------------------------------


def _file_system(path: Path) -> str:
    """Return the file system type of the mount that contains the path."""
    best, kind = "", "?"
    real = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, its_kind, *_ = line.split()
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, its_kind
    return kind


def _size(folder: Path) -> int:
    return sum(_file_size(Path(path) / name) for path, _, names in os.walk(folder) for name in names)


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _listener(port: int) -> str | None:
    """Return the name and id of the process that listens on a port, or None if this user may not read them."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if os.path.exists(table) else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) in inodes:
                pid = link.split("/")[2]
                return f"{Path(f'/proc/{pid}/comm').read_text().strip()}, process {pid}"
        except OSError:
            continue
    return None


def _opens(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _persistence(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetPersistenceMode(handle))
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
