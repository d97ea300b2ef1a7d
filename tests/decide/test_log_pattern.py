"""Filter patterns of CloudWatch Logs: matches, refusals with their positions, and bounded time."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.logs.pattern import InvalidPattern, parse
from corral.model.message_hint import fits

WEB = '10.0.0.7 - anna [01/Nov/2026:13:25:15 +0100] "GET /train/run.html HTTP/1.1" 404 1534'
JOB = json.dumps(
    {
        "event": "step",
        "user": {"id": 7, "mail": "anna@lab.example"},
        "ip": "10.0.0.7",
        "losses": [0.5, 0.25],
        "gpus": [{"name": "H200", "busy": 97}, {"name": "H100", "busy": 3}],
        "matrix": [[1, 2], [3, 4]],
        "resumed": False,
        "final": True,
        "parent": None,
        "code": "007",
        "run-id": "a/b",
    }
)


@pytest.mark.parametrize(
    ("pattern", "message", "matches"),
    [
        ("", "anything", True),
        ("   ", "anything", True),
        ('" "', "without_a_space", True),  # everything
        ("ERROR", "[ERROR] out of memory", True),
        ("ERROR", "ERRORCODE 7", True),  # a part of a word is enough
        ("ERROR", "[error] out of memory", False),
        ("ERROR memory", "memory: ERROR", True),  # in any order
        ("ERROR memory", "ERROR disk", False),
        ('"out of memory"', "CUDA out of memory", True),
        ('"out of memory"', "out of CUDA memory", False),
        (r'"say \"stop\""', 'they say "stop" now', True),
        (r'"a\\b"', "a\\b", True),
        ("?ERROR ?WARN", "WARN: slow", True),
        ("?ERROR ?WARN", "ERROR and WARN", True),
        ("?ERROR ?WARN", "INFO", False),
        ('?"out of" ?WARN', "out of disk", True),
        ("ERROR -retry", "ERROR gave up", True),
        ("ERROR -retry", "ERROR will retry", False),
        ('ERROR - "will retry"', "ERROR will retry", False),  # a space after the sign is allowed
        ("-DEBUG", "INFO", True),
        ("-DEBUG", "DEBUG", False),
        ("?WARN ERROR", "ERROR only", True),  # ? terms are ignored if there are other terms
        ("?WARN -DEBUG", "INFO only", True),
        ("?WARN -DEBUG", "WARN DEBUG", False),
        ("%loss: [0-9]+%", "loss: 12", True),
        ("%loss: [0-9]+%", "loss: nan", False),
        ("%^ERROR%", "ERROR first", True),
        ("%^ERROR%", "an ERROR later", False),
        ("%done$%", "all done", True),
        ("%done$%", "done, all", False),
        ("%colou?r%", "color", True),
        ("%gr[ae]y|white%", "off-white", True),
        ("%[^0-9]x%", "1x", False),
        ("%a{2,3}b%", "xaab", True),
        ("%^a{2,3}b%", "aaaab", False),
        (r"%10\.0\.0\.\d{1,3}%", "from 10.0.0.77", True),
        (r"%10\.0\.0\.\d{1,3}%", "from 10-0-0-77", False),
        (r"%\x28main\x29%", "in (main)", True),
        (r"%\w+\s\S+\W\D%", "ab c-d", True),
        ("%.%", "\n", False),
        ("%[.*]%", "a*", True),  # plain characters in a class
        ("-%[0-9]%", "no digits", True),
        ("?%[0-9]% ?none", "none", True),
    ],
)
def test_terms(pattern, message, matches):
    assert parse(pattern).matches(message) is matches


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("[ip, dash, user, time, request, status, size]", True),
        ("[ip, dash, user, time, request, status]", False),  # one field too few
        ("[ip, dash, user, time, request, status, size, more]", False),
        ("[...]", True),
        ("[ip, ...]", True),
        ("[..., status, size]", True),
        ("[ip, user, ..., status, size]", True),
        ("[ip, ..., a, b, c, d, e, size]", True),  # ... may stand for nothing
        ("[ip, ..., a, b, c, d, e, f, size]", False),
        ("[..., status=404, size]", True),
        ("[..., status = 404 , size]", True),
        ("[..., status=404.0, size]", True),  # a number
        ('[..., status="404.0", size]', False),  # a text
        ("[..., status=4*, size]", True),
        ("[..., status=5*, size]", False),
        ("[..., status!=404, size]", False),
        ("[..., status!=5*, size]", True),
        ("[..., status=4* && status!=403, size]", True),
        ("[..., status=4* && status!=404, size]", False),
        ("[..., status=500 || status=404, size]", True),
        ("[..., (status>=400 && status<500) || status=200, size]", True),
        ("[..., size>1000]", True),
        ("[..., size>1534]", False),
        ("[..., size>=1534]", True),
        ("[..., size<1.6e3]", True),
        ("[..., size<=+1533]", False),
        ("[..., request=*.html*, status_code=4*,]", True),
        ("[..., request=GET*, status, size]", True),
        ('[..., request="*HTTP/1.1", status, size]', True),
        ("[ip, dash, user>3, ...]", False),  # not a number
        ("[ip=%^10[.]0%, ...]", True),
        ("[ip!=%^10[.]0%, ...]", False),
        ("[ip, dash, user, time=01/Nov*, ...]", True),
        ("[, , user=anna, ...]", True),
    ],
)
def test_fields(pattern, matches):
    assert parse(pattern).matches(WEB) is matches


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("a b\tc", ["a", "b", "c"]),
        ('a "b c" d', ["a", "b c", "d"]),
        ("a [b c] d", ["a", "b c", "d"]),
        ('a "" []', ["a", "", ""]),
        ('a "b c', ["a", '"b', "c"]),
        ("a [b c", ["a", "[b", "c"]),
        ("[a]b [c d]", ["[a]b", "c d"]),
        ('"a"b c"', ['"a"b', 'c"']),
        ("", []),
    ],
)
def test_fields_of_a_message(message, fields):
    extracted = parse("[...]").extract(message)
    assert list(extracted.values()) == fields
    assert list(extracted) == [f"${number}" for number in range(1, len(fields) + 1)]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ('{ $.event = "step" }', True),
        ("{$.event=step}", True),
        ("{ $.event = Step }", False),
        ("{ $.event != step }", False),
        ("{ $.event = st* }", True),
        ("{ $.event = *ep }", True),
        ("{ $.event = *te* }", True),
        ("{ $.event = s*p }", False),  # a wildcard only at the ends
        ("{ $.event = * }", True),
        ('{ $.event = "st*" }', True),
        ("{ $.event = %^s.*p$% }", True),
        ("{ $.event != %^s% }", False),
        ("{ $.user.id = 7 }", True),
        ("{ $.user.id = 7.0 }", True),
        ('{ $.user.id = "7" }', True),
        ("{ $.user.id != 8 }", True),
        ("{ $.user.id > 6 && $.user.id < 8 }", True),
        ("{ $.user.id >= 0.7e1 }", True),
        ("{ $.user.id <= -7 }", False),
        ('{ $.user.mail = "*@lab.example" }', True),
        ("{ $.ip != 123.123.* }", True),
        ("{ $.losses[1] = 0.25 }", True),
        ("{ $.losses[2] = * }", False),
        ("{ $.gpus[1].busy < 10e-1 }", False),
        ("{ $.gpus[1].busy < 10 }", True),
        ("{ $.gpus[*].busy > 90 }", True),
        ("{ $.gpus[*].busy > 98 }", False),
        ("{ $.matrix[1][0] = 3 }", True),
        ("{ $.*.id = 7 }", True),
        ("{ $.run-id = a* }", True),
        ("{ $.resumed IS FALSE && $.final IS TRUE }", True),
        ("{ $.resumed IS TRUE }", False),
        ("{ $.final = true }", True),
        ("{ $.parent IS NULL }", True),
        ("{ $.event IS NULL }", False),
        ("{ $.nothing IS NULL }", False),
        ("{ $.nothing NOT EXISTS }", True),
        ("{ $.parent NOT EXISTS }", False),
        ("{ $.nothing != 3 }", False),  # nothing to compare
        ("{ $.losses = 1 }", False),  # neither is a list
        ("{ $.losses != 1 }", False),
        ("{ $.user != 1 }", False),
        ("{ $.code = 7 }", True),  # a text that is that number
        ("{ $.code > 6 }", False),  # only numbers are greater
        ("{ $.event = no || $.user.id = 7 && $.ip = 10* }", True),
        ("{ ($.event = no || $.user.id = 7) && $.ip = 11* }", False),
        ("{ (($.event = step)) }", True),
    ],
)
def test_selectors(pattern, matches):
    assert parse(pattern).matches(JOB) is matches


@pytest.mark.parametrize("message", ["", "plain text", "{", '{"event": }', "[1, 2]", "7", '"step"', "null", "[" * 100_000])
def test_selectors_match_json_objects_only(message):
    assert not parse("{ $.event = * }").matches(message)


def test_a_list_may_be_the_root():
    assert parse("{ $[0].id = 7 }").matches('[{"id": 7}]')


def test_extracted_fields():
    assert parse("[..., request=*.html*, status_code=4*,]").extract(WEB) == {
        "$1": "10.0.0.7",
        "$2": "-",
        "$3": "anna",
        "$4": "01/Nov/2026:13:25:15 +0100",
        "$request": "GET /train/run.html HTTP/1.1",
        "$status_code": "404",
        "$7": "1534",
    }
    assert parse("{ $.user.id = 7 && $.event = * && $.final IS TRUE && $.nothing NOT EXISTS }").extract(JOB) == {
        "$.user.id": "7",
        "$.event": "step",
        "$.final": "true",
    }
    assert parse("ERROR").extract("ERROR") == {}


@pytest.mark.parametrize(
    ("pattern", "fault", "at"),
    [
        ("anna@lab", "Invalid character(s) in term 'anna@lab'", 1),
        ("ERROR /train", "Invalid character", 7),
        ("ERROR -", "Invalid character", 8),
        ('"not closed', "not closed", 1),
        ("{ $.a = 1", "must end with '}'", 10),
        ("[a, b", "must end with ']'", 6),
        ("{ $.a = 1 } b", "follow the closing", 13),
        ("{ a = 1 }", "selector", 3),
        ("{ $ = 1 }", "must continue with", 4),
        ("{ $.a }", "operator is missing", 7),
        ("{ $.a = }", "value is missing", 9),
        ("{ $.a = @b }", "value is missing", 9),
        ("{ $.a > b }", "needs a number", 8),
        ("{ ($.a = 1 }", "not closed by ')'", 12),
        ("{ $.a = 1 && }", "selector", 14),
        ("{ $.a[*].b[*] = 1 }", "at most one wildcard", 14),
        ("{ " + "(" * 60 + "$.a = 1" + ")" * 60 + " }", "nested", 54),
        ("{ $.a = %x% || $.a = %y% || $.a = %z% }", "at most 2 regular", 40),
        ("[a = 1 && b = 2]", "must name 'a', not 'b'", 11),
        ("[a && b]", "operator is missing", 4),
        ("[a = ]", "value is missing", 6),
        ("[..., a, ...]", "once", 13),
        ("[!a]", "name is missing", 2),
        ("%", "not closed by '%'", 1),
        ("%%", "empty", 1),
        ("%a(b)%", r"write it as \x28", 3),
        ("%a!%", r"write it as \x21", 3),
        ("%[a%", "not closed by ']'", 2),
        ("%[]%", "is empty", 2),
        ("%[z-a]%", "from a lower", 6),
        ("%*a%", "nothing to", 2),
        ("%a**%", "nothing to", 4),
        ("%a{3,1}%", "from the lower", 3),
        ("%a{999}%", "up to 255", 3),
        ("%a{x}%", "write repetitions as {m}", 3),
        (r"%\q%", "not supported", 3),
        (r"%\xg1%", "two hexadecimal", 4),
        ("%" + "a{255}" * 8 + "%", "too large", 50),
        ("x" * 1025, "at most 1024", 1025),
    ],
)
def test_a_refusal_names_the_fault_and_its_position(pattern, fault, at):
    with pytest.raises(InvalidPattern) as refused:
        parse(pattern)
    assert fault in str(refused.value)
    assert str(refused.value).endswith(f"(at character {at})")


def test_hostile_expressions_and_messages_take_no_time():
    long = "a" * 200_000
    assert not parse("%a*a*a*a*a*b%").matches(long)
    assert parse("%a*a*a*a*a*b%").matches(long + "b")
    assert not parse("%^a*b$|a*c%").matches(long)
    assert not parse("[a=b]").matches("[ " * 200_000)
    assert not parse("[a=b]").matches('" ' * 100_001)


# Properties

ALPHABET = 'aB1 _-"[]{}:,.é\n\\u'
messages = st.text(alphabet=ALPHABET, max_size=40) | st.text(max_size=40)
words = st.text(alphabet="aB1_", min_size=1, max_size=3)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.floats(-5, 5, width=16) | st.text(alphabet="aB1 é/", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "B", "c-d"]), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)  # other work on the machine is no failure
@given(needed=st.lists(words, max_size=3), unwanted=st.lists(words, max_size=2), some=st.lists(words, max_size=3), message=messages)
def test_terms_agree_with_a_plain_search(needed, unwanted, some, message):
    pattern = parse(" ".join([*needed, *(f"-{word}" for word in unwanted), *(f'?"{word}"' for word in some)]))
    expected = all(word in message for word in needed) and not any(word in message for word in unwanted)
    if some and not needed and not unwanted:
        expected = any(word in message for word in some)
    assert pattern.matches(message) == expected
    assert pattern.exact and fits(pattern.hint, message) == expected  # the database alone may decide


@st.composite
def expressions(draw) -> str:
    """Expressions that mean the same in CloudWatch's syntax and in Python's."""
    atoms = st.sampled_from(["a", "B", "1", ".", "[aB]", "[^a]", r"\d", r"\W", r"\.", "_"])
    times = st.sampled_from(["", "", "*", "+", "?", "{1,2}", "{2}", "{0,3}", "{1,}"])
    branch = st.lists(st.tuples(atoms, times).map("".join), max_size=5).map("".join)
    branches = draw(
        st.lists(st.tuples(st.sampled_from(["", "^"]), branch, st.sampled_from(["", "$"])).map("".join), min_size=1, max_size=3)
    )
    return "|".join(branches)


@settings(deadline=None)
@given(expression=expressions().filter(bool), message=messages)
def test_both_matchers_agree_with_python(expression, message):
    pattern = parse(f"%{expression}%")
    expected = re.search(expression.replace("$", r"\Z"), message, re.ASCII) is not None
    [regex] = pattern.needed  # type: ignore[attr-defined]
    assert pattern.matches(message) == expected
    assert regex._linear.found_in(message) == expected
    assert not expected or fits(pattern.hint, message)


PATHS = {"$.a": ("a",), "$.B": ("B",), "$.a.B": ("a", "B"), "$.c-d[0]": ("c-d", 0), "$[1].a": (1, "a")}


def looked_up(document, path):
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return []
    return [document]


def naive(document, path, operator, literal) -> bool:
    for value in looked_up(document, path):
        if value is None or isinstance(value, (list, dict)):
            return False
        if operator in ("=", "!="):
            if isinstance(literal, str):
                shown = value if isinstance(value, str) else json.dumps(value)
                same = shown == literal
            elif isinstance(value, str):
                same = value.isascii() and value.isdigit() and int(value) == literal
            else:
                same = not isinstance(value, bool) and value == literal
            return same == (operator == "=")
        if isinstance(value, (str, bool)):
            return False
        return {"<": value < literal, ">": value > literal, "<=": value <= literal, ">=": value >= literal}[operator]
    return False


@settings(deadline=None)
@given(
    document=st.dictionaries(st.sampled_from(["a", "B", "c-d"]), documents, max_size=3) | st.lists(documents, max_size=3),
    terms=st.lists(
        st.tuples(
            st.sampled_from(sorted(PATHS)),
            st.sampled_from(["=", "!=", "<", ">", "<=", ">="]),
            st.integers(-20, 20),
            st.text(alphabet="aB1 é/", max_size=3),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    joint=st.sampled_from(["&&", "||"]),
    escaped=st.booleans(),
)
def test_selectors_agree_with_a_plain_evaluation(document, terms, joint, escaped):
    parts, expected = [], []
    for path, operator, number, text, as_text in terms:
        textual = as_text and operator in ("=", "!=")
        parts.append(f'{path} {operator} "{text}"' if textual else f"{path} {operator} {number}")
        expected.append(naive(document, PATHS[path], operator, text if textual else number))
    pattern = parse("{ " + f" {joint} ".join(parts) + " }")
    message = json.dumps(document, ensure_ascii=escaped)
    wanted = all(expected) if joint == "&&" else any(expected)
    assert pattern.matches(message) == wanted
    assert not wanted or fits(pattern.hint, message), "the database would have dropped it"


@settings(deadline=None)
@given(
    fields=st.lists(st.text(alphabet="aB1.", min_size=1, max_size=4), max_size=6),
    conditions=st.lists(
        st.none() | st.tuples(st.sampled_from(["=", "!="]), st.text(alphabet="aB.", min_size=1, max_size=2)), max_size=4
    ),
    gap=st.none() | st.integers(0, 4),
)
def test_fields_agree_with_a_plain_evaluation(fields, conditions, gap):
    named = [f"f{at}{''.join(condition) if condition else ''}" for at, condition in enumerate(conditions)]
    if gap is not None:
        named.insert(min(gap, len(named)), "...")
    if not named:
        return
    pattern, message = parse(f"[{', '.join(named)}]"), " ".join(fields)
    over = len(fields) - len(conditions)
    expected = over == 0 if gap is None else over >= 0
    if expected:
        at = len(conditions) if gap is None else min(gap, len(conditions))
        kept = fields[:at] + fields[at + over :]
        pairs = [(condition, field) for condition, field in zip(conditions, kept) if condition]
        expected = all((field == literal) == (operator == "=") for (operator, literal), field in pairs)
    assert pattern.matches(message) == expected
    assert not expected or fits(pattern.hint, message)


@settings(deadline=None)
@given(pattern=st.text(alphabet='aB1 "?-%[]{}$.=!<>&|()*,\\x^', max_size=30), message=messages)
def test_any_text_is_a_pattern_or_is_refused_with_a_position(pattern, message):
    try:
        found = parse(pattern)
    except InvalidPattern as refused:
        assert re.search(r"\(at character \d+\)$", str(refused))
        return
    if found.matches(message):
        assert fits(found.hint, message)
        assert all(isinstance(text, str) for pair in found.extract(message).items() for text in pair)
    elif found.exact:
        assert not fits(found.hint, message)
