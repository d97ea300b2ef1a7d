"""CloudWatch's statistics: parsing and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.metrics.statistics import parse_statistic, value_of
from corral.model.metric import Summary


def summary(*values: float) -> Summary:
    found = Summary()
    for value in values:
        found.add(float(value))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SampleCount", 10),
        ("Average", 5.5),
        ("Minimum", 1),
        ("p10", 1),
        ("p10.5", 2),
        ("p50", 5),
        ("p95", 10),
        ("p100", 10),
        ("p0", 1),
        ("tm90", 5),
        ("TM(:90%)", 5),
        ("TM(20%:80%)", 5.5),
        ("TM(2:5)", 4),  # above 2, not above 5
        ("iqm", 5.5),
        ("wm90", (45 + 9) / 10),
        ("WM(10%:90%)", (2 + sum(range(2, 10)) + 9) / 10),
        ("WM(3:8)", (3 * 2 + sum(range(3, 9)) + 8 * 2) / 10),
        ("tc90", 9),
        ("TC(2:5)", 3),
        ("ts50", 15),
        ("TS(80%:)", 19),
        ("PR(:3)", 30),
        ("PR(3:5)", 20),
        ("PR(1e0:)", 90),
    ],
)
def test_statistics_of_one_to_ten(text, expected):
    statistic = parse_statistic(text)
    assert statistic is not None
    assert value_of(summary(*range(1, 11)), statistic) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    ["", "average", "p", "p101", "p-1", "tm", "TM()", "TM(:)", "TM(10%:90)", "TM(90%:10%)", "PR(10%:)", "XX(1:2)", "TM(:101%)"],
)
def test_invalid_statistics(text):
    assert parse_statistic(text) is None


def test_percentiles_need_known_values_that_are_not_negative():
    p50 = parse_statistic("p50")
    assert p50 is not None
    assert value_of(Summary(3, 6, 1, 3, None), p50) is None
    assert value_of(summary(-1, 5), p50) is None


VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_and_stay_inside(values, low, high):
    low, high = sorted((low, high))
    first, second = (value_of(summary(*values), parse_statistic(f"p{at:.6f}")) for at in (low, high))
    assert min(values) <= first <= second <= max(values)
    assert first in values


@given(VALUES, st.integers(1, 99))
def test_complementary_parts_add_up(values, percent):
    def told(text):
        return value_of(summary(*values), parse_statistic(text))

    assert told(f"TC(:{percent}%)") + told(f"TC({percent}%:)") == pytest.approx(len(values))
    assert told(f"TS(:{percent}%)") + told(f"TS({percent}%:)") == pytest.approx(sum(values))
    assert told(f"tm{percent}") <= told("Average") * (1 + 1e-9) + 1e-9
