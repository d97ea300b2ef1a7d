"""Remove the containers and volumes of ended tasks, also those that an earlier agent created.

One of these containers is the pause container of the task. It does nothing, but it owns the network of the task
(`docker_task_resources.py`). A pause container is not a run.
"""

from __future__ import annotations

import asyncio
import logging
import math

from corral.core.clock import Clock
from corral.node.docker_api import EngineError, EngineGone
from corral.node.docker_options import LABEL_RUN
from corral.node.docker_runs import DockerRuns
from corral.node.docker_task_resources import TaskResources

STOPPED_KEPT_S = 300.0  # an ended container is removed after this time
STOPPED_KEPT_MAX = 20  # if there are more ended containers, the oldest are removed earlier
# The volumes and the pause container of a task without a living run are kept this long, because the task may start a container.
RESOURCES_KEPT_S = 10.0
CLEAN_EVERY_S = 1.0
# The agent searches for leftover containers again this long after a connect, because the engine may create a container only after
# the agent that requested the container was killed.
COLLECT_AGAIN_S = 10.0

log = logging.getLogger("corral.node")


class DockerCleanup:
    def __init__(self, resources: TaskResources, runs: DockerRuns, available: asyncio.Event, clock: Clock) -> None:
        """`available` is set while the Docker engine responds."""
        self._resources = resources
        self._runs = runs
        self._available = available
        self._clock = clock
        self._idle: dict[str, float] = {}  # id of a task that has resources but no living run → since when
        self._collect_at_s = math.inf  # when to search again for containers that earlier agents left

    def schedule_collection(self) -> None:
        """Search again later for containers that earlier agents left. Call this after each connect."""
        self._collect_at_s = self._clock.now_s() + COLLECT_AGAIN_S

    async def run(self) -> None:
        """Repeatedly remove the containers and volumes of tasks that ended some time ago."""
        while True:
            await asyncio.sleep(CLEAN_EVERY_S)
            try:
                await self._clean_once(self._clock.now_s())
            except (EngineGone, EngineError) as error:
                log.info("cannot remove ended containers: %s", error)

    async def _clean_once(self, now_s: float) -> None:
        runs = self._runs
        if now_s >= self._collect_at_s and self._available.is_set():
            await self._collect()
            self._collect_at_s = math.inf
        living = runs.living_tasks()
        over = [run_id for run_id, (run, _) in runs.forgotten.items() if run.task_id not in living]
        for at, run_id in enumerate(over):
            run, since_s = runs.forgotten.get(run_id, (None, now_s))
            if run is not None and (len(over) - at > STOPPED_KEPT_MAX or now_s >= since_s + STOPPED_KEPT_S):
                await self._resources.remove(str(run.id))
                runs.forgotten.pop(run_id, None)
        for task_id in {*self._resources.with_pause, *self._resources.with_volumes, *self._idle}:
            if task_id in runs.living_tasks():
                self._idle.pop(task_id, None)
            elif now_s >= self._idle.setdefault(task_id, now_s) + RESOURCES_KEPT_S:
                await self._drop_resources(task_id)

    async def _drop_resources(self, task_id: str) -> None:
        """Remove the pause container of an ended task. If the task has no other container left, also remove its volumes."""
        await self._resources.drop_pause(task_id)
        has_volumes = task_id in self._resources.with_volumes
        if has_volumes and self._runs.of_task(task_id):
            return
        self._idle.pop(task_id, None)
        if has_volumes:
            await self._resources.drop_volumes(task_id)

    async def _collect(self) -> None:
        """Remove containers that an earlier agent requested, but that did not exist yet when this agent connected to the engine."""
        there = await self._resources.list_containers()
        await self._resources.take_over(there)
        for listed in there:
            run_id = listed["Labels"].get(LABEL_RUN)
            if run_id is not None and listed["State"] == "created" and not self._runs.has(run_id):
                await self._resources.remove(listed["Id"])

    async def remove_all(self) -> None:
        """Remove all containers that Corral created for this host, also running containers, and the volumes of all tasks."""
        there = await self._resources.list_containers()
        await asyncio.gather(*[self._resources.remove(listed["Id"]) for listed in there])
        await self._resources.find_volumes()
        await asyncio.gather(*[self._resources.drop_volumes(task) for task in list(self._resources.with_volumes)])

    async def drop_idle_pauses(self) -> None:
        """Remove the pause containers of tasks without a living run.

        The agent calls this when it exits, because there may be no later agent that removes them.
        """
        living = self._runs.living_tasks()
        await asyncio.gather(*[self._resources.drop_pause(task) for task in self._resources.with_pause if task not in living])
