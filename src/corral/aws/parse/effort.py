"""Estimates how long it takes to parse a body, from a count of its bytes. The estimate is never too low.

The parsers of JSON and XML are C code, which stops all other threads while it runs. A list of JSON takes up to 0.3 µs, and an
element or an attribute of XML up to 3 µs. The decoders of CBOR and of forms are Python code: other threads run in between, but the
event loop must not run it for long. So the server parses a body

    SMALL   on the event loop: it takes at most a few milliseconds
    LARGE   in a thread: no step of it stops other threads for more than about ten milliseconds
    HUGE    in another process (`server/parser_processes.py`)
"""

from __future__ import annotations

from enum import IntEnum
from math import inf

from msgspec import Struct

UNCOUNTED_MAX_BYTES = 8 * 1024  # whatever it contains, such a body is SMALL
COUNTED_AT_ONCE_BYTES = 256 * 1024  # to count a longer part would stop other threads for too long
KIB, MIB = 1024, 1024 * 1024


class Effort(IntEnum):
    SMALL = 0
    LARGE = 1
    HUGE = 2


SMALL, LARGE = Effort.SMALL, Effort.LARGE  # each request needs them, and Python 3.11 looks up a member of an enumeration slowly


class Bounds(Struct, frozen=True):
    """The limits of bodies of SMALL and of LARGE effort, as pairs.

    `marks` are bytes that begin or end a value. A text may contain them as well, so a body can have fewer values than marks.
    """

    sizes: tuple[float, float]  # in bytes
    marks: tuple[tuple[bytes, float, float], ...] = ()


_JSON = Bounds((256 * KIB, 2 * MIB), ((b"[", 4_000, 25_000), (b",", 4_000, 50_000), (b":", 4_000, 50_000)))
# Python code runs for each element, so other threads run in between, but not within a start tag, a comment or a long name.
_XML = Bounds((64 * KIB, 256 * KIB), ((b"=", 1_000, 6_000), (b"<", 1_000, 40_000)))
_FORM = Bounds((256 * KIB, inf), ((b"&", 1_000, inf), (b"%", 10_000, inf)))
_CBOR = Bounds((UNCOUNTED_MAX_BYTES, 256 * KIB))  # each byte can be a value
_BOUNDS = {
    "json": _JSON,
    "boto3": _JSON,
    "rest-json": _JSON,
    "rest-xml": _XML,
    "query": _FORM,
    "ec2": _FORM,
    "smithy-rpc-v2-cbor": _CBOR,
}


def effort_of(protocol: str, body: bytes) -> Effort:
    """Return the effort to parse a decompressed body."""
    size, bounds = len(body), _BOUNDS[protocol]
    if size <= UNCOUNTED_MAX_BYTES:
        return SMALL
    if size > bounds.sizes[1]:
        return Effort.HUGE
    effort = SMALL if size <= bounds.sizes[0] else LARGE
    for mark, small_max, large_max in bounds.marks:
        if effort is LARGE and large_max == inf:
            continue
        found = 0
        for at in range(0, size, COUNTED_AT_ONCE_BYTES):
            found += body.count(mark, at, at + COUNTED_AT_ONCE_BYTES)
            if found > large_max:
                return Effort.HUGE
        if found > small_max:
            effort = LARGE
    return effort
