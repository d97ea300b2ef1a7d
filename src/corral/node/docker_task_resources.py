"""Docker resources that the containers of a task share: networks, volumes and the pause container.

The pause container does nothing. It owns the namespaces that the containers share, for example the network of the task. So the
namespaces exist as long as the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from corral.model.run import RunSpec
from corral.node import pause_image
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_networks import INSIDE_SUBNET, NAMES, TaskNetworks, shadowing_interface
from corral.node.docker_options import (
    INSIDE_NETWORK,
    LABEL_HOST,
    LABEL_PAUSE,
    LABEL_TASK,
    NETWORK,
    RunRecord,
    needs_pause,
    network_mode,
    publish,
    published_address,
    published_ports,
    reported_bindings,
    required_volumes,
    taken_ports,
    volumes,
)
from corral.node.host_address import is_own

ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}  # Docker's name → the kernel's name
SUBNET_TAKEN = (
    f"CannotStartContainerError: the interface {{0}} has the same subnet as the network {INSIDE_NETWORK} ({INSIDE_SUBNET}), and "
    "its route is used first, so a task in network mode none would not reach Corral. The interface belongs to another Docker "
    "engine, or it remained after an engine was killed. Stop that engine, or remove the interface: ip link delete {0}"
)

UNREACHABLE = "CannotStartContainerError: a container with a network of its own could not reach Corral on this host, because {}."


class CannotCreate(Exception):
    """A resource cannot be created. The message becomes the container's `reason`, so it has the form of ECS's messages."""


class ResourceRemoved(Exception):
    """A network, a volume or a pause container was removed after Corral created it, for example by `docker system prune`."""


class TaskResources:
    def __init__(self, api: DockerApi, host_id: str, unreachable: Callable[[], str] = lambda: "") -> None:
        """`unreachable` returns why containers with a network of their own cannot reach Corral. It returns "" if they can."""
        self._api = api
        self._host_id = host_id
        self._unreachable = unreachable
        self.architecture = ""  # the engine's name of the architecture
        self.networks = TaskNetworks(api)
        self.with_volumes: set[str] = set()  # ids of tasks with volumes of scope `task`
        self._pauses: dict[str, asyncio.Task[dict[str, Any]]] = {}  # task id → the creation of its pause container

    async def make(self, spec: RunSpec) -> dict[str, Any] | None:
        """Create the networks, volumes and pause container of a run.

        Return the engine's description of the pause container, if the task needs one.
        """
        if network_mode(spec) != "host":
            if why := self._unreachable():
                raise CannotCreate(UNREACHABLE.format(why))
            bridge = await self._ensure_networks()
            if network_mode(spec) == "none" and (other := shadowing_interface(bridge)) is not None:
                raise CannotCreate(SUBNET_TAKEN.format(other))
        for name in required_volumes(spec):
            try:
                await self._api.get(f"/volumes/{name}")
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: the shared volume {name} does not exist: {error}") from None
        for volume in volumes(spec, self._host_id):
            if LABEL_TASK in volume["Labels"]:
                self.with_volumes.add(spec.task_id)
            try:
                await self._api.post("/volumes/create", volume)
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: Error response from daemon: {error}") from None
        return await self._pause(spec) if needs_pause(spec) else None

    def adopt(self, task_id: str, about: dict[str, Any]) -> None:
        """Record a running pause container that an earlier agent started."""

        async def known() -> dict[str, Any]:
            return about

        self._pauses[task_id] = asyncio.get_running_loop().create_task(known())

    async def list_containers(self) -> list[dict[str, Any]]:
        """Return the containers that Corral created for this host: the containers of runs and the pause containers."""
        ours: list[dict[str, Any]] = await self._api.get(
            "/containers/json", all=True, filters={"label": [f"{LABEL_HOST}={self._host_id}"]}
        )
        return ours

    async def take_over(self, there: list[dict[str, Any]]) -> None:
        """Adopt the pause containers and the volumes that earlier agents created.

        Remove a pause container that does not run, because no other container can use it.
        """
        for listed in there:
            task_id = listed["Labels"].get(LABEL_PAUSE)
            if not task_id or task_id in self.with_pause:
                continue
            if listed["State"] in ("created", "exited", "dead", "removing"):
                await self.remove(listed["Id"])
            else:
                self.adopt(task_id, await self._api.get(f"/containers/{listed['Id']}/json"))
        await self.find_volumes()

    async def pause_of(self, task_id: str) -> dict[str, Any] | None:
        """Return the engine's description of a task's pause container, or None if the task has none."""
        return await asyncio.shield(self._pauses[task_id]) if task_id in self._pauses else None

    def running_pauses(self) -> dict[str, dict[str, Any]]:
        """Return task id → the engine's description of its pause container.

        Containers that are still being started are left out.
        """
        return {task_id: made.result() for task_id, made in self._pauses.items() if made.done() and not made.exception()}

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Return the asyncio tasks that create networks and pause containers now."""
        return [making for making in (*self._pauses.values(), self.networks.making) if making is not None and not making.done()]

    @property
    def with_pause(self) -> list[str]:
        return list(self._pauses)

    async def drop_pause(self, task_id: str) -> None:
        if task_id in self._pauses:
            del self._pauses[task_id]
            await self.remove(pause_name(self._host_id, task_id))

    async def find_volumes(self) -> None:
        """Find the volumes that earlier agents created for tasks."""
        found = await self._api.get("/volumes", filters={"label": [f"{LABEL_HOST}={self._host_id}", LABEL_TASK]})
        self.with_volumes |= {volume["Labels"][LABEL_TASK] for volume in found.get("Volumes") or ()}

    async def drop_volumes(self, task_id: str) -> None:
        """Remove the volumes of a task. If this fails, for example because a container uses one, the id stays in `with_volumes`."""
        # Discard the id before the removal, because a new container of the task may add the id again during the removal.
        self.with_volumes.discard(task_id)
        prefix = f"corral-{task_id}-"
        try:
            found = await self._api.get("/volumes", filters={"name": [prefix]})
            for volume in found.get("Volumes") or ():
                if volume["Name"].startswith(prefix):
                    await self._remove_volume(volume["Name"])
        except (EngineError, EngineGone):
            self.with_volumes.add(task_id)
            raise

    async def _remove_volume(self, name: str) -> None:
        try:
            await self._api.delete(f"/volumes/{name}")
        except EngineError as error:
            if error.status != 404:
                raise

    async def remove(self, container: str) -> None:
        try:
            await self._api.delete(f"/containers/{container}", force=True, v=True)
        except EngineError as error:
            if error.status not in (404, 409):  # 404: already removed; 409: being removed
                raise

    async def raise_if_removed(self, error: EngineError, container: str, pause: Mapping[str, Any] | None, task_id: str) -> None:
        """If a start failed because a resource was removed, remove the container too, and raise ResourceRemoved.

        The caller then creates everything again.
        """
        text = str(error)
        if any(f"network {name} {fault}" in text for name in NAMES for fault in ("not found", "is ambiguous")):
            self.networks.forget()
        elif pause is not None and pause["Id"] in text:  # the pause container does not exist or does not run
            self._pauses.pop(task_id, None)
        elif not ((error.status == 404 and "No such container" in text) or "is marked for removal" in text):
            return
        await self.remove(container)
        raise ResourceRemoved(text) from None

    async def _ensure_networks(self) -> str:
        try:
            return await self.networks.ensure()
        except EngineError as error:
            raise CannotCreate(f"CannotStartContainerError: the Docker networks for tasks cannot be created: {error}") from None

    async def _pause(self, spec: RunSpec) -> dict[str, Any]:
        making = self._pauses.get(spec.task_id)
        if making is None or (making.done() and making.exception()):
            making = self._pauses[spec.task_id] = asyncio.get_running_loop().create_task(self._make_pause(spec))
        try:
            return await asyncio.shield(making)
        except EngineError as error:
            await self.raise_if_removed(error, pause_name(self._host_id, spec.task_id), None, spec.task_id)
            raise CannotCreate(f"CannotStartContainerError: the network of the task cannot be created: {error}") from None

    async def _make_pause(self, spec: RunSpec) -> dict[str, Any]:
        """Create and start the pause container. Instead of ports of the host that are taken, it gets free ones."""
        name, ports = pause_name(self._host_id, spec.task_id), published_ports(spec)
        while True:
            await self._create_pause(name, _pause_body(spec, self._host_id, ports, self._address(spec) if ports else ""))
            try:
                await self._api.post(f"/containers/{name}/start")
            except EngineError as error:
                if not (taken := taken_ports(ports, str(error))):
                    raise
                await self.remove(name)
                ports |= dict.fromkeys(taken, 0)
                continue
            about: dict[str, Any] = await self._api.get(f"/containers/{name}/json")
            return about

    async def _create_pause(self, name: str, body: dict[str, Any]) -> None:
        try:
            await self._api.post("/containers/create", body, name=name)
        except EngineError as error:
            if error.status == 404:
                await self._make_image()
                await self._api.post("/containers/create", body, name=name)
            elif error.status != 409:
                raise

    def _address(self, spec: RunSpec) -> str:
        """Return the address at which ports are published: that of the host, or "" if no interface of its machine has it."""
        address = published_address(spec)
        return address if self._api.host.startswith("unix:") and is_own(address) else ""

    async def _make_image(self) -> None:
        layer = pause_image.layer(ARCHITECTURES.get(self.architecture, self.architecture))
        await self._api.post("/images/create", layer, fromSrc="-", repo=pause_image.IMAGE, tag=pause_image.TAG)


def pause_name(host_id: str, task_id: str) -> str:
    return f"corral-{host_id[:8]}-{task_id}-pause"


def _pause_body(spec: RunSpec, host_id: str, ports: Mapping[str, int], address: str) -> dict[str, Any]:
    assert spec.settings is not None
    container = spec.settings["container"]
    body: dict[str, Any] = {
        "Image": f"{pause_image.IMAGE}:{pause_image.TAG}",
        "Cmd": ["/pause"],
        "Labels": {LABEL_HOST: host_id, LABEL_PAUSE: spec.task_id},
        "HostConfig": {
            "NetworkMode": NETWORK if network_mode(spec) == "awsvpc" else "none",
            "IpcMode": "shareable",
            "Dns": container.get("dnsServers", []),
            "DnsSearch": container.get("dnsSearchDomains", []),
            "ExtraHosts": [f"{host['hostname']}:{host['ipAddress']}" for host in container.get("extraHosts", ())],
            "LogConfig": {"Type": "none"},
        },
    }
    if ports:
        publish(body, ports, address)
    return body


def network_facts(record: RunRecord, about: Mapping[str, Any], pause: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the port bindings and the address of a running container, under the names of ECS.

    `about` and `pause` are the engine's descriptions of the container and of the task's pause container.
    """
    given = ((pause if pause and record.ports else about).get("NetworkSettings") or {}).get("Ports") or {}
    bindings = reported_bindings({port: each for port, each in given.items() if not record.ports or port in record.ports})
    facts: dict[str, Any] = {"networkBindings": bindings} if bindings else {}
    if (found := address(pause or about)) is not None:
        facts["privateIpv4Address"], facts["macAddress"] = found
    return facts


def address(about: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (IPv4 address, MAC address) of a running container, or None if it has no address of its own."""
    for network in (about.get("NetworkSettings", {}).get("Networks") or {}).values():
        if network.get("IPAddress"):
            return network["IPAddress"], network.get("MacAddress", "")
    return None
