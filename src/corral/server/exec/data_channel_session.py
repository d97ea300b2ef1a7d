"""One session of the data channel, on the server's side.

The relay is a process on the host that runs the command of the session. The server numbers its messages to the client, and buffers
each message until the client has acknowledged it. AWS's session-manager-plugin drops messages that arrive before it is ready,
without an acknowledgement. So the server sends the oldest unacknowledged message again every RESEND_S seconds. If more than
UNACKNOWLEDGED_MAX_BYTES are unacknowledged, the server reads no more output of the command. Then the command blocks, as with any
slow terminal. The server acknowledges input when the relay has accepted it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from corral.channel import messages
from corral.channel.command_relay import CODE, END_OF_INPUT, ERRORS, EXIT, INPUT, OUTPUT, SIZE, WINDOW
from corral.channel.messages import CORRAL_CLIENT, ChannelMessage, NotAMessage, PayloadKind, pack
from corral.core.clock import Clock
from corral.core.ids import Ids
from corral.model.json_documents import read_json
from corral.node.link import Link, Message

AGENT_VERSION = "3.0.0.0"  # clients derive the features of an SSM agent from its version
PAYLOAD_MAX_BYTES = 16 * 1024  # longer output is sent as several messages
UNACKNOWLEDGED_MAX_BYTES = 256 * 1024
PENDING_INPUT_MAX_BYTES = 1024 * 1024  # input above this limit is not acknowledged, so the client sends it again
RESEND_S = 0.2
HANDSHAKE_S = 15.0  # the maximum wait for the response to the handshake
CLOSE_S = 30.0  # the maximum wait for the last acknowledgements
SIZED_WITHIN_S = 1.0  # the maximum wait for the window size of the client
DEFAULT_SIZE = (24, 80)  # rows and columns
SIDE_MAX = 0xFFFF  # the most rows or columns
CUT = "The session has ended: the container has stopped, or its host was lost."

Send = Callable[[bytes], Awaitable[None]]


class Disconnected(Exception):
    """Raised when the client has disconnected."""


class DataChannelSession:
    def __init__(self, session_id: str, clock: Clock, ids: Ids, send: Send) -> None:
        self._id = session_id
        self._clock = clock
        self._ids = ids
        self._send = send
        self._sequence = 0
        self._unacknowledged: dict[int, bytes] = {}  # sequence number → message, in the order of sending
        self._unacknowledged_bytes = 0
        self._changed = asyncio.Event()  # set when a message was acknowledged, or when the client has disconnected
        self._resending: asyncio.Task[None] | None = None
        self._expected = 0  # the sequence number of the next message of the client
        # Input messages of the client, each with its frames for the relay.
        self._pending_input: asyncio.Queue[tuple[ChannelMessage, list[Message]]] = asyncio.Queue()
        self._pending_input_bytes = 0
        # The version of the client. The client sends it in its response to the handshake.
        self._response: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_corral_client = False
        self._relay: Link | None = None
        self._has_size = False
        self._is_disconnected = False

    # -- the phases of a session -------------------------------------------------------------------------------------

    async def handshake(self, *, interactive: bool) -> None:
        kind = "InteractiveCommands" if interactive else "NonInteractiveCommands"
        action = {"ActionType": "SessionType", "ActionParameters": {"SessionType": kind, "Properties": {}}}
        began_s = self._clock.now_s()
        await self._put(PayloadKind.HANDSHAKE_REQUEST, {"AgentVersion": AGENT_VERSION, "RequestedClientActions": [action]})
        try:
            version = await asyncio.wait_for(self._response, HANDSHAKE_S)
        except TimeoutError:
            raise Disconnected from None
        self._is_corral_client = version.startswith(CORRAL_CLIENT)
        took_ns = round((self._clock.now_s() - began_s) * 1e9)
        await self._put(PayloadKind.HANDSHAKE_COMPLETE, {"HandshakeTimeToComplete": took_ns, "CustomerMessage": ""})

    async def relay(self, relay: Link) -> None:
        """Relay input and output until the command has ended, or the client or the relay has disconnected."""
        if self._is_disconnected:
            raise Disconnected  # the client disconnected while the command was starting
        self._relay = relay
        background = [asyncio.create_task(self._relay_input(relay)), asyncio.create_task(self._send_default_size(relay))]
        try:
            code = await self._relay_output(relay)
        finally:
            for task in background:
                task.cancel()
        if code is not None and self._is_corral_client:
            await self._put(PayloadKind.EXIT_CODE, str(code).encode())
        await self.close("" if code is not None else CUT)

    async def close(self, why: str) -> None:
        """Wait until all messages are acknowledged, then close the channel. The client displays the text `why`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._unacknowledged:
                    await self._wait_for_change()
        payload = {
            "MessageId": self._ids.uuid(), "CreatedDate": str(self._now_ms()), "DestinationId": "", "SessionId": self._id,
            "MessageType": messages.CLOSED, "SchemaVersion": messages.VERSION, "Output": why,
        }  # fmt: skip
        await self._write(self._message(messages.CLOSED, PayloadKind.NONE, json.dumps(payload).encode(), 0))

    # -- messages of the client --------------------------------------------------------------------------------------

    async def received(self, message: ChannelMessage) -> None:
        """Handle a message of the client. This method never waits for the command, because that would delay acknowledgements."""
        if message.type == messages.ACKNOWLEDGE:
            self._acknowledged(messages.acknowledged(message))
        elif message.type == messages.INPUT and message.sequence < self._expected:
            await self._acknowledge(message)  # a message that the client sent again
        elif (
            message.type == messages.INPUT
            and message.sequence == self._expected
            and self._pending_input_bytes < PENDING_INPUT_MAX_BYTES
        ):
            self._expected += 1
            frames = self._frames(message)
            if frames:
                self._pending_input_bytes += len(message.payload)
                self._pending_input.put_nowait((message, frames))
            else:
                await self._acknowledge(message)

    def disconnected(self) -> None:
        """End the session, because the client has disconnected."""
        self._is_disconnected = True
        self._changed.set()
        if self._resending is not None:
            self._resending.cancel()
        if not self._response.done():
            self._response.set_exception(Disconnected())
            # Mark the exception as retrieved. Otherwise asyncio would log a warning if no coroutine awaits it.
            self._response.exception()
        if self._relay is not None:
            self._relay.close("the client has disconnected")  # this ends the pending read

    def _frames(self, message: ChannelMessage) -> list[Message]:
        """Return the frames to send to the relay. Return no frames for a message that concerns only the session."""
        if message.kind == PayloadKind.DATA:
            return [(INPUT, message.payload)] * bool(message.payload) + [(END_OF_INPUT, b"")] * bool(message.flags & messages.LAST)
        if message.kind == PayloadKind.SIZE:
            self._has_size, size = True, _object(message.payload)
            return [(WINDOW, SIZE.pack(_window_side(size.get("rows")), _window_side(size.get("cols"))))]
        if message.kind == PayloadKind.HANDSHAKE_RESPONSE and not self._response.done():
            self._response.set_result(str(_object(message.payload).get("ClientVersion", "")))
        if (
            message.kind == PayloadKind.FLAG
            and int.from_bytes(message.payload[:4]) == messages.TERMINATE
            and self._relay is not None
        ):
            self._relay.close("the client has ended the session")
        return []

    # -- relaying ----------------------------------------------------------------------------------------------------

    async def _relay_input(self, relay: Link) -> None:
        while True:
            message, frames = await self._pending_input.get()
            for frame in frames:
                await relay.send_slowly(*frame)
            self._pending_input_bytes -= len(message.payload)
            with suppress(OSError):  # the client has disconnected
                await self._acknowledge(message)

    async def _relay_output(self, relay: Link) -> int | None:
        """Relay the output. Return the exit code of the command, or None if the relay disconnected without an exit code."""
        while True:
            frame = await relay.receive()
            if self._is_disconnected:
                raise Disconnected
            if frame is None:
                return None
            kind, payload = frame
            if kind == EXIT:
                return int(CODE.unpack(payload)[0])
            if kind in (OUTPUT, ERRORS):
                of = PayloadKind.STANDARD_ERROR if kind == ERRORS and self._is_corral_client else PayloadKind.DATA
                for at in range(0, len(payload), PAYLOAD_MAX_BYTES):
                    await self._put(of, payload[at : at + PAYLOAD_MAX_BYTES])

    async def _send_default_size(self, relay: Link) -> None:
        """Send a default window size if the client sends none. A command with a terminal starts only when it has a window size."""
        await asyncio.sleep(SIZED_WITHIN_S)
        if not self._has_size:
            await relay.send_slowly(WINDOW, SIZE.pack(*DEFAULT_SIZE))

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _put(self, kind: PayloadKind, payload: bytes | dict[str, Any]) -> None:
        """Send a numbered message, and buffer it until it is acknowledged. Wait while the buffer is full."""
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        flags = messages.FIRST if self._sequence == 0 else 0
        packed = pack(self._message(messages.OUTPUT, kind, data, self._sequence, flags), self._now_ms())
        self._unacknowledged[self._sequence] = packed
        self._unacknowledged_bytes += len(packed)
        self._sequence += 1
        if self._resending is None:
            self._resending = asyncio.create_task(self._resend())
        await self._send(packed)
        while self._unacknowledged_bytes > UNACKNOWLEDGED_MAX_BYTES:
            await self._wait_for_change()

    async def _acknowledge(self, message: ChannelMessage) -> None:
        await self._write(messages.acknowledgement(message, UUID(self._ids.uuid())))

    async def _write(self, message: ChannelMessage) -> None:
        await self._send(pack(message, self._now_ms()))

    async def _resend(self) -> None:
        """Send the oldest unacknowledged message again, until all messages are acknowledged."""
        with suppress(OSError):  # the client has disconnected
            while self._unacknowledged:
                oldest = next(iter(self._unacknowledged))
                await asyncio.sleep(RESEND_S)
                if (packed := self._unacknowledged.get(oldest)) is not None:
                    await self._send(packed)
        self._resending = None

    def _acknowledged(self, sequence: int) -> None:
        packed = self._unacknowledged.pop(sequence, None)
        if packed is not None:
            self._unacknowledged_bytes -= len(packed)
            self._changed.set()

    async def _wait_for_change(self) -> None:
        if self._is_disconnected:
            raise Disconnected
        self._changed.clear()
        await self._changed.wait()

    def _message(self, type_: str, kind: PayloadKind, payload: bytes, sequence: int, flags: int = 0) -> ChannelMessage:
        return ChannelMessage(type_, sequence, flags, UUID(self._ids.uuid()), kind, payload)

    def _now_ms(self) -> int:
        return round(self._clock.wall_s() * 1000)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = read_json(payload)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise NotAMessage("the payload is not a JSON object")
    return value


def _window_side(given: object) -> int:
    return min(given, SIDE_MAX) if isinstance(given, int) and given > 0 else 0
