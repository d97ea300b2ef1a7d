"""Start each run with the process engine (`process_engine.py`) or with the docker engine (`docker_engine.py`).

A run of the image `corral/host` is always a process. Any other run becomes a container if Docker is used. This depends on the
option `--runtime`. With `docker`, Docker is always used, and runs wait until the Docker daemon responds. With `auto`, Docker is
used if the Docker daemon responds when the agent starts, or if this host has ever run a container: otherwise a task that a program
in a container has defined would become a process of this machine after a start without Docker. With `process`, Docker is not used.
There is one exception: if containers of an earlier agent may still be alive, Docker is used with every value of `--runtime`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from corral.model.agent_protocol import Execute, ImagePush
from corral.model.run import RunSpec
from corral.node.docker_engine import DockerEngine
from corral.node.engine import Changed, Known, PauseTarget
from corral.node.link import Connect
from corral.node.process_engine import ProcessEngine

log = logging.getLogger("corral.node")


class EngineRouter:
    def __init__(self, process: ProcessEngine, docker: DockerEngine, runtime: str) -> None:
        self._process = process
        self._docker = docker
        self._runtime = runtime
        self._uses_docker = False
        self.failed: asyncio.Future[None] = process.failed

    @property
    def docker(self) -> str:
        """The name and version of the Docker engine. Empty if Docker is not used."""
        return self._docker.docker if self._uses_docker else ""

    @property
    def problem(self) -> str:
        return self._process.problem

    async def open(self, changed: Changed) -> None:
        await self._process.open(changed)
        wanted = self._runtime == "docker" or self._docker.has_runs
        self._uses_docker = wanted or (self._runtime == "auto" and (await self._docker.answers() or self._docker.was_used))
        if self._uses_docker:
            await self._docker.open(changed)
            self._process.fence_containers(self._docker.fenced())
            log.info("containers: %s", self.docker)

    def start(self, specs: Iterable[RunSpec]) -> None:
        specs = list(specs)
        self._process.start([spec for spec in specs if not self._is_for_docker(spec)])
        containers = [spec for spec in specs if self._is_for_docker(spec)]
        self._process.fence_containers(each for spec in containers if (each := self._docker.fence_of(spec)) is not None)
        self._docker.start(containers)

    def _is_for_docker(self, spec: RunSpec) -> bool:
        return self._uses_docker and spec.settings is not None

    def stop(self, run_ids: Iterable[str]) -> None:
        run_ids = list(run_ids)
        self._process.stop(run_ids)
        self._docker.stop(run_ids)

    def signal(self, run_ids: Iterable[str], name: str) -> None:
        run_ids = list(run_ids)
        self._process.signal(run_ids, name)
        self._docker.signal(run_ids, name)

    def image_pushed(self, pushed: ImagePush) -> None:
        self._docker.image_pushed(pushed)

    async def execute(self, order: Execute, connect: Connect) -> None:
        engine = self._docker if order.run.run_id in self._docker.observe() else self._process
        await engine.execute(order, connect)

    def pause_target(self, run_id: str) -> PauseTarget | None:
        return self._docker.pause_target(run_id) or self._process.pause_target(run_id)

    def answered(self, sent_boot_s: float) -> None:
        self._process.answered(sent_boot_s)

    def observe(self) -> Mapping[str, Known]:
        containers = self._docker.observe()
        return {**self._process.observe(), **containers} if containers else self._process.observe()

    def roots(self) -> set[int]:
        return self._process.roots() | self._docker.roots()

    def forget(self, run_ids: Iterable[str]) -> None:
        run_ids = list(run_ids)
        self._process.forget(run_ids)
        self._docker.forget(run_ids)
        self._process.unfence_containers(run_ids)

    async def close(self, *, quit: bool, remove: bool = False) -> None:
        await self._process.close(quit=quit, remove=remove)
        await self._docker.close(quit=quit, remove=remove)
