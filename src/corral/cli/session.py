"""The person's end of execute-command's data channel: a websocket on one side, this terminal on the other.

It is what AWS's session-manager-plugin is, and tells its version as one that also takes exit codes and standard error apart.
What it sends need not be sent twice: the server takes all in order. Output is acknowledged when it has been written, so whoever
reads slowly here slows the command down.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import termios
import tty
from types import FrameType
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request, TextMessage

import corral
from corral.channel.messages import (
    ACKNOWLEDGE,
    CLOSED,
    CORRAL_CLIENT,
    FIRST,
    INPUT,
    LAST,
    OUTPUT,
    ChannelMessage,
    PayloadKind,
    acknowledged,
    acknowledgement,
    pack,
    unpack,
)
from corral.cli.refusals import PIPE_BROKE, Failed

CONNECT_S = 10.0
PART_BYTES = 65_536
INPUT_BYTES = 16_384
UNACKNOWLEDGED_MAX_BYTES = 65_536  # then nothing more is read here until the command has taken some
CREATED_MS = 1  # no clock: nobody looks at it
TERMINATED = 128 + signal.SIGTERM
LOST = "the connection was lost; the command beside the task ends."


class _Unread(Exception):
    """Whoever read our output has gone."""


class Session:
    def __init__(self, session: dict[str, str], *, has_terminal: bool, reads: bool) -> None:
        self._session = session
        self._has_terminal = has_terminal
        self._reading = False
        self._reads = reads
        self._socket: socket.socket
        self._channel = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._unsent = bytearray()
        self._part = bytearray()  # of a websocket message
        self._sequence = 0
        self._unacknowledged: dict[int, int] = {}  # number → bytes
        self._expected = 0
        self._code: int | None = None
        self._closed: str | None = None  # why, or an empty word
        self._woken, self._wake = os.pipe()

    def attend(self) -> int:
        """Until the command has ended; its exit code."""
        cooked = termios.tcgetattr(0) if self._has_terminal else None
        signal.signal(signal.SIGTERM, _terminated)
        try:
            self._connect()
            while self._closed is None:
                self._turn()
        except _Unread:
            return PIPE_BROKE
        except (OSError, wsproto.utilities.ProtocolError):
            raise Failed(LOST) from None
        finally:
            if cooked is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, cooked)
        if self._code is None:
            raise Failed(self._closed or LOST)
        return self._code

    # -- the websocket -----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        url = urlsplit(self._session["streamUrl"])
        self._socket = socket.create_connection((url.hostname or "", url.port or 80), CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(self._channel.send(Request(host=url.netloc, target=f"{url.path}?{url.query}")))
        while not isinstance(event := self._first_event(), AcceptConnection):
            if isinstance(event, RejectConnection):
                raise Failed(f"the server does not open this session (HTTP {event.status_code}).")
        words = {
            "MessageSchemaVersion": "1.0", "RequestId": str(_new_id()), "TokenValue": self._session["tokenValue"],
            "ClientId": str(_new_id()),
        }  # fmt: skip
        self._socket.sendall(self._channel.send(TextMessage(json.dumps(words))))
        self._socket.setblocking(False)

    def _first_event(self) -> Any:
        for event in self._channel.events():
            return event
        self._channel.receive_data(self._socket.recv(PART_BYTES) or None)
        return None

    def _turn(self) -> None:
        """Whatever can be done now."""
        wanted: list[Any] = [self._socket, self._woken]
        if self._reading and sum(self._unacknowledged.values()) < UNACKNOWLEDGED_MAX_BYTES:
            wanted.append(0)
        readable, writable, _ = select.select(wanted, [self._socket] if self._unsent else [], [])
        if self._woken in readable:
            os.read(self._woken, PART_BYTES)
            self._say_size()
        if 0 in readable:
            self._take_input()
        if self._socket in writable:
            del self._unsent[: self._socket.send(self._unsent[:PART_BYTES])]
        if self._socket in readable:
            part = self._socket.recv(PART_BYTES)
            if not part:
                raise ConnectionResetError
            self._channel.receive_data(part)
        for event in self._channel.events():
            self._happened(event)

    def _happened(self, event: Any) -> None:
        if isinstance(event, BytesMessage):
            self._part += event.data
            if event.message_finished:
                message = unpack(bytes(self._part))
                self._part.clear()
                self._heard(message)
        elif isinstance(event, Ping):
            self._unsent += self._channel.send(event.response())
        elif isinstance(event, CloseConnection) and self._closed is None:
            self._closed = event.reason or ""

    # -- the channel -------------------------------------------------------------------------------------------------

    def _heard(self, message: ChannelMessage) -> None:
        if message.type == ACKNOWLEDGE:
            self._unacknowledged.pop(acknowledged(message), None)
        elif message.type == CLOSED:
            self._closed = str(json.loads(message.payload).get("Output", ""))
        elif message.type == OUTPUT and message.sequence <= self._expected:
            if message.sequence == self._expected:  # else it was sent again
                self._expected += 1
                self._take(message)
            self._send(acknowledgement(message, _new_id()))

    def _take(self, message: ChannelMessage) -> None:
        if message.kind == PayloadKind.DATA:
            _write(1, message.payload)
        elif message.kind == PayloadKind.STANDARD_ERROR:
            _write(2, message.payload)
        elif message.kind == PayloadKind.EXIT_CODE:
            self._code = int(message.payload)
        elif message.kind == PayloadKind.HANDSHAKE_REQUEST:
            asked = json.loads(message.payload)["RequestedClientActions"]
            done = [{"ActionType": action["ActionType"], "ActionStatus": 1, "ActionResult": None, "Error": ""} for action in asked]
            version = f"{CORRAL_CLIENT} {corral.__version__}"
            self._say(PayloadKind.HANDSHAKE_RESPONSE, {"ClientVersion": version, "ProcessedClientActions": done, "Errors": []})
        elif message.kind == PayloadKind.HANDSHAKE_COMPLETE:
            self._begin()

    def _begin(self) -> None:
        if self._has_terminal:
            signal.signal(signal.SIGWINCH, self._resized)
            self._say_size()
            tty.setraw(0, termios.TCSADRAIN)
        self._reading = self._reads
        if not self._reads:
            self._say(PayloadKind.DATA, b"", LAST)

    def _take_input(self) -> None:
        typed = os.read(0, INPUT_BYTES)
        self._reading = bool(typed)
        self._say(PayloadKind.DATA, typed, 0 if typed else LAST)

    def _resized(self, number: int, stack: FrameType | None) -> None:
        os.write(self._wake, b"w")

    def _say_size(self) -> None:
        size = os.get_terminal_size(0)
        self._say(PayloadKind.SIZE, {"cols": size.columns, "rows": size.lines})

    def _say(self, kind: PayloadKind, payload: bytes | dict[str, Any], flags: int = 0) -> None:
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self._unacknowledged[self._sequence] = len(data)
        self._send(ChannelMessage(INPUT, self._sequence, flags | (FIRST if self._sequence == 0 else 0), _new_id(), kind, data))
        self._sequence += 1

    def _send(self, message: ChannelMessage) -> None:
        self._unsent += self._channel.send(BytesMessage(pack(message, CREATED_MS)))


def _new_id() -> UUID:
    return UUID(bytes=os.urandom(16), version=4)


def _write(fd: int, payload: bytes) -> None:
    while payload:
        try:
            payload = payload[os.write(fd, payload) :]
        except BrokenPipeError:
            raise _Unread from None


def _terminated(number: int, stack: FrameType | None) -> None:
    sys.exit(TERMINATED)
