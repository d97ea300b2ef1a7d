"""Target tracking on a virtual clock: recorded and generated load, and a table of what AWS's guide says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil, sin
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.scaling.alarm_scaling import NO_DATA, REPEAT_S, Rule, Verdict
from corral.decide.scaling.service_scaling import (
    AT_DESIRED,
    AT_MAX,
    AT_MIN,
    FLAPPING,
    IN_COOLDOWN,
    IN_SUSPENDED,
    NOT_MEASURED,
    OUT_COOLDOWN,
    OUT_SUSPENDED,
    UNSCALABLE,
    Cooldowns,
    ServiceCapacity,
    decide_scaling,
)
from corral.decide.scaling.target_tracking import scaled_in, scaled_out
from corral.model.alarm import AlarmState, Progress, ScalingRequest

TARGET = 50.0
OUT = Rule(lambda capacity, value: None if value is None else scaled_out(capacity, value, TARGET), tracking=True)
IN = Rule(lambda capacity, value: None if value is None else scaled_in(capacity, value, TARGET), tracking=True)
PLUS = Rule(lambda capacity, value: None if value is None else capacity + (2 if value < 60 else 3))
MINUS = Rule(lambda capacity, value: capacity - 1)
EXACT = Rule(lambda capacity, value: 4, exact=True)


# What AWS's guide says


def asked(value: float | None, *, measured_s: float | None = None, whole: bool = True) -> ScalingRequest:
    return ScalingRequest("p", AlarmState.ALARM, value, None, whole=whole, measured_s=measured_s)


def of(desired: int, running: int | None = None, least: int = 1, most: int = 10, **more: Any) -> ServiceCapacity:
    return ServiceCapacity(desired, least, most, desired if running is None else running, 0, **more)


def decided(rule: Rule, value: float | None, capacity: ServiceCapacity, cooldowns: Cooldowns) -> Verdict:
    return decide_scaling(asked(value), rule, capacity, cooldowns, Progress(), 100.0)


COOLING_OUT = Cooldowns(out_until_s=200.0, out_base=2, changed_s=50.0)
COOLING_IN = Cooldowns(in_until_s=200.0, changed_s=50.0)


@pytest.mark.parametrize(
    "rule, value, capacity, cooldowns, wanted",
    [
        (OUT, 100.0, of(2), Cooldowns(), 4),  # in proportion to the metric
        (OUT, 51.0, of(10, most=20), Cooldowns(), 11),  # rounded up
        (OUT, 500.0, of(2), Cooldowns(), 10),  # never above the maximum
        (OUT, 80.0, of(0, least=0), Cooldowns(), 1),  # from zero
        (OUT, 60.0, of(3), COOLING_OUT, 3),  # the cooldown counts the capacity that the scale-out added: 2 * 60 / 50 is 2.4
        (OUT, 100.0, of(3), COOLING_OUT, 4),  # a larger scale-out is not blocked
        (OUT, 60.0, of(3), COOLING_IN, 4),  # nor is one by the cooldown of a scale-in
        (OUT, 100.0, of(4, running=2), Cooldowns(), 4),  # tasks that do not run yet have no part in the metric
        (OUT, 100.0, of(3, young=1), Cooldowns(), 4),  # nor has a task that has just started
        (OUT, 100.0, of(1, young=1), Cooldowns(), 2),  # but the metric has a value, so a task has run
        (OUT, 100.0, of(3, young=2), COOLING_OUT, 3),  # also during the cooldown
        (OUT, 60.0, of(0, least=2), Cooldowns(), 2),  # below the minimum: up to the minimum
        (OUT, 60.0, of(12), Cooldowns(), 12),  # above the maximum: a scale-out changes nothing
        (IN, 10.0, of(10), Cooldowns(), 3),  # the metric would be 33, and 50 at two tasks
        (IN, 0.0, of(10, least=2), Cooldowns(), 2),  # never below the minimum
        (IN, 10.0, of(10), COOLING_IN, 10),  # blocked until the cooldown has ended
        (IN, 10.0, of(10), COOLING_OUT, 3),  # the cooldown of a scale-out blocks only scale-outs
        (IN, 40.0, of(2), Cooldowns(), 2),  # one task would have 80
        (IN, 20.0, of(2, stopped=1), Cooldowns(), 2),  # a task that has just stopped had its part: one task would have 60
        (IN, 0.0, of(1, least=2), Cooldowns(), 1),  # below the minimum: a scale-in changes nothing
        (IN, 20.0, of(12), Cooldowns(), 6),  # above the maximum: down to the maximum, and further
        (PLUS, 55.0, of(2), Cooldowns(), 4),
        (PLUS, 65.0, of(4), COOLING_OUT, 5),  # the guide's example: +2, then +3 adds only one
        (PLUS, 55.0, of(4), COOLING_OUT, 4),
        (MINUS, 5.0, of(4), COOLING_IN, 4),
        (MINUS, 5.0, of(4), Cooldowns(), 3),
        (EXACT, 5.0, of(2), Cooldowns(), 4),
        (EXACT, 5.0, of(6), Cooldowns(), 4),
        (OUT, None, of(2), Cooldowns(), None),  # without data, nothing is done
        (IN, None, of(2), Cooldowns(), None),
        (OUT, 47.0, of(4), Cooldowns(), None),  # within 10% below the target: nothing
        (IN, 47.0, of(4), Cooldowns(), 4),
    ],
)
def test_the_table_of_the_guide(rule: Rule, value: float, capacity: ServiceCapacity, cooldowns: Cooldowns, wanted: int) -> None:
    assert decided(rule, value, capacity, cooldowns).wanted == wanted


@pytest.mark.parametrize(
    "rule, value, capacity, cooldowns, says",
    [
        (OUT, 100.0, of(10), Cooldowns(), AT_MAX),
        (IN, 0.0, of(1), Cooldowns(), AT_MIN),
        (IN, 40.0, of(2), Cooldowns(), FLAPPING),
        (EXACT, 1.0, of(4), Cooldowns(), AT_DESIRED),
        (IN, 0.0, of(3, is_deploying=True), Cooldowns(), UNSCALABLE),
        (OUT, 60.0, of(3), COOLING_OUT, OUT_COOLDOWN),
        (IN, 0.0, of(3), COOLING_IN, IN_COOLDOWN),
        (OUT, 100.0, of(3, out_suspended=True), Cooldowns(), OUT_SUSPENDED),
        (IN, 0.0, of(3, in_suspended=True), Cooldowns(), IN_SUSPENDED),
        (OUT, None, of(3), Cooldowns(), NO_DATA),
    ],
)
def test_the_reason_why_nothing_was_done(
    rule: Rule, value: float, capacity: ServiceCapacity, cooldowns: Cooldowns, says: str
) -> None:
    verdict = decided(rule, value, capacity, cooldowns)
    assert verdict.wanted in (None, capacity.desired)
    assert says in (verdict.code, verdict.outcome) and verdict.outcome


def test_a_step_policy_can_use_the_largest_or_the_smallest_value() -> None:
    both = ScalingRequest("p", AlarmState.ALARM, 55.0, 65.0, 70.0)
    for aggregate, wanted in ((None, 5), (max, 5), (min, 4)):
        rule = Rule(PLUS.wanted, aggregate=aggregate)
        assert decide_scaling(both, rule, of(2), Cooldowns(), Progress(), 100.0).wanted == wanted


def test_a_scale_in_needs_a_window_after_the_last_change() -> None:
    verdict = decide_scaling(asked(0.0, measured_s=40.0), IN, of(3), Cooldowns(changed_s=50.0), Progress(), 100.0)
    assert (verdict.wanted, verdict.outcome) == (3, NOT_MEASURED)
    verdict = decide_scaling(asked(0.0, measured_s=50.0), IN, of(3), Cooldowns(changed_s=50.0), Progress(), 100.0)
    assert verdict.wanted == 1


def test_a_scale_out_ends_the_cooldown_of_a_scale_in() -> None:
    after = COOLING_IN.after(100.0, of(3), 5, 300.0)
    assert (after.in_until_s, after.out_until_s, after.out_base) == (0.0, 400.0, 3)
    larger = after.after(150.0, of(5), 8, 300.0)
    assert (larger.out_until_s, larger.out_base) == (450.0, 3), "both scale-outs count"
    assert Cooldowns().after(100.0, of(3), 1, 0.0).in_until_s == 100.0 + REPEAT_S, "an alarm acts once a minute"


@given(
    desired=st.integers(1, 6), other=st.integers(0, 10), at_s=st.floats(0.0, 400.0), value=st.sampled_from([55.0, 65.0]),
    rule=st.sampled_from([OUT, PLUS, EXACT]),
)  # fmt: skip
def test_a_change_by_a_user_is_not_overridden_before_the_cooldown_ends(
    desired: int, other: int, at_s: float, value: float, rule: Rule
) -> None:
    """A policy scales out at 0, and a user sets the count at `at_s`. The alarm stays in its state."""
    progress, first = Progress(0.0), decided(rule, 55.0, of(desired), Cooldowns())
    if first.wanted is None or first.wanted <= desired:
        return
    cooled = Cooldowns().after(0.0, of(desired), first.wanted, 300.0)
    noted = cooled.noting(at_s, other, repeats=True)
    assert noted.noting(at_s, other, repeats=True) == noted
    verdict = decide_scaling(asked(value), rule, of(other, least=0, most=50), noted, progress, at_s)
    if other != first.wanted:
        assert verdict.wanted == other and verdict.again_s == at_s + REPEAT_S
    repeated = decide_scaling(asked(value), rule, of(other, least=0, most=50), noted, progress, at_s + REPEAT_S)
    if at_s + REPEAT_S < 300.0 and other < first.wanted and repeated.wanted is not None and repeated.wanted > other:
        assert repeated.wanted > first.wanted, "only a larger scale-out"
    late = decide_scaling(asked(value), rule, of(other, least=0, most=50), noted, progress, at_s + 300.0)
    assert late.wanted == rule.wanted(other, value) or late.wanted == other == 4


@given(capacity=st.integers(0, 1000), value=st.floats(0, 1e6), target=st.floats(0.01, 1e4))
def test_both_directions_move_towards_the_target(capacity: int, value: float, target: float) -> None:
    more, less = scaled_out(capacity, value, target), scaled_in(capacity, value, target)
    assert more is None or less == capacity
    assert (more is not None) == (value > target)
    if more is not None:
        assert more > capacity and (capacity == 0 or capacity * value <= more * target * (1 + 1e-6) + 1e-6)
    assert 0 <= less <= capacity
    if less < capacity:
        assert less == 0 or capacity * value / less <= target, "the scale-in does not cause a scale-out"


# Load on a virtual clock


class Service:
    """A service whose tasks share a load. Each second has a value; the alarms are those of a target tracking policy.

    `start_s` and `stop_s` are how long a task takes to start and to stop. `late_s` is the age of the values of the metric.
    """

    def __init__(
        self,
        desired: int,
        least: int = 1,
        most: int = 20,
        *,
        out_s: int = 2,
        in_s: int = 900,
        start_s: int = 5,
        stop_s: int = 0,
        late_s: int = 0,
        cooldown_s: float = REPEAT_S,
        least_s: float = REPEAT_S,
    ) -> None:
        self.desired, self.least, self.most = desired, least, most
        self.out_s, self.in_s, self.start_s, self.stop_s, self.late_s = out_s, in_s, start_s, stop_s, late_s
        self.cooldown_s, self.least_s = cooldown_s, least_s
        self.cooldowns, self.now_s = Cooldowns(), 0
        self.started = [-1000] * desired  # when each task that is wanted runs
        self.stopping: list[tuple[int, int]] = []  # when each other task ran and stopped
        self.loads: list[float | None] = []  # the load of a task in each second
        self.values: list[float | None] = []  # the metric
        self.changes: list[tuple[int, int, int]] = []  # second, before, after
        self.periods = max(1, ceil(in_s / 60))
        self.period_s = ceil(in_s / self.periods)

    def second(self, load: float | None) -> None:
        """Measure one second, and decide as the reconciler does. A load of None is missing data."""
        stopping = sum(began_s <= self.now_s < end_s for began_s, end_s in self.stopping)
        running = sum(at_s <= self.now_s for at_s in self.started)
        self.loads.append(None if load is None or running + stopping == 0 else min(load / (running + stopping), 100.0))
        self.values.append(self.loads[max(0, self.now_s - self.late_s)])
        self.now_s += 1
        capacity = ServiceCapacity(self.desired, self.least, self.most, running, stopping)
        recent = [value for value in self.values[-self.out_s :] if value is not None]
        measured_s = self.now_s - self.out_s - self.late_s
        young = sum(measured_s < at_s < self.now_s for at_s in self.started)
        request, out_capacity = asked(sum(recent) / len(recent) if recent else None), replace(capacity, young=young)
        out = decide_scaling(request, OUT, out_capacity, self.cooldowns, Progress(), self.now_s)
        if out.wanted is not None and out.wanted > self.desired:
            self._set(out.wanted, capacity)
        elif self.now_s % min(60, max(1, self.in_s // 3)) == 0 and (low := self._low()) is not None:
            measured_s = self.now_s - self.period_s
            stopped = sum(measured_s - self.late_s < end_s < self.now_s for _, end_s in self.stopping)
            request, in_capacity = asked(low, measured_s=measured_s), replace(capacity, stopped=stopped)
            verdict = decide_scaling(request, IN, in_capacity, self.cooldowns, Progress(), self.now_s)
            if verdict.wanted is not None and verdict.wanted < self.desired:
                self._set(verdict.wanted, capacity)
        assert self.least <= self.desired <= self.most

    def _low(self) -> float | None:
        """The value of the alarm for a scale-in, or None if it is not in ALARM."""
        begin_s = self.now_s - self.periods * self.period_s
        windows = [self._average(at_s, at_s + self.period_s) for at_s in range(begin_s, self.now_s, self.period_s)]
        if begin_s < 0 or any(each is None or each >= TARGET * 0.9 for each in windows):
            return None
        averages = [self._average(at_s, at_s + self.out_s) for at_s in range(begin_s, self.now_s, self.out_s)]
        return max(each for each in (*windows, *averages) if each is not None)

    def _average(self, begin_s: int, end_s: int) -> float | None:
        known = [value for value in self.values[max(0, begin_s) : end_s] if value is not None]
        return sum(known) / len(known) if known else None

    def _set(self, wanted: int, capacity: ServiceCapacity) -> None:
        self.cooldowns = self.cooldowns.after(self.now_s, capacity, wanted, self.cooldown_s, self.least_s)
        self.changes.append((self.now_s, self.desired, wanted))
        self.stopping += [(at_s, self.now_s + self.stop_s) for at_s in self.started[wanted:] if at_s <= self.now_s]
        self.started = self.started[:wanted] + [self.now_s + self.start_s] * (wanted - self.desired)
        self.desired = wanted

    def run(self, load: Callable[[int], float | None], seconds: int) -> None:
        for _ in range(seconds):
            self.second(load(self.now_s))

    def reversals(self, since_s: int = 0) -> int:
        """How often the direction of two changes differs."""
        directions = [after > before for at_s, before, after in self.changes if at_s >= since_s]
        return sum(one != other for one, other in pairwise(directions))


HOUR_S = 3600


@pytest.mark.parametrize("load", [10.0, 44.9, 45.1, 50.0, 99.0, 149.9, 200.0, 333.0])
@pytest.mark.parametrize("desired", [1, 12])
def test_a_constant_load_settles_and_stays(load: float, desired: int) -> None:
    service = Service(desired)
    service.run(lambda _: load, HOUR_S)
    settled = service.changes[:]
    service.run(lambda _: load, HOUR_S)
    assert service.changes == settled, "no oscillation"
    assert service.reversals() == 0
    assert load / service.desired <= TARGET
    assert service.desired == 1 or load / (service.desired - 1) > TARGET * 0.9, "no task too many"


@given(
    load=st.floats(1.0, 600.0),
    desired=st.integers(1, 12),
    out_s=st.integers(1, 5),
    in_s=st.integers(1, 90),
    start_s=st.integers(0, 30),
    stop_s=st.integers(0, 30),
    late_s=st.integers(0, 5),
    cooldown_s=st.integers(0, 20),
)
def test_a_constant_load_never_reverses(load: float, desired: int, cooldown_s: float, **times: int) -> None:
    """With the fast timing, a cooldown may be shorter than the time that a task takes to start or to stop."""
    service = Service(desired, cooldown_s=cooldown_s, least_s=2 * times["out_s"], **times)
    service.run(lambda _: load, 400)
    assert service.reversals() == 0, service.changes


def test_a_step_of_the_load() -> None:
    service = Service(1)
    service.run(lambda at_s: 40.0 if at_s < 600 else 180.0, 1800)
    assert service.desired == 4
    first = service.changes[0]
    assert first[0] - 600 <= 3, "the scale-out begins within three seconds"
    service.run(lambda _: 40.0, 1500)
    assert service.desired == 1 and service.reversals() == 1
    assert service.changes[-1][0] >= 1800 + 900, "the scale-in waits 15 minutes"


def test_a_saw_tooth_shorter_than_the_wait_never_scales_in() -> None:
    """The load rises from 20 to 190 within ten minutes, and falls at once."""
    service = Service(1)
    service.run(lambda at_s: 20.0 + 170.0 * (at_s % 600) / 600, 2 * HOUR_S)
    assert service.desired == 4 and service.reversals() == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", [40.0, 130.0, 220.0])
def test_noise_does_not_flap(seed: int, level: float) -> None:
    random = Random(seed)
    service = Service(6)
    service.run(lambda _: max(0.0, random.gauss(level, level * 0.08)), 3 * HOUR_S)
    assert service.reversals() <= 1, service.changes
    assert len([change for change in service.changes if change[0] > HOUR_S]) <= 1, "it settles"


def test_a_day_of_load_follows_the_curve() -> None:
    service = Service(2)
    service.run(lambda at_s: 150.0 + 120.0 * sin(at_s / 43_200 * 6.283), 43_200)
    assert service.reversals() == 2, "out before noon, in at night, and out again in the morning"
    assert max(after for _, _, after in service.changes) == 6


def test_missing_data_changes_nothing() -> None:
    service = Service(3)
    service.run(lambda _: None, 2 * HOUR_S)
    assert service.changes == []
    service.run(lambda at_s: 120.0 if at_s % 7 == 0 else None, HOUR_S)
    service.run(lambda _: None, HOUR_S)
    assert service.desired == 3, "gaps do not count as low"


# Recorded GPU utilisation of a training job, a value each ten seconds: start, epochs with evaluation, end.
RECORDED = [
    0,
    0,
    12,
    87,
    96,
    98,
    97,
    99,
    98,
    97,
    45,
    22,
    95,
    98,
    99,
    97,
    98,
    96,
    97,
    44,
    20,
    96,
    99,
    98,
    97,
    98,
    97,
    43,
    3,
    0,
    0,
    0,
]


def test_recorded_load() -> None:
    """The evaluations between the epochs are shorter than the wait, so the service keeps its tasks until the end of the job."""
    service = Service(1, most=3)
    service.run(lambda at_s: float(RECORDED[min(at_s // 60, len(RECORDED) - 1)]), 60 * len(RECORDED) + 1200)
    assert service.desired == 1 and service.reversals() == 1
    assert [after for _, _, after in service.changes] == [2, 1]
