"""The interface between the agent and the engines. An engine runs processes or containers.

The agent orders an engine to start, stop and forget runs. A run is forgotten after the server has acknowledged its end. The engine
calls the agent when a run has changed. No call blocks.

If the output of a run is shipped to the server, the engine writes it to the file `<data>/node/output/<run id>`. The file is
complete when the engine reports the end of the run. Log shipping needs nothing else from the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from corral.model.agent_protocol import Execute, ImagePush
from corral.model.run import Observed, RunSpec
from corral.node.link import Connect

NOT_STARTED = "the run has not started yet"


class Known(Struct, frozen=True):
    """The state of a run in the engine, and the facts about it that a later agent needs."""

    observed: Observed
    ships_logs: bool
    gpu_ids: tuple[str, ...]
    checked: bool = False  # True: the engine runs the health check; False: the agent runs it

    @property
    def alive(self) -> bool:
        return self.observed.stopped_at_s is None


class PauseTarget(Struct, frozen=True):
    """How the pause program finds the processes of a living run."""

    engine: str = ""  # the path of the socket of the Docker engine; empty: the run is a process
    container: str = ""  # the id of the container
    sessions: tuple[str, ...] = ()  # the lock files of the sessions of ECS Exec in the run
    why_not: str = ""  # why the run cannot be paused or continued now


class CannotExecute(Exception):
    """The command of an `Execute` was not started. The message says why."""


Changed = Callable[[list[Known]], None]


class Engine(Protocol):
    failed: asyncio.Future[None]  # gets an exception if the engine has failed and cannot recover

    @property
    def docker(self) -> str:
        """The name and version of the Docker engine. Empty if this engine runs no containers."""
        ...

    @property
    def problem(self) -> str:
        """Why the engine can currently neither start nor stop runs. Empty if there is no problem."""
        ...

    async def open(self, changed: Changed) -> None:
        """Connect, and start helper processes if necessary.

        Afterwards `observe` returns all runs, and the engine calls `changed` for each change.
        """
        ...

    def start(self, specs: Iterable[RunSpec]) -> None:
        """Start runs. A second order for the same run has no effect, until the run is forgotten.

        If a run cannot be started, it is reported as ended.
        """
        ...

    def stop(self, run_ids: Iterable[str]) -> None:
        """Send SIGTERM, then SIGKILL after the run's grace period. Unknown and ended runs are ignored."""
        ...

    def signal(self, run_ids: Iterable[str], name: str) -> None:
        """Send a signal, for example SIGINT, to runs. Runs that are unknown, have not started or have ended are ignored."""
        ...

    def image_pushed(self, pushed: ImagePush) -> None:
        """Pull this image now for the runs that wait for it."""
        ...

    async def execute(self, order: Execute, connect: Connect) -> None:
        """Run a command in the environment of a living run. `connect` opens a link to the core for its session.

        Raises CannotExecute if the command cannot be started.
        """
        ...

    def pause_target(self, run_id: str) -> PauseTarget | None:
        """Return how to find the processes of a run. Return None if the run is unknown, is being stopped, or has ended."""
        ...

    def answered(self, sent_boot_s: float) -> None:
        """The server has answered a message that the agent has sent at this time since the boot (`fences.py`)."""
        ...

    def observe(self) -> Mapping[str, Known]:
        """Return every run that is not forgotten: ordered, alive and ended runs, including runs that earlier agents started."""
        ...

    def roots(self) -> set[int]:
        """Return the pids of processes that belong to Corral with all their descendants.

        The agent does not count these processes and their descendants as foreign processes on a GPU.
        """
        ...

    def forget(self, run_ids: Iterable[str]) -> None:
        """Delete the state and the files of ended runs."""
        ...

    async def close(self, *, quit: bool, remove: bool = False) -> None:
        """Disconnect. The runs continue. With `quit`, helper processes also exit as soon as no run is alive.

        With `quit` and `remove`, also remove all containers and the volumes of tasks, because no later agent will know them.
        """
        ...
