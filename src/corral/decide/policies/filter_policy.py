"""Filter policies of SNS subscriptions: decide whether a subscription accepts a message.

`read_filter_policy` parses and checks the text of a policy. `accepts` applies it to the properties of a message: its attributes
(`attribute_properties`) or its body (`body_properties`), depending on the scope of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from math import isfinite, prod
from typing import Any

from msgspec import Struct

from corral.model.json_documents import read_json

ATTRIBUTES, BODY = SCOPES = ("MessageAttributes", "MessageBody")
POLICY_MAX_BYTES = 256 * 1024
KEYS_MAX = 5
COMBINATIONS_MAX = 150
NUMBER_MAX = 1e9
DECIMALS = 5  # numbers are compared with this many digits after the decimal point
OR = "$or"
OPERATORS = ("anything-but", "cidr", "equals-ignore-case", "exists", "numeric", "prefix", "suffix")
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": lambda value, limit: value == limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
}

Test = Callable[[Any], bool]  # whether a string, number, boolean or None matches


class FilterPolicyError(ValueError):
    """The text is not a valid filter policy. The message says why."""


class FilterCondition(Struct, frozen=True):
    """A condition on a property of a message: a test that one of its values must pass, or whether the property must exist."""

    test: Test | None
    exists: bool = True  # only if `test` is None; True: the property must exist; False: it must be missing


class FilterPolicy(Struct, frozen=True):
    """A filter policy. All its properties and all `nested` policies must match, and one of its `alternatives`, if it has any.

    A property matches if one of its conditions matches.
    """

    properties: tuple[tuple[str, tuple[FilterCondition, ...]], ...]
    nested: tuple[tuple[str, FilterPolicy], ...]
    alternatives: tuple[FilterPolicy, ...]  # the operator $or


@lru_cache(maxsize=256)
def read_filter_policy(text: str, scope: str) -> FilterPolicy:
    """Parse a policy. Raise FilterPolicyError if it is not valid."""
    if len(text.encode("utf-8", "surrogatepass")) > POLICY_MAX_BYTES:
        raise FilterPolicyError(f"The policy must have at most {POLICY_MAX_BYTES} bytes")
    try:
        document = read_json(text)
    except ValueError:
        raise FilterPolicyError("failed to parse JSON") from None
    if not isinstance(document, dict):
        raise FilterPolicyError("The policy must be a JSON object")
    if _depth(document) > COMBINATIONS_MAX:  # checked first, because `_policy` is recursive
        raise FilterPolicyError("Filter policy is too complex")
    policy = _policy(document, scope)
    if len(set(_keys(document, ()))) > KEYS_MAX:
        raise FilterPolicyError(f"Filter policy can not have more than {KEYS_MAX} keys")
    if _combinations(document, 1) > COMBINATIONS_MAX:
        raise FilterPolicyError("Filter policy is too complex")
    return policy


def accepts(policy: FilterPolicy, properties: Mapping[str, Any]) -> bool:
    return (
        all(_property_matches(conditions, key, properties) for key, conditions in policy.properties)
        and all(_nested_matches(inner, _member(properties, key)) for key, inner in policy.nested)
        and (not policy.alternatives or any(accepts(each, properties) for each in policy.alternatives))
    )


def attribute_properties(attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The message attributes that a policy can match. Attributes of type Binary are ignored."""
    found: dict[str, Any] = {}
    for name, attribute in attributes.items():
        kind, value = attribute["DataType"], attribute.get("StringValue")
        if kind.startswith("Binary") or value is None:
            continue
        if kind == "String.Array":
            found[name] = _array(value)
        elif kind.startswith("Number"):
            number = float(value)
            found[name] = number if isfinite(number) else value
        else:
            found[name] = value
    return found


def body_properties(body: str) -> dict[str, Any] | None:
    """The members of a message body; None if the body is not a JSON object. Then a policy for bodies does not accept it."""
    try:
        document = read_json(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _array(text: str) -> list[Any]:
    try:
        found = read_json(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


# Matching


def _property_matches(conditions: Sequence[FilterCondition], key: str, properties: Mapping[str, Any]) -> bool:
    present = key in properties
    values = list(_scalars(properties[key])) if present else []
    return any(
        present is condition.exists if condition.test is None else any(map(condition.test, values)) for condition in conditions
    )


def _member(document: Mapping[str, Any], key: str) -> Any:
    """Return the member of an object to which a nested policy applies. A key `a.b` is the same as the key `b` in the object `a`."""
    prefix, value = f"{key}.", document.get(key)
    dotted = {name.removeprefix(prefix): each for name, each in document.items() if name.startswith(prefix)}
    if not dotted:
        return value
    return [*value, dotted] if isinstance(value, list) else {**(value if isinstance(value, dict) else {}), **dotted}


def _nested_matches(policy: FilterPolicy, value: Any) -> bool:
    """Apply a nested policy to an object. For a list of objects, one of them must match the whole nested policy."""
    if isinstance(value, list):
        return any(_nested_matches(policy, each) for each in value)
    return accepts(policy, value if isinstance(value, dict) else {})


def _scalars(value: Any) -> Iterator[Any]:
    """The value, or the elements of a list. A property that is an object has no values."""
    if isinstance(value, list):
        for each in value:
            yield from _scalars(each)
    elif not isinstance(value, dict):
        yield value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _comparable(value: Any) -> Any:
    """Return a key that two values share if they are equal. The number 1, the text "1" and true differ."""
    return round(value, DECIMALS) if _is_number(value) else (type(value), value)


# Parsing


def _policy(document: Mapping[str, Any], scope: str) -> FilterPolicy:
    properties, nested = list[tuple[str, tuple[FilterCondition, ...]]](), list[tuple[str, FilterPolicy]]()
    alternatives: tuple[FilterPolicy, ...] = ()
    for key, value in _without_dots(document) if scope == BODY else document.items():
        if _is_or(key, value):
            _check_length(value)
            alternatives = tuple(_policy(each, scope) for each in value)
        elif isinstance(value, dict):
            if scope != BODY:
                raise FilterPolicyError("Filter policy scope MessageAttributes does not support nested filter policy")
            if not value:
                raise FilterPolicyError(f'"{key}" must not be an empty object')
            nested.append((key, _policy(value, scope)))
        elif isinstance(value, list) and value:
            properties.append((key, _conditions(value)))
        else:
            raise FilterPolicyError(f'"{key}" must be an object or a non-empty array')
    return FilterPolicy(tuple(properties), tuple(nested), alternatives)


def _without_dots(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a policy. A key `a.b` becomes the key `b` in the object `a`, together with the other keys of `a`."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        first, dot, rest = key.partition(".")
        if dot or isinstance(value, dict):
            nested[first] = {**nested.get(first, {}), **({rest: value} if dot else value)}
        else:
            yield key, value
    yield from nested.items()


def _is_or(key: str, value: Any) -> bool:
    """Whether a member is the operator $or. If its value has another form, `$or` is an ordinary key, as on AWS."""
    return (
        key == OR
        and isinstance(value, list)
        and len(value) > 1
        and all(isinstance(each, dict) and each and each.keys().isdisjoint(OPERATORS) for each in value)
    )


def _check_length(values: list[Any]) -> None:
    """Refuse a long list before its elements are read: the complexity of a policy is at least the length of each list."""
    if len(values) > COMBINATIONS_MAX:
        raise FilterPolicyError("Filter policy is too complex")


def _conditions(values: list[Any]) -> tuple[FilterCondition, ...]:
    _check_length(values)
    plain = [each for each in values if not isinstance(each, dict | list)]
    others = [_condition(each) for each in values if isinstance(each, dict | list)]
    return (FilterCondition(_one_of(plain)), *others) if plain else tuple(others)


def _one_of(values: list[Any]) -> Test:
    """Test whether a value equals one of these values. The time does not depend on their number."""
    expected = frozenset(_comparable(_number(each) if _is_number(each) else each) for each in values)
    return lambda actual: _comparable(actual) in expected


def _condition(value: Any) -> FilterCondition:
    if isinstance(value, list):
        raise FilterPolicyError("Match value must be String, number, true, false, or null")
    if len(value) != 1:
        raise FilterPolicyError("Only one key allowed in match expression")
    ((operator, operand),) = value.items()
    if operator == "exists":
        if not isinstance(operand, bool):
            raise FilterPolicyError("exists match pattern must be either true or false.")
        return FilterCondition(None, operand)
    if operator == "anything-but":
        return FilterCondition(_anything_but(operand))
    if operator == "numeric":
        return FilterCondition(_numeric(operand))
    return FilterCondition(_text_test(operator, operand))


def _text_test(operator: str, operand: Any) -> Test:
    if operator not in ("prefix", "suffix", "equals-ignore-case", "cidr"):
        raise FilterPolicyError(f"Unrecognized match type {operator}")
    if not isinstance(operand, str) or not operand:
        raise FilterPolicyError(f"{operator} match pattern must be a string")
    if operator == "prefix":
        return lambda actual: isinstance(actual, str) and actual.startswith(operand)
    if operator == "suffix":
        return lambda actual: isinstance(actual, str) and actual.endswith(operand)
    if operator == "equals-ignore-case":
        folded = operand.lower()
        return lambda actual: isinstance(actual, str) and actual.lower() == folded
    return _cidr(operand)


def _cidr(operand: str) -> Test:
    try:
        network = ip_network(operand, strict=False)
    except ValueError:
        raise FilterPolicyError(f"Malformed CIDR, one '/' required: {operand}") from None

    def test(actual: Any) -> bool:
        try:
            return isinstance(actual, str) and ip_address(actual) in network
        except ValueError:
            return False

    return test


def _anything_but(operand: Any) -> Test:
    if isinstance(operand, dict):
        if len(operand) != 1 or not operand.keys() <= {"prefix", "suffix"}:
            raise FilterPolicyError("Unsupported anything-but pattern: it must be prefix or suffix")
        ((operator, text),) = operand.items()
        matches = _text_test(operator, text)
        return lambda actual: isinstance(actual, str) and not matches(actual)
    values = operand if isinstance(operand, list) else [operand]
    if not values or not (all(isinstance(each, str) for each in values) or all(map(_is_number, values))):
        raise FilterPolicyError("Value of anything-but must be a string, a number, or an array of strings or of numbers")
    matches = _one_of(values)
    return lambda actual: not matches(actual)


def _numeric(operand: Any) -> Test:
    """The operator numeric: `["=", 3]`, `[">", 3]`, or a lower and an upper limit such as `[">", 3, "<=", 7]`."""
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise FilterPolicyError("Value of numeric must be an array of one or two comparisons")
    pairs = list(zip(operand[::2], operand[1::2]))
    for comparison, limit in pairs:
        if not isinstance(comparison, str) or comparison not in COMPARISONS:
            raise FilterPolicyError(f"Unrecognized numeric range operator: {comparison}")
        if not _is_number(limit):
            raise FilterPolicyError(f"Value of {comparison} must be numeric")
    limits = [(COMPARISONS[comparison], round(_number(limit), DECIMALS)) for comparison, limit in pairs]
    if len(pairs) == 2:
        if not (pairs[0][0].startswith(">") and pairs[1][0].startswith("<")):
            raise FilterPolicyError("A numeric range must have a lower limit (> or >=) and then an upper limit (< or <=)")
        if limits[0][1] >= limits[1][1]:
            raise FilterPolicyError("Bottom must be less than top")
    return lambda actual: _is_number(actual) and all(holds(round(actual, DECIMALS), limit) for holds, limit in limits)


def _number(value: float) -> float:
    if abs(value) > NUMBER_MAX:
        raise FilterPolicyError(f"Value {value} must be between -{NUMBER_MAX:.0f} and {NUMBER_MAX:.0f}")
    return value


# Limits


def _depth(value: Any) -> int:
    """The number of nested keys. A key with a dot counts as two."""
    if isinstance(value, list):
        return max(map(_depth, value), default=0)
    if not isinstance(value, dict):
        return 0
    return max((key.count(".") + 1 + _depth(each) for key, each in value.items()), default=0)


def _keys(document: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of all keys that have values."""
    for key, value in document.items():
        if _is_or(key, value):
            for each in value:
                yield from _keys(each, path)
        elif isinstance(value, dict):
            yield from _keys(value, (*path, key))
        else:
            yield (*path, key)


def _combinations(document: Mapping[str, Any], depth: int) -> int:
    """The complexity of a policy, by AWS's formula: the product of the complexities of its keys.

    The complexity of a key is the number of its values, multiplied by its depth. For $or, the complexities of the alternatives are
    added.
    """
    return prod(
        sum(_combinations(each, depth) for each in value)
        if _is_or(key, value)
        else _combinations(value, depth + key.count(".") + 1)
        if isinstance(value, dict)
        else len(value) * (depth + key.count("."))
        for key, value in document.items()
    )
