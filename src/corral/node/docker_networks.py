"""The Docker networks of tasks. Corral creates them before the first container, and again if someone removes them.

Tasks in network mode bridge or awsvpc are connected to the network `corral`. Tasks in network mode none are connected to the
network `corral-inside`. All of them reach Corral at the gateway address of `corral-inside`. `docker network prune` removes every
network to which no running container is connected. So while all tasks are in network mode bridge or awsvpc, a prune removes
`corral-inside`, and the tasks cannot reach Corral until the network is created again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from corral.model.container_network import GATEWAY
from corral.node.docker_api import DockerApi, EngineError
from corral.node.docker_options import INSIDE_NETWORK, NETWORK

NAMES = (NETWORK, INSIDE_NETWORK)
ROUTE_TABLE = Path("/proc/net/route")
INSIDE_SUBNET = IPv4Network("169.254.170.0/24")

log = logging.getLogger("corral.node")


class TaskNetworks:
    def __init__(self, api: DockerApi) -> None:
        self._api = api
        self._lock = asyncio.Lock()
        # The asyncio task that creates the networks. Its result is the name of the bridge of `corral-inside`.
        self.making: asyncio.Task[str] | None = None

    async def ensure(self) -> str:
        """Create the networks if that was not done yet. Return the name of the bridge of `corral-inside`."""
        if self.making is None or (self.making.done() and self.making.exception()):
            self.making = asyncio.get_running_loop().create_task(self._make())
        return await asyncio.shield(self.making)

    def forget(self) -> None:
        """Record that a network was removed. The next `ensure` creates it again."""
        self.making = None

    async def restore(self, members: Mapping[str, str]) -> list[str]:
        """Create networks that were removed, and connect running containers to their networks again.

        `members` is container id → network. Return the containers that were connected. Each may have a new address.
        """
        names = {network["Name"] for network in await self._api.get("/networks")}
        missing = [name for name in NAMES if name not in names]
        if missing and (self.making is None or self.making.done()):
            log.warning("creating the Docker network %s, which running tasks need", " and ".join(missing))
            self.forget()
        await self.ensure()
        connected = []
        for name in NAMES:
            wanted = [container for container, network in members.items() if network == name]
            there = ((await self._api.get(f"/networks/{name}")).get("Containers") or {}) if wanted else {}
            for container in wanted:
                if container not in there and await self._connect(name, container):
                    connected.append(container)
        return connected

    async def _connect(self, name: str, container: str) -> bool:
        try:
            await self._api.post(f"/networks/{name}/connect", {"Container": container})
        except EngineError as error:  # the container has ended, or another agent has connected it
            log.info("cannot connect the container %s to the network %s: %s", container[:12], name, error)
            return False
        log.warning("connected the container %s to the network %s again", container[:12], name)
        return True

    async def _make(self) -> str:
        async with self._lock:
            there = await self._api.get("/networks")
            names = {network["Name"] for network in there}
            gateways = {part.get("Gateway") for network in there for part in network.get("IPAM", {}).get("Config") or ()}
            if NETWORK not in names:
                await self._create({"Name": NETWORK})
            if INSIDE_NETWORK not in names:
                if GATEWAY in gateways:
                    raise EngineError(409, f"another network of this engine has the gateway {GATEWAY}; remove that network")
                config = [{"Subnet": str(INSIDE_SUBNET), "Gateway": GATEWAY}]
                await self._create({"Name": INSIDE_NETWORK, "Internal": True, "IPAM": {"Config": config}})
            await self._remove_duplicates()
            return bridge_of(await self._api.get(f"/networks/{INSIDE_NETWORK}"))

    async def _create(self, body: dict[str, Any]) -> None:
        try:
            await self._api.post("/networks/create", {"CheckDuplicate": True, "Driver": "bridge", **body})
        except EngineError:
            if body["Name"] not in {network["Name"] for network in await self._api.get("/networks")}:
                raise  # otherwise another Corral has created the network

    async def _remove_duplicates(self) -> None:
        """Keep only the oldest network of each name.

        If two Corral agents create a network at the same moment, the engine creates two networks with the same name.
        """
        there = await self._api.get("/networks")
        for name in NAMES:
            for other in sorted((each["Created"], each["Id"]) for each in there if each["Name"] == name)[1:]:
                try:
                    await self._api.delete(f"/networks/{other[1]}")
                except EngineError as error:
                    log.warning("cannot remove the second Docker network with the name %s: %s", name, error)


def bridge_of(network: Mapping[str, Any]) -> str:
    """Return the name of the network's interface on the engine's machine."""
    return str((network.get("Options") or {}).get("com.docker.network.bridge.name") or f"br-{network['Id'][:12]}")


def shadowing_interface(bridge: str) -> str | None:
    """Return the interface that receives this host's packets to containers of the bridge, if it is not the bridge itself.

    Return None if it is the bridge. Also return None if the engine runs on another machine, whose routes are unknown.
    """
    if not os.path.exists(f"/sys/class/net/{bridge}"):
        return None
    first = first_route_to(INSIDE_SUBNET)
    return first if first != bridge else None


def first_route_to(subnet: IPv4Network) -> str | None:
    """Return the interface of this machine's route to exactly this subnet, or None if there is no such route.

    If there are several routes, the kernel uses the route with the smallest metric. If the metrics are equal, it uses the first.
    """
    found = [(metric, interface) for destination, metric, interface in _routes() if destination == subnet]
    return min(found, key=lambda route: route[0])[1] if found else None


def _routes() -> list[tuple[IPv4Network, int, str]]:
    """Return (destination, metric, interface) of each route, in the order of the kernel's table."""
    found = []
    for line in ROUTE_TABLE.read_text().splitlines()[1:]:
        interface, destination, _, _, _, _, metric, mask, *_ = line.split()
        found.append((IPv4Network((_address(destination), str(_address(mask)))), int(metric), interface))
    return found


def _address(text: str) -> IPv4Address:
    """Parse an address of the kernel's table, which is a hexadecimal number in little-endian byte order."""
    return IPv4Address(int(text, 16).to_bytes(4, "little"))
