"""M of N, missing data and premature alarms: rows of CloudWatch's own tables.

0 is within the threshold, X breaches, - has no data; the newest window stands last.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.metrics.alarm_evaluation import (
    breaches,
    evaluate_windows,
    evaluation_range,
    is_conclusive,
    samples_needed,
    suppress,
)
from corral.model.alarm import AlarmState, Criteria, MissingData, Suppression

OK, ALARM, INSUFFICIENT, RETAIN = AlarmState.OK, AlarmState.ALARM, AlarmState.INSUFFICIENT_DATA, None
TREATMENTS = (MissingData.MISSING, MissingData.IGNORE, MissingData.BREACHING, MissingData.NOT_BREACHING)
VALUES = {"0": 0.0, "X": 10.0, "-": None}


def windows(row: str) -> list[tuple[float, float | None]]:
    return [(60.0 * at, VALUES[sign]) for at, sign in enumerate(row.split())]


def states(row: str, to_alarm: int, periods: int) -> tuple[AlarmState | None, ...]:
    """The state for each treatment of missing data."""
    criteria = [Criteria("GreaterThanThreshold", 5, periods, to_alarm, each) for each in TREATMENTS]
    return tuple(evaluate_windows(windows(row), each).state for each in criteria)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0 - X - X", (OK, OK, OK, OK)),
        ("0 - - - -", (OK, OK, OK, OK)),
        ("- - - - -", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("0 X X - X", (ALARM, ALARM, ALARM, ALARM)),
        ("- - X - -", (ALARM, RETAIN, ALARM, OK)),
        ("X - - - -", (ALARM, RETAIN, ALARM, OK)),
        # Avoiding premature transitions: the next datapoint may be within.
        ("- - - - X", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("- - - X -", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("- - - X 0", (OK, OK, OK, OK)),
        ("- - X - 0", (OK, OK, OK, OK)),
        # The rest of the rules, in plain rows
        ("0 0 X X X", (ALARM, ALARM, ALARM, ALARM)),
        ("X X X X 0", (OK, OK, OK, OK)),
        ("- - - X X", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("- - X X -", (ALARM, RETAIN, ALARM, OK)),
    ],
)
def test_three_of_three(row: str, expected: tuple[AlarmState | None, ...]) -> None:
    assert states(row, 3, 3) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0 - X - X", (ALARM, ALARM, ALARM, ALARM)),
        ("0 0 X 0 X", (ALARM, ALARM, ALARM, ALARM)),
        ("0 - X - -", (OK, OK, ALARM, OK)),
        ("- - - - 0", (OK, OK, ALARM, OK)),
        ("- - - X -", (ALARM, RETAIN, ALARM, OK)),
        ("- - - - X", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("- - - X X", (ALARM, ALARM, ALARM, ALARM)),
        ("- - - - -", (INSUFFICIENT, RETAIN, ALARM, OK)),
        ("X X 0 0 X", (OK, OK, OK, OK)),
    ],
)
def test_two_of_three(row: str, expected: tuple[AlarmState | None, ...]) -> None:
    assert states(row, 2, 3) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("- - X", (ALARM, ALARM, ALARM, ALARM)),
        ("- X -", (ALARM, ALARM, ALARM, ALARM)),  # the last known value is evaluated until it leaves the range
        ("X - -", (ALARM, ALARM, ALARM, ALARM)),
        ("X - 0", (OK, OK, OK, OK)),
        ("- - -", (INSUFFICIENT, RETAIN, ALARM, OK)),
    ],
)
def test_one_of_one(row: str, expected: tuple[AlarmState | None, ...]) -> None:
    assert states(row, 1, 1) == expected


def test_the_range_is_wider_than_the_periods() -> None:
    assert (evaluation_range(1), evaluation_range(3)) == (3, 5)


@pytest.mark.parametrize(
    ("comparison", "below", "equal", "above"),
    [
        ("GreaterThanThreshold", False, False, True),
        ("GreaterThanOrEqualToThreshold", False, True, True),
        ("LessThanThreshold", True, False, False),
        ("LessThanOrEqualToThreshold", True, True, False),
    ],
)
def test_comparisons(comparison: str, below: bool, equal: bool, above: bool) -> None:
    criteria = Criteria(comparison, 0.0, 1, 1)
    assert (breaches(-1, criteria), breaches(0.0, criteria), breaches(1, criteria)) == (below, equal, above)


@given(
    row=st.lists(st.sampled_from("0X-"), min_size=3, max_size=8).map(" ".join),
    periods=st.integers(1, 5),
    missing=st.sampled_from(TREATMENTS),
    data=st.data(),
)
def test_an_additional_breach_never_ends_an_alarm(row: str, periods: int, missing: MissingData, data: st.DataObject) -> None:
    criteria = Criteria("GreaterThanThreshold", 5, periods, data.draw(st.integers(1, periods)), missing)
    worse = row.replace("0", "X", 1)
    if evaluate_windows(windows(row), criteria).state is ALARM:
        assert evaluate_windows(windows(worse), criteria).state is ALARM


@given(row=st.lists(st.sampled_from("0X-"), min_size=5, max_size=5).map(" ".join), to_alarm=st.integers(1, 3))
def test_treatments_differ_only_if_windows_are_filled(row: str, to_alarm: int) -> None:
    known = sum(sign != "-" for sign in row.split())
    found = states(row, to_alarm, 3)
    if known >= 3:
        assert len(set(found)) == 1
    evaluation = evaluate_windows(windows(row), Criteria("GreaterThanThreshold", 5, 3, to_alarm))
    assert (len(evaluation.points), evaluation.filled) == (min(known, 3), 3 - min(known, 3))


@pytest.mark.parametrize(
    ("statistic", "comparison", "smallest", "expected"),
    [
        ("Maximum", "GreaterThanThreshold", -5, True),
        ("Maximum", "LessThanThreshold", 0, False),
        ("Minimum", "LessThanOrEqualToThreshold", 0, True),
        ("Minimum", "GreaterThanThreshold", 0, False),
        ("Sum", "GreaterThanThreshold", 0, True),
        ("Sum", "GreaterThanThreshold", -1, False),
        ("Sum", "LessThanThreshold", 0, False),
        ("SampleCount", "GreaterThanOrEqualToThreshold", 0, True),
        ("Average", "GreaterThanThreshold", 0, False),
        ("p99", "GreaterThanThreshold", 0, False),
    ],
)
def test_conclusive_open_windows(statistic: str, comparison: str, smallest: float, expected: bool) -> None:
    assert is_conclusive(statistic, Criteria(comparison, 1, 1, 1), smallest) is expected


@pytest.mark.parametrize(("percentile", "samples"), [(99, 1000), (50, 20), (90, 100), (10, 100), (25, 40), (100, 0)])
def test_samples_needed_for_a_percentile(percentile: float, samples: float) -> None:
    assert samples_needed(percentile) == pytest.approx(samples)


@pytest.mark.parametrize(
    ("before", "suppressor", "wait_s", "extension_s", "expected"),
    [
        (Suppression(), False, 0, 0, Suppression()),
        (Suppression(), False, 60, 0, Suppression("WaitPeriod", 160)),
        (Suppression(), True, 60, 60, Suppression("Alarm")),
        (Suppression("WaitPeriod", 160), False, 60, 60, Suppression("WaitPeriod", 160)),
        (Suppression("WaitPeriod", 100), False, 60, 60, Suppression()),
        (Suppression("WaitPeriod", 160), True, 60, 60, Suppression("Alarm")),
        (Suppression("Alarm"), True, 60, 60, Suppression("Alarm")),
        (Suppression("Alarm"), False, 60, 90, Suppression("ExtensionPeriod", 190)),
        (Suppression("Alarm"), False, 60, 0, Suppression()),
        (Suppression("ExtensionPeriod", 190), False, 60, 90, Suppression("ExtensionPeriod", 190)),
        (Suppression("ExtensionPeriod", 190), True, 60, 90, Suppression("Alarm")),
        (Suppression("ExtensionPeriod", 90), False, 60, 90, Suppression()),
    ],
)
def test_suppression(before: Suppression, suppressor: bool, wait_s: float, extension_s: float, expected: Suppression) -> None:
    found = suppress(before, suppressor_in_alarm=suppressor, wait_s=wait_s, extension_s=extension_s, now_s=100)
    assert found == expected
