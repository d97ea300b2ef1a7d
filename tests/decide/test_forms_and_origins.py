"""What browsers may do: conditions of signed forms, and CORS rules."""

from __future__ import annotations

from typing import Any

import pytest

from corral.decide.cors import allow
from corral.decide.post_policy import Malformed, Unmet, check_fields

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
def test_a_form_that_keeps_to_its_policy(conditions: list[Any], fields: dict[str, str], allowed: tuple[int, int | None]) -> None:
    assert check_fields(conditions, fields) == allowed


@pytest.mark.parametrize(
    ("conditions", "fields", "words"),
    [
        (GOOD, {**FIELDS, "bucket": "other"}, r'Policy Condition failed: \["eq", "\$bucket", "photos"\]'),
        (GOOD, {**FIELDS, "key": "user/ann/a.jpg"}, r'\["starts-with", "\$key", "user/eric/"\]'),
        (GOOD, {**FIELDS, "content-type": "image/jpeg, text/html"}, "Content-Type"),
        (GOOD, {**FIELDS, "acl": "private"}, "Extra input fields: acl"),
        ([*GOOD, {"acl": "private"}], FIELDS, "acl"),
    ],
)
def test_a_form_that_does_not(conditions: list[Any], fields: dict[str, str], words: str) -> None:
    with pytest.raises(Unmet, match=words):
        check_fields(conditions, fields)


@pytest.mark.parametrize(
    "condition", ["x", ["eq", "key", "a"], ["like", "$key", "a"], {"a": "b", "c": "d"}, ["content-length-range", "x", 1]]
)
def test_what_is_no_condition(condition: Any) -> None:
    with pytest.raises(Malformed):
        check_fields([condition], FIELDS)


RULES: list[dict[str, Any]] = [
    {"AllowedOrigins": ["http://*.example.com"], "AllowedMethods": ["PUT", "POST"], "AllowedHeaders": ["x-amz-*", "Content-Type"],
     "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 3000},
    {"AllowedOrigins": ["*"], "AllowedMethods": ["GET"]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("origin", "method", "headers", "told"),
    [
        ("http://a.example.com", "PUT", ["Content-Type", "X-Amz-Date"], "http://a.example.com"),
        ("http://a.example.com", "PUT", ["authorization"], None),
        ("http://a.example.com", "DELETE", [], None),
        ("http://a.example.com", "GET", [], "*"),
        ("http://b.example.org", "GET", [], "*"),
        ("http://b.example.org", "GET", ["x-amz-date"], None),
        ("http://b.example.org", "PUT", [], None),
        ("http://b.example.org", "GET", None, "*"),
    ],
)
def test_origins(origin: str, method: str, headers: list[str] | None, told: str | None) -> None:
    found = allow(RULES, origin, method, headers)
    assert (None if found is None else dict(found)["Access-Control-Allow-Origin"]) == told


def test_what_a_browser_is_told() -> None:
    found = allow(RULES, "http://a.example.com", "PUT", ["Content-Type"])
    assert found is not None
    assert dict(found) == {
        "Access-Control-Allow-Origin": "http://a.example.com",
        "Access-Control-Allow-Methods": "PUT, POST",
        "Access-Control-Allow-Headers": "content-type",
        "Access-Control-Expose-Headers": "ETag",
        "Access-Control-Max-Age": "3000",
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
    }
