"""The arithmetic of scaling policies, with the examples of AWS's documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.scaling.policies import CHANGE, EXACT, PERCENT, Step, adjusted, limited, problem_of_steps, step_for


@pytest.mark.parametrize(
    "capacity, kind, adjustment, magnitude, expected",
    [
        (3, CHANGE, 5, 0, 8),
        (3, CHANGE, -2, 0, 1),
        (3, EXACT, 5, 0, 5),
        (10, PERCENT, 10, 0, 11),
        (4, PERCENT, 25, 2, 6),  # the minimum magnitude
        (12, PERCENT, 56, 0, 18),  # 6.72 is rounded down
        (1, PERCENT, 67, 0, 2),  # 0.67 becomes 1
        (1, PERCENT, -58, 0, 0),  # -0.58 becomes -1
        (10, PERCENT, -66, 0, 4),  # -6.67 becomes -6
        (0, PERCENT, 50, 0, 0),
        (0, PERCENT, 50, 2, 2),
        (5, PERCENT, 0, 2, 5),
    ],
)
def test_adjustments(capacity: int, kind: str, adjustment: int, magnitude: int, expected: int) -> None:
    assert adjusted(capacity, kind, adjustment, magnitude) == expected


OUT = [Step(0, 0, 10), Step(10, 10, 20), Step(30, 20, None)]  # the example of the guide, with an alarm at 50
IN = [Step(-30, None, -20), Step(-10, -20, -10), Step(0, -10, 0)]


@pytest.mark.parametrize(
    "steps, difference, expected",
    [
        (OUT, 0, 0), (OUT, 9.9, 0), (OUT, 10, 10), (OUT, 19, 10), (OUT, 20, 30), (OUT, 500, 30), (OUT, -1, None),
        (IN, -1, 0), (IN, -10, -10), (IN, -10.5, -10), (IN, -20, -30), (IN, -400, -30), (IN, 3, None),
        ([Step(1, None, None)], -7, 1),
    ],
)  # fmt: skip
def test_steps(steps: list[Step], difference: float, expected: int | None) -> None:
    assert problem_of_steps(steps) is None
    found = step_for(steps, difference)
    assert (None if found is None else found.adjustment) == expected


@pytest.mark.parametrize(
    "steps, says",
    [
        ([Step(1, 0, 10), Step(2, 5, None)], "overlap"),
        ([Step(1, 0, 10), Step(2, 11, None)], "gaps"),
        ([Step(1, 10, 10)], "less than its upper bound"),
        ([Step(1, None, 0), Step(2, None, 5)], "no lower bound"),
        ([Step(1, 0, None), Step(2, 5, None)], "no upper bound"),
        ([Step(1, None, None), Step(2, 0, None)], "each must have a lower or an upper bound"),
        ([Step(1, 0, 10)], "positive upper bound"),
        ([Step(1, -10, 0)], "negative lower bound"),
    ],
)
def test_steps_that_are_not_valid(steps: list[Step], says: str) -> None:
    assert says in str(problem_of_steps(steps))


@given(capacity=st.integers(-10, 100), least=st.integers(0, 10), more=st.integers(0, 10))
def test_limits(capacity: int, least: int, more: int) -> None:
    assert least <= limited(capacity, least, least + more) <= least + more
