"""Clocks. Other modules do not read the time of day themselves, so that tests can set the time.

Corral measures durations in steady time. Steady time is like wall time, in seconds since the epoch, but it runs with the boot-time
clock of the kernel: it ignores that somebody sets the wall clock, and it includes the time in which the machine is suspended. It
never goes back, also after a restart of Corral or of the machine. state.db has steady times. Clients see wall times: `WallSteps`
converts.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

STEP_S = 1.0  # a smaller difference between the wall clock and steady time is ignored
STEPS_MAX = 100  # older steps are forgotten
# The event loop counts whole milliseconds, so a timer can end a little early. Without this addition, it would be set again for the
# rest of a millisecond.
LATE_S = 0.002


class WallSeconds(float):
    """A time in a handler's result that is already a wall time, for example a time that a client has set."""


@dataclass(frozen=True, slots=True)
class WallSteps:
    """What was set of the wall clock: the steady time of each step, and by how much the wall clock was ahead after the step."""

    steps: tuple[tuple[float, float], ...] = ()

    @property
    def ahead_s(self) -> float:
        return self.steps[-1][1] if self.steps else 0.0

    def wall_s(self, at_s: float) -> float:
        """Return what the wall clock showed at a steady time. A future time is converted as the wall clock is set now."""
        if not self.steps:
            return at_s
        found = bisect_right(self.steps, at_s, key=lambda step: step[0])
        return at_s + self.steps[found - 1][1] if found else at_s

    def steady_s(self, wall_s: float) -> float:
        """Return the steady time of a wall time, as the wall clock is set now."""
        return wall_s - self.ahead_s

    def stepped(self, at_s: float, ahead_s: float) -> WallSteps:
        return WallSteps((*self.steps, (at_s, ahead_s))[-STEPS_MAX:])


NO_STEPS = WallSteps()


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """A steady time with the boot time of the same moment, from which a later process continues the steady time."""

    boot_id: str
    boot_s: float
    now_s: float
    steps: WallSteps = NO_STEPS


class Clock(Protocol):
    steps: WallSteps

    def now_s(self) -> float:
        """Return the steady time in seconds since the epoch."""
        ...

    def wall_s(self) -> float: ...


def until_next(now_s: float, interval_s: float) -> float:
    """Return the seconds until a little after the next multiple of an interval. Timers with the same end wake the process once."""
    return interval_s - now_s % interval_s + LATE_S


class WallClock:
    """A clock for processes that store no deadlines. Its steady time is the wall time."""

    steps = NO_STEPS

    def now_s(self) -> float:
        return time.time()

    wall_s = now_s


class SteadyClock:
    """The clock of the server. It continues the steady time of the last server of the data folder.

    In the same boot, steady time continues with the boot-time clock. After a reboot it continues with the wall clock, because
    nothing else tells how long the machine was off, but not earlier than it was: so no deadline moves further away.
    """

    def __init__(
        self,
        boot_id: str,
        last: ClockRecord | None = None,
        *,
        boot_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._boot_id = boot_id
        self._boot_s = boot_s
        self.wall_s = wall_s
        self.steps = last.steps if last is not None else NO_STEPS
        if last is not None and last.boot_id == boot_id and last.boot_s <= boot_s():
            self._at_boot_s = last.now_s - last.boot_s
        else:
            self._at_boot_s = (wall_s() if last is None else max(wall_s(), last.now_s)) - boot_s()
        self.notice_step()

    def now_s(self) -> float:
        return self._at_boot_s + self._boot_s()

    def notice_step(self) -> bool:
        """Record a step, if the wall clock was set since the last call. Return whether it was."""
        now_s = self.now_s()
        ahead_s = self.wall_s() - now_s
        if abs(ahead_s - self.steps.ahead_s) < STEP_S:
            return False
        self.steps = self.steps.stepped(now_s, ahead_s if abs(ahead_s) >= STEP_S else 0.0)
        return True

    def record(self) -> ClockRecord:
        boot_s = self._boot_s()
        return ClockRecord(self._boot_id, boot_s, self._at_boot_s + boot_s, self.steps)


class WallView:
    """A clock for a store of measurements and their wall times, such as metrics.db: its time is the wall time of another clock."""

    steps = NO_STEPS

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_s(self) -> float:
        return self._clock.wall_s()

    wall_s = now_s


class VirtualClock:
    """A clock for simulations and tests. Its time changes only when `advance` is called, and its wall clock by `set_wall`."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s
        self.steps = NO_STEPS

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self.steps.ahead_s

    def advance(self, by_s: float) -> None:
        self._now_s += by_s

    def set_wall(self, by_s: float) -> None:
        """Set the wall clock forward, or back if `by_s` is negative."""
        self.steps = self.steps.stepped(self._now_s, self.steps.ahead_s + by_s)
