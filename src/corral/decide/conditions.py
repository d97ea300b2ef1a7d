"""The conditions of a policy: operators, what they make of values that are missing or many, and variables in their text."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network

Context = Mapping[str, Sequence[str]]  # a condition key in lower case → its values in the request
Test = Callable[[str, str], bool]  # (what the policy says, what the request has)

IF_EXISTS = "IfExists"
FOR_ALL, FOR_ANY = "ForAllValues:", "ForAnyValue:"
VARIABLE = re.compile(r"\$\{\s*([^},]+?)\s*(?:,\s*'([^']*)'\s*)?\}")
SPECIAL = re.compile(r"[*?\[]")  # in patterns
LITERALS = ("*", "?", "$")  # ${*} is a star that stands for itself
DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:Z|([+-])(\d\d):?(\d\d)))?")


@dataclass(frozen=True, slots=True)
class Condition:
    """One operator and the keys it is about; all of them must hold."""

    test: Test
    negated: bool  # it holds where no value matches
    if_exists: bool
    set_of: str  # FOR_ALL, FOR_ANY or ""
    keys: tuple[tuple[str, tuple[str, ...]], ...]
    patterns: bool  # stars and question marks of what it says stand for other characters
    null: bool  # it is about whether the key is there at all


def _arn_like(pattern: str, value: str) -> bool:
    """Part by part: a star does not reach beyond its colon, but for the last part."""
    patterns, values = pattern.split(":", 5), value.split(":", 5)
    return len(patterns) == len(values) == 6 and all(map(fnmatchcase, values, patterns))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")  # equal to nothing, and neither less nor more


def _seconds(text: str) -> float:
    """A date as ISO 8601 has it, or seconds since 1970."""
    found = DATE.fullmatch(text)
    if found is None:
        return _number(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if not 1 <= month <= 12:
        return float("nan")
    zone = (int(found[8]) * 3600 + int(found[9]) * 60) * (-1 if found[7] == "-" else 1) if found[7] else 0
    return float(timegm((year, month, day, hour, minute, second)) - zone)


def _in_network(network: str, address: str) -> bool:
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


def _pairs(read: Callable[[str], float], word: str) -> dict[str, Test]:
    return {
        f"{word}Equals": lambda said, has: read(has) == read(said),
        f"{word}LessThan": lambda said, has: read(has) < read(said),
        f"{word}LessThanEquals": lambda said, has: read(has) <= read(said),
        f"{word}GreaterThan": lambda said, has: read(has) > read(said),
        f"{word}GreaterThanEquals": lambda said, has: read(has) >= read(said),
    }


TESTS: dict[str, Test] = {
    "StringEquals": lambda said, has: said == has,
    "StringEqualsIgnoreCase": lambda said, has: said.lower() == has.lower(),
    "StringLike": lambda said, has: fnmatchcase(has, said),
    **_pairs(_number, "Numeric"),
    **_pairs(_seconds, "Date"),
    "Bool": lambda said, has: said.lower() == has.lower(),
    "BinaryEquals": lambda said, has: said == has,
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


def read_condition(operator: str, keys: object) -> Condition:
    """The condition that a policy writes so; ValueError says what is wrong with it."""
    set_of = next((each for each in (FOR_ALL, FOR_ANY) if operator.lower().startswith(each.lower())), "")
    word = operator[len(set_of) :]
    if_exists = word.lower().endswith(IF_EXISTS.lower())
    name = BY_LOWER_CASE.get((word[: -len(IF_EXISTS)] if if_exists else word).lower())
    if name is None:
        raise ValueError(f"Invalid Condition type : {operator}")
    if not isinstance(keys, dict):
        raise ValueError(f"Invalid Condition: {operator} must be an object of keys.")
    positive = NEGATED.get(name, name)
    return Condition(
        test=TESTS.get(positive, TESTS["Bool"]),
        negated=name in NEGATED,
        if_exists=if_exists,
        set_of=set_of,
        keys=tuple((key.lower(), _values(operator, given)) for key, given in keys.items()),
        patterns=positive in PATTERNS,
        null=name == "Null",
    )


def holds(condition: Condition, context: Context, *, variables: bool) -> bool:
    """Whether every key of it has values that the operator accepts."""
    return all(
        _key_holds(
            condition, [fill(text, context, variables=variables, pattern=condition.patterns) for text in said], context.get(key)
        )
        for key, said in condition.keys
    )


def fill(text: str, context: Context, *, variables: bool, pattern: bool) -> str:
    """The text with its variables replaced. In a pattern, made for `fnmatch`, what came from the request stands for itself."""
    if not variables or "${" not in text:
        return text.replace("[", "[[]") if pattern else text
    filled, at = list[str](), 0
    for found in VARIABLE.finditer(text):
        before, value = text[at : found.start()], _value(found, context)
        filled += [before.replace("[", "[[]"), SPECIAL.sub(r"[\g<0>]", value)] if pattern else [before, value]
        at = found.end()
    rest = text[at:]
    return "".join((*filled, rest.replace("[", "[[]") if pattern else rest))


def _value(found: re.Match[str], context: Context) -> str:
    """A variable that the request has no value for stands as it is written, and so matches nothing."""
    name, default = found.groups()
    if name in LITERALS:
        return str(name)
    values = context.get(name.lower(), ())
    return values[0] if len(values) == 1 else found[0] if default is None else default


def _key_holds(condition: Condition, said: Sequence[str], has: Sequence[str] | None) -> bool:
    if condition.null:
        return ("true" if has is None else "false") in (value.lower() for value in said)
    if not has:
        return condition.if_exists or condition.set_of == FOR_ALL or (condition.negated and condition.set_of != FOR_ANY)
    matches = (any(condition.test(value, one) for value in said) for one in has)
    if condition.set_of == FOR_ALL:
        return all(match != condition.negated for match in matches)
    if condition.set_of == FOR_ANY:
        return any(match != condition.negated for match in matches)
    return any(matches) != condition.negated


def _values(operator: str, given: object) -> tuple[str, ...]:
    values = given if isinstance(given, list) else [given]
    found = tuple(_text(value) for value in values)
    if not found or None in found:
        raise ValueError(f"Invalid Condition: the values of {operator} must be texts, numbers or truth values.")
    return tuple(value for value in found if value is not None)


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None
