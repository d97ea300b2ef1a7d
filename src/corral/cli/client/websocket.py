"""The client's side of a websocket (RFC 6455), without extensions. It converts between messages and bytes.

The caller sends and receives the bytes. `corral exec` uses this module instead of wsproto, because the import of wsproto takes
longer than most commands.
"""

from __future__ import annotations

import os
import struct
from binascii import b2a_base64
from collections.abc import Iterator
from hashlib import sha1

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10  # the kinds of frames, which RFC 6455 calls opcodes
_CONTINUATION = 0
_LAST = 0x80  # in the first byte: this is the last frame of its message
_MASKED = 0x80  # in the second byte: the frame is masked. Clients must mask all frames.
_ACCEPTED = 101
_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LONG, _VERY_LONG = 126, 127  # in place of a length: the length follows in 2 or in 8 bytes


class WrongWebSocket(Exception):
    """The server has sent something that RFC 6455 does not allow."""


class OpeningRequest:
    def __init__(self, host: str, target: str) -> None:
        self._key = b2a_base64(os.urandom(16), newline=False)
        self.data = (
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {self._key.decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode("latin-1")

    def refused(self, head: bytes) -> int | None:
        """Return the HTTP status of a response that refuses the websocket, or None if the response accepts it.

        `head` is the part of the response before the empty line. Raise WrongWebSocket if it is not a valid response.
        """
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise WrongWebSocket(f"not HTTP: {first!r}")
        if (status := int(words[1])) != _ACCEPTED:
            return status
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        expected = b2a_base64(sha1(self._key + _KEY_SUFFIX, usedforsecurity=False).digest(), newline=False)
        if headers.get(b"sec-websocket-accept") != expected:
            raise WrongWebSocket("the response is not for this request")
        return None


def frame(kind: int, payload: bytes) -> bytes:
    """Return a message that has one frame."""
    size, mask = len(payload), os.urandom(4)
    if size < _LONG:
        head = struct.pack(">BB", _LAST | kind, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", _LAST | kind, _MASKED | _LONG, size)
    else:
        head = struct.pack(">BBQ", _LAST | kind, _MASKED | _VERY_LONG, size)
    masks = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(masks, "big")
    return head + mask + masked.to_bytes(size, "big")


def close_reason(payload: bytes) -> str:
    """Return the reason in the payload of a CLOSE frame, or an empty text. In the payload, a code of two bytes precedes it."""
    return payload[2:].decode("utf-8", "replace")


class FrameReader:
    """Joins the frames from the server into messages."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._kind: int | None = None  # the kind of the message whose first frames have arrived; None: there is none
        self._parts = bytearray()

    def feed(self, data: bytes) -> None:
        self._received += data

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and the payload of each message that is complete."""
        while (found := self._next_frame()) is not None:
            first, payload = found
            kind = first & 0x0F
            if kind in (CLOSE, PING, PONG):  # they may come between the frames of a message
                if not first & _LAST:
                    raise WrongWebSocket(f"a frame of kind {kind} is not complete")
                yield kind, payload
                continue
            if kind not in (_CONTINUATION, TEXT, BINARY) or (kind == _CONTINUATION) != (self._kind is not None):
                raise WrongWebSocket(f"a frame of kind {kind} is not allowed here")
            self._kind = self._kind or kind
            self._parts += payload
            if first & _LAST:
                message = self._kind, bytes(self._parts)
                self._kind = None
                self._parts.clear()
                yield message

    def _next_frame(self) -> tuple[int, bytes] | None:
        """Take the first frame out of the received bytes. Return its first byte and its payload, or None if it is incomplete."""
        data = self._received
        if len(data) < 2:
            return None
        first, size, at = data[0], data[1], 2
        if first & 0x70 or size & _MASKED:
            raise WrongWebSocket("the server uses an extension or masks its frames")
        if size >= _LONG:
            at += 2 if size == _LONG else 8
            size = int.from_bytes(data[2:at], "big")
        if len(data) < at + size:  # this is also true if the bytes of the length are incomplete
            return None
        payload = bytes(data[at : at + size])
        del data[: at + size]
        return first, payload
