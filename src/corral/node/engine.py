"""The interface between the agent and the engines, which run processes or containers.

The agent tells an engine what to start, stop and forget, and the engine calls back when a run has changed. Calls never block.
Every engine writes the output of a run that ships logs to `<data>/node/output/<run id>`. The file is complete when the engine
reports the end of the run. Log shipping depends on nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from corral.model.run import Execute, Observed, RunSpec


class Known(Struct, frozen=True):
    """A run as the engine sees it, with what an agent that did not receive the order must know about it."""

    observed: Observed
    ships_logs: bool
    gpu_ids: tuple[str, ...]
    checked: bool = False  # the engine itself runs the health check

    @property
    def alive(self) -> bool:
        return self.observed.stopped_at_s is None


class CannotExecute(Exception):
    """The command of an `Execute` was not started; the message says why."""


Changed = Callable[[list[Known]], None]


class Engine(Protocol):
    failed: asyncio.Future[None]  # raises when the engine cannot recover

    @property
    def docker(self) -> str:
        """The name and version of the Docker engine; empty: this engine runs no containers."""
        ...

    @property
    def problem(self) -> str:
        """Why runs can neither start nor end now; empty: they can."""
        ...

    async def open(self, changed: Changed) -> None:
        """Connect, and start helper processes if necessary. After it returns, `observe` is complete and `changed` is called."""
        ...

    def start(self, specs: Iterable[RunSpec]) -> None:
        """Start runs; idempotent by run id until the run is forgotten. A failed start becomes a run that ended without starting."""
        ...

    def stop(self, run_ids: Iterable[str]) -> None:
        """Send SIGTERM, then SIGKILL after the run's grace period. Unknown and ended runs are ignored."""
        ...

    async def execute(self, order: Execute) -> None:
        """Run a command in the environment of a running run (see model/run.py). Raises CannotExecute if it cannot be started."""
        ...

    def observe(self) -> Mapping[str, Known]:
        """Every run that is not forgotten: ordered, alive or ended, including those that earlier agents ordered."""
        ...

    def roots(self) -> set[int]:
        """The pids whose descendants all belong to runs or start them. They do not count as foreign users of a GPU."""
        ...

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove ended runs and their files."""
        ...

    async def close(self, *, quit: bool) -> None:
        """Disconnect. The runs continue. With `quit`, helper processes end too as soon as no run is alive."""
        ...
