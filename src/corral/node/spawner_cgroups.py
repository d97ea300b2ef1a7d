"""Moves the spawner into and out of the cgroups of runs, and sets the limits of runs. `run_cgroups.py` explains the order.

If no cgroup can be used for a run, the run starts without a cgroup.
"""

from __future__ import annotations

import sys

from corral.node import run_cgroups
from corral.node.run_cgroups import RunCgroups
from corral.node.spawner_protocol import Launch, SpawnedRun


class SpawnerCgroups:
    def __init__(self, cgroups: RunCgroups | None, runs: dict[str, SpawnedRun]) -> None:
        """`cgroups` is None if this user cannot create cgroups."""
        self._cgroups = cgroups
        self._runs = runs
        self._inside: str | None = None  # id of the run in whose cgroup the spawner currently is
        self._unlimited: tuple[str, Launch] | None = None  # the last started run, until its memory limit is set
        # Ids of runs that were killed because they exceeded their memory limit before it was set.
        self._over_limit: set[str] = set()

    def reserve(self) -> str | None:
        if self._cgroups is None:
            return None
        try:
            return self._cgroups.reserve()
        except OSError as error:
            _log(f"no cgroup for a run: {error}")
            return None

    def enter(self, run: SpawnedRun) -> SpawnedRun:
        """Join the cgroup of a run, and so leave the cgroup of the previous run. If that fails, the run gets no cgroup."""
        if self._cgroups is None or run.group is None:
            self.leave()
            return run
        try:
            self._cgroups.enter(run.group)
            self._inside = run.run_id
        except OSError as error:
            _log(f"no cgroup for {run.run_id}: {error}")
            self._inside = self._inside or run.run_id
            self.leave()
            return run.but(group=None)
        self._limit_last()
        return run

    def limit_later(self, launch: Launch) -> None:
        """Set the memory limit of a started run as soon as the spawner has left its cgroup."""
        self._unlimited = (launch.run_id, launch)

    def leave(self) -> None:
        """Return to the spawner's own cgroup.

        If that fails, stop using cgroups, because a spawner in the cgroup of a run would kill itself together with the run.
        """
        if self._cgroups is None or self._inside is None:
            return
        run_id, self._inside = self._inside, None
        try:
            self._cgroups.leave()
        except OSError as error:
            _log(f"the spawner cannot leave a cgroup, so it uses none: {error}")
            self._cgroups = None
            self._runs[run_id] = self._runs[run_id].but(group=None)
        self._limit_last()

    def _limit_last(self) -> None:
        """Set the memory limit of the last started run. Call this when the spawner has left the cgroup of the run."""
        if self._unlimited is None or self._cgroups is None:
            return
        run_id, launch = self._unlimited
        self._unlimited, group = None, self._runs[run_id].group
        if group is not None and not self._cgroups.limit_memory(group, launch.memory_mib):
            self._over_limit.add(run_id)
            run_cgroups.kill(group)

    def share_cpu(self, run_id: str, cpu_units: int) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.group is not None and self._cgroups is not None:
            self._cgroups.share_cpu(run.group, cpu_units)

    def ran_out_of_memory(self, run: SpawnedRun) -> bool:
        if self._cgroups is None or run.group is None:
            return False
        return run.run_id in self._over_limit or self._cgroups.ran_out_of_memory(run.group)

    def kill_all(self, group: str) -> bool:
        """Kill the processes in the cgroup of a run. Return whether there were any."""
        if self._cgroups.is_empty(group) if self._cgroups is not None else not run_cgroups.pids(group):
            return False
        run_cgroups.kill(group)
        return True

    def release(self, run: SpawnedRun) -> None:
        """Keep the cgroup of an ended run for reuse, or remove it."""
        if run.group is not None and self._cgroups is not None:
            self._cgroups.release(run.group)
        self._over_limit.discard(run.run_id)

    def group_of(self, pids: list[int]) -> str | None:
        """Return the cgroup of a run that has these processes, or None if it has no cgroup."""
        return self._cgroups.group_of(pids[0]) if self._cgroups is not None and pids else None

    def remove_unused(self) -> None:
        """Remove the cgroups that an earlier spawner left, unless a run still uses them."""
        if self._cgroups is not None:
            self._cgroups.remove_unused({run.group for run in self._runs.values() if run.group is not None})

    def close(self) -> None:
        """Remove all cgroups. Call this when no run is alive."""
        if self._cgroups is not None:
            self._cgroups.close()


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
