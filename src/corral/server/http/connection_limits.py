"""Limits on the resources that a client can use before it is authenticated: connections, and the memory of unverified requests.

A *stranger* is a connection that has sent no request with valid credentials yet. When there are too many connections, Corral closes
strangers first. So clients without credentials cannot use up all connections.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from contextlib import suppress
from typing import Protocol

from corral.core.errors import ApiError, ServiceUnavailable

CONNECTIONS_MAX = 4000
OVERFLOW = 64  # up to this many new connections above the maximum stay open for a second, so that their requests get an error
FILES_MAX = 1 << 20  # Corral does not raise its limit of open files above this
UNVERIFIED_MAX_BYTES = 64 * 1024 * 1024  # the total of bodies and incomplete heads, over all connections
WAITING_MAX = 64  # the most requests that wait until memory for their body is free
WAIT_MAX_S = 20.0  # the longest wait of such a request
UNVERIFIED_BYTES_PER_S = 100 * 1024 * 1024  # the rate at which large unverified bodies are received, over all connections
# If unverified requests have taken at least this much memory, free memory is returned to the system after TRIM_AFTER_S.
TRIM_MIN_BYTES = 16 * 1024 * 1024
TRIM_AFTER_S = 1.0


class UnverifiedMemory:
    """Counts the memory of requests whose signatures are not verified yet.

    A body that does not fit into the limit waits, and is not read in the meantime.
    """

    def __init__(self, max_bytes: int = UNVERIFIED_MAX_BYTES) -> None:
        self._free = self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_trim_due = False
        self._next_at_s = 0.0

    async def pace(self, size: int) -> None:
        """Wait until the rate limit allows more bytes. `size` is the number of bytes that were just received.

        Without this limit, clients that send fast would block the event loop.
        """
        now_s = asyncio.get_running_loop().time()
        self._next_at_s = max(self._next_at_s, now_s) + size / UNVERIFIED_BYTES_PER_S
        await asyncio.sleep(self._next_at_s - now_s)

    def try_take(self, size: int) -> bool:
        """Take memory if enough is free and no other request waits. Return whether it was taken."""
        if size > self._free or self._waiting:
            return False
        self._free -= size
        return True

    async def take(self, size: int) -> None:
        """Wait until enough memory is free, and take it.

        Raise ServiceUnavailable if too many requests wait already, or if the wait takes too long.
        """
        if self.try_take(size):
            return
        if len(self._waiting) >= WAITING_MAX:
            raise _no_memory()
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size, granted)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self.give_back(size)
            else:
                with suppress(ValueError):  # `_grant` has already removed this entry
                    self._waiting.remove(waiting)
                self._grant()
            if isinstance(error, TimeoutError):
                raise _no_memory() from None
            raise

    def give_back(self, size: int) -> None:
        """Give memory back. The waiting requests get it in the order of their arrival."""
        if self._max_bytes - self._free >= TRIM_MIN_BYTES:
            self.trim_soon()
        self._free += size
        self._grant()

    def trim_soon(self) -> None:
        """Return free memory to the system after TRIM_AFTER_S. Otherwise the allocator would keep the memory of large bodies."""
        if not self._is_trim_due:
            self._is_trim_due = True
            asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim)

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._free -= size
                granted.set_result(None)

    def _trim(self) -> None:
        self._is_trim_due = False
        asyncio.get_running_loop().run_in_executor(None, _return_free_memory)


class Stranger(Protocol):
    """A connection that has sent no request with valid credentials."""

    @property
    def is_new(self) -> bool:
        """Whether the connection was opened less than a second ago, so that its request may still arrive."""

    def turn_away(self, error: ApiError) -> None:
        """Send an error response and close the connection."""


class ConnectionLimits:
    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self.connections_max = connections_max
        self.memory = UnverifiedMemory()
        self._strangers: dict[Stranger, None] = {}  # the oldest connection first

    def connected(self, connection: Stranger, count: int) -> None:
        """Register a new connection. `count` is the number of open connections.

        If there are more than `connections_max`, close the oldest stranger. A stranger that is new is closed only if there are also
        more than OVERFLOW connections above this maximum.
        """
        self._strangers[connection] = None
        if count > self.connections_max:
            oldest = next(iter(self._strangers))
            if not oldest.is_new or count > self.connections_max + OVERFLOW:
                self.disconnected(oldest)
                oldest.turn_away(self.too_many())

    def authenticated(self, connection: Stranger) -> None:
        """Record that a request of this connection had valid credentials."""
        self._strangers.pop(connection, None)

    disconnected = authenticated

    def must_refuse(self, connection: Stranger, count: int) -> bool:
        """Whether to refuse the requests of a connection, because too many connections are open and this one is a stranger.

        `count` is the number of open connections.
        """
        return count > self.connections_max and connection in self._strangers

    def too_many(self) -> ApiError:
        message = (
            f"Corral has {self.connections_max} open connections, which is its maximum. Close connections that you do not use, "
            f"then retry. The maximum is {CONNECTIONS_MAX}, or half the limit of open files (ulimit -Hn) if this half is smaller."
        )
        return ServiceUnavailable(message)


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit of open files of the server to the hard limit, but not above FILES_MAX.

    Return the previous limits (soft, hard). Tasks run with the previous limits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard


def connections_allowed() -> int:
    """Return the maximum number of connections: half of the files that this process may open, at most CONNECTIONS_MAX."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, soft // 2)


def _no_memory() -> ApiError:
    message = (
        f"Corral is receiving {UNVERIFIED_MAX_BYTES // 1024**2} MiB of requests that are not verified yet, which is its maximum. "
        "Please reduce your request rate, then retry."
    )
    return ServiceUnavailable(message)


def _return_free_memory() -> None:
    import ctypes  # imported here because importing it would slow down every start

    with suppress(OSError, AttributeError):  # only glibc has this function
        ctypes.CDLL(None).malloc_trim(0)
