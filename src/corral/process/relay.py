"""Relays the bytes of two connections to each other: a plain one, and one with TLS. An end of input is relayed, too.

Requests and responses of ordinary size are relayed in the event loop. A connection with more bytes at once is relayed by a thread
until no more bytes arrive, because TLS releases the interpreter lock while it encrypts. So an idle connection needs no thread, and
large bodies do not delay others. No connection has a buffer of its own while everything is sent.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

BUFFER_BYTES = 256 * 1024
IN_LOOP_MAX_BYTES = 128 * 1024  # if so many bytes arrive at once, a thread continues
THREADS = 8
TURN_S = 0.1  # after this time, a thread relays another connection
MORE_BYTES_MS = 5  # a thread waits this long for more bytes before it returns the connection to the event loop
PASS_BYTES = 8 * 1024  # a pass over both directions counts as much as the relay of so many bytes, also if it relays fewer
# TLS has messages without data, such as requests for new keys, which cost much more than data. The other machine may be a stranger.
RECORD_BYTES = 16 * 1024 + 512  # at least the size of a record of TLS
OVERHEAD = 64  # for each byte of data, more encrypted bytes than this do not arrive: a record with one byte has 23
NO_DATA_MAX_BYTES = 64 * 1024  # encrypted bytes beyond this overhead, after which the connection ends
UNSENT_ANSWERS_MAX_BYTES = 64 * 1024  # of TLS to such messages, which the other machine does not read
RESET = struct.pack("ii", 1, 0)  # the value of SO_LINGER with which `close` resets the connection
# struct tcp_info: the segments that are not acknowledged, and the milliseconds since the last acknowledgement
TCP_INFO_BYTES, TCP_NUMBER, UNACKED_AT, LAST_ACK_AT = 104, struct.Struct("=I"), 24, 56

_threads = threading.local()


class PlainEnd:
    """A TCP or Unix socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent = b""  # of the bytes for this end, those that its socket has not taken yet
        self.has_ended = False  # an end of the input has been read, perhaps after data that `read` has returned

    def read(self, buffer: memoryview) -> int | None:
        """Return the number of bytes that were read into the buffer: 0 at the end of the input, None if nothing has arrived."""
        try:
            return self.socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def write(self, data: memoryview) -> None:
        """Send the data. Keep in `unsent` what the socket does not take. Call this only if `unsent` is empty."""
        self._transmit(data)

    def flush(self) -> None:
        if self.unsent:
            self._transmit(memoryview(self.unsent))

    def _transmit(self, data: memoryview) -> None:
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = bytes(data[sent:])

    def end(self) -> None:
        """Tell the other side that no more bytes follow."""
        self.socket.shutdown(socket.SHUT_WR)


class TlsEnd(PlainEnd):
    """A connection with TLS. The handshake begins with the first call of `handshake`."""

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        name: str | None = None,
        begun: bytes = b"",
    ) -> None:
        """`begun` contains the encrypted bytes that were received already."""
        super().__init__(connection)
        self._arrived, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._arrived.write(begun)
        self.tls = context.wrap_bio(self._arrived, self._out, server_side=server_side, server_hostname=name or None)
        self._take_bytes = RECORD_BYTES  # how many encrypted bytes are read at once: more after those that contained data
        self._without_data = 0  # encrypted bytes that have arrived beyond the overhead of data

    def handshake(self, buffer: memoryview) -> bool:
        """Continue the handshake with the bytes that have arrived. Return whether it is complete."""
        self.flush()
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                if not self._receive(buffer):
                    return False
                continue
            self._send()
            return True

    def read(self, buffer: memoryview) -> int | None:
        filled, has_received = 0, False
        while filled < len(buffer) and not self.has_ended:
            if not (self._arrived.pending or self.tls.pending()):  # an exception for each message would cost much more
                if filled or has_received or not self._receive(buffer[: self._take_bytes]):
                    break
                has_received = True
            try:
                count = int(self.tls.read(len(buffer) - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                if filled or has_received or not self._receive(buffer[: self._take_bytes]):
                    break
                has_received = True
                continue
            except ssl.SSLZeroReturnError:
                count = 0
            self.has_ended = not count  # an end without an end of TLS raises an error in `_receive`
            filled += count
        if self.has_ended:
            return filled
        self._limit_overhead(filled)
        if self._out.pending and not self.unsent:
            self._send()  # TLS has answered, for example with new keys
        return filled or None

    def _limit_overhead(self, data_bytes: int) -> None:
        """End the connection if the other machine has sent too much that is no data, or does not read the answers to it."""
        self._without_data = max(0, self._without_data - OVERHEAD * data_bytes)
        self._take_bytes = RECORD_BYTES + 2 * data_bytes
        if self._without_data > NO_DATA_MAX_BYTES or self._out.pending > UNSENT_ANSWERS_MAX_BYTES:
            raise ConnectionAbortedError("the other machine sends messages of TLS without data")

    def write(self, data: memoryview) -> None:
        while data:
            data = data[self.tls.write(data) :]  # one record of TLS
        self._send()

    def end(self) -> None:
        with suppress(ssl.SSLWantReadError):  # the other side may still send bytes
            self.tls.unwrap()
        self._send()

    def _receive(self, scratch: memoryview) -> bool:
        """Take the encrypted bytes that have arrived. Return whether there are any."""
        try:
            count = self.socket.recv_into(scratch)
        except BlockingIOError:
            return False
        if count == 0:
            raise ConnectionAbortedError("the connection has ended without an end of TLS")
        self._arrived.write(scratch[:count])
        self._without_data += count
        return True

    def _send(self) -> None:
        if self._out.pending:
            data = self._out.read()
            if self.unsent:
                self.unsent += data
            else:
                self._transmit(memoryview(data))


class Flow:
    """One direction of a relay."""

    def __init__(self, source: PlainEnd, target: PlainEnd) -> None:
        self.source = source
        self.target = target
        self.ended = False  # the end of the input was relayed

    @property
    def is_blocked(self) -> bool:
        return bool(self.target.unsent)

    def pump(self, buffer: memoryview) -> int | None:
        """Relay what has arrived, at most one buffer. Return the number of bytes, or None if nothing could be relayed."""
        self.target.flush()
        if self.ended or self.target.unsent:
            return None
        count = self.source.read(buffer)
        if count:
            self.target.write(buffer[:count])
        elif count == 0:
            self.ended = True
            self.target.end()
        return count


class Relay:
    def __init__(self, relays: Relays, plain: PlainEnd, tls: TlsEnd, closed: Callable[[], None], *, is_of_server: bool) -> None:
        self._relays = relays
        self._is_of_server = is_of_server
        self._ends = plain, tls
        self._flows = Flow(plain, tls), Flow(tls, plain)
        self._closed = closed
        self._watched = [0, 0]  # the events of each end that the event loop watches
        self._in_thread = False
        self.is_closed = False
        self.used_at = time.monotonic()

    def start(self) -> None:
        self._ready()

    def has_lost_peer(self, seconds: float) -> bool:
        """Whether the other machine has acknowledged nothing for so long, although sent bytes are due for it.

        TCP itself would try for minutes, with long pauses. A client that reads nothing for long is not lost: TCP gets
        acknowledgements of the bytes that it has sent. So TCP_USER_TIMEOUT, which counts this time too, is of no use here.
        """
        info = self._ends[1].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        (unacknowledged,), (silent_ms,) = TCP_NUMBER.unpack_from(info, UNACKED_AT), TCP_NUMBER.unpack_from(info, LAST_ACK_AT)
        return bool(unacknowledged) and silent_ms > 1000 * seconds

    @property
    def is_abandoned(self) -> bool:
        """Whether the plain end was closed, and the other machine reads nothing of what was sent before."""
        if not self._flows[0].is_blocked or self.is_closed:
            return False
        poll = select.poll()
        poll.register(self._ends[0].socket, 0)  # the kernel always reports POLLHUP
        return bool(poll.poll(0))

    @property
    def _is_whole(self) -> bool:
        """Whether everything was relayed. A server that has closed the plain end reads no more bytes."""
        needed = self._flows[:1] if self._is_of_server else self._flows
        return all(flow.ended and not flow.is_blocked for flow in needed)

    def close(self) -> None:
        """Close both connections. Reset them if not everything was relayed."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watch(0, 0)
        if not self._in_thread:
            self._close_sockets()

    def _close_sockets(self) -> None:
        is_whole = self._is_whole
        for end in self._ends:
            if not is_whole and end.socket.family != socket.AF_UNIX:
                end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.socket.close()
        self._closed()

    def _readable(self, flow: Flow) -> None:
        """Relay what has arrived in one direction, if it is short. Both directions then wait for the same events as before."""
        self.used_at = time.monotonic()
        try:
            count = flow.pump(_buffer())
        except OSError:
            self.close()
            return
        if not count or count >= PASS_BYTES or flow.source.has_ended or self._flows[0].is_blocked or self._flows[1].is_blocked:
            self._ready()

    def _ready(self) -> None:
        self.used_at = time.monotonic()
        try:
            is_dry = self._pump(IN_LOOP_MAX_BYTES)
        except OSError:
            self.close()
            return
        if is_dry:
            self._rest()
        else:
            self._watch(0, 0)
            self._in_thread = True
            self._relays.threads.submit(self._turn)

    def _rest(self) -> None:
        """Wait for the next event, or close both connections after everything was relayed."""
        if self._is_whole:
            self.close()
        else:
            self._watch(*self._wanted())

    def _wanted(self) -> list[int]:
        wanted = [0, 0]
        for number, flow in enumerate(self._flows):
            if flow.is_blocked:
                wanted[1 - number] |= select.EPOLLOUT
            elif not flow.ended:
                wanted[number] |= select.EPOLLIN
        return wanted

    def _watch(self, *wanted: int) -> None:
        loop = self._relays.loop
        for flow, before, now in zip(self._flows, self._watched, wanted, strict=True):
            end, changed = flow.source, before ^ now
            if changed & select.EPOLLIN:
                loop.add_reader(end.socket, self._readable, flow) if now & select.EPOLLIN else loop.remove_reader(end.socket)
            if changed & select.EPOLLOUT:
                loop.add_writer(end.socket, self._ready) if now & select.EPOLLOUT else loop.remove_writer(end.socket)
        self._watched = list(wanted)

    def _pump(self, at_most: int) -> bool:
        """Relay at most about so many bytes in each direction. Return whether nothing more could be relayed."""
        buffer = _buffer()
        moved, is_dry = 0, False
        while not is_dry and moved < at_most:
            counts = [flow.pump(buffer) for flow in self._flows]
            is_dry = counts == [None, None]
            moved += max(PASS_BYTES, sum(filter(None, counts)))
        return is_dry

    # in a thread

    def _turn(self) -> None:
        until, failed = time.monotonic() + TURN_S, False
        try:
            while not self.is_closed and time.monotonic() < until:
                if self._pump(BUFFER_BYTES) and not self._wait():
                    break
        except OSError:
            failed = True
        self._relays.loop.call_soon_threadsafe(self._after_turn, failed)

    def _wait(self) -> bool:
        """Wait for a short time until more can be relayed. Return whether it can."""
        poll = select.poll()
        for end, events in zip(self._ends, self._wanted(), strict=True):
            if events:
                poll.register(end.socket, events)
        return bool(poll.poll(MORE_BYTES_MS))

    def _after_turn(self, failed: bool) -> None:
        self._in_thread = False
        if self.is_closed:
            self._close_sockets()
        elif failed:
            self.close()
        else:
            self._ready()


class Relays:
    """The relays of this process. They share the threads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="relay")
        self.open: set[Relay] = set()

    def add(
        self, plain: socket.socket, tls: TlsEnd, closed: Callable[[], None] = lambda: None, *, is_of_server: bool = False
    ) -> Relay:
        """Relay between a plain socket and a connection whose handshake is complete. `closed` is called at the end.

        `is_of_server`: the plain socket leads to a server, which ends a connection by closing it. The other machine need not do
        the same.
        """

        def ended() -> None:
            self.open.discard(relay)
            closed()

        relay = Relay(self, PlainEnd(plain), tls, ended, is_of_server=is_of_server)
        self.open.add(relay)
        relay.start()
        return relay

    async def handshake(self, tls: TlsEnd) -> None:
        """Do the handshake of a connection, in a thread while it needs the CPU. Raises OSError (also ssl.SSLError) if it fails."""
        while not await self.loop.run_in_executor(self.threads, lambda: tls.handshake(_buffer())):
            await self._event(tls)

    async def _event(self, end: PlainEnd) -> None:
        arrived: asyncio.Future[None] = self.loop.create_future()
        fd = end.socket.fileno()
        self.loop.add_reader(fd, set_done, arrived)
        if end.unsent:
            self.loop.add_writer(fd, set_done, arrived)
        try:
            await arrived
        finally:
            self.loop.remove_reader(fd)
            self.loop.remove_writer(fd)


def set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _buffer() -> memoryview:
    """The buffer of this thread."""
    if not hasattr(_threads, "buffer"):
        _threads.buffer = memoryview(bytearray(BUFFER_BYTES))
    buffer: memoryview = _threads.buffer
    return buffer
