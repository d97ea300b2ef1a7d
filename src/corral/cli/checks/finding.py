"""The findings of `corral doctor`. A check is a function that yields findings."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    return Finding(OK, found)


def warn(found: str, advice: str = "") -> Finding:
    return Finding(WARN, found, advice)


def fail(found: str, advice: str) -> Finding:
    return Finding(FAIL, found, advice)
