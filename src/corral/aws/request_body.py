"""Decoders of request bodies that are too large for memory: they verify a body while it streams.

A caller may write the bytes that `feed` returns to a file immediately, but must discard them if `feed` or `finish` raises.
"""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import compare_digest
from typing import Protocol

from msgspec import Struct

from corral.aws.wire_errors import CONTENT_HASH_MISMATCH, error_class
from corral.errors import ApiError

LINE_MAX_BYTES = 4096  # of the header of a chunk, or of one trailer
TRAILERS_MAX = 32
TRAILER_SIGNATURE = "x-amz-trailer-signature"

_SIZE = re.compile(r"[0-9a-fA-F]{1,16}")
_SIGNATURE = "chunk-signature="
_EMPTY_SHA256 = sha256().hexdigest()


class RequestBody(Protocol):
    """A request body that is being received."""

    def feed(self, data: bytes) -> bytes:
        """Return the payload contained in the next bytes. Raises an ApiError as soon as something is wrong.

        If `data` is a memoryview, the result may be one, too.
        """

    def finish(self) -> dict[str, str]:
        """Return the trailers at the end of the body. Raises an ApiError if anything is missing or wrong."""


class SigningKey(Protocol):
    """A derived signing key."""

    def hexdigest(self, text: bytes) -> str:
        """Return the signature of a text."""


class PlainBody:
    """A body without an encoding. `stated` is the signed SHA-256 of it, or None for an unsigned payload."""

    def __init__(self, stated: str | None) -> None:
        self._stated = stated
        self._hash = sha256()

    def feed(self, data: bytes) -> bytes:
        if self._stated is not None:
            self._hash.update(data)
        return data

    def finish(self) -> dict[str, str]:
        if self._stated is not None and not compare_digest(self._stated.encode(), self._hash.hexdigest().encode()):
            raise error_class("XAmzContentSHA256Mismatch", 400)(CONTENT_HASH_MISMATCH)
        return {}


class ChunkSigner(Struct):
    """Verifies chunk signatures. Each one signs the previous signature, too; the first chunk signs the request's signature."""

    key: SigningKey
    timestamp: str
    scope: str
    previous: str

    def check_chunk(self, signature: str, data_sha256: str) -> None:
        self._check("AWS4-HMAC-SHA256-PAYLOAD", signature, f"{_EMPTY_SHA256}\n{data_sha256}")

    def check_trailers(self, signature: str, text: bytes) -> None:
        self._check("AWS4-HMAC-SHA256-TRAILER", signature, sha256(text).hexdigest())

    def _check(self, algorithm: str, signature: str, end: str) -> None:
        to_sign = f"{algorithm}\n{self.timestamp}\n{self.scope}\n{self.previous}\n{end}"
        expected = self.key.hexdigest(to_sign.encode("utf-8", "replace"))
        if not compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            message = "The chunk signature we calculated does not match the signature you provided."
            raise error_class("SignatureDoesNotMatch", 403)(message)
        self.previous = expected


class ChunkedBody:
    """An aws-chunked body: chunks with sizes and optional signatures, then trailers with an optional signature."""

    def __init__(self, size: int, trailers: tuple[str, ...], signer: ChunkSigner | None) -> None:
        self._missing = size  # bytes of payload not yet announced by a chunk
        self._declared = trailers
        self._signer = signer
        self._hash = sha256()
        self._signature = ""  # of the current chunk
        self._left = 0  # bytes of the current chunk not yet received
        self._ended = False  # the last chunk, which is empty, has been received
        self._in_chunk = False  # the line break after the current chunk has not been received
        self._line = b""
        self._trailers: dict[str, str] = {}
        self._trailer_signature: str | None = None

    def feed(self, data: bytes) -> bytes:
        data = bytes(data)
        out: list[bytes | memoryview] = []
        view, at = memoryview(data), 0
        while at < len(data):
            if self._left:
                piece = view[at : at + self._left]
                if self._signer is not None:
                    self._hash.update(piece)
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
            else:
                at = self._read_line(data, at)
        return b"".join(out)

    def finish(self) -> dict[str, str]:
        if not self._ended or self._missing or self._line:
            raise _incomplete("The request body terminated unexpectedly")
        if set(self._trailers) != set(self._declared):
            raise _malformed_trailer()
        if self._signer is not None and self._declared:
            if self._trailer_signature is None:
                raise _malformed_trailer()
            text = "".join(f"{name}:{value}\n" for name, value in self._trailers.items())
            self._signer.check_trailers(self._trailer_signature, text.encode("latin-1"))
        return self._trailers

    def _read_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        piece = data[at : end if end >= 0 else len(data)]
        if len(self._line) + len(piece) > LINE_MAX_BYTES:
            raise _malformed("a line of the chunked body is too long")
        self._line += piece
        if end < 0:
            return len(data)
        line, self._line = self._line.removesuffix(b"\r").decode("latin-1"), b""
        if self._ended:
            self._take_trailer(line)
        elif self._in_chunk:
            self._end_chunk(line)
        else:
            self._begin_chunk(line)
        return end + 1

    def _begin_chunk(self, line: str) -> None:
        size_text, _, extension = line.partition(";")
        if _SIZE.fullmatch(size_text) is None:
            raise _malformed("a chunk must begin with its size")
        size = int(size_text, 16)
        if size > self._missing:
            raise _incomplete("The chunks are larger than the x-amz-decoded-content-length header states")
        if self._signer is not None:
            if not extension.startswith(_SIGNATURE):
                raise _malformed("a chunk must have a signature")
            self._signature = extension.removeprefix(_SIGNATURE)
            self._hash = sha256()
        self._left = size
        self._missing -= size
        self._in_chunk = size > 0
        if size == 0:
            self._ended = True
            self._check_chunk()

    def _end_chunk(self, line: str) -> None:
        if line:
            raise _malformed("a chunk is longer than its size")
        self._in_chunk = False
        self._check_chunk()

    def _check_chunk(self) -> None:
        if self._signer is not None:
            self._signer.check_chunk(self._signature, self._hash.hexdigest())

    def _take_trailer(self, line: str) -> None:
        if not line:  # the end of the body, or the empty line that some clients send before the trailers' signature
            return
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or name in self._trailers or len(self._trailers) >= TRAILERS_MAX:
            raise _malformed_trailer()
        if name == TRAILER_SIGNATURE:
            self._trailer_signature = value.strip()
        else:
            self._trailers[name] = value.strip()


def _incomplete(message: str) -> ApiError:
    return error_class("IncompleteBody", 400)(message)


def _malformed(message: str) -> ApiError:
    return error_class("InvalidRequest", 400)(message)


def _malformed_trailer() -> ApiError:
    message = "The request contained trailing data that was not well-formed or did not conform to our published schema."
    return error_class("MalformedTrailerError", 400)(message)
