"""Docker resources that the containers of a task share: networks, the pause container that holds the task's network, volumes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from corral.model.run import RunSpec
from corral.node import pause_image
from corral.node.docker_api import DockerApi, EngineError
from corral.node.docker_settings import (
    GATEWAY,
    INSIDE_NETWORK,
    LABEL_HOST,
    LABEL_TASK,
    NETWORK,
    needs_pause,
    network_mode,
    required_volumes,
    volumes,
)

ROUTE_TABLE = Path("/proc/net/route")
LABEL_PAUSE = "corral.pause"
INSIDE_SUBNET = IPv4Network("169.254.170.0/24")
ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}  # Docker's name → the kernel's
SUBNET_TAKEN = (
    f"CannotStartContainerError: the interface {{0}} has the same subnet as the network {INSIDE_NETWORK} ({INSIDE_SUBNET}), and "
    "its route comes first, so a task in network mode none would not reach Corral. The interface belongs to another Docker "
    "engine, or an engine that was killed left it. Stop that engine, or remove the interface: ip link delete {0}"
)


class CannotCreate(Exception):
    """The message is the container's `reason`, in the words of ECS."""


class NoNetwork(Exception):
    """The networks were removed after Corral created them, for example by `docker network prune`."""


class TaskResources:
    def __init__(self, api: DockerApi, host_id: str) -> None:
        self._api = api
        self._host_id = host_id
        self.architecture = ""  # under the name that the engine uses
        self._networks: asyncio.Task[str] | None = None  # creates the networks; its result is the bridge of mode none
        self.with_volumes: set[str] = set()  # tasks with volumes of scope `task`
        self._pauses: dict[str, asyncio.Task[dict[str, Any]]] = {}  # task → its pause container

    async def make(self, spec: RunSpec) -> dict[str, Any] | None:
        """Create what this run needs besides its image. Return the engine's description of the pause container, if there is one."""
        if network_mode(spec) != "host":
            bridge = await self._ensure_networks()
            if network_mode(spec) == "none" and (other := shadowing_interface(bridge)) is not None:
                raise CannotCreate(SUBNET_TAKEN.format(other))
        for name in required_volumes(spec):
            try:
                await self._api.get(f"/volumes/{name}")
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: the shared volume {name} does not exist: {error}") from None
        for volume in volumes(spec):
            if LABEL_TASK in volume["Labels"]:
                self.with_volumes.add(spec.task_id)
            try:
                await self._api.post("/volumes/create", volume)
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: Error response from daemon: {error}") from None
        return await self._pause(spec) if needs_pause(spec) else None

    def adopt(self, task_id: str, about: dict[str, Any]) -> None:
        """Take over a pause container that an earlier agent started."""

        async def known() -> dict[str, Any]:
            return about

        self._pauses[task_id] = asyncio.get_running_loop().create_task(known())

    async def pause_of(self, task_id: str) -> dict[str, Any] | None:
        """The engine's description of a task's pause container; None: it has none."""
        return await asyncio.shield(self._pauses[task_id]) if task_id in self._pauses else None

    @property
    def with_pause(self) -> list[str]:
        return list(self._pauses)

    async def drop_pause(self, task_id: str) -> None:
        if task_id in self._pauses:
            del self._pauses[task_id]
            await self.remove(pause_name(self._host_id, task_id))

    async def drop_volumes(self, task_id: str) -> None:
        found = await self._api.get("/volumes", filters={"label": [f"{LABEL_TASK}={task_id}"]})
        for volume in found.get("Volumes") or ():
            try:
                await self._api.delete(f"/volumes/{volume['Name']}")
            except EngineError as error:
                if error.status not in (404, 409):
                    raise
        self.with_volumes.discard(task_id)

    async def remove(self, container: str) -> None:
        try:
            await self._api.delete(f"/containers/{container}", force=True, v=True)
        except EngineError as error:
            if error.status not in (404, 409):  # removed, or being removed
                raise

    async def raise_if_network_is_missing(self, error: EngineError, container: str) -> None:
        """If a start failed for lack of a network, remove the container and raise NoNetwork: a retry creates the networks."""
        if any(f"network {name} not found" in str(error) for name in (NETWORK, INSIDE_NETWORK)):
            self._networks = None
            await self.remove(container)
            raise NoNetwork from None

    async def _ensure_networks(self) -> str:
        if self._networks is None or (self._networks.done() and self._networks.exception()):
            self._networks = asyncio.get_running_loop().create_task(self._make_networks())
        try:
            return await asyncio.shield(self._networks)
        except EngineError as error:
            raise CannotCreate(f"CannotStartContainerError: the Docker networks for tasks cannot be created: {error}") from None

    async def _make_networks(self) -> str:
        there: list[dict[str, Any]] = await self._api.get("/networks")
        names = {network["Name"] for network in there}
        gateways = {part.get("Gateway") for network in there for part in network.get("IPAM", {}).get("Config") or ()}
        if NETWORK not in names:
            await self._network({"Name": NETWORK})
        if INSIDE_NETWORK not in names:
            if GATEWAY in gateways:
                raise EngineError(409, f"another network of this engine has the gateway {GATEWAY}; remove that network")
            config = [{"Subnet": str(INSIDE_SUBNET), "Gateway": GATEWAY}]
            await self._network({"Name": INSIDE_NETWORK, "Internal": True, "IPAM": {"Config": config}})
        return bridge_of(await self._api.get(f"/networks/{INSIDE_NETWORK}"))

    async def _network(self, body: dict[str, Any]) -> None:
        try:
            await self._api.post("/networks/create", {"CheckDuplicate": True, "Driver": "bridge", **body})
        except EngineError as error:
            if error.status != 409:  # another Corral created it first
                raise

    async def _pause(self, spec: RunSpec) -> dict[str, Any]:
        making = self._pauses.get(spec.task_id)
        if making is None or (making.done() and making.exception()):
            making = self._pauses[spec.task_id] = asyncio.get_running_loop().create_task(self._make_pause(spec))
        try:
            return await asyncio.shield(making)
        except EngineError as error:
            await self.raise_if_network_is_missing(error, pause_name(self._host_id, spec.task_id))
            raise CannotCreate(f"CannotStartContainerError: the network of the task cannot be created: {error}") from None

    async def _make_pause(self, spec: RunSpec) -> dict[str, Any]:
        name = pause_name(self._host_id, spec.task_id)
        body = _pause_body(spec, self._host_id)
        try:
            await self._api.post("/containers/create", body, name=name)
        except EngineError as error:
            if error.status == 404:
                await self._make_image()
                await self._api.post("/containers/create", body, name=name)
            elif error.status != 409:
                raise
        await self._api.post(f"/containers/{name}/start")
        about: dict[str, Any] = await self._api.get(f"/containers/{name}/json")
        return about

    async def _make_image(self) -> None:
        layer = pause_image.layer(ARCHITECTURES.get(self.architecture, self.architecture))
        await self._api.post("/images/create", layer, fromSrc="-", repo=pause_image.IMAGE, tag=pause_image.TAG)


def bridge_of(network: Mapping[str, Any]) -> str:
    """The name of a network's interface on the engine's machine."""
    return str((network.get("Options") or {}).get("com.docker.network.bridge.name") or f"br-{network['Id'][:12]}")


def shadowing_interface(bridge: str) -> str | None:
    """Another interface whose route takes the packets that this host sends to containers of the bridge.

    None: there is no such interface, or the engine runs on another machine, whose routes are unknown.
    """
    if not os.path.exists(f"/sys/class/net/{bridge}"):
        return None
    first = first_route_to(INSIDE_SUBNET)
    return first if first != bridge else None


def first_route_to(subnet: IPv4Network) -> str | None:
    """The interface of this machine's route to exactly this subnet; None: there is no such route.

    Of several routes to one subnet, the kernel uses the one with the smallest metric, then the first.
    """
    found = [(metric, interface) for destination, metric, interface in _routes() if destination == subnet]
    return min(found, key=lambda route: route[0])[1] if found else None


def _routes() -> list[tuple[IPv4Network, int, str]]:
    """(destination, metric, interface), in the kernel's order."""
    found = []
    for line in ROUTE_TABLE.read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, metric, mask, *_ = line.split()
        found.append((IPv4Network((_address(destination), str(_address(mask)))), int(metric), interface))
    return found


def _address(text: str) -> IPv4Address:
    """The table has addresses as hexadecimal numbers in little-endian byte order."""
    return IPv4Address(int(text, 16).to_bytes(4, "little"))


def pause_name(host_id: str, task_id: str) -> str:
    return f"corral-{host_id[:8]}-{task_id}-pause"


def _pause_body(spec: RunSpec, host_id: str) -> dict[str, Any]:
    assert spec.settings is not None
    container = spec.settings["container"]
    return {
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


def address(about: Mapping[str, Any]) -> tuple[str, str] | None:
    """(IPv4 address, MAC address) of a running container; None: it has no address of its own."""
    for network in (about.get("NetworkSettings", {}).get("Networks") or {}).values():
        if network.get("IPAddress"):
            return network["IPAddress"], network.get("MacAddress", "")
    return None
