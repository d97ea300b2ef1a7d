"""Restores the Docker networks of running tasks: creates removed networks again, and connects disconnected containers again."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from msgspec.structs import replace

from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_networks import NAMES
from corral.node.docker_options import LABEL_PAUSE
from corral.node.docker_runs import DockerRuns
from corral.node.docker_task_resources import TaskResources, network_facts

CHECK_S = 10.0  # seconds between two checks; each network event also causes a check

log = logging.getLogger("corral.node")


class NetworkWatch:
    def __init__(self, api: DockerApi, resources: TaskResources, runs: DockerRuns, available: asyncio.Event) -> None:
        """`available` is set while the Docker engine responds."""
        self._api = api
        self._resources = resources
        self._runs = runs
        self._available = available
        self.changed = asyncio.Event()  # set when networks may have to be restored

    def handle_event(self, action: str, container: str) -> None:
        """Handle an event of a network that Corral created.

        When a container ends, the engine disconnects it too. This needs no repair.
        """
        if action == "destroy":
            self._resources.networks.forget()
            self.changed.set()
        elif action == "disconnect" and container in self._members():
            self.changed.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):  # asyncio.wait_for could lose a cancellation
                    await self.changed.wait()
            self.changed.clear()
            await self._available.wait()
            if any(run.is_alive and run.network != "host" for run in self._runs.by_id.values()):
                try:
                    await self._restore()
                except (EngineGone, EngineError) as error:
                    log.warning("cannot restore the Docker networks of running tasks: %s", error)

    def _members(self) -> dict[str, str]:
        """Return container id → network name, for the running containers in networks that Corral created."""
        living = self._runs.living_tasks()
        runs = {run.id: run.network for run in self._runs.by_id.values() if run.id is not None and run.is_alive}
        pauses = self._resources.running_pauses().items()
        held = {pause["Id"]: pause["HostConfig"].get("NetworkMode", "") for task_id, pause in pauses if task_id in living}
        return {container: network for container, network in (runs | held).items() if network in NAMES}

    async def _restore(self) -> None:
        for container in await self._resources.networks.restore(self._members()):
            about = await self._api.get(f"/containers/{container}/json")
            task_id = about["Config"]["Labels"].get(LABEL_PAUSE)
            if task_id:
                self._resources.adopt(task_id, about)
            for run in self._runs.of_task(task_id) if task_id else self._runs.by_id.values():
                if run.is_alive and (task_id or run.id == container) and run.known.observed.about is not None:
                    # A port of the host that the engine has chosen changes, too.
                    facts = network_facts(run.record, about, about if task_id else None)
                    self._runs.update(run, replace(run.known.observed, about={**(run.known.observed.about or {}), **facts}))
