"""Decoders for request bodies that are too large for memory. They verify a body while the server receives it.

The caller may write the bytes that `feed` returns to a file at once. If `feed` or `finish` raises an ApiError later, the caller
must delete the file.
"""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import compare_digest
from typing import Protocol

from msgspec import Struct

from corral.aws.wire_errors import CONTENT_HASH_MISMATCH, error_class
from corral.core.errors import ApiError

LINE_MAX_BYTES = 4096  # the limit for the header line of a chunk, and for one trailer
TRAILERS_MAX = 32
TRAILER_SIGNATURE = "x-amz-trailer-signature"

_SIZE = re.compile(r"[0-9a-fA-F]{1,16}")
_SIGNATURE = "chunk-signature="
_EMPTY_SHA256 = sha256().hexdigest()


class RequestBody(Protocol):
    def feed(self, data: bytes) -> bytes:
        """Decode the next bytes of the body and return their payload. Raises an ApiError if the bytes are not valid.

        If `data` is a memoryview, the result may also be a memoryview.
        """

    def finish(self) -> dict[str, str]:
        """Return the trailers at the end of the body.

        Raises an ApiError if the body is incomplete or does not match its signature.
        """


class SigningKey(Protocol):
    def hexdigest(self, text: bytes) -> str:
        """Return the signature of a text."""


class PlainBody:
    """A body that is not encoded.

    `stated` is the body's SHA-256 according to the signature, or None if the payload is not signed.
    """

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
    """Verifies the signatures of chunks.

    Each signature also covers the previous chunk's signature. The first one covers the signature of the request.
    """

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
    """A body with the content encoding aws-chunked.

    Each chunk has a size and may have a signature. Trailers follow the last chunk.
    """

    def __init__(self, size: int, trailers: tuple[str, ...], signer: ChunkSigner | None) -> None:
        self._missing = size  # the payload size minus the sizes of all chunks so far
        self._declared = trailers
        self._signer = signer
        self._hash = sha256()
        self._signature = ""  # the signature of the current chunk
        self._left = 0  # the number of bytes of the current chunk that are still missing
        self._ended = False  # True after the last chunk, which is empty
        self._in_chunk = False  # True until the line break at the end of the current chunk has arrived
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
        if not line:  # an empty line ends the body, but some clients also send one before the signature of the trailers
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
