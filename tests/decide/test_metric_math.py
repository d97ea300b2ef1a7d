"""Metric math: the examples of AWS's documentation, and properties of every expression."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.metrics.math import ExpressionScope, InvalidExpression, Series, calls_in, evaluate, names_in, parse, to_result
from corral.decide.metrics.math.functions import FUNCTIONS, UNSUPPORTED, date_of

PERIOD = 60
START = 1_699_999_980  # Tuesday, 14 November 2023, 22:13
NONE = None  # what the documentation writes as -


def series(*values: float | None, label: str = "", period: int = PERIOD) -> Series:
    return Series(label, period, {START + at * period: float(value) for at, value in enumerate(values) if value is not None})


def scope(length: int, **metrics: Series) -> ExpressionScope:
    return ExpressionScope(
        results=metrics,
        metrics=metrics,
        period_s=PERIOD,
        times=lambda period: range(START, START + length * PERIOD, period),
        search=lambda query, statistic, period: (series(1, label=f"{query}/{statistic}/{period}"),),
        count=lambda datapoints: None,
    )


def computed(expression: str, length: int = 4, **metrics: Series) -> object:
    """The values with None for missing ones; a list of such lists for an array."""
    found = evaluate(parse(expression), scope(length, **metrics))
    if isinstance(found, tuple):
        return [shown(each, length) for each in found]
    return shown(found, length) if isinstance(found, Series) else found


def shown(found: Series, length: int) -> list[float | None]:
    assert list(found.values) == sorted(found.values)
    values = [found.values.get(START + at * PERIOD) for at in range(length)]
    assert len(found.values) == sum(value is not None for value in values), "a value at a time outside the request"
    return values


METRIC1, METRIC2 = series(30, 20, 0, 0), series(20, NONE, 20, NONE)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("metric1 < metric2", [0, 0, 1, 0]),
        ("metric1 >= 30", [1, 0, 0, 0]),
        ("metric1 > 15 AND metric2 > 15", [1, 0, 0, 0]),
        ("metric1 > 15 && metric2 > 15", [1, 0, 0, 0]),
        ("metric1 > 15 OR metric2 > 15", [1, 1, 1, 0]),
        ("metric1 == 0 || metric2 == 20", [1, 0, 1, 1]),
        ("metric1 != metric2", [1, 1, 1, 0]),
        ("metric1 + metric2", [50, 20, 20, 0]),
        ("metric1 - metric2", [10, 20, -20, 0]),
        ("metric2 / metric1", [20 / 30, 0, NONE, NONE]),  # by zero: dropped
        ("5 * metric2", [100, NONE, 100, NONE]),
        ("-metric1", [-30, -20, 0, 0]),
        ("-5*metric2", [-100, NONE, -100, NONE]),
        ("metric1 ^ 2", [900, 400, 0, 0]),
        ("metric1 - MIN(metric1)", [30, 20, 0, 0]),
        ("metric1 / PERIOD(metric1)", [0.5, 20 / 60, 0, 0]),
        ("SUM([metric1, metric2])", [50, 20, 20, 0]),
        ("SUM(METRICS())", [50, 20, 20, 0]),
        ("SUM(METRICS('metric1'))", [30, 20, 0, 0]),
        ('SUM([METRICS("c1"), METRICS("c2")])', [50, 20, 20, 0]),
        ("AVG(METRICS())", [25, 10, 10, 0]),  # missing counts as 0
        ("MAX(METRICS())", [30, 20, 20, 0]),
        ("MIN(METRICS())", [20, 20, 0, 0]),
        ("STDDEV(METRICS())", [5, 0, 10, 0]),
        ("DATAPOINT_COUNT(METRICS())", [2, 1, 2, 1]),
        ("METRICS() / 10", [[3, 2, 0, 0], [2, NONE, 2, NONE]]),
        ("metric1 / METRICS()", [[1, 1, NONE, NONE], [1.5, NONE, 0, NONE]]),
        ("SUM(-[metric1, metric2])", [-50, -20, -20, 0]),
        ("TIME_SERIES(5 * AVG(metric2))", [100] * 4),
        ("TIME_SERIES(SUM(metric1) / DATAPOINT_COUNT(metric1))", [12.5] * 4),
        ("metric1 / METRIC_COUNT(METRICS())", [15, 10, 0, 0]),
        ("DIFF(metric1)", [NONE, -10, -20, 0]),
        ("DIFF_TIME(metric2)", [NONE, NONE, 120, NONE]),
        ("RATE(metric1)", [NONE, -10 / 60, -20 / 60, 0]),
        ("RUNNING_SUM(metric1)", [30, 50, 50, 50]),
        ("FILL(metric2, 7)", [20, 7, 20, 7]),
        ("FILL(metric2, metric1)", [20, 20, 20, 0]),
        ("FILL(metric2, REPEAT)", [20, 20, 20, 20]),
        ("FILL(metric2, LINEAR)", [20, 20, 20, NONE]),
        ("FILL(metric2, MIN(metric1))", [20, 0, 20, 0]),
        ("FILL(METRICS(), 1)", [[30, 20, 0, 0], [20, 1, 20, 1]]),
        ("ABS(metric2 - metric1)", [10, 20, 20, 0]),
        ("CEIL(metric1 / 7)", [5, 3, 0, 0]),
        ("FLOOR(metric1 / 7)", [4, 2, 0, 0]),
        ("LOG10(metric1 * 10 / 3)", [2, pytest.approx(1.8239087), NONE, NONE]),
        ("LOG(metric2 / 20)", [0, NONE, 0, NONE]),
        ("SORT(METRICS(), AVG, DESC)", [[20, NONE, 20, NONE], [30, 20, 0, 0]]),
        ("SORT(METRICS(), SUM, DESC, 1)", [[30, 20, 0, 0]]),
        ("SORT(METRICS(), MAX, ASC)", [[20, NONE, 20, NONE], [30, 20, 0, 0]]),
        ("FIRST(SORT(METRICS(), MAX, ASC))", [20, NONE, 20, NONE]),
        ("IF(FIRST(SORT(METRICS(), AVG, DESC)) > 100, 1, 0)", [0, NONE, 0, NONE]),
        ("LAST(METRICS())", [20, NONE, 20, NONE]),
        ("SLICE(METRICS(), 1)", [[20, NONE, 20, NONE]]),
        ("SLICE(METRICS(), 0, 1)", [[30, 20, 0, 0]]),
        ("REMOVE_EMPTY([metric1, IF(metric1 > 100, metric1)])", [[30, 20, 0, 0]]),
        ("IF(metric1 < 25, metric1)", [NONE, 20, 0, 0]),
        ("IF(metric1 < 25, 10, 2)", [2, 10, 10, 10]),
        ("IF(1, metric1, metric2)", [30, 20, 0, 0]),
        ("IF(0, metric1, metric2)", [20, NONE, 20, NONE]),
        ("IF(0, metric1)", [NONE] * 4),
        ("MINUTE(metric2)", [13, 14, 15, 16]),
        ("HOUR(metric2)", [22] * 4),
        ("DAY(metric1)", [2] * 4),
        ("DATE(metric1)", [14] * 4),
        ("MONTH(metric1)", [11] * 4),
        ("YEAR(metric1)", [2023] * 4),
        ("EPOCH(metric1)", [START + at * 60 for at in range(4)]),
        ("IF(DAY(metric1) < 6, metric1)", [30, 20, 0, 0]),
        ("2 + 3 * 2 ^ 2 ^ 1 - -1", 15),
        ("(2 + 3) * 2 == 10 AND 1 < 2", 1),
        ("SEARCH(' {a} b ', 'Sum', 60)", [[1, NONE, NONE, NONE]]),
    ],
)  # fmt: skip
def test_examples(expression, expected):
    assert computed(expression, metric1=METRIC1, metric2=METRIC2) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("IF(metric1, metric2, metric3)", [30, 0, 20, NONE, NONE]),
        ("IF(metric1, 5, metric3)", [5, 5, 20, NONE, NONE]),
        ("IF(metric1, metric2, 5)", [30, 0, 5, 5, NONE]),
        ("IF(metric1, metric2)", [30, 0, NONE, NONE, NONE]),
    ],
)
def test_if_as_documented(expression, expected):
    metrics = {
        "metric1": series(1, 1, 0, 0, NONE),
        "metric2": series(30, NONE, 0, 0, 30),
        "metric3": series(0, 0, 20, NONE, 20),
    }
    assert computed(expression, 5, **metrics) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("m1 +", "ends too early"),
        ("m1 + $", r"Unexpected '\$' at character 6"),
        ("(m1", "ends too early"),
        ("m1 m1", "Unexpected 'm1' at character 4"),
        ("m2 + 1", "no query with the id 'm2'"),
        ("SUM(m1, m1)", "SUM takes 1 arguments, not 2"),
        ("sum(m1)", "Unknown function 'sum'"),
        ("METRICS() + METRICS()", "two arrays"),
        ("FILL(m1, ZERO)", "FILL can fill only with"),
        ("SORT(METRICS(), MEDIAN, ASC)", "SORT must sort by"),
        ("PERIOD(1)", "needs an array"),
        ("TIME_SERIES(m1)", "needs a scalar"),
        ("1 / 0", "not a number"),
        ("'text'", "Unexpected text"),
        ("[1, 2]", "not scalars"),
        ("IF(METRICS(), 1, 0)", "not arrays"),
        ("(" * 500 + "m1" + ")" * 500, "too deeply"),
        ("-" * 1000 + "m1", "too deeply"),
        *[(f"{name}(m1)", f"does not support the function {name}") for name in UNSUPPORTED],
    ],
)
def test_invalid_expressions_are_refused_with_the_reason(expression, words):
    with pytest.raises(InvalidExpression, match=words):
        evaluate(parse(expression), scope(4, m1=METRIC1, m3=METRIC2))


def test_a_scalar_is_not_a_valid_result():
    with pytest.raises(InvalidExpression, match="scalar"):
        to_result(evaluate(parse("AVG(m1)"), scope(4, m1=METRIC1)))


def test_every_documented_function_is_known():
    documented = """ABS ANOMALY_DETECTION_BAND AVG CEIL DATAPOINT_COUNT DATE DAY DIFF DIFF_TIME EPOCH FILL FIRST FLOOR HOUR IF
        INSIGHT_RULE_METRIC LAST LOG LOG10 MAX METRIC_COUNT METRICS MIN MINUTE MONTH PERIOD RATE REMOVE_EMPTY RUNNING_SUM SEARCH
        SERVICE_QUOTA SLICE SORT STDDEV SUM TIME_SERIES YEAR"""
    assert set(documented.split()) <= {*FUNCTIONS, *UNSUPPORTED}


@given(st.integers(-30_000_000_000, 250_000_000_000))
def test_dates_are_those_of_the_calendar(at_s):
    date = datetime.fromtimestamp(at_s, UTC)
    assert date_of(at_s) == (date.year, date.month, date.day)


VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=6, max_size=6)


@given(VALUES, VALUES)
def test_operators_agree_with_one_another(left, right):
    metrics = {"a": series(*left), "b": series(*right)}
    for one, other in [
        ("a + b", "SUM([a, b])"),
        ("a - b", "a + -b"),
        ("b - a", "-(a - b)"),
        ("a < b", "b > a"),
        ("a >= b", "1 - (a < b)"),
        ("AVG([a, b]) * 2", "a + b"),
        ("RUNNING_SUM(FILL(a, 0))", "RUNNING_SUM(FILL(a, TIME_SERIES(0)))"),
        ("RATE(a) * DIFF_TIME(a)", "DIFF(a)"),
    ]:
        first, second = computed(one, 6, **metrics), computed(other, 6, **metrics)
        assert [value is None for value in first] == [value is None for value in second]
        assert [value for value in first if value is not None] == pytest.approx(
            [value for value in second if value is not None], rel=1e-9, abs=1e-9
        )


@given(VALUES)
def test_fill_keeps_existing_values(values):
    for filler in ("0", "REPEAT", "LINEAR"):
        filled = computed(f"FILL(a, {filler})", 6, a=series(*values))
        assert all(value is None or value == found for value, found in zip(values, filled))
    assert None not in computed("FILL(a, 0)", 6, a=series(*values))


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "1", "2.5", "METRICS()"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "<", "AND", "=="]), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(st.sampled_from([name for name in FUNCTIONS if name not in ("SEARCH",)]), inner).map(lambda p: f"{p[0]}({p[1]})"),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_any_expression_is_computed_or_refused(text):
    """No other exception occurs, and values are in the order of time."""
    expression = parse(text)
    assert set(names_in(expression)) <= {"a", "b"}
    try:
        found = to_result(evaluate(expression, scope(4, a=METRIC1, b=METRIC2)))
    except InvalidExpression:
        return
    for each in (found,) if isinstance(found, Series) else found:
        assert list(each.values) == sorted(each.values) and all(value == value for value in each.values.values())


def test_a_sum_of_many_terms():
    text = "+".join(["a"] * 1000)
    assert computed(text, 2, a=series(1, 2)) == [1000, 2000]
    assert list(names_in(parse(text))) == ["a"] * 1000
    assert calls_in(parse("+".join(["ABS(a)"] * 200)), "ABS") == 200
