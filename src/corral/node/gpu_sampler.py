"""Samples the GPUs of a host: their load, the processes on them that belong to no run, and their faults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from msgspec.structs import replace

from corral.model.agent_protocol import HEARTBEAT_S, IDLE_SAMPLES_S, GpuFaultOrder
from corral.model.gpu import Foreign, GpuHealth
from corral.model.gpu_metrics import GpuSample
from corral.node.engine import Engine
from corral.node.gpu_faults import GpuFaults
from corral.node.gpus import Gpus
from corral.node.report_builder import ReportBuilder

# The interval between GPU samples while a GPU is in use; otherwise the interval is HEARTBEAT_S. Samples also find faults of GPUs,
# so their interval does not depend on whether the core needs them at once.
SAMPLE_S = 1.0
MISSING_PARTS_MIN = 5  # so many samples without parts (`GpuSample.parts`) are logged

log = logging.getLogger("corral.node")


class GpuSampler:
    def __init__(
        self, gpus: Gpus, engine: Engine, gpu_faults: GpuFaults, reports: ReportBuilder, wake: asyncio.Event,
        paused: Callable[[], Collection[str]] = tuple,
    ) -> None:  # fmt: skip
        """The samples and faults are for the next report. `wake` is set if it must be sent at once. `paused` returns the runs that
        are paused: others may have their GPUs.
        """
        self._paused = paused
        self._gpus = gpus
        self._engine = engine
        self._gpu_faults = gpu_faults
        self._reports = reports
        self._wake = wake
        # GPU id → the processes on the GPU that belong to no run. GPUs without such processes are left out.
        self.foreign: dict[str, list[Foreign]] = {}
        self.faults: dict[str, str] = {}  # GPU id → why no task should get the GPU
        self.at_once = True  # False: the core does not need each sample at once
        self.gpu_used = asyncio.Event()  # set when a run that uses a GPU has changed
        self._conditions: Mapping[str, str] = {}  # GPU id → a fault that the driver reports for as long as it lasts
        self._without_parts: Counter[str] = Counter()  # reason → how many samples had no parts because of it
        self._idle_sampled_at = -IDLE_SAMPLES_S  # when samples of idle GPUs were last kept for a report

    async def run(self) -> None:
        if not self._gpus.devices():
            return
        was_live, is_failing = False, False
        while True:
            self.gpu_used.clear()
            if not (was_live or self.foreign or self._pinned()):
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S - SAMPLE_S):
                        await self.gpu_used.wait()
            await asyncio.sleep(SAMPLE_S)
            live = bool(self._pinned())
            try:
                # Also sample once after the last run has ended, to report that the GPUs are idle.
                await self.sample(matter=live or was_live)
                is_failing = False
            except Exception:  # continue: without samples, the agent would report no faults of GPUs any more
                if not is_failing:
                    log.exception("the GPUs could not be sampled; the agent tries again")
                is_failing = True
            was_live = live

    async def sample(self, *, matter: bool = False) -> None:
        if not self._gpus.devices():
            return
        before = self._pinned()
        live = {gpu_id: {run_id: pid for run_id, pid in runs.items() if pid is not None} for gpu_id, runs in before.items()}
        mains = {run_id: run.observed.pid for run_id, run in self._engine.observe().items() if run.alive}
        ours = {pid for pid in mains.values() if pid is not None}
        paused = {pid for run_id in self._paused() if (pid := mains.get(run_id)) is not None}
        loop = asyncio.get_running_loop()
        samples, health = await loop.run_in_executor(None, _read_gpus, self._gpus, live, ours | self._engine.roots(), paused)
        self._check_faults(health)
        # A run that was started during the sample may look like a foreign process. Ignore the foreign processes on its GPUs until
        # the next sample.
        fresh = self._pinned().keys() - before.keys()
        samples = [replace(sample, foreign=[]) if sample.gpu_id in fresh else sample for sample in samples]
        if last := self._gpu_faults.last_xids:
            samples = [replace(sample, last_xid=last.get(sample.gpu_id, 0)) for sample in samples]
        self._log_missing_parts(samples)
        foreign = {sample.gpu_id: sample.foreign for sample in samples if sample.foreign}
        now, is_new_use = time.monotonic(), foreign != self.foreign
        self.foreign = foreign
        if matter or is_new_use or self.at_once or now >= self._idle_sampled_at + IDLE_SAMPLES_S:
            if not matter:
                self._idle_sampled_at = now
            urgent = is_new_use or (matter and self.at_once)
            self._reports.sampled(samples, now, matter=urgent)
            if urgent:
                self._wake.set()

    def _check_faults(self, health: GpuHealth) -> None:
        """Report the faults of the GPUs if they have changed."""
        for gpu_id, xid in health.xids:
            self._gpu_faults.add(gpu_id, xid)
        self._conditions = health.conditions
        self._faults_changed()

    def set_fault(self, order: GpuFaultOrder) -> None:
        """Simulate an error of a simulated GPU, or forget the errors of a GPU that works again."""
        device = next((gpu for gpu in self._gpus.devices() if gpu.gpu_id == order.gpu_id), None)
        if device is None:
            return
        if order.xid is None:
            self._gpu_faults.heal(order.gpu_id)
        elif device.simulated:
            self._gpu_faults.add(order.gpu_id, order.xid)
        self._faults_changed()

    def _faults_changed(self) -> None:
        faults = {**self._conditions, **self._gpu_faults.texts}
        if faults != self.faults:
            self.faults = faults
            self._reports.faults_changed(faults)
            self._wake.set()

    def _log_missing_parts(self, samples: list[GpuSample]) -> None:
        """Log once why tasks that share a GPU have no load of their own, if this lasts for some samples."""
        for why in {sample.why_no_parts for sample in samples if sample.why_no_parts}:
            self._without_parts[why] += 1
            if self._without_parts[why] == MISSING_PARTS_MIN:
                log.warning("tasks that share a GPU have no utilization of their own: %s", why)

    def _pinned(self) -> dict[str, dict[str, int | None]]:
        """Return GPU id → run id → pid, for the runs that use the GPU. The pid of a run that is about to start is None."""
        pinned: dict[str, dict[str, int | None]] = defaultdict(dict)
        paused = self._paused()
        for run_id, run in self._engine.observe().items():
            if run.alive and run_id not in paused:
                for gpu_id in run.gpu_ids:
                    pinned[gpu_id][run_id] = run.observed.pid
        return pinned


def _read_gpus(
    gpus: Gpus, live: Mapping[str, Mapping[str, int]], ours: Collection[int], paused: Collection[int]
) -> tuple[list[GpuSample], GpuHealth]:
    return gpus.sample(live, ours, paused), gpus.health()
