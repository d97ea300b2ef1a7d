"""The messages of Session Manager's data channel, which AWS's session-manager-plugin exchanges with the server.

Each message is one binary websocket message, big-endian:

    0    4   length of the header without the last field: 116
    4   32   type, padded with spaces: output_stream_data, input_stream_data, acknowledge, channel_closed
    36   4   schema version: 1
    40   8   created, milliseconds since the epoch
    48   8   sequence number
    56   8   flags: 1 the first of its stream, 2 the last
    64  16   a UUID with its two halves swapped
    80  32   SHA-256 of the payload
    112  4   kind of the payload
    116  4   the payload's length
    120      the payload

The messages of each data stream are numbered from 0, and each is acknowledged by a message with its number. Before these messages
the client sends its token as JSON in a text message.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from uuid import UUID

OUTPUT, INPUT, ACKNOWLEDGE, CLOSED = "output_stream_data", "input_stream_data", "acknowledge", "channel_closed"
FIRST, LAST = 1, 2
TERMINATE = 2  # the payload of a message of kind FLAG that ends the session
VERSION = 1
CORRAL_CLIENT = "corral"  # a client whose version starts with this also receives exit codes and a separate standard error
_HEAD = struct.Struct(">I32sIqqQ16s32sII")
_LENGTH_BYTES = 4


class PayloadKind(IntEnum):
    """The kind of a payload."""

    NONE = 0
    DATA = 1
    SIZE = 3  # JSON: cols, rows
    HANDSHAKE_REQUEST = 5
    HANDSHAKE_RESPONSE = 6
    HANDSHAKE_COMPLETE = 7
    FLAG = 10
    STANDARD_ERROR = 11
    EXIT_CODE = 12  # in decimal


class NotAMessage(ValueError):
    """The bytes are not a valid message of the data channel."""


@dataclass(frozen=True, slots=True)
class ChannelMessage:
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
    """The sequence number that an acknowledgement names."""
    try:
        return int(json.loads(message.payload)["AcknowledgedMessageSequenceNumber"])
    except (ValueError, TypeError, KeyError):
        raise NotAMessage("the acknowledgement names no sequence number") from None
