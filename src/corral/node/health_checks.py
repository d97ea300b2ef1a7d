"""Health checks: a command beside each run that has one, and a verdict when it changes.

Docker's rules, as ECS uses them: one success makes a run healthy, `retries` failures in a row make it unhealthy, and
failures do not count before its start period is over. Docker looks for the first time after a whole interval; we look
sooner, so that whoever waits for this run need not wait that long, but no failure counts before that interval either.

Nothing is kept. The core tells a new agent whom to look at, and holds on to the last verdict until there is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from corral.clock import Clock
from corral.model.run import Health, HealthCheck, RunSpec
from corral.node import process_launch
from corral.node.engine import Known
from corral.node.process_engine import environment_for

EARLY_FIRST_S = 0.25  # before the first interval is over we look again so soon, and then after twice as long each time

log = logging.getLogger("corral.node")


class Judge:
    """What the results so far mean."""

    def __init__(self, check: HealthCheck) -> None:
        self._check = check
        self._failures = 0
        self.verdict: Health | None = None

    def heard(self, success: bool, age_s: float) -> bool:
        """One more result, of a run of that age. True: the verdict is another one now."""
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


class Checks:
    """The checks of all runs that have one."""

    def __init__(self, data: Path, environment: Mapping[str, str], clock: Clock, judged: Callable[[str, Health], None]) -> None:
        self._data = data
        self._environment = environment
        self._clock = clock
        self._judged = judged
        self._specs: dict[str, RunSpec] = {}  # of runs to look at, alive or about to start
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._lock: int | None = None
        self._end_leftovers()

    def follow(self, specs: Iterable[RunSpec], known: Mapping[str, Known]) -> None:
        """Look at these runs as soon as they have started; idempotent."""
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
        for looking in self._looking.values():
            looking.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    def _changed(self, run: Known) -> None:
        if run.checked:
            self._specs.pop(run.observed.run_id, None)
            return
        run_id, started_at_s = run.observed.run_id, run.observed.started_at_s
        if not run.alive:
            self._specs.pop(run_id, None)
            looking = self._looking.pop(run_id, None)
            if looking is not None:
                looking.cancel()
        elif run_id in self._specs and run_id not in self._looking and started_at_s is not None:
            look = self._look(self._specs[run_id], started_at_s)
            self._looking[run_id] = asyncio.get_running_loop().create_task(look)

    async def _look(self, spec: RunSpec, started_at_s: float) -> None:
        check = spec.health
        assert check is not None
        judge, early_s = Judge(check), EARLY_FIRST_S
        while True:
            success = await self._run(spec, check)
            age_s = self._clock.now_s() - started_at_s
            if judge.heard(success, age_s):
                assert judge.verdict is not None
                self._judged(spec.run_id, judge.verdict)
            pause_s = check.interval_s
            if judge.verdict is None and age_s < check.interval_s:
                pause_s, early_s = min(early_s, check.interval_s - age_s), 2 * early_s
            await asyncio.sleep(pause_s)

    async def _run(self, spec: RunSpec, check: HealthCheck) -> bool:
        """Did the command succeed in time? In the run's environment and folder; in a session of its own, which ends with it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *check.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment_for(spec, self._environment),
                cwd=spec.working_directory or self._data / "work" / spec.run_id,
                start_new_session=True,
                pass_fds=(self._locked(),),
            )
        except (OSError, ValueError) as error:
            log.info("the health check of %s cannot be started: %s", spec.run_id, error)
            return False
        try:
            return await asyncio.wait_for(process.wait(), check.timeout_s) == 0
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _locked(self) -> int:
        """Every check inherits this lock, so that those of an agent that was killed can be found."""
        if self._lock is None:
            self._lock = process_launch.open_output(self._path)
        return self._lock

    def _end_leftovers(self) -> None:
        if process_launch.is_held(self._path):
            process_launch.kill_holders([self._path])
            os.unlink(self._path)  # they may take a moment to die; ours is another lock

    @property
    def _path(self) -> str:
        return str(self._data / "checks.lock")
