"""Settings of a task definition that give its containers access to the host. With such a setting, a task can control the machine.

If the tasks of an owner run as a Unix account of its own (`fleet/unix_accounts.py`), a plain process and a path of the host give
the owner nothing that the account does not have. So they are no access to the host then, for this owner.

`corral up --isolate` refuses these settings. If a program in a container registers, starts or enters a task with such a setting, a
policy must allow `corral:RunOnHost` (`HOST_OPERATIONS` in `access/permissions.py` lists the operations). Lists of values in this
module are lists of what is harmless, so an unknown value counts as access to the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.host_options import runs_containers
from corral.fleet.unix_accounts import account_of
from corral.model.task import is_host_image
from corral.services.ecs.errors import ClientException
from corral.store import Store

HARMLESS_MODES = {  # modes with namespaces of the task or of its containers, and not of the host
    "networkMode": (None, "", "awsvpc", "bridge", "none"),
    "pidMode": (None, "", "task"),
    "ipcMode": (None, "", "none", "task"),
}
ONLY_IN_DOCKER = "onlyInDocker"  # the member of Task.details for tasks whose creator may not run on the host
ACCOUNT = "unixAccount"  # the member of Task.details with the Unix account as which plain processes of the task run
# Linux capabilities that affect only the container itself. With any other capability, a container could control the host, read
# data of the host, or change settings of its kernel; with NET_RAW, it could read the credentials of other containers. The
# capabilities in the first two lines are those that each container of Corral has.
HARMLESS_CAPABILITIES = frozenset(
    {"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
     "SETPCAP", "SETUID", "SYS_CHROOT",
     "IPC_LOCK", "IPC_OWNER", "LEASE", "LINUX_IMMUTABLE", "NET_BROADCAST", "SYS_NICE", "SYS_RESOURCE"}
)  # fmt: skip
# Any other security option can replace a profile that confines the container, and its value can be a file of the host.
HARMLESS_SECURITY_OPTIONS = frozenset({"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"})
HARMLESS_VOLUME_OPTIONS = frozenset({"size"})  # with other options, the driver `local` can mount any path or device of the host
LOG_DRIVERS_INSIDE = frozenset({"awsfirelens", "awslogs", "json-file", "local", "none"})  # they write only to files of their own
# Log driver → the option with the address to which the engine sends the output. Without it, the address is on the host.
LOG_ADDRESSES = {
    "fluentd": "fluentd-address",
    "gelf": "gelf-address",
    "splunk": "splunk-url",
    "syslog": "syslog-address",
}
LOG_FILES = ("splunk-capath", "syslog-tls-ca-cert", "syslog-tls-cert", "syslog-tls-key")  # options with a file of the host
NUMBER = re.compile(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*")
LOG_SCHEMES = frozenset({"http", "https", "tcp", "tcp+tls", "tls", "udp"})


def setting_with_host_access(definition: Mapping[str, Any], *, as_account: bool = False) -> str | None:
    """Return the first setting in a task definition that gives access to the host. Return None if there is none.

    `as_account`: processes of the task, and containers with paths of the host, run as the Unix account of the owner.
    """
    return next(_settings(definition, as_account=as_account), None)


def mounts_host_path(definition: Mapping[str, Any]) -> bool:
    return any((volume.get("host") or {}).get("sourcePath") for volume in definition.get("volumes") or ())


def acts_as_account(tx: Tx[Store], caller: Caller, owner: str) -> bool:
    """Whether processes that a caller starts or enters for an owner run as the Unix account of the caller itself.

    The owner's account must be the caller's.
    """
    return may_use_account(caller) and caller.owner == owner and bool(account_of(tx, owner))


def may_use_account(caller: Caller) -> bool:
    """Whether a caller may have the rights of its owner's Unix account, if policies do not allow it to run on the host.

    A program in a container must not get them, and neither may a session with policies of its own.
    """
    return not caller.confined and not (caller.terms is not None and caller.terms.is_restricted)


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


def gives_host(tx: Tx[Store], definition: Mapping[str, Any], role: str = "", *, as_account: bool = False) -> bool:
    """Whether a task definition gives its tasks access to the host: by a setting, or by a role that may run programs on the host.

    `role` overrides the task role of the definition. `as_account`: see `setting_with_host_access`.
    """
    from corral.access.authorization import role_may_run_on_host  # imported with the first request of a container

    setting = setting_with_host_access(definition, as_account=as_account)
    return setting is not None or role_may_run_on_host(tx, role or definition.get("taskRoleArn") or "")


def runs_on_host(tx: Tx[Store], definition: Mapping[str, Any], role: str = "", *, as_account: bool = False) -> bool:
    """Whether new tasks of a task definition have access to the host. Plain processes have it, unless they run as an account."""
    are_processes = not as_account and not runs_containers(tx)
    return bool(definition) and (are_processes or gives_host(tx, definition, role, as_account=as_account))


def is_kept_from_host(tx: Tx[Store], caller: Caller) -> bool:
    """Whether the caller is restricted and may not run on the host. Then its tasks never run as processes of Corral's account.

    RunTask refuses such tasks if no host has a Docker engine. But with `--runtime auto`, a task of a service or of a job, or a task
    that waits, may start after Corral was restarted without an engine.
    """
    if not caller.is_restricted:
        return False
    from corral.access.authorization import may_run_on_host  # imported with the first request of a container

    return not may_run_on_host(tx, caller)


def _settings(definition: Mapping[str, Any], *, as_account: bool) -> Iterator[str]:
    for member, harmless in HARMLESS_MODES.items():
        if definition.get(member) not in harmless:
            yield f"{member}: {definition[member]}"
    for volume in definition.get("volumes") or ():
        name = volume.get("name")
        if (path := (volume.get("host") or {}).get("sourcePath")) is not None and not as_account:
            yield f"host.sourcePath {path} of volume {name}"
        docker = volume.get("dockerVolumeConfiguration") or {}
        if docker.get("scope") not in (None, "", "task"):  # `shared`: any volume of the engine, also of other users of Docker
            yield f"dockerVolumeConfiguration.scope: {docker['scope']} of volume {name}"
        if docker.get("driver") not in (None, "", "local"):
            yield f"dockerVolumeConfiguration.driver: {docker['driver']} of volume {name}"
        if set(docker.get("driverOpts") or ()) - HARMLESS_VOLUME_OPTIONS:
            yield f"dockerVolumeConfiguration.driverOpts of volume {name}"
    for container in definition.get("containerDefinitions") or ():
        for setting in _container_settings(container, as_account=as_account):
            yield f"{setting} of container {container.get('name')}"


def _container_settings(container: Mapping[str, Any], *, as_account: bool) -> Iterator[str]:
    image, linux = container.get("image") or "", container.get("linuxParameters") or {}
    if is_host_image(image) and not as_account:
        yield f"image: {image}"
    if container.get("privileged"):
        yield "privileged: true"
    for device in linux.get("devices") or ():
        yield f"linuxParameters.devices: {device.get('hostPath')}"
    for capability in (linux.get("capabilities") or {}).get("add") or ():
        if capability.upper().removeprefix("CAP_") not in HARMLESS_CAPABILITIES:
            yield f"linuxParameters.capabilities.add: {capability}"
    for option in container.get("dockerSecurityOptions") or ():
        if option not in HARMLESS_SECURITY_OPTIONS:
            yield f"dockerSecurityOptions: {option}"
    logging = container.get("logConfiguration") or {}
    if (setting := _log_setting(logging.get("logDriver") or "awslogs", logging.get("options") or {})) is not None:
        yield f"logConfiguration.{setting}"


def _log_setting(driver: str, options: Mapping[str, str]) -> str | None:
    """Return the setting with which the engine sends output to this machine, or reads a file of it, or None."""
    if driver in LOG_DRIVERS_INSIDE:
        return None
    if (file := next((name for name in LOG_FILES if options.get(name)), None)) is not None:
        return f"options.{file}: {options[file]}"
    if not (address := options.get(LOG_ADDRESSES.get(driver, ""))):
        return f"logDriver: {driver}"
    return None if _is_elsewhere(address) else f"options.{LOG_ADDRESSES[driver]}: {address}"


def _is_elsewhere(address: str) -> bool:
    """Whether an address such as `tcp://HOST:PORT` is that of another machine. The scheme may be missing."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        name = (parts.hostname or "").rstrip(".").lower()
    except ValueError:
        return False
    if parts.scheme not in LOG_SCHEMES or not name or name == "localhost" or name.endswith(".localhost"):
        return False
    try:
        number = ip_address(name)
    except ValueError:  # the name of a machine; a number in another form, such as 0x7f.1, is not a name
        return not NUMBER.fullmatch(name)
    number = getattr(number, "ipv4_mapped", None) or number
    return not (number.is_loopback or number.is_unspecified or number.is_link_local)
