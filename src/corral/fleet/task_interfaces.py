"""The network interfaces of tasks in awsvpc mode. All containers of such a task share one address."""

from __future__ import annotations

from msgspec import Struct

from corral.model.task import Task


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
    """Return the interface of a task. Return None if the task is not in awsvpc mode, or has no address yet."""
    network = (task.details.get("networkConfiguration") or {}).get("awsvpcConfiguration")
    about = next((run.about for run in task.runs if run.about and "privateIpv4Address" in run.about), None)
    if not network or about is None:
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
