"""Rules of composite alarms: parsing, evaluation, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.metrics.alarm_rule import AlarmRuleError, alarms_of, evaluate_rule, parse_rule
from corral.model.alarm import AlarmState

STATES = {
    "cpu": AlarmState.ALARM,
    "disk": AlarmState.OK,
    "net": AlarmState.INSUFFICIENT_DATA,
    "with space (and more)": AlarmState.ALARM,
    'quo"te': AlarmState.ALARM,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRUE", True),
        ("false", False),
        ("ALARM(cpu)", True),
        ('ALARM("cpu")', True),
        ("OK(cpu)", False),
        ("INSUFFICIENT_DATA(net)", True),
        ("ALARM(cpu) AND ALARM(disk)", False),
        ("ALARM(cpu) AND NOT ALARM(disk)", True),
        ("ALARM(disk) OR ALARM(cpu)", True),
        ("(ALARM(disk) OR ALARM(cpu)) AND OK(net)", False),
        ("ALARM(disk) AND ALARM(cpu) OR TRUE", True),  # AND binds closer
        ("TRUE OR ALARM(disk) AND ALARM(disk)", True),
        ("NOT NOT ALARM(cpu)", True),
        ("NOT (ALARM(cpu) OR TRUE)", False),
        ('ALARM("with space (and more)")', True),
        (r'ALARM("quo\"te")', True),
        (" ALARM ( cpu ) ", True),
        ("ALARM(gone) OR OK(gone) OR INSUFFICIENT_DATA(gone)", False),
        ("AT_LEAST(1, ALARM, (cpu, disk, net))", True),
        ("AT_LEAST(2, ALARM, (cpu, disk, net))", False),
        ('AT_LEAST(2, NOT OK, ("cpu", "disk", "net"))', True),
        ("AT_LEAST(50%, ALARM, (cpu, disk))", True),
        ("AT_LEAST(51%, ALARM, (cpu, disk))", False),
        ('AT_LEAST("60%", NOT ALARM, (cpu, disk, net))', True),
        ("AT_LEAST(2, NOT OK, (cpu, gone))", False),
    ],
)
def test_rules(text: str, expected: bool) -> None:
    assert evaluate_rule(parse_rule(text), STATES.get) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "ALARM", "ALARM(", "ALARM()", "ALARM(a", "ALARM(a) ALARM(b)", "ALARM(a) AND", "AND ALARM(a)", "(ALARM(a)"),
        *("ALARM(a))", 'ALARM("a)', "cpu", "NOT", "ALARM(a, b)", "AT_LEAST(0, ALARM, (a))", "AT_LEAST(3, ALARM, (a, b))"),
        *("AT_LEAST(x, ALARM, (a))", "AT_LEAST(1, BROKEN, (a))", "AT_LEAST(1, ALARM, ())", "AT_LEAST(1, ALARM, a)"),
        " AND ".join(f"ALARM(a{at})" for at in range(101)),
        " AND ".join(["TRUE"] * 501),
        "(" * 5000,
        "NOT " * 2500,
        "(" * 101 + "TRUE" + ")" * 101,
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(AlarmRuleError):
        parse_rule(text)


def test_the_alarms_of_a_rule() -> None:
    rule = parse_rule("ALARM(a) AND NOT (OK(b) OR AT_LEAST(1, OK, (c, d))) OR ALARM(a)")
    assert list(alarms_of(rule)) == ["a", "b", "c", "d", "a"]


@given(st.text(alphabet='ALRMOK()", ATES_2%\\x', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        evaluate_rule(parse_rule(text), STATES.get)
    except AlarmRuleError as error:
        assert str(error)
