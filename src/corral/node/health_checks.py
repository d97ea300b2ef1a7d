"""Health checks of runs that are processes: run the command of each check, and report the health when it changes.

The rules are those of Docker and ECS. One success makes a run healthy. `retries` failures in a row make it unhealthy. Until the
first success, failures before the end of the start period do not count. Docker runs the first check after one interval. This module
runs the first checks earlier, so that dependent containers can start earlier. So until the first success, failures within the first
interval do not count either.

This module stores no state. When a new agent connects, the server sends the checks to the agent again. The server keeps the last
reported health of a run until the agent reports the health again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping
from glob import escape as glob_escape
from glob import glob
from pathlib import Path

from corral.core.clock import Clock
from corral.model.run import Health, HealthCheck, RunSpec
from corral.node import lock_files
from corral.node.engine import Known
from corral.node.process_engine import environment_for
from corral.node.run_command import lock_of, start_command, uid_of

EARLY_FIRST_S = 0.25  # the first pause between the early checks of the first interval; each further pause is twice as long

log = logging.getLogger("corral.node")


class HealthTracker:
    """Computes the health of one run from the results of its checks."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._failures = 0
        self.verdict: Health | None = None

    def add(self, success: bool, age_s: float) -> bool:
        """Add the result of one check. `age_s` is the time since the start of the run. Return whether the health has changed."""
        before = self.verdict
        if success:
            self._failures, self.verdict = 0, Health.HEALTHY
        elif self.verdict is not None or age_s >= self.counts_from_s:
            self._failures += 1
            if self._failures >= self._check.retries:
                self.verdict = Health.UNHEALTHY
        return self.verdict is not before

    @property
    def counts_from_s(self) -> float:
        return max(self._check.start_period_s, self._check.interval_s)


class HealthChecks:
    """Runs the health checks of all runs that have one."""

    def __init__(
        self, data: Path, environment: Mapping[str, str], clock: Clock, on_verdict: Callable[[str, Health], None],
        is_held: Callable[[str], bool] = lambda run_id: False,
    ) -> None:  # fmt: skip
        """`is_held` says whether a run is paused, or is being paused or continued: then it is not checked."""
        self._is_held = is_held
        self._data = data
        self._environment = environment
        self._clock = clock
        self._on_verdict = on_verdict
        self._specs: dict[str, RunSpec] = {}  # run id → spec, for runs with a health check that are alive or about to start
        self._checking: dict[str, asyncio.Task[None]] = {}
        self._locks: dict[str, int] = {}  # path → descriptor
        self._kill_orphans()

    def follow(self, specs: Iterable[RunSpec], known: Mapping[str, Known]) -> None:
        """Check the health of these runs as soon as they have started. Repeated calls have no effect."""
        for spec in specs:
            if spec.health is not None and spec.run_id not in self._specs:
                self._specs[spec.run_id] = spec
                if spec.run_id in known:
                    self._changed(known[spec.run_id])

    def changed(self, runs: Iterable[Known]) -> None:
        if self._specs:
            for run in runs:
                self._changed(run)

    async def close(self) -> None:
        for checking in self._checking.values():
            checking.cancel()
        await asyncio.gather(*self._checking.values(), return_exceptions=True)

    def _changed(self, run: Known) -> None:
        if run.checked:
            self._specs.pop(run.observed.run_id, None)
            return
        run_id, started_at_s = run.observed.run_id, run.observed.started_at_s
        if not run.alive:
            self._specs.pop(run_id, None)
        if not run.alive or self._is_held(run_id):
            checking = self._checking.pop(run_id, None)
            if checking is not None:
                checking.cancel()
        elif run_id in self._specs and run_id not in self._checking and started_at_s is not None:
            check = self._check_repeatedly(self._specs[run_id], started_at_s)
            self._checking[run_id] = asyncio.get_running_loop().create_task(check)

    async def _check_repeatedly(self, spec: RunSpec, started_at_s: float) -> None:
        check = spec.health
        assert check is not None
        tracker, early_s = HealthTracker(check), EARLY_FIRST_S
        began_s = self._clock.now_s() - max(0.0, self._clock.wall_s() - started_at_s)  # the start of the run, as a steady time
        while True:
            success = await self._run(spec, check)
            age_s = self._clock.now_s() - began_s
            if tracker.add(success, age_s):
                assert tracker.verdict is not None
                self._on_verdict(spec.run_id, tracker.verdict)
            pause_s = check.interval_s
            if tracker.verdict is None and age_s < check.interval_s:
                pause_s, early_s = min(early_s, check.interval_s - age_s), 2 * early_s
            await asyncio.sleep(pause_s)

    async def _run(self, spec: RunSpec, check: HealthCheck) -> bool:
        """Run the command of the check with the run's environment and folder. Return whether it succeeded within the timeout."""
        starting = asyncio.ensure_future(self._start(spec, check))
        try:
            process = await asyncio.shield(starting)
        except (OSError, ValueError) as error:
            log.info("the health check of %s cannot be started: %s", spec.run_id, error)
            return False
        except asyncio.CancelledError:  # the run has ended, and the command may have started already
            starting.add_done_callback(_kill_started)
            raise
        try:
            return await asyncio.wait_for(process.wait(), check.timeout_s) == 0
        except TimeoutError:
            return False
        finally:
            _kill(process)

    async def _start(self, spec: RunSpec, check: HealthCheck) -> Process:
        lock = self._locked(await lock_of(self._path, spec.account))
        return await start_command(spec, self._data, check.command, environment_for(spec, self._environment), lock)

    def _locked(self, path: str) -> int:
        """Return the descriptor of a lock that all checks of an account inherit. A later agent finds leftover checks by it."""
        if path not in self._locks:
            self._locks[path] = lock_files.open_locked(path)
        return self._locks[path]

    def _kill_orphans(self) -> None:
        for path in glob(f"{glob_escape(self._path)}*"):
            if lock_files.is_held(path):
                lock_files.kill_holders([path], uid_of(path))
                os.unlink(path)  # the killed checks may hold the old lock for a moment, so this agent creates a new file

    @property
    def _path(self) -> str:
        return str(self._data / "checks.lock")


def _kill(process: Process) -> None:
    """Kill the command and the processes that it has started, unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _kill_started(starting: asyncio.Future[Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _kill(starting.result())
