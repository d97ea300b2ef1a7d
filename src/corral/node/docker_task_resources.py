"""What the containers of a task share at the engine: networks, the container that holds the task's own one, volumes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from ipaddress import IPv4Network
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
    foreign_volumes,
    needs_pause,
    network_mode,
    volumes,
)
from corral.node.routes import first_to

LABEL_PAUSE = "corral.pause"
INSIDE_SUBNET = IPv4Network("169.254.170.0/24")
ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}  # as Docker calls them → as the kernel does
IN_THE_WAY = (
    f"CannotStartContainerError: {{0}} has the same subnet as the network {INSIDE_NETWORK} ({INSIDE_SUBNET}) and comes before it, "
    "so a task in network mode none would not reach Corral. It belongs to another Docker engine, or is what one that was killed "
    "has left. Stop that engine, or remove the interface: ip link delete {0}"
)


class CannotCreate(Exception):
    """The text is what ECS would say."""


class NoNetwork(Exception):
    """Somebody removed the networks since they were made (`docker network prune` does)."""


class SharedByTasks:
    def __init__(self, api: DockerApi, host_id: str) -> None:
        self._api = api
        self._host_id = host_id
        self.architecture = ""  # as the engine calls it
        self._networks: asyncio.Task[str] | None = None  # makes them; the bridge of the one for mode none
        self.with_volumes: set[str] = set()  # tasks that have some of their own
        self._pauses: dict[str, asyncio.Task[dict[str, Any]]] = {}  # by task

    async def make(self, spec: RunSpec) -> dict[str, Any] | None:
        """What this run needs beside its image is there on return; what the engine says of the task's pause container."""
        if network_mode(spec) != "host":
            bridge = await self._once_networks()
            if network_mode(spec) == "none" and (other := in_the_way_of(bridge)) is not None:
                raise CannotCreate(IN_THE_WAY.format(other))
        for name in foreign_volumes(spec):
            try:
                await self._api.get(f"/volumes/{name}")
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: the shared volume {name} is not there: {error}") from None
        for volume in volumes(spec):
            if LABEL_TASK in volume["Labels"]:
                self.with_volumes.add(spec.task_id)
            try:
                await self._api.post("/volumes/create", volume)
            except EngineError as error:
                raise CannotCreate(f"CannotCreateVolumeError: Error response from daemon: {error}") from None
        return await self._pause(spec) if needs_pause(spec) else None

    def adopt(self, task_id: str, about: dict[str, Any]) -> None:
        """A pause container of an earlier agent."""

        async def known() -> dict[str, Any]:
            return about

        self._pauses[task_id] = asyncio.get_running_loop().create_task(known())

    async def pause_of(self, task_id: str) -> dict[str, Any] | None:
        """What the engine says of a task's pause container; None: it has none."""
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
            if error.status not in (404, 409):  # gone, or going
                raise

    async def look_for_network(self, error: EngineError, container: str) -> None:
        """NoNetwork if that is why the engine could not start a container, which goes: whoever tries again makes them anew."""
        if any(f"network {name} not found" in str(error) for name in (NETWORK, INSIDE_NETWORK)):
            self._networks = None
            await self.remove(container)
            raise NoNetwork from None

    async def _once_networks(self) -> str:
        if self._networks is None or (self._networks.done() and self._networks.exception()):
            self._networks = asyncio.get_running_loop().create_task(self._make_networks())
        try:
            return await asyncio.shield(self._networks)
        except EngineError as error:
            raise CannotCreate(f"CannotStartContainerError: the network for tasks cannot be made: {error}") from None

    async def _make_networks(self) -> str:
        there: list[dict[str, Any]] = await self._api.get("/networks")
        names = {network["Name"] for network in there}
        gateways = {part.get("Gateway") for network in there for part in network.get("IPAM", {}).get("Config") or ()}
        if NETWORK not in names:
            await self._network({"Name": NETWORK})
        if INSIDE_NETWORK not in names:
            if GATEWAY in gateways:
                raise EngineError(409, f"another network of this engine has the gateway {GATEWAY}; remove it")
            config = [{"Subnet": str(INSIDE_SUBNET), "Gateway": GATEWAY}]
            await self._network({"Name": INSIDE_NETWORK, "Internal": True, "IPAM": {"Config": config}})
        return bridge_of(await self._api.get(f"/networks/{INSIDE_NETWORK}"))

    async def _network(self, body: dict[str, Any]) -> None:
        try:
            await self._api.post("/networks/create", {"CheckDuplicate": True, "Driver": "bridge", **body})
        except EngineError as error:
            if error.status != 409:  # another Corral was quicker
                raise

    async def _pause(self, spec: RunSpec) -> dict[str, Any]:
        making = self._pauses.get(spec.task_id)
        if making is None or (making.done() and making.exception()):
            making = self._pauses[spec.task_id] = asyncio.get_running_loop().create_task(self._make_pause(spec))
        try:
            return await asyncio.shield(making)
        except EngineError as error:
            await self.look_for_network(error, pause_name(self._host_id, spec.task_id))
            raise CannotCreate(f"CannotStartContainerError: the task's network cannot be made: {error}") from None

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
    """What a network's interface is called on the engine's machine."""
    return str((network.get("Options") or {}).get("com.docker.network.bridge.name") or f"br-{network['Id'][:12]}")


def in_the_way_of(bridge: str) -> str | None:
    """The interface by which what we say to containers of that bridge would leave instead; None: there is none, or who knows.

    Of an engine that is elsewhere nothing is known.
    """
    if not os.path.exists(f"/sys/class/net/{bridge}"):
        return None
    first = first_to(INSIDE_SUBNET)
    return first if first != bridge else None


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
    """(IPv4 address, MAC address) of a running container; None: it has none of its own."""
    for network in (about.get("NetworkSettings", {}).get("Networks") or {}).values():
        if network.get("IPAddress"):
            return network["IPAddress"], network.get("MacAddress", "")
    return None
