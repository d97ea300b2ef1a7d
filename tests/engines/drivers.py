"""Engines for tests, driven from synchronous code: the event loop runs while the test waits for a condition."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import orjson
from msgspec.structs import replace

import forkserver
from corral.channel.command_relay import END_OF_INPUT, INPUT, OUTPUT, SIZE, WINDOW
from corral.core.clock import WallClock
from corral.model.agent_protocol import Execute
from corral.model.run import RunSpec
from corral.node import link
from corral.node.docker_engine import DockerEngine
from corral.node.engine import Engine, Known
from corral.node.host import kernel_boot_id
from corral.node.link import MESSAGE, Link
from corral.node.process_engine import ProcessEngine
from engines.dockerd import SYSTEM, SYSTEM_VOLUMES
from engines.nodes import NodeFolder
from eventually import DEADLINE_S, soon

MakeEngine = Callable[[NodeFolder, str, Mapping[str, str]], Engine]


def process_engine(node: NodeFolder, boot_id: str, environment: Mapping[str, str]) -> Engine:
    return ProcessEngine(node.node, boot_id, environment)


def docker_engine(node: NodeFolder, boot_id: str, environment: Mapping[str, str]) -> Engine:
    return SystemInContainers(node, environment)


ENGINES: dict[str, MakeEngine] = {"process": process_engine, "docker": docker_engine}
TASK = {"family": "test", "revision": "1", "arn": "arn:aws:ecs:us-east-1:123456789012:task/default/task", "cluster": "default"}


def settings(task: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {"container": container, "task": {**TASK, **(task or {})}}


class SystemInContainers(DockerEngine):
    """Runs of process tests as containers: with the programs, folders and pids of this machine."""

    def __init__(self, node: NodeFolder, environment: Mapping[str, str]) -> None:
        super().__init__(node.node, node.host_id, environment, WallClock())
        self._seen = [*SYSTEM_VOLUMES, str(node.data.parent)]

    def start(self, specs: Iterable[RunSpec]) -> None:
        super().start([self._in_container(spec) for spec in specs])

    def _in_container(self, spec: RunSpec) -> RunSpec:
        volumes = [{"name": f"v{at}", "host": {"sourcePath": path}} for at, path in enumerate(self._seen)]
        mounts = [
            {"sourceVolume": f"v{at}", "containerPath": path, "readOnly": path in SYSTEM_VOLUMES}
            for at, path in enumerate(self._seen)
        ]
        container = {"command": spec.command, "mountPoints": mounts, "workingDirectory": spec.working_directory}
        container |= {"memory": spec.memory_mib} if spec.memory_mib is not None else {}
        task = {"networkMode": "host", "pidMode": "host", "volumes": volumes}
        return replace(spec, image=SYSTEM, ships_logs=True, settings=settings(task, **container))


class Driver:
    def __init__(
        self,
        make: MakeEngine,
        node: NodeFolder,
        boot_id: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.node = node
        self.history: list[Known] = []
        self._loop = asyncio.new_event_loop()
        forkserver.folder_of("server", "node")  # starts with the first spawner, for which an engine waits only for seconds
        self.engine = self._loop.run_until_complete(
            self._open(make, boot_id or kernel_boot_id(), os.environ if environment is None else environment)
        )

    async def _open(self, make: MakeEngine, boot_id: str, environment: Mapping[str, str]) -> Engine:
        engine = make(self.node, boot_id, environment)
        await engine.open(self.history.extend)
        return engine

    def until(self, check: Callable[[], object], what: str = "", within_s: float = DEADLINE_S) -> None:
        self._loop.run_until_complete(soon(check, what, within_s))

    def run(self, spec) -> Known:
        """Start a run and wait for its end."""
        self.engine.start([spec])
        return self.ended(spec.run_id)

    def execute(
        self, order: Execute, *, given: bytes = b"", window: tuple[int, int] | None = None, until: bytes | None = None
    ) -> dict[bytes, bytes]:
        """Act as the core for one session. Return the payloads by kind of frame. With `until`, disconnect after that frame."""
        return self._loop.run_until_complete(asyncio.wait_for(self._execute(order, given, window, until), DEADLINE_S))

    async def _execute(
        self, order: Execute, given: bytes, window: tuple[int, int] | None, until: bytes | None
    ) -> dict[bytes, bytes]:
        said: dict[bytes, bytes] = {}
        opened = asyncio.get_running_loop().create_future()

        server = await link.listen(self.node.node, opened.set_result)
        try:
            await self.engine.execute(order, partial(link.connect, self.node.node))
            session: Link = await opened
            assert await session.receive() == (MESSAGE, orjson.dumps({"session": order.session_id}))
            if window is not None:
                session.send(WINDOW, SIZE.pack(*window))
            if given:
                session.send(INPUT, given)
            session.send(END_OF_INPUT, b"")
            while (received := await session.receive()) is not None:
                kind, payload = received
                said[kind] = said.get(kind, b"") + payload
                if until is not None and until in said.get(OUTPUT, b""):
                    break
            session.close("the test has ended")
        finally:
            server.close()
        return said

    def ended(self, run_id: str) -> Known:
        self.until(lambda: run_id in self.engine.observe() and not self.engine.observe()[run_id].alive, "ended")
        return self.engine.observe()[run_id]

    def started(self, run_id: str) -> Known:
        self.until(lambda: self.engine.observe()[run_id].observed.pid is not None, "started")
        return self.engine.observe()[run_id]

    def printed(self, run_id: str, text: str) -> None:
        path = self.node.node / "output" / run_id
        self.until(lambda: path.exists() and text in path.read_text(), f"{run_id} printed {text!r}")

    def close(self) -> None:
        self._loop.run_until_complete(self.engine.close(quit=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
