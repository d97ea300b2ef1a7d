"""CORS rules: which requests they allow, and the headers of the response."""

from __future__ import annotations

from typing import Any

import pytest

from corral.server.cors import cors_headers

RULES: list[dict[str, Any]] = [
    {"AllowedOrigins": ["http://*.example.com"], "AllowedMethods": ["PUT", "POST"], "AllowedHeaders": ["x-amz-*", "Content-Type"],
     "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 3000},
    {"AllowedOrigins": ["*"], "AllowedMethods": ["GET"]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("origin", "method", "headers", "allowed"),
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
def test_allowed_origins(origin: str, method: str, headers: list[str] | None, allowed: str | None) -> None:
    found = cors_headers(RULES, origin, method, headers)
    assert (None if found is None else dict(found)["Access-Control-Allow-Origin"]) == allowed


def test_the_headers_of_a_preflight_response() -> None:
    found = cors_headers(RULES, "http://a.example.com", "PUT", ["Content-Type"])
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
