"""The client of ExecuteCommand's data channel. It relays input and output between a websocket and this terminal.

It works like AWS's session-manager-plugin, with three differences. It sends its own client version, so that the server also sends
exit codes and a separate standard error. It never resends input, because Corral's server receives all messages in order. It
acknowledges output only after it has written the output, so that a slow reader slows the command down.
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
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

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
from corral.cli.client.tls import secure
from corral.cli.client.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    OpeningRequest,
    WrongWebSocket,
    close_reason,
    frame,
)
from corral.cli.printing.errors import BROKEN_PIPE, CliError

SESSION_CONNECT_S = 10.0
RECEIVE_BYTES = 65_536
INPUT_BYTES = 16_384
UNACKNOWLEDGED_MAX_BYTES = 65_536  # above this limit, read no input until the server acknowledges earlier input
CREATED_MS = 1  # any value, because the server ignores the creation time
EXIT_TERMINATED = 128 + signal.SIGTERM
CONNECTION_LOST = "the connection to the server was lost, and the command was stopped."


class _OutputClosed(Exception):
    """The program that reads the output has closed the pipe."""


class ExecSession:
    """One session. `session` is a member of ExecuteCommand's response. If `reads` is False, the command gets no input.

    `bundle` is the file with the certificates that verify a server with TLS. None: those of this machine.
    """

    def __init__(self, session: dict[str, str], *, has_terminal: bool, reads: bool, bundle: str | None) -> None:
        self._session = session
        self._bundle = bundle
        self._not_ready: tuple[type[OSError], ...] = (BlockingIOError,)  # a part of a record of TLS has arrived or was sent
        self._buffered: Callable[[], int] = lambda: 0  # the bytes that TLS has decrypted, and that `select` does not know
        self._has_terminal = has_terminal
        self._reading = False
        self._reads = reads
        self._socket: socket.socket
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._sequence = 0
        self._unacknowledged: dict[int, int] = {}  # sequence number -> bytes of input that the server has not acknowledged
        self._next_output = 0
        self._code: int | None = None
        self._closed: str | None = None  # None: the session is open; else why it was closed, or an empty text
        self._wake_reader, self._wake_writer = os.pipe()

    def run(self) -> int:
        """Relay input and output until the command has ended, and return its exit code."""
        cooked = termios.tcgetattr(0) if self._has_terminal else None
        signal.signal(signal.SIGTERM, _on_terminate)
        try:
            self._connect()
            while self._closed is None:
                self._run_once()
        except _OutputClosed:
            return BROKEN_PIPE
        except (OSError, WrongWebSocket):
            raise CliError(CONNECTION_LOST) from None
        finally:
            if cooked is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, cooked)
        if self._code is None:
            raise CliError(self._closed or CONNECTION_LOST)
        return self._code

    # -- the websocket -----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        url = urlsplit(self._session["streamUrl"])
        host = (url.hostname or "").encode("ascii")  # as bytes: for a str, Python imports the codec `idna`, which takes time
        is_secure = url.scheme == "wss"
        port = url.port or (443 if is_secure else 80)
        self._socket = socket.create_connection((host, port), SESSION_CONNECT_S)  # type: ignore[arg-type]
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_secure:
            from ssl import SSLWantReadError, SSLWantWriteError

            self._socket = secure(self._socket, host, f"https://{url.netloc}", self._bundle)
            self._not_ready = SSLWantReadError, SSLWantWriteError
            self._buffered = self._socket.pending
        request = OpeningRequest(url.netloc, f"{url.path}?{url.query}")
        self._socket.sendall(request.data)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, after = received.partition(b"\r\n\r\n")
        if (status := request.refused(head)) is not None:
            raise CliError(f"the server refused the session (HTTP {status}).")
        self._frames.feed(after)
        opening = {
            "MessageSchemaVersion": "1.0", "RequestId": str(_new_id()), "TokenValue": self._session["tokenValue"],
            "ClientId": str(_new_id()),
        }  # fmt: skip
        self._socket.sendall(frame(TEXT, json.dumps(opening).encode()))
        self._socket.setblocking(False)

    def _receive(self) -> bytes:
        part = self._socket.recv(RECEIVE_BYTES)
        if not part:
            raise ConnectionResetError
        return part

    def _run_once(self) -> None:
        """Wait until the socket or standard input is ready, or the terminal is resized. Then read and write once."""
        wanted: list[Any] = [self._socket, self._wake_reader]
        if self._reading and sum(self._unacknowledged.values()) < UNACKNOWLEDGED_MAX_BYTES:
            wanted.append(0)
        wait_s = 0.0 if self._buffered() else None
        readable, writable, _ = select.select(wanted, [self._socket] if self._unsent else [], [], wait_s)
        if self._wake_reader in readable:
            os.read(self._wake_reader, RECEIVE_BYTES)
            self._send_size()
        if 0 in readable:
            self._read_input()
        if self._socket in writable:
            with suppress(*self._not_ready):
                del self._unsent[: self._socket.send(self._unsent[:RECEIVE_BYTES])]
        if self._socket in readable or wait_s is not None:
            with suppress(*self._not_ready):
                self._frames.feed(self._receive())
        for kind, payload in self._frames.messages():
            if kind == BINARY:
                self._on_message(unpack(payload))
            elif kind == PING:
                self._unsent += frame(PONG, payload)
            elif kind == CLOSE and self._closed is None:
                self._closed = close_reason(payload)

    # -- the channel -------------------------------------------------------------------------------------------------

    def _on_message(self, message: ChannelMessage) -> None:
        if message.type == ACKNOWLEDGE:
            self._unacknowledged.pop(acknowledged(message), None)
        elif message.type == CLOSED:
            self._closed = str(json.loads(message.payload).get("Output", ""))
        elif message.type == OUTPUT and message.sequence <= self._next_output:
            if message.sequence == self._next_output:  # a lower number is a retransmission
                self._next_output += 1
                self._on_output(message)
            self._send(acknowledgement(message, _new_id()))

    def _on_output(self, message: ChannelMessage) -> None:
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
            self._send_data(
                PayloadKind.HANDSHAKE_RESPONSE, {"ClientVersion": version, "ProcessedClientActions": done, "Errors": []}
            )
        elif message.kind == PayloadKind.HANDSHAKE_COMPLETE:
            self._begin()

    def _begin(self) -> None:
        if self._has_terminal:
            signal.signal(signal.SIGWINCH, self._on_resize)
            self._send_size()
            tty.setraw(0, termios.TCSADRAIN)
        self._reading = self._reads
        if not self._reads:
            self._send_data(PayloadKind.DATA, b"", LAST)

    def _read_input(self) -> None:
        typed = os.read(0, INPUT_BYTES)
        self._reading = bool(typed)
        self._send_data(PayloadKind.DATA, typed, 0 if typed else LAST)

    def _on_resize(self, number: int, stack: FrameType | None) -> None:
        os.write(self._wake_writer, b"w")

    def _send_size(self) -> None:
        size = os.get_terminal_size(0)
        self._send_data(PayloadKind.SIZE, {"cols": size.columns, "rows": size.lines})

    def _send_data(self, kind: PayloadKind, payload: bytes | dict[str, Any], flags: int = 0) -> None:
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self._unacknowledged[self._sequence] = len(data)
        self._send(ChannelMessage(INPUT, self._sequence, flags | (FIRST if self._sequence == 0 else 0), _new_id(), kind, data))
        self._sequence += 1

    def _send(self, message: ChannelMessage) -> None:
        self._unsent += frame(BINARY, pack(message, CREATED_MS))


def _new_id() -> UUID:
    return UUID(bytes=os.urandom(16), version=4)


def _write(fd: int, payload: bytes) -> None:
    while payload:
        try:
            payload = payload[os.write(fd, payload) :]
        except BrokenPipeError:
            raise _OutputClosed from None


def _on_terminate(number: int, stack: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)
