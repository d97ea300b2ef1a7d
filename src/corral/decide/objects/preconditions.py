"""Evaluate If-Match and the other preconditions of an S3 request. Dates have a precision of one second, as in HTTP headers."""

from __future__ import annotations

from msgspec import Struct


class Conditions(Struct, frozen=True):
    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since_s: float | None = None
    if_unmodified_since_s: float | None = None


def failed_condition(conditions: Conditions, etag: str, modified_at_s: float, now_s: float) -> str | None:
    """Return the header whose condition does not hold, or None if all hold.

    If-Match overrides If-Unmodified-Since, and If-None-Match overrides If-Modified-Since. An If-Modified-Since in the future is
    ignored.
    """
    modified_s = int(modified_at_s)
    if conditions.if_match is not None:
        if not etag_matches(conditions.if_match, etag):
            return "If-Match"
    elif conditions.if_unmodified_since_s is not None and modified_s > conditions.if_unmodified_since_s:
        return "If-Unmodified-Since"
    if conditions.if_none_match is not None:
        if etag_matches(conditions.if_none_match, etag):
            return "If-None-Match"
    elif conditions.if_modified_since_s is not None and modified_s <= conditions.if_modified_since_s <= now_s:
        return "If-Modified-Since"
    return None


def etag_matches(header: str, etag: str) -> bool:
    """Whether the header is `*` or lists this ETag, with or without quotes."""
    return any(_bare(each) in ("*", etag) for each in header.split(","))


def _bare(text: str) -> str:
    return text.strip().removeprefix("W/").strip('"')
