"""Steady time: restarts, reboots, and steps of the wall clock."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
import uvloop

from corral.core.clock import ClockRecord, SteadyClock, WallSteps, until_next
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import RandomIds
from corral.model.settings import Settings
from corral.server.clock_watch import RECORD, keep_time, open_clock
from corral.server.step_timer import StepTimer
from corral.store import Store

HOUR_S = 3600.0


class Machine:
    """The two clocks of a machine."""

    def __init__(self) -> None:
        self.boot_s, self.wall_s, self.boot_id = 100.0, 1_800_000_000.0, "first"

    def passes(self, seconds: float) -> None:
        self.boot_s += seconds
        self.wall_s += seconds

    def reboots(self, wall_s: float) -> None:
        self.boot_s, self.wall_s, self.boot_id = 5.0, wall_s, "second"

    def clock(self, last: ClockRecord | None = None) -> SteadyClock:
        return SteadyClock(self.boot_id, last, boot_s=lambda: self.boot_s, wall_s=lambda: self.wall_s)


@pytest.mark.parametrize("step_s", [-5 * HOUR_S, 5 * HOUR_S])
def test_steady_time_ignores_steps_also_across_a_restart(step_s: float) -> None:
    machine = Machine()
    clock = machine.clock()
    began_s = clock.now_s()
    assert began_s == machine.wall_s
    machine.passes(10)
    machine.wall_s += step_s
    assert clock.now_s() == began_s + 10 and clock.notice_step() and not clock.notice_step()
    machine.passes(10)
    last = msgspec.convert(msgspec.to_builtins(clock.record()), ClockRecord)
    machine.passes(10)
    machine.wall_s += step_s  # while no server runs
    later = machine.clock(last)
    assert later.now_s() == pytest.approx(began_s + 30)
    assert later.steps.wall_s(later.now_s()) == pytest.approx(machine.wall_s)
    shown = [later.steps.wall_s(began_s + seconds) - began_s for seconds in (5, 15)]
    assert shown == pytest.approx([5, 15 + step_s]), "a past time is shown as the wall clock showed it"
    assert later.steps.steady_s(machine.wall_s + 60) == pytest.approx(later.now_s() + 60)


@pytest.mark.parametrize("away_s", [HOUR_S, -HOUR_S])
def test_after_a_reboot_no_deadline_is_further_away(away_s: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(1000)
    last = clock.record()
    deadline_s = last.now_s + 30
    machine.reboots(machine.wall_s + away_s)
    later = machine.clock(last)
    assert later.now_s() == pytest.approx(last.now_s + max(0.0, away_s)) and deadline_s - later.now_s() <= 30
    assert later.steps.wall_s(later.now_s()) == pytest.approx(machine.wall_s)


def test_small_differences_are_no_steps_until_they_add_up() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(2):
        machine.wall_s += 0.4
        assert not clock.notice_step()
    machine.wall_s += 0.4
    assert clock.notice_step() and clock.steps.ahead_s == pytest.approx(1.2)
    assert WallSteps().wall_s(7.0) == 7.0


def test_the_server_stores_its_steady_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    clock = open_clock(store)
    core = Core(store, settings=Settings(), clock=clock, ids=RandomIds(), keep_time=partial(keep_time, clock=clock))
    core.transact([Command(lambda tx: None, lambda answer: None)])
    assert store.stored.get(*RECORD) is None, "a transaction that writes nothing stores no time"
    core.transact([Command(lambda tx: tx.due("key:", 1e12), lambda answer: None)])
    document = store.stored.get(*RECORD)
    assert document is not None
    ahead = {**document, "now_s": document["now_s"] + HOUR_S}  # as if the wall clock had been set back since
    store.stored.put(*RECORD, ahead, 0.0)
    store.close()
    later = open_clock(Store(tmp_path / "state.db"))
    assert later.now_s() - clock.now_s() == pytest.approx(HOUR_S, abs=1e-3)
    assert later.steps.ahead_s == pytest.approx(-HOUR_S, abs=1e-3)


def test_the_kernel_tells_that_somebody_sets_the_wall_clock() -> None:
    """The clock is set to the time that it shows, which the kernel also reports."""

    async def wait() -> None:
        timer = StepTimer()
        for _ in range(2):
            waiting = asyncio.create_task(timer.wait(60))
            await asyncio.sleep(0)
            try:
                time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME))
            except PermissionError:
                waiting.cancel()
                pytest.skip("only an administrator may set the clock")
            async with asyncio.timeout(30):
                await waiting
        await timer.wait(0.01)
        timer.close()

    uvloop.run(wait())


def test_timers_that_end_a_millisecond_early_are_not_set_again() -> None:
    ends = {now_s + until_next(now_s, 0.5) for now_s in (7.5, 7.501, 7.75, 7.9995)}
    assert all(8.001 < end_s < 8.003 for end_s in ends)
    assert 0.5 <= until_next(8.001, 0.5) < 0.502
