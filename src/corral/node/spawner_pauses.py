"""The spawner's part of pauses: it ends the pause of a run that is stopped or has ended, and continues no paused run otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from corral.node.pause_marks import PauseMarks
from corral.node.procfs import boot_s
from corral.node.run_freezer import thaw
from corral.node.run_processes import resume
from corral.node.spawner_protocol import SpawnedRun

AGAIN_S = 0.1  # a killed pause program may have stopped the run again just before its end


class SpawnerPauses:
    def __init__(self, data: Path, at: Callable[[float, Callable[[], None]], None]) -> None:
        """`at` starts a timer of the spawner."""
        self._marks = PauseMarks(data)
        self._at = at
        self._marks.name_spawner(os.getpid())

    def resume_unless_paused(self, run: SpawnedRun, others: Iterable[int] = ()) -> None:
        """Continue a run that a dead output guard may have paused, or whose pause a dead spawner was about to end."""
        with self._marks.locked():
            if not self._marks.holds(run.run_id):
                thaw(run, ())
                resume(run, others)

    def stop(self, run: SpawnedRun) -> None:
        """End the pause of a run that is being stopped, and what is under way to pause or continue it. Then signals reach it."""
        mark = self._marks.remove(run.run_id)
        thaw(run, mark.others if mark is not None else ())
        if mark is not None and not mark.is_done:
            self._at(boot_s() + AGAIN_S, lambda: self._thaw_again(run))

    def ended(self, run: SpawnedRun) -> None:
        """Remove the mark of a run that has ended, and thaw its cgroup, because another run will get it."""
        if self._marks.remove(run.run_id) is not None:
            thaw(run, ())

    def end_container(self, run_id: str) -> bool:
        """The same for a container. Return whether it may be paused now: then the caller continues it."""
        return self._marks.remove(run_id) is not None

    def _thaw_again(self, run: SpawnedRun) -> None:
        if self._marks.read(run.run_id) is None:
            thaw(run, ())
