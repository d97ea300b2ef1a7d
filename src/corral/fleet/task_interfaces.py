"""The addresses of tasks in awsvpc mode. All containers of such a task share one address.

A task on the machine of the server has a network interface, with the address that its containers have. Only the host of a task
reaches such an address. So a task on a host that has joined from another machine has no interface: it has the address of its host,
and the host publishes the ports of its containers (`node/docker_task_resources.py`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.core.transactions import Tx
from corral.model.task import Run, Task
from corral.store import Store

HOST_ADDRESS = "hostAddress"  # the member of Task.details with the address of the host of a placed task; see `placed_details`


class TaskInterface(Struct, frozen=True):
    id: str
    attachment_id: str  # of the task's attachment, as ECS shows it
    subnet_id: str  # as in the network configuration; the subnet may not exist
    group_ids: tuple[str, ...]
    address: str
    mac_address: str

    @property
    def dns_name(self) -> str:
        return f"ip-{self.address.replace('.', '-')}.ec2.internal"


def interface_of(task: Task) -> TaskInterface | None:
    """Return the interface of a task. Return None if the task has none, or has no address yet."""
    network = _configuration(task)
    about = next((run.about for run in task.runs if run.about and "privateIpv4Address" in run.about), None)
    if not network or about is None or host_address(task):
        return None
    return TaskInterface(
        id=f"eni-{task.id[:17]}",
        attachment_id=attachment_id(task),
        subnet_id=(network.get("subnets") or [""])[0],
        group_ids=tuple(network.get("securityGroups") or ()),
        address=about["privateIpv4Address"],
        mac_address=about.get("macAddress", ""),
    )


def attachment_id(task: Task) -> str:
    return "-".join((task.id[:8], task.id[8:12], task.id[12:16], task.id[16:20], task.id[20:]))


def host_address(task: Task) -> str:
    """Return the address of the host of a task in awsvpc mode, if the host has joined from another machine. Otherwise return ""."""
    return str(task.details.get(HOST_ADDRESS, ""))


def placed_details(tx: Tx[Store], task: Task, instance_id: str) -> dict[str, Any]:
    """Return the details of a task that is being placed on an instance: with the address of its host, if it needs that address.

    The address is stored, because the ports of the task stay published at this address if the host later has another one.
    """
    if not _configuration(task):
        return task.details
    host_id = tx.store.instances.host_of(instance_id)
    if tx.store.joined_hosts.get(host_id) is None:
        return task.details
    address = tx.store.hosts.options()[host_id].options.address  # empty: only this machine reaches the host
    return {**task.details, HOST_ADDRESS: address} if address else task.details


def bindings_of(task: Task, run: Run, container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the port bindings of a run, given its container definition.

    A plain process uses the ports of its host. It has bindings only if its task has the address of its host.
    """
    if run.about is not None:
        found: list[dict[str, Any]] = run.about.get("networkBindings", [])
        return found
    address = host_address(task) if run.started_at_s is not None else ""
    return [
        {"bindIP": address, "containerPort": port, "hostPort": port, "protocol": mapping.get("protocol", "tcp")}
        for mapping in (container.get("portMappings", ()) if address else ())
        for port in _ports(mapping)
    ]


def _ports(mapping: dict[str, Any]) -> range:
    first, _, last = str(mapping.get("containerPort") or mapping["containerPortRange"]).partition("-")
    return range(int(first), int(last or first) + 1)


def _configuration(task: Task) -> dict[str, Any] | None:
    return (task.details.get("networkConfiguration") or {}).get("awsvpcConfiguration")
