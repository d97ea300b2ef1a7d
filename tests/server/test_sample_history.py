"""The samples of GPUs that the server keeps for its status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from corral.model.gpu_metrics import GpuSample
from corral.server.agents.connections import SAMPLES_KEPT, SAMPLES_KEPT_S, Agents


def test_old_samples_are_dropped() -> None:
    agents = cast("Any", SimpleNamespace(samples={}, history={}, _new_samples={}))
    for second in range(0, 3600, 45):
        Agents._add_samples(agents, [GpuSample("idle", 0.0, second)], float(second))
    assert [at_s for at_s, _ in agents.history["idle"]] == list(range(second - int(SAMPLES_KEPT_S), second + 1, 45))
    assert agents.samples["idle"].memory_used_mib == second
    for second in range(3600, 4000):
        Agents._add_samples(agents, [GpuSample("busy", 100.0, second)], float(second))
    assert [at_s for at_s, _ in agents.history["busy"]] == list(range(4000 - SAMPLES_KEPT, 4000))
    new = Agents.take_new_samples(agents)
    assert len(new["busy"]) == SAMPLES_KEPT and new["idle"][-1] == agents.history["idle"][-1]
    assert Agents.take_new_samples(agents) == {}
