"""The cluster query language: tables, then what must hold for every expression. Patterns are compared with Python's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.pattern import Pattern, PatternError
from corral.decide.placement.instance_query import InstanceQueryError, parse_instance_query, timestamp_s
from examples import examples

properties = settings(max_examples=examples(200), deadline=None)

FACTS = {
    "attribute:stack": ["prod"],
    "attribute:ecs.instance-type": ["g5.xlarge"],
    "attribute:cards": ["10"],
    "attribute:bare": [""],
    "attribute:where": ["rack 7"],
    "task:group": ["family:train", "service:web"],
    "agentConnected": ["true"],
    "agentVersion": ["1.10.0"],
    "ec2InstanceId": ["i-0123"],
    "registeredAt": ["1529360908.75"],  # 2018-06-18T22:28:28.75Z
    "runningTasksCount": ["3"],
    "pendingTasksCount": ["0"],
}


def holds(expression: str, facts: dict[str, list[str]] = FACTS) -> bool:
    return parse_instance_query(expression).matches(lambda subject: facts.get(subject, []))


@pytest.mark.parametrize(
    "expression",
    [
        "attribute:stack == prod",
        "attribute:stack==prod",
        "attribute:stack equals prod",
        "attribute:stack != test",
        "attribute:stack not_equals test",
        "attribute:missing != prod",
        "attribute:stack exists",
        "attribute:bare exists",
        "attribute:missing !exists",
        "attribute:missing not_exists",
        "attribute:stack in [test, prod]",
        "attribute:stack in [prod]",
        "attribute:stack !in [test]",
        "attribute:stack not_in [test, dev]",
        "attribute:missing not_in [prod]",
        "attribute:where == 'rack 7'",
        'attribute:where == "rack 7"',
        "attribute:where in ['rack 6', 'rack 7']",
        "attribute:ecs.instance-type =~ g5.*",
        "attribute:ecs.instance-type matches g5.*",
        "attribute:ecs.instance-type =~ (g4dn|g5)\\.x?large",
        "(attribute:ecs.instance-type =~ g5.*)",
        "attribute:ecs.instance-type !~ t2.*",
        "attribute:ecs.instance-type not_matches g5",  # the whole value must match
        "attribute:where =~ 'rack [0-9]'",
        "attribute:cards > 9",  # as numbers
        "attribute:cards greater_than_equal 10",
        "attribute:cards < 11",
        "attribute:cards less_than_equal 10",
        "attribute:stack > prob",  # as text
        "task:group == service:web",
        "task:group == family:train",
        "task:group != service:db",
        "not (task:group == service:db)",
        "task:group in [service:db, service:web]",
        "task:group =~ service:.*",
        "agentConnected == true",
        "agentVersion > 1.9.0",  # 1.10 is after 1.9
        "agentVersion == 1.10.0",
        "ec2InstanceId in ['i-0123', 'i-4567']",
        "runningTasksCount == 3",
        "runningTasksCount > 2 and pendingTasksCount == 0",
        "registeredAt > 2018-06-18",
        "registeredAt < 2018-06-19",
        "registeredAt == 2018-06-18T22:28:28",
        "registeredAt == 2018-06-18T22:28:28Z",
        "registeredAt == 2018-06-18T22:28:28+00:00",
        "registeredAt == 2018-06-19T00:28:28+02:00",
        "attribute:stack == test or attribute:cards == 10",
        "attribute:stack == test || attribute:cards == 10",
        "attribute:stack == prod && attribute:cards == 10",
        "attribute:stack==prod&&attribute:cards==10",
        "attribute:stack == prod or attribute:missing exists and attribute:missing exists",  # and binds more
        "not attribute:stack == test",
        "!(attribute:stack == test)",
        "!!attribute:stack == prod",
        "((attribute:stack == prod))",
    ],
)
def test_true_expressions_and_their_negations(expression: str) -> None:
    assert holds(expression)
    assert not holds(f"not ({expression})")


@pytest.mark.parametrize(
    ("expression", "what", "at"),
    [
        ("", "expected a subject", 1),
        ("attribute:", "is not a subject", 1),
        ("stack == prod", "'stack' is not a subject", 1),
        ("attribute:stack", "expected an operator", 16),
        ("attribute:stack = prod", "expected an operator", 17),
        ("attribute:stack == ", "expected a value", 20),
        ("attribute:stack == prod attribute:x exists", "expected 'and', 'or'", 25),
        ("(attribute:stack == prod", "expected ')'", 25),
        ("attribute:stack == prod)", "expected 'and', 'or'", 24),
        ("attribute:stack in prod", "expected a list", 20),
        ("attribute:stack in [prod", "expected ',' or ']'", 25),
        ("attribute:stack in []", "expected a value", 21),
        ("attribute:stack == 'prod", "a quote is not closed", 20),
        ("attribute:stack =~ (a", "missing )", 20),
        ("attribute:stack =~ a**", "bad repetition operator: **", 20),
        ("attribute:stack =~ (?=a)b", "invalid perl operator: (?=", 20),
        ("attribute:stack =~ (a)\\1", "invalid escape sequence: \\1", 20),
        ("runningTasksCount == many", "must be compared with a number", 22),
        ("runningTasksCount in [1]", "does not take the operator in", 19),
        ("agentVersion =~ 1.*", "does not take", 14),
        ("registeredAt > yesterday", "expected a date", 16),
        ("registeredAt > 2018-13-01", "expected a date", 16),
        ("attribute:a exists and", "expected a subject", 23),
        ("(" * 60 + "attribute:a exists" + ")" * 60, "parentheses nested more than 50 deep", 52),
    ],
)
def test_an_error_says_where(expression: str, what: str, at: int) -> None:
    with pytest.raises(InstanceQueryError) as found:
        parse_instance_query(expression)
    assert what in str(found.value)
    assert f"at character {at}," in str(found.value)


def test_an_expression_has_a_maximum_length() -> None:
    assert parse_instance_query("attribute:a == " + "x" * 1_985)
    with pytest.raises(InstanceQueryError, match="up to 2000"):
        parse_instance_query("attribute:a == " + "x" * 1_986)


def test_dependence_on_tasks() -> None:
    assert parse_instance_query("attribute:a exists or task:group == x").depends_on_tasks
    assert parse_instance_query("runningTasksCount < 3").depends_on_tasks
    assert not parse_instance_query("attribute:a exists and agentConnected == true").depends_on_tasks


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01", 0),
        ("2000-02-29T00:00:01Z", 951_782_401),
        ("2018-06-18T22:28:28", 1_529_360_908),
        ("1970-01-01T01:00:00-01:00", 7200),
    ],
)
def test_timestamps(text: str, seconds: int) -> None:
    assert timestamp_s(text) == seconds


# Patterns


@st.composite
def patterns(draw: st.DrawFn, depth: int = 3) -> str:
    """Patterns that both Python and RE2 accept."""
    atoms = st.sampled_from(("a", "b", "c", ".", "[ab]", "[^a]", "[a-b]", "\\.", "\\d", "\\w", "x-y"))
    if depth == 0:
        return draw(atoms)
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        atom = draw(atoms) if draw(st.booleans()) else f"({'?:' if draw(st.booleans()) else ''}{draw(patterns(depth=depth - 1))})"
        atom = f"(?:{atom})" if len(atom) > 1 else atom
        parts.append(atom + draw(st.sampled_from(("", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"))))
    text = "".join(parts)
    return f"{text}|{draw(patterns(depth=0))}" if draw(st.booleans()) else text


@properties
@given(patterns(), st.lists(st.text("abcx-y.1", max_size=8), max_size=8))
def test_patterns_match_as_pythons_do(text: str, values: list[str]) -> None:
    try:
        ours = Pattern(text)
    except PatternError as error:
        assert "repetition" in str(error) or "too large" in str(error)
        return
    theirs = re.compile(text)
    for value in values:
        assert ours.matches(value) == bool(theirs.fullmatch(value)), (text, value)


@properties
@given(st.text("ab()[]{}*+?|\\^$-.,0129&", max_size=30), st.text("ab-", max_size=6))
def test_any_text_is_a_pattern_or_a_clear_refusal(text: str, value: str) -> None:
    try:
        found = Pattern(text)
    except PatternError as error:
        assert str(error)
        return
    assert found.matches(value) in (True, False)


@pytest.mark.parametrize(
    "text", ["(a+)+b", "(a|a)*b", "(a*)*(a*)*(a*)*b", "(.*)(.*)(.*)(.*)(.*)c", "(a?){50}a{50}", "((a{10}){5}|a)*b"]
)
def test_patterns_with_exponential_backtracking_end(text: str) -> None:
    """With `re` some of these take years: the test would never end."""
    assert not Pattern(text).matches("a" * 128 + "!")


@pytest.mark.parametrize("text", ["((((a{99}){99}){99}){99})", "((((b|){99}){99}){99}){99}"])
def test_patterns_have_a_maximum_size(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


# Expressions as trees: written out and read again they mean the same.


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Any:
    kind = draw(st.sampled_from(("and", "or", "not", "leaf"))) if depth else "leaf"
    if kind == "leaf":
        return (
            draw(st.sampled_from("abc")),
            draw(st.sampled_from(("==", "!=", "in", "!in", "exists", "!exists"))),
            draw(st.sampled_from("xy")),
        )
    if kind == "not":
        return "not", draw(trees(depth - 1))
    return kind, draw(trees(depth - 1)), draw(trees(depth - 1))


def written(tree: Any, words: bool) -> str:
    match tree:
        case ("not", inner):
            return f"{'not ' if words else '!'}({written(inner, words)})"
        case (("and" | "or") as kind, left, right):
            sign = kind if words else {"and": "&&", "or": "||"}[kind]
            return f"({written(left, words)}) {sign} ({written(right, words)})"
        case (name, operator, value):
            argument = f"[{value}, z]" if "in" in operator else "" if "exists" in operator else value
            return f"attribute:{name} {operator} {argument}"


def means(tree: Any, facts: dict[str, str]) -> bool:
    match tree:
        case ("not", inner):
            return not means(inner, facts)
        case ("and", left, right):
            return means(left, facts) and means(right, facts)
        case ("or", left, right):
            return means(left, facts) or means(right, facts)
    name, operator, value = tree
    found = (name in facts) if "exists" in operator else facts.get(name) == value
    return found != operator.startswith("!")


@properties
@given(trees(), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), st.booleans())
def test_trees(tree: Any, facts: dict[str, str], words: bool) -> None:
    shown = {f"attribute:{name}": [value] for name, value in facts.items()}
    assert holds(written(tree, words), shown) == means(tree, facts)


@properties
@given(st.text("attribute:x ==!~<>in[],()'\"\\&|not and or exists 12", max_size=40))
def test_any_text_is_an_expression_or_a_clear_refusal(text: str) -> None:
    try:
        parse_instance_query(text)
    except InstanceQueryError as error:
        assert "at character" in str(error)


def test_a_pattern_with_very_many_repetitions_is_refused_before_it_is_compiled() -> None:
    for pattern in ("a{0,1000}" * 200, "(((a{30}){30}){30})", r"\pL" * 600, r"[\p{L}]{100}"):
        with pytest.raises(InstanceQueryError, match="repetitions"):
            parse_instance_query(f"attribute:a =~ '{pattern}'")
    for pattern in ("a{0,1000}", r"(?:ab[c-e{9}]){2,5}\d{12}", r"(?P<x>\p{L}{3})+", "[]]{4}"):
        parse_instance_query(f"attribute:a =~ '{pattern}'")
