"""The runs that are Docker containers, and their files in the folder `containers/`.

The agent forgets a run after the server has acknowledged the end of the run.

`<run>.run`     exists until the run is forgotten; contains the labels of its container, for use while the engine is unavailable
`<run>.start`   is created just before the agent requests the start of the container
`<run>.mark`    the position up to which the engine's log has been copied to the output file of the run (docker_logs.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from corral.core.clock import Clock
from corral.model.run import Observed, RunSpec
from corral.node.docker_api import DockerApi
from corral.node.docker_logs import OutputFile
from corral.node.docker_options import LABEL_CONTAINER, LABEL_TASK, RunRecord, container_name, read_record
from corral.node.engine import Changed, Known
from corral.node.fences import FencedContainer

CONTAINER_LOST = "the Docker engine no longer knows this container"


class DockerRun(Struct, eq=False):
    """The state of one run, until the server has acknowledged its end."""

    known: Known
    record: RunRecord
    task_id: str
    container: str  # the name of the container in the task definition
    ordered: bool  # True: this agent received the order and starts the container
    id: str | None = None  # Docker's id of the container
    pull: tuple[float, float] | None = None  # when the pull of the image began and ended
    bindings: list[dict[str, Any]] = field(default_factory=list)  # the port bindings, if the engine does not report them
    stop_signal: str = "SIGTERM"
    # If the image requests GPUs, this future receives the server's second order, which has the ids of the GPUs.
    answer: asyncio.Future[RunSpec] | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False  # the container has ended, and the rest of its output is being copied
    died: bool = False  # the engine reported `die` during the start
    exit_code: int | None = None  # from the engine's `die` event
    network: str = ""  # the engine's name of the container's network; empty: not known yet
    out_of_memory: asyncio.Event = field(default_factory=asyncio.Event)  # the engine reported `oom`
    output: OutputFile | None = None
    follower: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        return self.known.observed.run_id

    @property
    def is_alive(self) -> bool:
        return self.known.alive and not self.ending

    @property
    def is_coming_up(self) -> bool:
        """Whether the launcher is starting the container. The launcher inspects the container afterwards."""
        return self.ordered and self.known.observed.started_at_s is None


class DockerRuns:
    def __init__(self, data: Path, clock: Clock) -> None:
        self._output = data / "output"
        self._folder = data / "containers"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._used = self._folder / "used"  # an empty file
        self.were_used = self._used.exists()  # whether there has been a container since the folder was created
        self._clock = clock
        self.changed: Changed = lambda _: None
        self.by_id: dict[str, DockerRun] = {}
        self.forgotten: dict[str, tuple[DockerRun, float]] = {}  # run id → (run, when forgotten), if its container exists

    def unfinished(self) -> Iterator[str]:
        """Yield the ids of runs that may not have ended."""
        return (path.stem for path in self._folder.glob("*.run"))

    def load(self) -> None:
        for run_id in list(self.unfinished()):
            path = self._folder / f"{run_id}.run"
            try:
                self.add(run_id, msgspec.json.decode(path.read_bytes()))
            except (msgspec.DecodeError, KeyError):  # a crash damaged the file; the labels of the container have the same content
                path.unlink()

    def add(self, run_id: str, labels: Mapping[str, str], *, ordered: bool = False) -> DockerRun:
        """Add a run. The labels of its container describe it."""
        if not self.were_used:
            self._used.touch(mode=0o600)
            self.were_used = True
        if ordered:
            self.write(run_id, labels)
        record = read_record(labels)
        known = Known(Observed(run_id), record.ships_logs, record.gpu_ids, checked=True)
        run = self.by_id[run_id] = DockerRun(known, record, labels[LABEL_TASK], labels[LABEL_CONTAINER], ordered)
        return run

    def write(self, run_id: str, labels: Mapping[str, str]) -> None:
        fresh = self._folder / f"{run_id}.new"
        fresh.write_bytes(msgspec.json.encode(labels))
        fresh.rename(self._folder / f"{run_id}.run")  # a rename is atomic, so an agent that is killed leaves no partial file

    def ordered_at_s(self, run_id: str) -> float:
        """Return when the order of an unfinished run was stored. If the file of the run does not exist, return the current time."""
        return _modified_at_s(self._folder / f"{run_id}.run") or self._clock.now_s()

    def request_start(self, run_id: str) -> None:
        """Record that from now on the container may be running. A later agent needs this record if the container was removed."""
        (self._folder / f"{run_id}.start").touch(mode=0o600)

    def withdraw_start(self, run_id: str) -> None:
        """Record that the container did not start."""
        (self._folder / f"{run_id}.start").unlink(missing_ok=True)

    def start_requested_at_s(self, run_id: str) -> float | None:
        return _modified_at_s(self._folder / f"{run_id}.start")

    def update(self, run: DockerRun, observed: Observed) -> None:
        """Store a new observation, and report it if it differs from the previous observation."""
        if observed != run.known.observed:
            run.known = replace(run.known, observed=observed)
            self.changed([run.known])

    def end(self, run: DockerRun, reason: str) -> None:
        """Report the end of a run that has no exit code."""
        self.update(run, replace(run.known.observed, stopped_at_s=self._clock.now_s(), reason=reason))

    def drop(self, run: DockerRun) -> None:
        del self.by_id[run.run_id]
        (self._output / run.run_id).unlink(missing_ok=True)
        for suffix in ("mark", "start", "run"):
            (self._folder / f"{run.run_id}.{suffix}").unlink(missing_ok=True)

    def forget(self, run: DockerRun) -> None:
        self.drop(run)
        if run.id is not None:
            self.forgotten[run.run_id] = (run, self._clock.now_s())

    def container_removed(self, run_id: str, container: str) -> None:
        """Record that the container of a forgotten run no longer exists."""
        if run_id in self.forgotten and self.forgotten[run_id][0].id == container:
            del self.forgotten[run_id]

    def has(self, run_id: str) -> bool:
        return run_id in self.by_id or run_id in self.forgotten

    def fenced(self, engine: str, host_id: str) -> list[FencedContainer]:
        """Return the fences of the runs that have not ended. `engine` is the path of the socket of their engine."""
        return [
            FencedContainer(run_id, run.record.fence_s, run.record.stop_grace_s, engine, container_name(host_id, run_id))
            for run_id, run in self.by_id.items()
            if run.known.alive and run.record.fence_s is not None
        ]

    def living_tasks(self) -> set[str]:
        """Return the ids of tasks with a run that has not ended."""
        return {run.task_id for run in self.by_id.values() if run.known.alive}

    def of_task(self, task_id: str) -> list[DockerRun]:
        """Return the runs of a task, including forgotten runs whose container still exists."""
        return [run for run in (*self.by_id.values(), *(run for run, _ in self.forgotten.values())) if run.task_id == task_id]

    def output(self, api: DockerApi, run: DockerRun) -> OutputFile:
        if run.output is None:
            paths = self._output / run.run_id, self._folder / f"{run.run_id}.mark"
            run.output = OutputFile(api, str(run.id), *paths, has_terminal=run.record.has_terminal)
        return run.output


def _modified_at_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
