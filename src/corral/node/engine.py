"""The seam between the agent and whatever really runs things.

An engine is told what to start, stop and forget, and it calls back when something changed. It never waits inside a
call. Its output contract is a file: what a run that ships logs writes appears in `<data>/node/output/<run id>`, whoever the
engine is, and is complete when the run is seen to have ended; log shipping knows nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from corral.model.run import Execute, Observed, RunSpec


class Known(Struct, frozen=True):
    """A run as the engine sees it, with what an agent that never saw the order must know of it."""

    observed: Observed
    ships_logs: bool
    gpu_ids: tuple[str, ...]
    checked: bool = False  # the engine itself looks after its health

    @property
    def alive(self) -> bool:
        return self.observed.stopped_at_s is None


class CannotExecute(Exception):
    """The text tells the person why."""


Changed = Callable[[list[Known]], None]


class Engine(Protocol):
    failed: asyncio.Future[None]  # raises when the engine is beyond help

    @property
    def docker(self) -> str:
        """What runs containers, by name and version; empty: this engine runs none."""
        ...

    async def open(self, changed: Changed) -> None:
        """Connect, starting what has to be started; on return `observe` is complete. `changed` is called from then on."""
        ...

    def start(self, specs: Iterable[RunSpec]) -> None:
        """Idempotent by run id until the run is forgotten. A start that fails is a run that ended without starting."""
        ...

    def stop(self, run_ids: Iterable[str]) -> None:
        """SIGTERM, the grace given at the start, SIGKILL. Unknown and ended runs are ignored."""
        ...

    async def execute(self, order: Execute) -> None:
        """Run a command beside a living run; model/run.py says how it is heard. Declines with `CannotExecute`."""
        ...

    def observe(self) -> Mapping[str, Known]:
        """Every run of ours, ordered, alive or ended and not forgotten, whoever ordered it."""
        ...

    def roots(self) -> set[int]:
        """The pids of processes whose every descendant is of a run, or helps to start one."""
        ...

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop ended runs and what they left behind."""
        ...

    async def close(self, *, quit: bool) -> None:
        """Let go. The runs go on; `quit` ends the helpers of the engine too, as soon as nothing is alive."""
        ...
