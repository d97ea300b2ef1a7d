"""The conditions of an IAM policy: operators, rules for keys with no value or several values, and variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address, ip_network
from operator import eq

from msgspec import Struct

Context = Mapping[str, Sequence[str]]  # a condition key in lower case → its values in the request
Test = Callable[[str, str], bool]  # (value in the policy, value of the request) → whether the operator is true

IF_EXISTS = "IfExists"
FOR_ALL, FOR_ANY = "ForAllValues:", "ForAnyValue:"
VARIABLE = re.compile(r"\$\{([^},]++)(?:,\s*+'([^']*+)'\s*+)?\}")  # possessive: a caller's text must not cause backtracking
SPECIAL = re.compile(r"[*?\[]")  # characters with a special meaning in patterns of `fnmatch`
LITERALS = ("*", "?", "$")  # ${*}, ${?} and ${$} mean the characters *, ? and $
DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:Z|([+-])(\d\d):?(\d\d)))?")


class PolicyCondition(Struct, frozen=True):
    """One operator and its keys. The condition holds if it holds for every key."""

    test: Test
    negated: bool  # the condition holds if no value matches
    if_exists: bool
    set_of: str  # FOR_ALL, FOR_ANY or ""
    keys: tuple[tuple[str, tuple[str, ...]], ...]
    patterns: bool  # * and ? in the policy's values are wildcards
    null: bool  # the operator Null, which tests whether the request has the key
    has_variables: bool  # a value has variables, if the version of the policy allows them


class Variable(Struct, frozen=True):
    text: str  # in the policy: ${aws:username, 'guest'}
    key: str  # in lower case
    default: str | None


def _arn_like(pattern: str, value: str) -> bool:
    """Compare ARNs part by part: a wildcard does not match a colon, except in the last part."""
    patterns, values = pattern.split(":", 5), value.split(":", 5)
    return len(patterns) == len(values) == 6 and all(map(fnmatchcase, values, patterns))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")  # every comparison with NaN is false


def _seconds(text: str) -> float:
    """Convert a date to seconds since 1970. The text is in ISO 8601 form, or is already a number of seconds."""
    from calendar import (
        timegm,
    )  # imported here, because the first start of a server checks policies, and keeps in memory what it imports

    found = DATE.fullmatch(text)
    if found is None:
        return _number(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if not (1 <= month <= 12 and year):
        return float("nan")
    zone = (int(found[8]) * 3600 + int(found[9]) * 60) * (-1 if found[7] == "-" else 1) if found[7] else 0
    return float(timegm((year, month, day, hour, minute, second)) - zone)


def _in_network(network: str, address: str) -> bool:
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


def _comparisons(read: Callable[[str], float], kind: str) -> dict[str, Test]:
    return {
        f"{kind}Equals": lambda expected, actual: read(actual) == read(expected),
        f"{kind}LessThan": lambda expected, actual: read(actual) < read(expected),
        f"{kind}LessThanEquals": lambda expected, actual: read(actual) <= read(expected),
        f"{kind}GreaterThan": lambda expected, actual: read(actual) > read(expected),
        f"{kind}GreaterThanEquals": lambda expected, actual: read(actual) >= read(expected),
    }


TESTS: dict[str, Test] = {
    "StringEquals": eq,
    "StringEqualsIgnoreCase": lambda expected, actual: expected.lower() == actual.lower(),
    "StringLike": lambda expected, actual: fnmatchcase(actual, expected),
    **_comparisons(_number, "Numeric"),
    **_comparisons(_seconds, "Date"),
    "Bool": lambda expected, actual: expected.lower() == actual.lower(),
    "BinaryEquals": eq,
    "IpAddress": _in_network,
    "ArnEquals": _arn_like,
    "ArnLike": _arn_like,
}
NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
    "NotIpAddress": "IpAddress",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
}
BY_LOWER_CASE = {name.lower(): name for name in (*TESTS, *NEGATED, "Null")}
PATTERNS = ("StringLike", "ArnEquals", "ArnLike")


def is_operator(text: str) -> bool:
    return _parts(text)[1] is not None


@lru_cache(maxsize=256)
def _parts(operator: str) -> tuple[str, str | None, bool]:
    """Return the set operator, the name of the operator (None if there is no such operator) and whether it ends with IfExists."""
    set_of = next((each for each in (FOR_ALL, FOR_ANY) if operator.lower().startswith(each.lower())), "")
    operator_name = operator[len(set_of) :]
    if_exists = operator_name.lower().endswith(IF_EXISTS.lower())
    return set_of, BY_LOWER_CASE.get((operator_name[: -len(IF_EXISTS)] if if_exists else operator_name).lower()), if_exists


def read_condition(operator: str, keys: object) -> PolicyCondition:
    """Parse one operator of a policy's Condition. Raise ValueError if it is invalid."""
    set_of, name, if_exists = _parts(operator)
    if name is None:
        raise ValueError(f"Invalid Condition type : {operator}")
    if not isinstance(keys, dict):
        raise ValueError(f"Invalid Condition: {operator} must be an object whose members are condition keys.")
    positive = NEGATED.get(name, name)
    values = tuple([(key.lower(), _values(operator, given)) for key, given in keys.items()])
    return PolicyCondition(
        test=TESTS.get(positive, TESTS["Bool"]),
        negated=name in NEGATED,
        if_exists=if_exists,
        set_of=set_of,
        keys=values,
        patterns=positive in PATTERNS,
        null=name == "Null",
        has_variables=any("${" in text for _, texts in values for text in texts),
    )


def all_hold(conditions: Iterable[PolicyCondition], context: Context, *, variables: bool) -> bool:
    """Whether the request satisfies all conditions for all of their keys."""
    for condition in conditions:
        pattern = condition.patterns
        is_literal = not pattern and not (variables and condition.has_variables)
        for key, expected in condition.keys:
            filled = expected if is_literal else [fill(text, context, variables=variables, pattern=pattern) for text in expected]
            if not _key_holds(condition, filled, context.get(key)):
                return False
    return True


def fill(text: str, context: Context, *, variables: bool, pattern: bool) -> str:
    """Replace the variables in a text by their values. In a pattern for `fnmatch`, the values are escaped."""
    if not variables or "${" not in text:
        return text.replace("[", "[[]") if pattern else text
    alone = None if pattern else _variable(text)
    if alone is not None:
        return _value(alone, context)
    filled = list[str]()
    for before, found in _split(text):
        value = _value(found, context) if found is not None else ""
        filled += [before.replace("[", "[[]"), SPECIAL.sub(r"[\g<0>]", value)] if pattern else [before, value]
    return "".join(filled)


@lru_cache(maxsize=4096)
def _variable(text: str) -> Variable | None:
    """Return the variable if the text has nothing else."""
    found = VARIABLE.fullmatch(text)
    return _read_variable(found) if found is not None else None


def _read_variable(found: re.Match[str]) -> Variable:
    return Variable(found[0], found[1].strip().lower(), found[2])


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[tuple[str, Variable | None], ...]:
    """Split a text with variables: the text before each variable, and the variable. The last one has no variable."""
    parts, at = list[tuple[str, Variable | None]](), 0
    for found in VARIABLE.finditer(text):
        parts.append((text[at : found.start()], _read_variable(found)))
        at = found.end()
    return *parts, (text[at:], None)


def _value(variable: Variable, context: Context) -> str:
    """Return the value of a variable, or its default.

    If the request has no value and there is no default, return the text of the variable itself, which matches nothing.
    """
    if variable.key in LITERALS:
        return variable.key
    values = context.get(variable.key)
    if values is not None and len(values) == 1:
        return values[0]
    return variable.text if variable.default is None else variable.default


def _key_holds(condition: PolicyCondition, expected: Sequence[str], actual: Sequence[str] | None) -> bool:
    if condition.null:
        return ("true" if actual is None else "false") in (value.lower() for value in expected)
    if not actual:
        return condition.if_exists or condition.set_of == FOR_ALL or (condition.negated and condition.set_of != FOR_ANY)
    test = condition.test
    if not condition.set_of:
        for one in actual:
            for value in expected:
                if test(value, one):
                    return not condition.negated
        return condition.negated
    matches = (any(test(value, one) for value in expected) for one in actual)
    if condition.set_of == FOR_ALL:
        return all(match != condition.negated for match in matches)
    return any(match != condition.negated for match in matches)


def _values(operator: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    found = [_text(value) for value in (given if isinstance(given, list) else [given])]
    if not found or None in found:
        raise ValueError(f"Invalid Condition: the values of {operator} must be strings, numbers or booleans.")
    return tuple([value for value in found if value is not None])


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
