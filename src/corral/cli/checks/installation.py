"""Checks of Corral itself for `corral doctor`: its version, data folder, settings, server, port, start at boot and clients."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from corral.cli.aws import HOW_TO_INSTALL, aws_program, aws_version
from corral.cli.checks.finding import Finding, fail, ok, warn
from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import call, conflicting_variables, endpoint_of_folder, get_status
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, format_bytes, parsed_date
from corral.cli.screens.status import problem_line
from corral.cli.server.systemd_unit import installed_unit, lingers, user_name
from corral.process.port_holder import port_holder
from corral.version import full_version

PYTHON_MIN = (3, 11)
FREE_FAIL_BYTES, FREE_WARN_BYTES = 200 * 2**20, 2 * 2**30
FOLDER_WARN_BYTES = 20 * 2**30
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 300.0  # at a difference of more than 900 seconds, the server refuses all signatures
SLOW_S = 0.25
# SQLite's file locks are not reliable on these file systems.
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "beegfs"}
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


def check_version(data: DataFolder) -> Iterator[Finding]:
    found = f"Corral {full_version()}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.version_info < PYTHON_MIN:
        yield fail(found, "Corral needs Python 3.11 or later.")
    elif sys.platform != "linux":
        yield fail(found, "Corral runs on Linux.")
    else:
        yield ok(found)


def check_folder(data: DataFolder) -> Iterator[Finding]:
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


def check_server(data: DataFolder) -> Iterator[Finding]:
    about = data_folder.running(data)
    if about is None:
        yield warn(f"Corral is not running on {data.path}", f"start it: {data_folder.start_command(data)}")
        return
    endpoint = endpoint_of_folder(data)
    get_status(endpoint)  # the first request takes longer, because it connects and imports modules
    began_s = time.monotonic()
    page, date = get_status(endpoint)
    took_s = time.monotonic() - began_s
    build = page.get("build", page["version"])  # an earlier version does not report its commit
    found = f"{about['url']} responds in {took_s * 1000:.0f} ms (process {about['pid']}, version {build})"
    if build != full_version():
        yield warn(found, f"this command is version {full_version()}: restart Corral with `corral down` and `corral up`.")
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
        if problem["part"] == "audit":
            yield fail(problem_line(problem).removeprefix("PROBLEM: "), "what users do is not recorded until this is solved.")
            continue
        node = data.path / "node"
        advice = f"tasks do not start or stop until this is solved; see {node / 'agent.log'} and {node / 'spawner.log'}."
        yield fail(problem_line(problem).removeprefix("PROBLEM: "), advice)
    yield from clock_difference(date)


def check_lenders(data: DataFolder) -> Iterator[Finding]:
    """Report whether the lenders of the running server answer, and what their operators should change."""
    if data_folder.running(data) is None:
        return
    for lender in call(endpoint_of_folder(data), "ListLenders", {})[0]["lenders"]:
        if lender["kind"] == "local":
            continue
        if lender["problem"]:
            yield fail(f"{lender['name']}: {lender['problem']}", "instances wait for it: see docs/lenders.md and server.log.")
        else:
            yield ok(f"{lender['name']} answers, and has {count(len(lender['allocations']), 'allocation')} for Corral")
        for advice in lender["advice"]:
            found, _, what = advice.partition(". ")
            yield warn(f"{lender['name']}: {found}", f"{what}.")


def clock_difference(date: str | None) -> Iterator[Finding]:
    server = parsed_date(date)
    if server is None:
        return
    # Compare the wall clock of this machine with the server's clock.
    skew_s = time.clock_gettime(time.CLOCK_REALTIME) - server.timestamp()
    # The Date header has only whole seconds, and the response takes time, so this machine seems to be ahead. Ignore up to 2 s.
    off_s = abs(skew_s) if skew_s < 0 or skew_s >= 2 else 0.0
    found = f"the clock of this machine and the server's clock differ by {off_s:.0f} s"
    if off_s > SKEW_FAIL_S:
        yield fail(found, "set the clock (timedatectl set-ntp true): requests fail if the clocks differ by 15 minutes.")
    elif off_s > SKEW_WARN_S:
        yield warn(found, "set the clock (timedatectl set-ntp true).")
    else:
        yield ok(found)


def check_configuration(data: DataFolder) -> Iterator[Finding]:
    from corral.configuration.file import ConfigurationError, read_file

    try:
        file = read_file(data.path)
        stored = file.stored()
    except ConfigurationError as error:
        yield fail(str(error), "correct the file: Corral does not start with it.")
        return
    names = ", ".join(stored)
    yield ok(f"{file.path} sets {names}" if stored else "all settings have their defaults")


def check_boot(data: DataFolder) -> Iterator[Finding]:
    """Report whether Corral starts at boot. Warn only if its unit is enabled, but starts Corral only when the user logs in."""
    unit = installed_unit(data)
    if unit is None:
        yield ok("Corral does not start at boot; `corral service install` changes that")
    elif not unit.is_enabled():
        yield ok(f"Corral does not start at boot: {unit.path} is not enabled")
    elif not unit.system and not lingers():
        yield warn(
            f"{unit.path} starts Corral only when {user_name()} logs in",
            f"to start it at boot: sudo loginctl enable-linger {user_name()}",
        )
    else:
        yield ok(f"systemd starts Corral at boot ({unit.path})")


def check_port(data: DataFolder) -> Iterator[Finding]:
    from corral.configuration.file import ConfigurationError, read_file

    about = data_folder.running(data)
    if about is not None:
        yield ok(f"Corral listens on {about['url'].rpartition('//')[2]}")
        return
    try:
        port = read_file(data.path).values()["up.port"]
    except ConfigurationError:
        return  # `check_configuration` reports the error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            owner = port_holder(port, "127.0.0.1")
            yield warn(f"port {port} is in use{f' by {owner}' if owner else ''}", "choose a free port: corral up --port 0")
            return
    yield ok(f"port {port} is free" if port else "Corral chooses a free port when it starts")


def check_proxy(data: DataFolder) -> Iterator[Finding]:
    names = [name for name in PROXIES if os.environ.get(name)]
    excepted = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").replace(" ", "").split(",")
    if names and not {"127.0.0.1", "*"} & set(excepted):
        yield warn(
            f"{', '.join(names)} is set, but no_proxy does not contain 127.0.0.1",
            'clients would send their requests to the proxy, not to Corral: eval "$(corral env)" sets no_proxy.',
        )
    else:
        yield ok("no proxy is set" if not names else "a proxy is set, and no_proxy excepts 127.0.0.1")


def check_aws_environment(data: DataFolder) -> Iterator[Finding]:
    names = conflicting_variables(os.environ)
    if names:
        yield warn(f"clients would use {', '.join(names)} and not reach Corral", 'eval "$(corral env)" unsets them.')
    url, about = os.environ.get("AWS_ENDPOINT_URL"), data_folder.running(data)
    if url and about and url.rstrip("/") not in (about["url"], about.get("tlsUrl")):
        yield warn(f"AWS_ENDPOINT_URL is {url}, not {about['url']}", 'run eval "$(corral env)" again to use this Corral.')
    elif os.environ.get("AWS_PROFILE") and not url:
        yield warn(f"AWS_PROFILE is {os.environ['AWS_PROFILE']}", "corral commands use that profile, which may be for AWS.")
    elif not names:
        yield ok("AWS_ENDPOINT_URL is this Corral" if url and about else "no conflicting variables")


def check_aws_command(data: DataFolder) -> Iterator[Finding]:
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
