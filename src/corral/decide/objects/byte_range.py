"""Parses the Range header of an HTTP request."""

from __future__ import annotations

import re

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class Unsatisfiable(Exception):
    """The range is outside of the body."""


def span_of(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the number of bytes of the range in a body of `size` bytes.

    Return None if the header must be ignored, because it is invalid or has several ranges. Raise Unsatisfiable if the body has no
    byte of the range.
    """
    found = _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        count = min(int(found[2]), size)
        if count == 0:
            raise Unsatisfiable
        return size - count, count
    first = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < first:
        return None
    if first >= size:
        raise Unsatisfiable
    return first, last - first + 1
