"""Failed GPUs in the agent, in the state store, and on the page /metrics."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.core.clock import VirtualClock
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.model.agent_protocol import SAMPLE_MAX_AGE_S, Hello
from corral.model.gpu import GpuDevice, GpuHealth
from corral.model.gpu_metrics import GpuSample
from corral.model.histogram import Histogram, RequestTimes
from corral.model.settings import Settings
from corral.node import gpu_sampler
from corral.node.gpu_faults import GpuFaults
from corral.reconcile import STATE
from corral.server.pages.metrics_page import MetricsPage
from corral.services.ecs import host_reports
from corral.store import Store
from eventually import DEADLINE_S
from services.test_container_insights import CoreLane

GPUS = [GpuDevice(f"GPU-{index}", index, "H100", 1000) for index in range(2)]
LOST = {"GPU-1": "Xid 79: the GPU has fallen off the bus"}


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock(1000.0)
        common = {"settings": Settings(), "clock": self.clock, "ids": SeededIds(Random(0))}
        self.state = CoreLane(Core(Store(None), reconcilers=STATE, **cast("Any", common)))

    def hello(self, gpus: list[GpuDevice], faults: dict[str, str], boot_id: str = "boot") -> None:
        message = Hello("h", boot_id, "host", 4096, 4096, gpus, [], faults=faults)
        self.state.run(lambda tx: host_reports.hello(tx, message))

    def faults(self) -> dict[str, str]:
        found: dict[str, str] = self.state.run(
            lambda tx: {gpu_id: fault.text for gpu_id, fault in tx.store.hosts.faults("h").items()}
        )
        assert bool(found) == bool(self.state.run(lambda tx: tx.store.hosts.failed_instances()))
        return found


def test_a_lost_gpu_that_a_restarted_agent_does_not_list_has_still_failed() -> None:
    world = World()
    world.hello(GPUS, {})
    assert world.faults() == {}
    world.hello(GPUS, LOST)
    assert world.faults() == LOST
    world.hello(GPUS[:1], LOST)
    assert world.faults() == LOST, "so that the instance of the GPU is replaced"
    world.hello(GPUS, {}, "another boot")
    assert world.faults() == {}


def test_a_simulated_gpu_that_no_longer_exists_has_not_failed() -> None:
    world = World()
    simulated = [GpuDevice(gpu.gpu_id, gpu.index, gpu.model, gpu.memory_mib, simulated=True) for gpu in GPUS]
    world.hello(simulated, LOST)
    assert world.faults() == LOST
    world.hello(simulated[:1], LOST)
    assert world.faults() == {}


@pytest.mark.parametrize("age_s", [0.0, SAMPLE_MAX_AGE_S + 1.0])
def test_metrics_have_no_values_of_a_gpu_that_is_not_sampled_any_more(age_s: float) -> None:
    world = World()
    world.hello(GPUS, {})
    lane = cast("Any", world.state)
    lane.transaction_sizes = lane.transaction_seconds = Histogram((1.0,))
    history = {"GPU-0": deque([(world.clock.now_s() - age_s, GpuSample("GPU-0", 50.0, 100))])}
    text = asyncio.run(MetricsPage({"state": lane}, history, world.clock, RequestTimes(), 0.0).text())
    assert ('DCGM_FI_DEV_GPU_UTIL{gpu="0"' in text) == (age_s == 0.0)
    assert 'corral_gpu_healthy{gpu="0"' in text and 'DCGM_FI_DEV_GPU_UTIL{gpu="1"' not in text


def test_the_sampler_samples_again_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sampler, "SAMPLE_S", 0.0)
    monkeypatch.setattr(gpu_sampler, "HEARTBEAT_S", 0.0)
    results: list[Any] = [OSError("a broken driver"), OSError("a broken driver"), GpuHealth(xids=[("GPU-0", 79)])]

    def health() -> GpuHealth:
        result = results.pop(0) if results else GpuHealth()
        if isinstance(result, OSError):
            raise result
        return cast("GpuHealth", result)

    async def check() -> None:
        gpus = SimpleNamespace(devices=lambda: GPUS, sample=lambda live, ours, paused: [], health=health)
        engine = SimpleNamespace(observe=dict, roots=set)
        reports = SimpleNamespace(faults_changed=lambda faults: None, sampled=lambda samples, at_s, matter: None)
        faults = GpuFaults(tmp_path / "gpu_faults.json", "boot")
        sampled = gpu_sampler.GpuSampler(cast("Any", gpus), cast("Any", engine), faults, cast("Any", reports), asyncio.Event())
        task = asyncio.create_task(sampled.run())
        async with asyncio.timeout(DEADLINE_S):
            while not sampled.faults:
                await asyncio.sleep(0)
        task.cancel()
        assert sampled.faults == {"GPU-0": "Xid 79: the GPU has fallen off the bus"}

    asyncio.run(check())
