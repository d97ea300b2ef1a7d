"""The messages of ExecuteCommand's data channel. AWS's session-manager-plugin uses the same messages.

Each message is one binary websocket message. Numbers are big-endian. The columns are offset, size and content of each field:

    0    4   length of the header without its last field: always 116
    4   32   type, padded with spaces: output_stream_data, input_stream_data, acknowledge, channel_closed
    36   4   schema version: always 1
    40   8   creation time in milliseconds since the epoch
    48   8   sequence number
    56   8   flags: 1 is the first message of its stream, 2 is the last
    64  16   a UUID with its two halves swapped
    80  32   SHA-256 of the payload
    112  4   kind of the payload
    116  4   the payload's length
    120      the payload

The messages of each data stream have sequence numbers from 0. The receiver acknowledges each data message with an acknowledge
message, which contains the same number. Before all these messages, the client sends its token as JSON in a text message.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

OUTPUT, INPUT, ACKNOWLEDGE, CLOSED = "output_stream_data", "input_stream_data", "acknowledge", "channel_closed"
FIRST, LAST = 1, 2
TERMINATE = 2  # a message of kind FLAG with this payload ends the session
VERSION = 1
CORRAL_CLIENT = "corral"  # the server sends exit codes and a separate standard error only to clients whose version starts with this
_HEAD = struct.Struct(">I32sIqqQ16s32sII")
_LENGTH_BYTES = 4


class PayloadKind(IntEnum):
    """The values of the field "kind of the payload"."""

    NONE = 0
    DATA = 1
    SIZE = 3  # the payload is JSON with cols and rows
    HANDSHAKE_REQUEST = 5
    HANDSHAKE_RESPONSE = 6
    HANDSHAKE_COMPLETE = 7
    FLAG = 10
    STANDARD_ERROR = 11
    EXIT_CODE = 12  # the payload is a decimal number


class NotAMessage(ValueError):
    """The bytes are not a valid message of the data channel."""


class ChannelMessage(NamedTuple):
    type: str
    sequence: int
    flags: int
    id: UUID
    kind: int
    payload: bytes


def pack(message: ChannelMessage, created_ms: int) -> bytes:
    halves = message.id.bytes[8:] + message.id.bytes[:8]
    head = _HEAD.pack(
        _HEAD.size - _LENGTH_BYTES, message.type.encode().ljust(32), VERSION, created_ms, message.sequence, message.flags, halves,
        sha256(message.payload).digest(), message.kind, len(message.payload),
    )  # fmt: skip
    return head + message.payload


def unpack(data: bytes) -> ChannelMessage:
    if len(data) < _HEAD.size:
        raise NotAMessage("the message is shorter than its header")
    length, name, _, _, sequence, flags, halves, digest, kind, size = _HEAD.unpack_from(data)
    payload = data[length + _LENGTH_BYTES :]
    if length < _HEAD.size - _LENGTH_BYTES or len(payload) != size:
        raise NotAMessage("the length of the message differs from its header")
    if size and sha256(payload).digest() != digest:
        raise NotAMessage("the digest does not match the payload")
    type_ = name.strip(b" \0").decode("ascii", "replace")
    return ChannelMessage(type_, sequence, flags, UUID(bytes=halves[8:] + halves[:8]), kind, payload)


def acknowledgement(of: ChannelMessage, message_id: UUID) -> ChannelMessage:
    payload = {
        "AcknowledgedMessageType": of.type,
        "AcknowledgedMessageId": str(of.id),
        "AcknowledgedMessageSequenceNumber": of.sequence,
        "IsSequentialMessage": True,
    }
    return ChannelMessage(ACKNOWLEDGE, 0, FIRST | LAST, message_id, PayloadKind.NONE, json.dumps(payload).encode())


def acknowledged(message: ChannelMessage) -> int:
    """Return the sequence number that an acknowledge message contains."""
    try:
        return int(json.loads(message.payload)["AcknowledgedMessageSequenceNumber"])
    except (ValueError, TypeError, KeyError):
        raise NotAMessage("the acknowledge message contains no sequence number") from None
