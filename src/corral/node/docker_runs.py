"""The runs that are containers, as far as this agent knows them, and what is kept of them on disk.

`<run>.run`     a run that is under way, with the labels of its container: it is not taken for lost while the engine is away
`<run>.mark`    how far the engine's log is in its output (docker_logs.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.clock import Clock
from corral.model.run import Observed, RunSpec
from corral.node.docker_api import DockerApi
from corral.node.docker_logs import Output
from corral.node.docker_settings import LABEL_CONTAINER, LABEL_TASK, Kept, kept_of
from corral.node.engine import Changed, Known


@dataclass(slots=True, eq=False)
class Run:
    """A run while it is under way or not forgotten."""

    known: Known
    kept: Kept
    task_id: str
    container: str  # its name in the task
    ordered: bool  # by this agent, which brings it up
    id: str | None = None  # of its container
    pull: tuple[float, float] | None = None  # when its image was pulled: from, to
    bindings: list[dict[str, Any]] = field(default_factory=list)  # of its ports, where the engine does not know them
    stop_signal: str = "SIGTERM"
    answer: asyncio.Future[RunSpec] | None = None  # it asked for GPUs: the order that says which it gets
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False  # its container is no longer alive; the rest of its output is being read
    died: bool = False  # the engine said so while it was being started
    exit_code: int | None = None  # as the engine said when it died
    output: Output | None = None
    follower: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        return self.known.observed.run_id

    @property
    def is_alive(self) -> bool:
        return self.known.alive and not self.ending

    @property
    def is_coming_up(self) -> bool:
        """The launcher is at it, and asks again whatever the engine says now."""
        return self.ordered and self.known.observed.started_at_s is None


class Book:
    def __init__(self, data: Path, clock: Clock) -> None:
        self._output = data / "output"
        self._kept = data / "containers"
        self._kept.mkdir(mode=0o700, exist_ok=True)
        self._clock = clock
        self.changed: Changed = lambda _: None
        self.runs: dict[str, Run] = {}
        self.over: dict[str, tuple[Run, float]] = {}  # forgotten runs whose containers are still there, since when

    def left_behind(self) -> Iterator[str]:
        """The runs that nobody saw the end of."""
        return (path.stem for path in self._kept.glob("*.run"))

    def reopen(self) -> None:
        for run_id in list(self.left_behind()):
            self.add(run_id, msgspec.json.decode((self._kept / f"{run_id}.run").read_bytes()))

    def add(self, run_id: str, labels: Mapping[str, str], *, ordered: bool = False) -> Run:
        """A run, by what stands on its container or is to stand there."""
        if ordered:
            self.write(run_id, labels)
        kept = kept_of(labels)
        known = Known(Observed(run_id), kept.ships_logs, kept.gpu_ids, checked=True)
        run = self.runs[run_id] = Run(known, kept, labels[LABEL_TASK], labels[LABEL_CONTAINER], ordered)
        return run

    def write(self, run_id: str, labels: Mapping[str, str]) -> None:
        (self._kept / f"{run_id}.run").write_bytes(msgspec.json.encode(labels))

    def put(self, run: Run, observed: Observed) -> None:
        """Something new of a run: remember and tell."""
        if observed != run.known.observed:
            run.known = replace(run.known, observed=observed)
            self.changed([run.known])

    def put_end(self, run: Run, reason: str) -> None:
        """It has ended without an exit code."""
        self.put(run, replace(run.known.observed, stopped_at_s=self._clock.now_s(), reason=reason))

    def drop(self, run: Run) -> None:
        """Nothing is known of it any more."""
        del self.runs[run.run_id]
        for path in (self._output / run.run_id, self._kept / f"{run.run_id}.mark", self._kept / f"{run.run_id}.run"):
            path.unlink(missing_ok=True)

    def forget(self, run: Run) -> None:
        self.drop(run)
        if run.id is not None:
            self.over[run.run_id] = (run, self._clock.now_s())

    def of_task(self, task_id: str) -> list[Run]:
        """Those whose containers may still be there."""
        return [run for run in (*self.runs.values(), *(run for run, _ in self.over.values())) if run.task_id == task_id]

    def output(self, api: DockerApi, run: Run) -> Output:
        if run.output is None:
            paths = self._output / run.run_id, self._kept / f"{run.run_id}.mark"
            run.output = Output(api, str(run.id), *paths, has_terminal=run.kept.has_terminal)
        return run.output
