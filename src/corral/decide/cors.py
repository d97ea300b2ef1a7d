"""Which requests of pages of other origins a bucket's CORS rules let browsers make, and what they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

Rule = Mapping[str, Any]  # as S3 has it: AllowedOrigins, AllowedMethods, AllowedHeaders, ExposeHeaders, MaxAgeSeconds


def allow(rules: Sequence[Rule], origin: str, method: str, headers: Sequence[str] | None = None) -> list[tuple[str, str]] | None:
    """The headers that tell the browser so; None: no rule allows it. With `headers` it is asked before the request itself."""
    for rule in rules:
        wanted = next((each for each in rule["AllowedOrigins"] if _like(each, origin)), None)
        if wanted is None or method not in rule["AllowedMethods"]:
            continue
        allowed = [each.lower() for each in rule.get("AllowedHeaders", ())]
        if not all(any(_like(each, name.lower()) for each in allowed) for name in headers or ()):
            continue
        return _headers(rule, "*" if wanted == "*" else origin, headers)
    return None


def _headers(rule: Rule, origin: str, asked: Sequence[str] | None) -> list[tuple[str, str]]:
    found = [("Access-Control-Allow-Origin", origin), ("Access-Control-Allow-Methods", ", ".join(rule["AllowedMethods"]))]
    if asked:
        found.append(("Access-Control-Allow-Headers", ", ".join(name.lower() for name in asked)))
    if rule.get("ExposeHeaders"):
        found.append(("Access-Control-Expose-Headers", ", ".join(rule["ExposeHeaders"])))
    if "MaxAgeSeconds" in rule:
        found.append(("Access-Control-Max-Age", str(rule["MaxAgeSeconds"])))
    if origin != "*":
        found.append(("Access-Control-Allow-Credentials", "true"))
    return [*found, ("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")]


def _like(pattern: str, value: str) -> bool:
    return fnmatchcase(value, pattern.replace("[", "[[]").replace("?", "[?]"))
