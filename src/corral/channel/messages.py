"""The data channel of Session Manager: the messages that its stock plugin exchanges with whoever runs the command.

A message is binary, big-endian, in one websocket message:

    0    4   length of the head up to the payload's length: 116
    4   32   type, padded with spaces: output_stream_data, input_stream_data, acknowledge, channel_closed
    36   4   schema version: 1
    40   8   created, milliseconds since the epoch
    48   8   sequence number
    56   8   flags: 1 the first of its stream, 2 the last
    64  16   a UUID, its two halves exchanged
    80  32   SHA-256 of the payload
    112  4   what the payload is
    116  4   the payload's length
    120      the payload

Both streams of data are numbered from 0, and every message of them is acknowledged by one that names its number. Before all
that the client says in text, as JSON, which token it has.
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
TERMINATE = 2  # what a payload of kind FLAG says
VERSION = 1
KNOWS_ENDS = "corral"  # a client whose version begins so is also told exit codes, and standard error apart
_HEAD = struct.Struct(">I32sIqqQ16s32sII")
_LENGTH_BYTES = 4


class Kind(IntEnum):
    """What a payload is."""

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
    """These bytes are not a message of the channel."""


@dataclass(frozen=True, slots=True)
class Message:
    type: str
    sequence: int
    flags: int
    id: UUID
    kind: int
    payload: bytes


def pack(message: Message, created_ms: int) -> bytes:
    halves = message.id.bytes[8:] + message.id.bytes[:8]
    head = _HEAD.pack(
        _HEAD.size - _LENGTH_BYTES, message.type.encode().ljust(32), VERSION, created_ms, message.sequence, message.flags, halves,
        sha256(message.payload).digest(), message.kind, len(message.payload),
    )  # fmt: skip
    return head + message.payload


def unpack(data: bytes) -> Message:
    if len(data) < _HEAD.size:
        raise NotAMessage("shorter than a head")
    length, name, _, _, sequence, flags, halves, digest, kind, size = _HEAD.unpack_from(data)
    payload = data[length + _LENGTH_BYTES :]
    if length < _HEAD.size - _LENGTH_BYTES or len(payload) != size:
        raise NotAMessage("its length is another one than it says")
    if size and sha256(payload).digest() != digest:
        raise NotAMessage("its digest is another one than its payload's")
    word = name.strip(b" \0").decode("ascii", "replace")
    return Message(word, sequence, flags, UUID(bytes=halves[8:] + halves[:8]), kind, payload)


def acknowledgement(of: Message, message_id: UUID) -> Message:
    words = {
        "AcknowledgedMessageType": of.type,
        "AcknowledgedMessageId": str(of.id),
        "AcknowledgedMessageSequenceNumber": of.sequence,
        "IsSequentialMessage": True,
    }
    return Message(ACKNOWLEDGE, 0, FIRST | LAST, message_id, Kind.NONE, json.dumps(words).encode())


def acknowledged(message: Message) -> int:
    """The number that an acknowledgement is of."""
    try:
        return int(json.loads(message.payload)["AcknowledgedMessageSequenceNumber"])
    except (ValueError, TypeError, KeyError):
        raise NotAMessage("an acknowledgement of nothing") from None
