"""What came in and what goes out, as plain data: the wire knows no web server."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.aws.faults import Misfit

BODY_MAX_BYTES = 16 * 1024 * 1024  # of a body after decompression; the server bounds what arrives
AWS_CHUNKED = "aws-chunked"  # stands among content encodings, yet is only how a body travels


# Request, Response, Call and Caller are created for every request. They are not frozen, because frozen ones take three times as
# long to create: a tenth of a request's cost before its handler. Only the body of a request is set later, when it has arrived.


@dataclass(slots=True)
class Request:
    """One HTTP request; path and query are raw, because signatures and labels are made from the undecoded text.

    Only method and path show in its repr: the rest may hold signatures and tokens.
    """

    method: str
    path: str
    query: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)  # lower-case names, values decoded as latin-1
    body: bytes = field(repr=False)
    address: str = field(default="", repr=False)  # where it came from


@dataclass(slots=True)
class Response:
    """One HTTP response, ready to be sent."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    stream: Any = None  # what the handler gave for a payload that streams: the server sends it instead of the body


def encodings(header: str) -> list[str]:
    """The elements of a Content-Encoding header."""
    return [element.strip() for element in header.split(",") if element.strip()]


def plain_body(request: Request) -> bytes:
    """The body without its content encoding: botocore gzips large PutMetricData calls."""
    encoding = request.headers.get("content-encoding")
    if encoding is None or encoding == "identity":
        return request.body
    if encoding.lower() != "gzip":
        raise Misfit.form(f"content encoding {encoding!r} is not supported, only gzip")
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unpacker.decompress(request.body, BODY_MAX_BYTES + 1)  # bounded: a bomb must not fill the memory
    except zlib.error:
        raise Misfit.form("the body is not valid gzip") from None
    if len(body) > BODY_MAX_BYTES:
        raise Misfit.form(f"the body is larger than {BODY_MAX_BYTES} bytes when decompressed")
    if not unpacker.eof:
        raise Misfit.form("the gzip body is cut short")
    return body
