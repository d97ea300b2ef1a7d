"""Conditions of the signed policies of form uploads."""

from __future__ import annotations

from typing import Any

import pytest

from corral.decide.objects.post_policy import ConditionNotMet, MalformedCondition, check_fields

FIELDS = {"bucket": "photos", "key": "user/eric/a.jpg", "policy": "…", "x-amz-signature": "…", "content-type": "image/jpeg"}
GOOD = [{"bucket": "photos"}, ["starts-with", "$key", "user/eric/"], ["starts-with", "$Content-Type", "image/"]]


@pytest.mark.parametrize(
    ("conditions", "fields", "allowed"),
    [
        (GOOD, FIELDS, (0, None)),
        ([*GOOD, ["content-length-range", 1, 100]], FIELDS, (1, 100)),
        ([*GOOD, ["content-length-range", "1", "100"]], FIELDS, (1, 100)),
        (GOOD, {**FIELDS, "x-ignore-this": "1"}, (0, None)),
        ([*GOOD, {"ACL": "private"}], {**FIELDS, "acl": "private"}, (0, None)),
        ([*GOOD, ["eq", "$acl", "private"]], {**FIELDS, "acl": "private"}, (0, None)),
        (GOOD, {**FIELDS, "content-type": "image/jpeg,image/png"}, (0, None)),
        ([*GOOD, ["starts-with", "$acl", ""]], {**FIELDS, "acl": "anything"}, (0, None)),
    ],
)
def test_a_form_that_meets_its_conditions(conditions: list[Any], fields: dict[str, str], allowed: tuple[int, int | None]) -> None:
    assert check_fields(conditions, fields) == allowed


@pytest.mark.parametrize(
    ("conditions", "fields", "text"),
    [
        (GOOD, {**FIELDS, "bucket": "other"}, r'Policy Condition failed: \["eq", "\$bucket", "photos"\]'),
        (GOOD, {**FIELDS, "key": "user/ann/a.jpg"}, r'\["starts-with", "\$key", "user/eric/"\]'),
        (GOOD, {**FIELDS, "content-type": "image/jpeg, text/html"}, "Content-Type"),
        (GOOD, {**FIELDS, "acl": "private"}, "Extra input fields: acl"),
        ([*GOOD, {"acl": "private"}], FIELDS, "acl"),
    ],
)
def test_a_form_that_violates_a_condition(conditions: list[Any], fields: dict[str, str], text: str) -> None:
    with pytest.raises(ConditionNotMet, match=text):
        check_fields(conditions, fields)


@pytest.mark.parametrize(
    "condition", ["x", ["eq", "key", "a"], ["like", "$key", "a"], {"a": "b", "c": "d"}, ["content-length-range", "x", 1]]
)
def test_a_malformed_condition(condition: Any) -> None:
    with pytest.raises(MalformedCondition):
        check_fields([condition], FIELDS)
