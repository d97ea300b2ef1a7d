"""Evaluates the CORS rules of a bucket. Decides whether a request is allowed, and returns the headers of the response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

# A rule of PutBucketCors: AllowedOrigins, AllowedMethods, AllowedHeaders, ExposeHeaders, MaxAgeSeconds.
CorsRule = Mapping[str, Any]


def cors_headers(
    rules: Sequence[CorsRule], origin: str, method: str, headers: Sequence[str] | None = None
) -> list[tuple[str, str]] | None:
    """Return the CORS headers of the response.

    Return None if no rule allows the request. For a preflight, `headers` are the requested headers.
    """
    for rule in rules:
        matched = next((each for each in rule["AllowedOrigins"] if _matches(each, origin)), None)
        if matched is None or method not in rule["AllowedMethods"]:
            continue
        allowed = [each.lower() for each in rule.get("AllowedHeaders", ())]
        if not all(any(_matches(each, name.lower()) for each in allowed) for name in headers or ()):
            continue
        return _headers(rule, "*" if matched == "*" else origin, headers)
    return None


def _headers(rule: CorsRule, origin: str, requested: Sequence[str] | None) -> list[tuple[str, str]]:
    found = [("Access-Control-Allow-Origin", origin), ("Access-Control-Allow-Methods", ", ".join(rule["AllowedMethods"]))]
    if requested:
        found.append(("Access-Control-Allow-Headers", ", ".join(name.lower() for name in requested)))
    if rule.get("ExposeHeaders"):
        found.append(("Access-Control-Expose-Headers", ", ".join(rule["ExposeHeaders"])))
    if "MaxAgeSeconds" in rule:
        found.append(("Access-Control-Max-Age", str(rule["MaxAgeSeconds"])))
    if origin != "*":
        found.append(("Access-Control-Allow-Credentials", "true"))
    return [*found, ("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")]


def _matches(pattern: str, value: str) -> bool:
    return fnmatchcase(value, pattern.replace("[", "[[]").replace("?", "[?]"))
