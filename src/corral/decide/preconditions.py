"""Whether a request's conditions hold for the object that it finds. Dates are whole seconds, as headers carry them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since_s: float | None = None
    if_unmodified_since_s: float | None = None


def failed(conditions: Conditions, etag: str, modified_at_s: float) -> str | None:
    """The header that forbids to go on. An ETag says more than a date: where both are given, the date is not looked at."""
    modified_s = int(modified_at_s)
    if conditions.if_match is not None:
        if not matches(conditions.if_match, etag):
            return "If-Match"
    elif conditions.if_unmodified_since_s is not None and modified_s > conditions.if_unmodified_since_s:
        return "If-Unmodified-Since"
    if conditions.if_none_match is not None:
        if matches(conditions.if_none_match, etag):
            return "If-None-Match"
    elif conditions.if_modified_since_s is not None and modified_s <= conditions.if_modified_since_s:
        return "If-Modified-Since"
    return None


def matches(header: str, etag: str) -> bool:
    """Whether a list of ETags, with or without quotes, or a star, names this one."""
    return any(_bare(each) in ("*", etag) for each in header.split(","))


def _bare(text: str) -> str:
    return text.strip().removeprefix("W/").strip('"')
