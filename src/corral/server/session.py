"""One session of the data channel, at our end: what is sent is numbered and kept until it is acknowledged.

The stock plugin drops a message that comes before it is ready for it, without acknowledging it, so the oldest one is sent again
after a while. While much is unacknowledged nothing more is read from the command: it waits, as at any slow terminal. What a person
types is acknowledged when the command's end has taken it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from corral.channel import messages
from corral.channel.messages import KNOWS_ENDS, Kind, Message, NotAMessage, pack
from corral.channel.terminal import CODE, ERRORS, EXIT, HEAD, INPUT, NO_MORE, OUTPUT, SIZE, WINDOW, frame
from corral.clock import Clock
from corral.ids import Ids
from corral.server.response_sender import Send

AGENT_VERSION = "3.0.0.0"  # as an SSM agent's: clients look at it to know what it can do
PAYLOAD_MAX_BYTES = 16 * 1024
UNACKNOWLEDGED_MAX_BYTES = 256 * 1024
UNTAKEN_MAX_BYTES = 1024 * 1024  # of input; more is not acknowledged, so it is sent again
RESEND_S = 0.2
HANDSHAKE_S = 15.0
LAST_WORDS_S = 30.0  # for what was sent last to be acknowledged
SIZED_WITHIN_S = 1.0
DEFAULT_SIZE = (24, 80)
SIDE_MAX = 0xFFFF
CUT = "The session was ended: the container has stopped, or its host has."


class Ended(Exception):
    """The client has gone."""


@dataclass(frozen=True, slots=True)
class Relay:
    """The connection to the relay at the command's end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> tuple[bytes, bytes]:
        """The next frame; of no kind when it has hung up."""
        try:
            kind, length = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            return kind, await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return b"", b""

    async def write(self, frames: bytes) -> None:
        with suppress(OSError):  # it has hung up; what it said last is still to be read
            self.writer.write(frames)
            await self.writer.drain()

    def close(self) -> None:
        self.writer.close()


class Session:
    def __init__(self, session_id: str, clock: Clock, ids: Ids, send: Send) -> None:
        self._id = session_id
        self._clock = clock
        self._ids = ids
        self._send = send
        self._sequence = 0
        self._unacknowledged: dict[int, bytes] = {}  # in order
        self._unacknowledged_bytes = 0
        self._changed = asyncio.Event()  # something was acknowledged, or the client has gone
        self._resending: asyncio.Task[None] | None = None
        self._expected = 0  # the number of the client's next message
        self._untaken: asyncio.Queue[tuple[Message, bytes]] = asyncio.Queue()  # input, and the frames that it becomes
        self._untaken_bytes = 0
        self._response: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # the client's version
        self._knows_ends = False
        self._relay: Relay | None = None
        self._sized = False
        self._gone = False

    # -- the parts of a session --------------------------------------------------------------------------------------

    async def shake_hands(self, *, interactive: bool) -> None:
        kind = "InteractiveCommands" if interactive else "NonInteractiveCommands"
        action = {"ActionType": "SessionType", "ActionParameters": {"SessionType": kind, "Properties": {}}}
        began_s = self._clock.now_s()
        await self._put(Kind.HANDSHAKE_REQUEST, {"AgentVersion": AGENT_VERSION, "RequestedClientActions": [action]})
        try:
            version = await asyncio.wait_for(self._response, HANDSHAKE_S)
        except TimeoutError:
            raise Ended from None
        self._knows_ends = version.startswith(KNOWS_ENDS)
        took_ns = round((self._clock.now_s() - began_s) * 1e9)
        await self._put(Kind.HANDSHAKE_COMPLETE, {"HandshakeTimeToComplete": took_ns, "CustomerMessage": ""})

    async def relay(self, relay: Relay) -> None:
        """Until the command has ended, or one of the two ends goes."""
        if self._gone:
            raise Ended  # while the command was being started
        self._relay = relay
        beside = [asyncio.create_task(self._pass_input_on(relay)), asyncio.create_task(self._size_anyway(relay))]
        try:
            code = await self._pass_output_on(relay)
        finally:
            for task in beside:
                task.cancel()
        if code is not None and self._knows_ends:
            await self._put(Kind.EXIT_CODE, str(code).encode())
        await self.close("" if code is not None else CUT)

    async def close(self, why: str) -> None:
        """The last words, when all others have arrived."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while self._unacknowledged:
                    await self._news()
        words = {
            "MessageId": self._ids.uuid(), "CreatedDate": str(self._now_ms()), "DestinationId": "", "SessionId": self._id,
            "MessageType": messages.CLOSED, "SchemaVersion": messages.VERSION, "Output": why,
        }  # fmt: skip
        await self._write(self._message(messages.CLOSED, Kind.NONE, json.dumps(words).encode(), 0))

    # -- what the client says ----------------------------------------------------------------------------------------

    async def heard(self, message: Message) -> None:
        """It never waits for the command: an acknowledgement must not stand in line behind what the command does not read."""
        if message.type == messages.ACKNOWLEDGE:
            self._acknowledged(messages.acknowledged(message))
        elif message.type == messages.INPUT and message.sequence < self._expected:
            await self._acknowledge(message)  # sent again
        elif message.type == messages.INPUT and message.sequence == self._expected and self._untaken_bytes < UNTAKEN_MAX_BYTES:
            self._expected += 1
            frames = self._frames(message)
            if frames:
                self._untaken_bytes += len(frames)
                self._untaken.put_nowait((message, frames))
            else:
                await self._acknowledge(message)

    def gone(self) -> None:
        """The client has."""
        self._gone = True
        self._changed.set()
        if self._resending is not None:
            self._resending.cancel()
        if not self._response.done():
            self._response.set_exception(Ended())
            self._response.exception()  # it may be that nobody asks
        if self._relay is not None:
            self._relay.close()  # who reads from it hears that nothing more comes

    def _frames(self, message: Message) -> bytes:
        """What the relay is told of a message; nothing of one that is for us."""
        if message.kind == Kind.DATA:
            return (frame(INPUT, message.payload) if message.payload else b"") + (
                frame(NO_MORE) if message.flags & messages.LAST else b""
            )
        if message.kind == Kind.SIZE:
            self._sized, size = True, _object(message.payload)
            return frame(WINDOW, SIZE.pack(_side(size.get("rows")), _side(size.get("cols"))))
        if message.kind == Kind.HANDSHAKE_RESPONSE and not self._response.done():
            self._response.set_result(str(_object(message.payload).get("ClientVersion", "")))
        if message.kind == Kind.FLAG and int.from_bytes(message.payload[:4]) == messages.TERMINATE and self._relay is not None:
            self._relay.close()
        return b""

    # -- between the two ---------------------------------------------------------------------------------------------

    async def _pass_input_on(self, relay: Relay) -> None:
        while True:
            message, frames = await self._untaken.get()
            await relay.write(frames)
            self._untaken_bytes -= len(frames)
            with suppress(OSError):  # the client has gone
                await self._acknowledge(message)

    async def _pass_output_on(self, relay: Relay) -> int | None:
        """The command's exit code; None when the relay has hung up without one."""
        while True:
            kind, payload = await relay.read()
            if self._gone:
                raise Ended
            if kind == EXIT:
                return int(CODE.unpack(payload)[0])
            if kind in (OUTPUT, ERRORS):
                of = Kind.STANDARD_ERROR if kind == ERRORS and self._knows_ends else Kind.DATA
                for at in range(0, len(payload), PAYLOAD_MAX_BYTES):
                    await self._put(of, payload[at : at + PAYLOAD_MAX_BYTES])
            elif not kind:
                return None

    async def _size_anyway(self, relay: Relay) -> None:
        """A command with a terminal waits for its size; a client may not say one."""
        await asyncio.sleep(SIZED_WITHIN_S)
        if not self._sized:
            await relay.write(frame(WINDOW, SIZE.pack(*DEFAULT_SIZE)))

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _put(self, kind: Kind, payload: bytes | dict[str, Any]) -> None:
        """A numbered message: kept until it is acknowledged. Waits while there are many of those."""
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        flags = messages.FIRST if self._sequence == 0 else 0
        packed = pack(self._message(messages.OUTPUT, kind, data, self._sequence, flags), self._now_ms())
        self._unacknowledged[self._sequence] = packed
        self._unacknowledged_bytes += len(packed)
        self._sequence += 1
        if self._resending is None:
            self._resending = asyncio.create_task(self._resend())
        await self._send({"type": "websocket.send", "bytes": packed})
        while self._unacknowledged_bytes > UNACKNOWLEDGED_MAX_BYTES:
            await self._news()

    async def _acknowledge(self, message: Message) -> None:
        await self._write(messages.acknowledgement(message, UUID(self._ids.uuid())))

    async def _write(self, message: Message) -> None:
        await self._send({"type": "websocket.send", "bytes": pack(message, self._now_ms())})

    async def _resend(self) -> None:
        """The oldest one again, for as long as it stays the oldest. Ends when all are acknowledged."""
        with suppress(OSError):  # the client has gone
            while self._unacknowledged:
                oldest = next(iter(self._unacknowledged))
                await asyncio.sleep(RESEND_S)
                if (packed := self._unacknowledged.get(oldest)) is not None:
                    await self._send({"type": "websocket.send", "bytes": packed})
        self._resending = None

    def _acknowledged(self, sequence: int) -> None:
        packed = self._unacknowledged.pop(sequence, None)
        if packed is not None:
            self._unacknowledged_bytes -= len(packed)
            self._changed.set()

    async def _news(self) -> None:
        if self._gone:
            raise Ended
        self._changed.clear()
        await self._changed.wait()

    def _message(self, word: str, kind: Kind, payload: bytes, sequence: int, flags: int = 0) -> Message:
        return Message(word, sequence, flags, UUID(self._ids.uuid()), kind, payload)

    def _now_ms(self) -> int:
        return round(self._clock.now_s() * 1000)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        said = json.loads(payload)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise NotAMessage("its payload is not a JSON object")
    return said


def _side(given: object) -> int:
    return min(given, SIDE_MAX) if isinstance(given, int) and given > 0 else 0
