"""Kills what is left of a run whose main process has ended, and observes when nothing is left.

The spawner finds all processes of a run by the cgroup of the run (`run_cgroups.py`). Without cgroups, it finds them by the lock on
the output file, or by the id of the run in their environment. It reads only the environments of its own children: a process whose
parent has ended becomes a child of the spawner. For the runs of an earlier spawner, it reads the environments of all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from corral.node import lock_files, procfs
from corral.node.procfs import boot_s
from corral.node.run_files import RunFiles
from corral.node.spawner_cgroups import SpawnerCgroups
from corral.node.spawner_protocol import RUN_VARIABLE, SpawnedRun, run_mark

FIRST_S = 0.001  # the first delay until the lock of a run is checked again; each further delay is twice as long
MAX_S = 1.0
KILL_HOLDERS_S = 0.004  # when the delay has reached this value, find the holders of the lock in /proc and kill them


class RunRemains:
    def __init__(
        self,
        data: Path,
        runs: Mapping[str, SpawnedRun],
        files: RunFiles,
        cgroups: SpawnerCgroups,
        at: Callable[[float, Callable[[], None]], None],
        is_known: Callable[[int], bool],
        ended: Callable[[SpawnedRun], None],
    ) -> None:
        """`at` starts a timer of the spawner. `ended` is called when nothing is left of a run.

        `is_known` says whether a child of the spawner is the main process of a run, or serves the spawner.
        """
        self._data, self._runs, self._files, self._cgroups = data, runs, files, cgroups
        self._at, self._is_known, self._ended = at, is_known, ended
        self._children = procfs.OwnChildren()
        self.adopted: set[str] = set()  # ids of runs of an earlier spawner; their processes are not descendants of this process

    def kill(self, run: SpawnedRun) -> bool:
        """Kill the remaining processes of a run. Return whether something of the run is left."""
        return self._kill(run) or lock_files.is_held(self._files.output(run.run_id))

    def kill_until_gone(self, run_id: str, wait_s: float = FIRST_S) -> None:
        """Kill again later, until no process of the run is left.

        A process may have been killed but not be dead yet, or it may be in another process group.
        """
        self._at(boot_s() + wait_s, lambda: self._check(run_id, wait_s))

    def _check(self, run_id: str, waited_s: float) -> None:
        run = self._runs[run_id]
        path, left = self._files.output(run_id), self._kill(run)
        held = lock_files.is_held(path)
        if held and waited_s >= KILL_HOLDERS_S:
            # A run of another account can pass its lock to a process that does not belong to it: that one does not count.
            held = lock_files.kill_holders([path], run.uid) or run.uid is None
        if left or held:
            self.kill_until_gone(run_id, min(2 * waited_s, MAX_S))
        else:
            self._ended(run)

    def _kill(self, run: SpawnedRun) -> bool:
        if run.group is not None:
            return self._cgroups.kill_all(run.group)
        mark = run_mark(self._data, run.run_id)
        if run.run_id in self.adopted:
            return procfs.kill_with_variable(RUN_VARIABLE, mark)
        strangers = [pid for pid in self._children.pids() if not self._is_known(pid)]
        return bool(strangers) and procfs.kill_with_variable(RUN_VARIABLE, mark, strangers)
