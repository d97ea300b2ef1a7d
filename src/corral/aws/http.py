"""HTTP requests and responses as plain data, independent of any web server."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from corral.aws.wire_errors import ParseError

BODY_MAX_BYTES = 16 * 1024 * 1024  # of a body after decompression; the server limits the bytes it receives
AWS_CHUNKED = "aws-chunked"  # listed as a content encoding, but removed when the body is received


class Request(Struct):  # not frozen: the server sets the body when it has arrived
    """One HTTP request. Path and query are not decoded, because signatures are computed from the undecoded text.

    The repr shows only method and path: the other fields may contain signatures and tokens.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # lower-case names, values decoded as latin-1
    body: bytes
    address: str = ""  # the client's IP address

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r})"


class Response(Struct, frozen=True):
    """One HTTP response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    stream: Any = None  # the handler's value for a streamed payload: the server sends it instead of `body`


def encodings(header: str) -> list[str]:
    """Split a Content-Encoding header into its elements."""
    return [element.strip() for element in header.split(",") if element.strip()]


def decompressed_body(request: Request) -> bytes:
    """Return the body without its content encoding: botocore compresses large PutMetricData requests."""
    encoding = request.headers.get("content-encoding")
    if encoding is None or encoding == "identity":
        return request.body
    if encoding.lower() != "gzip":
        raise ParseError.syntax(f"content encoding {encoding!r} is not supported: use gzip or none")
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unpacker.decompress(request.body, BODY_MAX_BYTES + 1)  # bounded, so that a decompression bomb cannot fill the memory
    except zlib.error:
        raise ParseError.syntax("the body is not valid gzip") from None
    if len(body) > BODY_MAX_BYTES:
        raise ParseError.syntax(f"the body is larger than {BODY_MAX_BYTES} bytes when decompressed")
    if not unpacker.eof:
        raise ParseError.syntax("the gzip body is truncated")
    return body
