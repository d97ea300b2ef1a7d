"""HTTP requests and responses as plain data, independent of any web server."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from corral.aws.wire_errors import ParseError

BODY_MAX_BYTES = 16 * 1024 * 1024  # the limit of a decompressed body; the server also limits the bytes that it receives
AWS_CHUNKED = "aws-chunked"  # clients list it as a content encoding, but the server decodes it while it receives the body


class Request(Struct):  # not frozen, because the server sets `body` later, when it has received the body
    """One HTTP request. Path and query are not percent-decoded, because clients sign the encoded text.

    The repr contains only method and path, because the other fields may contain secrets.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # names are in lower case; values are decoded as latin-1
    body: bytes
    address: str = ""  # the client's IP address
    is_secure: bool = False  # the client's connection to this server has TLS
    signed_for: tuple[str, str | None] = ("", None)  # a text and what `scope_service` has found in it

    @property
    def scheme(self) -> str:
        return "https" if self.is_secure else "http"

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r})"


class Response(Struct, frozen=True):
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    stream: Any = None  # the streamed payload that the handler returned; if set, the server sends it instead of `body`


def encodings(header: str) -> list[str]:
    """Split a Content-Encoding header into its encodings."""
    return [element.strip() for element in header.split(",") if element.strip()]


def decompressed_body(request: Request, max_bytes: int = BODY_MAX_BYTES) -> bytes:
    """Return the decompressed body. For example, botocore compresses large PutMetricData requests."""
    encoding = request.headers.get("content-encoding")
    if encoding is None or encoding == "identity":
        return request.body
    if encoding.lower() != "gzip":
        raise ParseError.syntax(f"content encoding {encoding!r} is not supported: use gzip or none")
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unpacker.decompress(request.body, max_bytes + 1)  # the limit protects the memory from decompression bombs
    except zlib.error:
        raise ParseError.syntax("the body is not valid gzip") from None
    if len(body) > max_bytes:
        raise ParseError.syntax(f"the body is larger than {max_bytes} bytes when decompressed")
    if not unpacker.eof:
        raise ParseError.syntax("the gzip body is truncated")
    return body
