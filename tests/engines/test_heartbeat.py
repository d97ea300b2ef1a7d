"""Hosts report together, and never later than they must."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.model.agent_protocol import HEARTBEAT_S, IDLE_HEARTBEAT_S
from corral.node.heartbeat import TOGETHER_S, heartbeat_at


@pytest.mark.parametrize("has_runs", [False, True])
def test_hosts_with_equal_clocks_report_at_few_times(monkeypatch: pytest.MonkeyPatch, has_runs: bool) -> None:
    latest_s, wall_s = HEARTBEAT_S if has_runs else IDLE_HEARTBEAT_S, 1_700_000_000.1
    found = set()
    for boot_s in (0.0, 1_234.567):  # the monotonic clocks of machines have nothing in common
        monkeypatch.setattr(time, "monotonic", lambda boot_s=boot_s: boot_s + 10.0)
        clock = cast("Any", SimpleNamespace(wall_s=lambda: wall_s))
        for late in range(100):
            reported_at = boot_s + 10.0 - late / 100
            at = heartbeat_at(reported_at, clock, has_runs=has_runs)
            assert latest_s - TOGETHER_S <= at - reported_at <= latest_s
            found.add(round(at - boot_s - 10.0 + wall_s, 6))
    assert len(found) <= 1 / TOGETHER_S + 1


def test_the_next_heartbeat_has_the_same_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that reports at a common time reports so again after its whole time, although its timer fires a little late."""
    clock = cast("Any", SimpleNamespace(wall_s=lambda: time.monotonic() + 1_700_000_000.0))
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(10):
        at = heartbeat_at(now_s, clock, has_runs=False)
        assert at - now_s == pytest.approx(IDLE_HEARTBEAT_S, abs=0.01)
        now_s = at + 0.003
