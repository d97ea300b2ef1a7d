"""Which capacity a policy wants when an alarm requests it, and when it is applied again."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.scaling.alarm_scaling import REPEAT_S, WARMING, Block, GroupCapacity, Rule, Verdict, decide_request
from corral.decide.scaling.policies import CHANGE, EXACT, PERCENT, Step, adjusted, step_for
from corral.decide.scaling.target_tracking import scaled_in, scaled_out
from corral.model.alarm import AlarmState, Progress, ScalingRequest

NOW_S = 1000.0
QUEUE_STEPS = [Step(0, 0, 1), Step(1, 1, 100), Step(2, 100, None)]  # the guide's policy, with a threshold of 0


def stepped(steps: list[Step], kind: str, capacity: int, value: float | None) -> int | None:
    step = None if value is None else step_for(steps, value)
    return None if step is None else adjusted(capacity, kind, step.adjustment)


def by_steps(steps: list[Step], kind: str) -> Rule:
    return Rule(partial(stepped, steps, kind), exact=kind == EXACT)


def simple(adjustment: int) -> Rule:
    return Rule(lambda capacity, _: capacity + adjustment, simple=True)


EXACTLY, PLUS, MINUS = (
    by_steps(QUEUE_STEPS, EXACT),
    by_steps([Step(1, 0, 10), Step(3, 10, None)], CHANGE),
    by_steps([Step(-1)], CHANGE),
)
OUT = Rule(lambda capacity, value: None if value is None else scaled_out(capacity, value, 50.0), tracking=True)
IN = Rule(lambda capacity, value: None if value is None else scaled_in(capacity, value, 50.0), tracking=True)


def request(
    period: float | None, newest: float | None = None, peak: float | None = None, *, whole: bool = True, since_s: float = 0.0
) -> ScalingRequest:
    return ScalingRequest("p", AlarmState.ALARM, period, newest, peak, 0.0, since_s, whole)


def of(desired: int, ready: int | None = None, present: int | None = None, **more: Any) -> GroupCapacity:
    given = desired if ready is None else ready
    return GroupCapacity(desired, 0, 10, given, desired if present is None else present, **more)


@pytest.mark.parametrize(
    "rule, asked, group, wanted",
    [
        # The value of the newest second, or of the period, or of the second that breached most
        (EXACTLY, request(None, 1.0, 1.0, whole=False), of(0), 1),
        (EXACTLY, request(1 / 300, 0.0, 1.0), of(1), 1),
        (EXACTLY, request(1 / 300, 0.0, 0.0), of(1), 0),
        (EXACTLY, request(1 / 300), of(1), 0),
        (EXACTLY, request(90.0, 150.0, 150.0), of(1), 2),
        (EXACTLY, request(0.0, 0.0), of(2), 0),
        # A scale-in needs whole windows
        (EXACTLY, request(None, 1.0, 1.0, whole=False), of(2), 2),
        (MINUS, request(None, 0.0, 0.0, whole=False), of(2), 2),
        (MINUS, request(0.0, 0.0, 0.0), of(2), 1),
        (simple(-1), request(None, whole=False), of(2), 2),
        (simple(-1), request(None), of(2), 1),
        (simple(1), request(None, whole=False), of(2), 3),
        # Instances that warm up do not count for a scale-out, instances that terminate count for a scale-in
        (PLUS, request(5.0), of(1), 2),
        (PLUS, request(5.0), of(2, ready=1), 2),
        (PLUS, request(50.0), of(2, ready=1), 4),
        (PLUS, request(50.0), of(2, ready=5, present=5), 5),
        (MINUS, request(0.0), of(2, present=3), 2),
        (by_steps([Step(30)], PERCENT), request(0.0), of(8, ready=7), 9),
        # The limits of the group
        (PLUS, request(5.0), of(10), 10),
        (MINUS, request(0.0), of(0), 0),
        # No step applies
        (PLUS, request(-1.0), of(2), None),
        (PLUS, request(None), of(2), None),
        # Target tracking
        (OUT, request(100.0), of(2), 4),
        (OUT, request(100.0), of(4, ready=2), 4),
        (OUT, request(60.0, 200.0), of(2), 8),
        (OUT, request(200.0, 60.0), of(2), 3),
        (OUT, request(48.0), of(4), None),
        (OUT, request(10.0), of(4), None),
        (OUT, request(80.0), of(0), 1),
        (IN, request(20.0), of(4), 2),
        (IN, request(25.0), of(4), 3),
        (IN, request(48.0), of(4), 4),
        (IN, request(100.0), of(4), 4),
    ],
)
def test_the_wanted_capacity(rule: Rule, asked: ScalingRequest, group: GroupCapacity, wanted: int | None) -> None:
    assert decide_request(asked, rule, group, Progress(), NOW_S).wanted == wanted


def test_a_new_value_in_the_interval_adjusts_the_same_base() -> None:
    first = decide_request(request(5.0), PLUS, of(2), Progress(), NOW_S)
    assert (first.wanted, first.progress.at_s, first.outcome) == (3, NOW_S, "")
    second = decide_request(request(50.0), PLUS, of(3), first.progress, NOW_S + 1)
    assert (second.wanted, second.progress) == (5, first.progress), "three more than at the beginning, not than now"
    less = decide_request(request(5.0), PLUS, of(5), first.progress, NOW_S + 2)
    assert (less.wanted, less.again_s) == (5, NOW_S + REPEAT_S), "a scale-out never lowers the capacity"
    again = decide_request(request(5.0), PLUS, of(5), first.progress, NOW_S + REPEAT_S)
    assert (again.wanted, again.progress.at_s) == (6, NOW_S + REPEAT_S)


def test_what_a_decision_waits_for() -> None:
    def again_s(verdict: Verdict) -> float | None:
        return verdict.again_s

    done = Progress(0.0, NOW_S - 10, 2, 2, "")
    assert again_s(decide_request(request(1.0), EXACTLY, of(1), done, NOW_S)) is None, "an exact capacity is reached"
    assert again_s(decide_request(request(5.0), PLUS, of(3, ready=2), done, NOW_S)) is None, "for a launch: no time"
    assert again_s(decide_request(request(5.0), PLUS, of(3), done, NOW_S)) == NOW_S + 50
    warming = of(3, ready=2, warming=True, warm_at_s=NOW_S + 5)
    assert again_s(decide_request(request(5.0), PLUS, warming, done, NOW_S)) == NOW_S + 5
    assert again_s(decide_request(request(5.0), PLUS, of(10), done, NOW_S)) is None, "the maximum size"
    blocked = decide_request(request(0.0), MINUS, warming, Progress(), NOW_S)
    assert (blocked.wanted, blocked.again_s, blocked.outcome) == (3, NOW_S + 5, WARMING)


def test_simple_policies_wait_for_cooldown_and_interval() -> None:
    decide = partial(decide_request, request(None), simple(2))
    blocked = decide(of(1), Progress(), NOW_S, block=Block("cooldown", NOW_S + 30))
    assert (blocked.wanted, blocked.again_s, blocked.outcome) == (1, NOW_S + 30, "cooldown")
    applied = decide(of(1), Progress(), NOW_S)
    assert (applied.wanted, applied.progress.at_s) == (3, NOW_S)
    assert decide(of(3), applied.progress, NOW_S + 1).again_s == NOW_S + REPEAT_S
    assert decide(of(3), applied.progress, NOW_S + REPEAT_S).wanted == 5
    assert decide(of(10), applied.progress, NOW_S + REPEAT_S) == Verdict(10, applied.progress, None, "")


def test_only_repetitions_wait_for_what_a_user_has_set() -> None:
    known = Progress(0.0, NOW_S - 500, 0, 0, "")
    held = decide_request(request(0.0), EXACTLY, of(3), known, NOW_S, wait_until_s=NOW_S + 20)
    assert (held.wanted, held.again_s) == (3, NOW_S + 20)
    assert decide_request(request(0.0), EXACTLY, of(3), known, NOW_S + 20, wait_until_s=NOW_S + 20).wanted == 0
    assert decide_request(request(0.0, since_s=NOW_S), EXACTLY, of(3), known, NOW_S, wait_until_s=NOW_S + 20).wanted == 0


@given(
    values=st.lists(st.sampled_from([None, -5.0, 0.0, 0.5, 1.0, 30.0, 60.0, 150.0]), min_size=3, max_size=3),
    rule=st.sampled_from([EXACTLY, PLUS, MINUS, OUT, IN, simple(1), simple(-1)]),
    desired=st.integers(0, 10),
    ready=st.integers(0, 10),
    present=st.integers(0, 12),
    warming=st.booleans(),
    whole=st.booleans(),
    at_s=st.sampled_from([None, NOW_S - 5, NOW_S - 500]),
)
def test_decisions_are_safe(
    values: list[float | None], rule: Rule, desired: int, ready: int, present: int, warming: bool, whole: bool, at_s: float | None
) -> None:
    """The limits hold; a scale-in needs whole windows and no warm-up; the same decision after it was applied changes nothing."""
    group = GroupCapacity(desired, 0, 10, ready, present, warming, NOW_S + 1 if warming else None)
    asked = request(*values, whole=whole)
    verdict = decide_request(asked, rule, group, Progress(0.0, at_s, min(ready, desired), present), NOW_S)
    if verdict.wanted is None:
        return
    assert 0 <= verdict.wanted <= 10
    if verdict.wanted < desired:
        assert whole and (rule.simple or not warming)
    assert verdict.again_s is None or verdict.again_s > NOW_S
    after = GroupCapacity(verdict.wanted, 0, 10, ready, present, warming, group.warm_at_s)
    assert decide_request(asked, rule, after, verdict.progress, NOW_S).wanted == verdict.wanted
