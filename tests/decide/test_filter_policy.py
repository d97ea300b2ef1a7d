"""Filter policies: which messages they accept, and which policies SNS refuses. Many examples are those of its documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.decide.policies.filter_policy import (
    ATTRIBUTES,
    BODY,
    POLICY_MAX_BYTES,
    FilterPolicyError,
    accepts,
    attribute_properties,
    body_properties,
    read_filter_policy,
)


def text(value: str) -> dict[str, Any]:
    return {"DataType": "String", "StringValue": value}


def number(value: str) -> dict[str, Any]:
    return {"DataType": "Number", "StringValue": value}


def array(*values: Any) -> dict[str, Any]:
    return {"DataType": "String.Array", "StringValue": json.dumps(values)}


MISSING: Any = None


@pytest.mark.parametrize(
    ("values", "attribute", "is_accepted"),
    [
        (["rugby", "tennis"], text("rugby"), True),
        (["rugby", "tennis"], text("baseball"), False),
        (["rugby"], text("Rugby"), False),
        (["rugby"], MISSING, False),
        (["rugby", "tennis"], array("soccer", "tennis"), True),
        (["rugby"], array("baseball"), False),
        (["rugby"], {"DataType": "String.Array", "StringValue": "rugby"}, False),
        (["rugby"], {"DataType": "Binary", "BinaryValue": b"rugby"}, False),
        ([{"exists": False}], {"DataType": "Binary", "BinaryValue": b"rugby"}, True),
        (["rugby"], {"DataType": "String.sport", "StringValue": "rugby"}, True),
        ([301.5], number("301.5"), True),
        ([301.5], number("3.015e2"), True),
        ([301.5], text("301.5"), False),
        (["301.5"], number("301.5"), False),
        ([100], array(99, 100), True),
        ([True], array(True), True),
        ([True], array(1), False),
        ([1], array(True), False),
        ([None], array(None), True),
        ([{"anything-but": ["rugby", "tennis"]}], text("baseball"), True),
        ([{"anything-but": ["rugby", "tennis"]}], text("rugby"), False),
        ([{"anything-but": ["rugby", "tennis"]}], array("rugby", "baseball"), True),
        ([{"anything-but": ["rugby", "tennis"]}], array("rugby", "tennis"), False),
        ([{"anything-but": "rugby"}], text("baseball"), True),
        ([{"anything-but": "rugby"}], MISSING, False),
        ([{"anything-but": [100, 500]}], number("101"), True),
        ([{"anything-but": [100, 500]}], number("100.0"), False),
        ([{"anything-but": {"prefix": "order-"}}], text("data-entry"), True),
        ([{"anything-but": {"prefix": "order-"}}], text("order-cancelled"), False),
        ([{"anything-but": {"prefix": "order-"}}], number("1"), False),
        ([{"anything-but": {"suffix": "ball"}}], text("rugby"), True),
        ([{"anything-but": {"suffix": "ball"}}], text("football"), False),
        ([{"equals-ignore-case": "tennis"}], text("TENNIS"), True),
        ([{"equals-ignore-case": "tennis"}], text("tennisball"), False),
        ([{"prefix": "bas"}], text("baseball"), True),
        ([{"prefix": "bas"}], text("rugby"), False),
        ([{"suffix": "ball"}], text("baseball"), True),
        ([{"suffix": "ball"}], text("balls"), False),
        ([{"cidr": "10.0.0.0/24"}], text("10.0.0.255"), True),
        ([{"cidr": "10.0.0.0/24"}], text("10.1.1.0"), False),
        ([{"cidr": "10.0.0.0/24"}], text("ten"), False),
        ([{"cidr": "2001:db8::/32"}], text("2001:db8::1"), True),
        ([{"numeric": ["=", 301.5]}], number("301.50"), True),
        ([{"numeric": ["=", 301.5]}], number("301.500001"), True),  # five digits after the decimal point
        ([{"numeric": ["=", 301.5]}], number("301.50001"), False),
        ([{"numeric": [">", 100]}], number("100"), False),
        ([{"numeric": [">=", 100]}], number("100"), True),
        ([{"numeric": ["<", 100]}], number("-1"), True),
        ([{"numeric": [">", 0, "<=", 150]}], number("150"), True),
        ([{"numeric": [">", 0, "<=", 150]}], number("0"), False),
        ([{"numeric": [">", 0, "<=", 150]}], text("10"), False),
        ([{"numeric": ["<", 10]}, {"numeric": [">", 20]}], number("15"), False),
        ([{"numeric": ["<", 10]}, {"numeric": [">", 20]}], number("25"), True),
        ([{"exists": True}], text("a"), True),
        ([{"exists": True}], array(), True),
        ([{"exists": True}], MISSING, False),
        ([{"exists": False}], MISSING, True),
        ([{"exists": False}], text("a"), False),
        (["a", {"exists": False}], MISSING, True),
    ],
)
def test_one_attribute(values: list[Any], attribute: dict[str, Any] | None, is_accepted: bool) -> None:
    attributes = {} if attribute is None else {"key": attribute}
    policy = read_filter_policy(json.dumps({"key": values}), ATTRIBUTES)
    assert accepts(policy, attribute_properties({**attributes, "other": text("x")})) is is_accepted


OR = {"source": ["aws.cloudwatch"], "$or": [{"metricName": ["CPUUtilization"]}, {"namespace": ["AWS/EC2"]}]}


@pytest.mark.parametrize(
    ("policy", "body", "is_accepted"),
    [
        ({"a": ["x"], "b": [1]}, {"a": "x", "b": 1}, True),
        ({"a": ["x"], "b": [1]}, {"a": "x", "b": 2}, False),
        ({"a": ["x"], "b": [1]}, {"a": "x"}, False),
        ({"a": {"b": {"c": ["x"]}}}, {"a": {"b": {"c": "x", "d": 1}}}, True),
        ({"a": {"b": {"c": ["x"]}}}, {"a": {"b": {"c": "y"}}}, False),
        ({"a": {"b": {"c": ["x"]}}}, {"a": {"b": "x"}}, False),
        ({"a": {"b": {"c": ["x"]}}}, {}, False),
        ({"a": {"b": [{"exists": False}]}}, {}, True),
        ({"a": {"b": ["x"]}}, {"a": [{"b": "y"}, {"b": "x"}]}, True),
        ({"a": {"b": ["x"], "c": ["y"]}}, {"a": [{"b": "x", "c": "z"}, {"b": "z", "c": "y"}]}, False),
        ({"a.b": ["x"]}, {"a": {"b": "x"}}, True),
        ({"a.b": ["x"]}, {"a.b": "x"}, True),
        ({"a.b.c": ["x"]}, {"a.b": {"c": "x"}}, True),
        ({"a.b.c": ["x"]}, {"a": {"b.c": "x"}}, True),
        ({"a": {"b": {"c": ["x"]}}}, {"a.b.c": "x", "a": {"d": 1}}, True),
        ({"a.b": ["x"]}, {"a": {"b": "y"}}, False),
        ({"a.b": ["x"], "a.c": ["y"]}, {"a": [{"b": "x", "c": "z"}, {"b": "z", "c": "y"}]}, False),
        ({"a.b": ["x"], "a": [{"exists": True}]}, {"a": {"b": "x"}}, True),
        ({"a.b": [{"exists": False}]}, {"a.b": "x"}, False),
        ({"a": [True]}, {"a": True}, True),
        ({"a": ["true"]}, {"a": True}, False),
        ({"a": [None]}, {"a": None}, True),
        ({"a": ["x"]}, {"a": [["y"], ["x"]]}, True),
        ({"a": [{"exists": True}]}, {"a": {"b": 1}}, True),
        ({"a": ["x"]}, "not JSON", False),
        ({"a": [{"exists": False}]}, "not JSON", False),
        ({"a": ["x"]}, ["x"], False),
        (OR, {"source": "aws.cloudwatch", "metricName": "CPUUtilization"}, True),
        (OR, {"source": "aws.cloudwatch", "namespace": "AWS/EC2", "metricName": "other"}, True),
        (OR, {"source": "aws.cloudwatch"}, False),
        (OR, {"source": "other", "namespace": "AWS/EC2"}, False),
        ({"detail": OR}, {"detail": {"source": "aws.cloudwatch", "namespace": "AWS/EC2"}}, True),
        ({"$or": [{"a": ["x"]}, {"$or": [{"b": [1]}, {"c": [2]}]}]}, {"c": 2}, True),
        ({"$or": ["x"]}, {"$or": "x"}, True),  # not an array of objects, so an ordinary key
        ({"$or": [{"prefix": "x"}, {"suffix": "y"}]}, {"$or": "xa"}, True),  # reserved words, so an ordinary key
    ],
)
def test_bodies(policy: dict[str, Any], body: Any, is_accepted: bool) -> None:
    properties = body_properties(body if isinstance(body, str) else json.dumps(body))
    assert (properties is not None and accepts(read_filter_policy(json.dumps(policy), BODY), properties)) is is_accepted


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("{", "failed to parse JSON"),
        ("[]", "must be a JSON object"),
        ({"a": "x"}, '"a" must be an object or a non-empty array'),
        ({"a": []}, '"a" must be an object or a non-empty array'),
        ({"a": {}}, "empty object"),
        ({"a": [["x"]]}, "Match value must be"),
        ({"a": [{}]}, "Only one key"),
        ({"a": [{"prefix": "x", "suffix": "y"}]}, "Only one key"),
        ({"a": [{"like": "x"}]}, "Unrecognized match type like"),
        ({"a": [{"prefix": 1}]}, "prefix match pattern must be a string"),
        ({"a": [{"cidr": "10.0.0.0/64"}]}, "Malformed CIDR"),
        ({"a": [{"exists": "yes"}]}, "exists match pattern"),
        ({"a": [{"anything-but": []}]}, "Value of anything-but"),
        ({"a": [{"anything-but": ["x", 1]}]}, "Value of anything-but"),
        ({"a": [{"anything-but": {"numeric": ["=", 1]}}]}, "Unsupported anything-but"),
        ({"a": [{"numeric": 1}]}, "Value of numeric"),
        ({"a": [{"numeric": ["="]}]}, "Value of numeric"),
        ({"a": [{"numeric": ["~", 1]}]}, "Unrecognized numeric range operator: ~"),
        ({"a": [{"numeric": ["=", "1"]}]}, "Value of = must be numeric"),
        ({"a": [{"numeric": ["<", 1, ">", 0]}]}, "lower limit"),
        ({"a": [{"numeric": [">", 1, "<", 1]}]}, "Bottom must be less than top"),
        ({"a": [{"numeric": ["=", 1e9 + 1]}]}, "must be between"),
        ({"a": [-1e9 - 1]}, "must be between"),
        ({str(at): ["x"] for at in range(6)}, "more than 5 keys"),
        ({"a": {str(at): ["x"] for at in range(3)}, "b": {str(at): ["x"] for at in range(3)}}, "more than 5 keys"),
        ({"a": list(range(151))}, "too complex"),
        ({"." * 100_000: ["x"]}, "too complex"),
        ({"a": list(range(10)), "b": list(range(16))}, "too complex"),
        ({"a": {"b": list(range(76))}}, "too complex"),  # nested: twice the number of values
        ({"$or": [{"a": list(range(100))}, {"a": list(range(51))}]}, "too complex"),
        ({"a": ["x" * POLICY_MAX_BYTES]}, "bytes"),
    ],
)
def test_invalid_policies(policy: Any, reason: str) -> None:
    with pytest.raises(FilterPolicyError, match=reason.replace("[", r"\[")):
        read_filter_policy(policy if isinstance(policy, str) else json.dumps(policy), BODY)


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {str(at): ["x"] for at in range(5)},
        {"a": list(range(150))},
        {"$or": [{"a": list(range(100))}, {"a": list(range(50))}]},
        # the example of the documentation: 4 values at level 3, 3 values at level 2
        {"a": {"b": {"c": ["one", "two", "three", "four"]}}, "d": {"e": ["one", "two", "three"]}},
        {"a": [1e9, -1e9]},
    ],
)
def test_policies_at_the_limits(policy: dict[str, Any]) -> None:
    read_filter_policy(json.dumps(policy), BODY)


@pytest.mark.parametrize(
    ("values", "sent", "is_accepted"),
    [
        ([{"anything-but": [f"v{at}" for at in range(20_000)]}], ["v19999"] * 20_000, False),
        ([{"anything-but": list(range(20_000))}], [19_999] * 20_000, False),
        (list(range(150)), [150] * 80_000, False),
        ([*range(149), "x"], [*["1"] * 40_000, True, None, "x"], True),
    ],
)
def test_many_values_are_compared_at_once(values: list[Any], sent: list[Any], is_accepted: bool) -> None:
    assert accepts(read_filter_policy(json.dumps({"a": values}), BODY), {"a": sent}) is is_accepted


def test_policies_for_attributes_are_not_nested() -> None:
    with pytest.raises(FilterPolicyError, match="does not support nested"):
        read_filter_policy('{"a": {"b": ["x"]}}', ATTRIBUTES)
