"""The agent's part of pauses of containers: how to find them, and the end of a pause when a container is stopped.

The pause program freezes and continues the processes of containers (`container_freezer.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from corral.node.container_freezer import is_inside
from corral.node.docker_api import DockerApi, EngineError, EngineGone
from corral.node.docker_runs import DockerRun
from corral.node.engine import NOT_STARTED, PauseTarget
from corral.node.pause_marks import PauseMarks

PROGRAM_ENDS_S = 1.0  # how long to wait for the end of a killed pause program
POLL_S = 0.01


class PausedContainers:
    def __init__(self, data: Path, api: DockerApi) -> None:
        self._marks = PauseMarks(data)
        self._api = api

    def target(self, run: DockerRun | None) -> PauseTarget | None:
        if run is None or not run.is_alive or run.stopping.is_set():
            return None
        path, started = self._api.host.removeprefix("unix://"), run.known.observed.started_at_s is not None
        if path == self._api.host:
            return PauseTarget(why_not=f"its Docker engine is not on this machine: DOCKER_HOST is {self._api.host}")
        return PauseTarget(engine=path, container=run.id or "", why_not="" if started and run.id else NOT_STARTED)

    async def end(self, run: DockerRun) -> None:
        """End the pause of a run that is being stopped, and what is under way to pause or continue it."""
        if self._marks.remove(run.run_id) is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROGRAM_ENDS_S):
                while self._marks.has_program(run.run_id):
                    await asyncio.sleep(POLL_S)
        with contextlib.suppress(EngineError, EngineGone):  # it is not paused, or it has ended
            await self._api.post(f"/containers/{run.id}/unpause")

    def signal(self, run: DockerRun, name: str) -> bool:
        """Send a signal to a paused run, which receives it when it continues. Return False if the run is not paused.

        The engine would continue the container.
        """
        pid = run.known.observed.pid
        if name == "SIGKILL" or pid is None or not self._marks.holds(run.run_id):
            return False
        if is_inside(pid, str(run.id)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.Signals[name])
        return True
