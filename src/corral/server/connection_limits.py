"""Bounds on what clients cost before they are authenticated: the number of connections, and the memory of unverified requests.

A *stranger* is a connection that has sent no request with valid credentials yet. When there are too many connections, strangers
are closed first, so a client with credentials can connect while others open connections and send nothing.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from contextlib import suppress
from typing import Protocol

from corral.errors import ApiError, ServiceUnavailable

CONNECTIONS_MAX = 4000
OVERFLOW = 64  # connections above the maximum that are still answered, with a refusal
FILES_MAX = 1 << 20  # the limit of open files is not raised above this
UNVERIFIED_MAX_BYTES = 64 * 1024 * 1024  # of bodies and incomplete heads, over all connections
WAITING_MAX = 64  # requests whose bodies wait for memory
WAIT_MAX_S = 20.0
UNVERIFIED_BYTES_PER_S = 100 * 1024 * 1024  # received of large unverified bodies, over all connections
TRIM_MIN_BYTES = 16 * 1024 * 1024  # after a use of this size, free memory is returned to the system
TRIM_AFTER_S = 1.0


class UnverifiedMemory:
    """The memory of requests whose signatures are not verified yet. A body that does not fit waits, and is not read meanwhile."""

    def __init__(self, max_bytes: int = UNVERIFIED_MAX_BYTES) -> None:
        self._free = self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_trim_due = False
        self._next_at_s = 0.0

    async def pace(self, size: int) -> None:
        """Wait after the receipt of so many bytes: without a limit, clients that send fast would keep the event loop busy."""
        now_s = asyncio.get_running_loop().time()
        self._next_at_s = max(self._next_at_s, now_s) + size / UNVERIFIED_BYTES_PER_S
        await asyncio.sleep(self._next_at_s - now_s)

    def try_take(self, size: int) -> bool:
        """Take memory if some is free and no request waits for it."""
        if size > self._free or self._waiting:
            return False
        self._free -= size
        return True

    async def take(self, size: int) -> None:
        """Take memory, and wait until it is free. Raises ServiceUnavailable if too many requests wait, or for too long."""
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
                with suppress(ValueError):  # `_grant` has dropped it
                    self._waiting.remove(waiting)
                self._grant()
            if isinstance(error, TimeoutError):
                raise _no_memory() from None
            raise

    def give_back(self, size: int) -> None:
        """Return memory, which then goes to the requests that wait, in the order of their arrival."""
        if self._max_bytes - self._free >= TRIM_MIN_BYTES:
            self.trim_soon()
        self._free += size
        self._grant()

    def trim_soon(self) -> None:
        """Return free memory to the system a second from now. The allocator would keep what large bodies have used."""
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
        """The connection was made less than a second ago, so its request may be on its way."""

    def turn_away(self, error: ApiError) -> None:
        """Send an error and close the connection."""


class ConnectionLimits:
    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self.connections_max = connections_max
        self.memory = UnverifiedMemory()
        self._strangers: dict[Stranger, None] = {}  # the oldest first

    def connected(self, connection: Stranger, count: int) -> None:
        """Register a connection, one of `count`. If there are too many, the oldest stranger is closed."""
        self._strangers[connection] = None
        if count > self.connections_max:
            oldest = next(iter(self._strangers))
            if not oldest.is_new or count > self.connections_max + OVERFLOW:
                self.disconnected(oldest)
                oldest.turn_away(self.too_many())

    def authenticated(self, connection: Stranger) -> None:
        """A request of this connection had valid credentials."""
        self._strangers.pop(connection, None)

    disconnected = authenticated

    def must_refuse(self, connection: Stranger, count: int) -> bool:
        """Whether a connection, one of `count`, is above the maximum."""
        return count > self.connections_max and connection in self._strangers

    def too_many(self) -> ApiError:
        message = (
            f"Corral has {self.connections_max} open connections, which is its maximum. Close connections that you do not use, "
            f"then retry. The maximum is {CONNECTIONS_MAX}, or half the limit of open files (ulimit -Hn) if that is less."
        )
        return ServiceUnavailable(message)


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard limit, and return both as they were: tasks get those."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, hard


def connections_allowed() -> int:
    """The maximum number of connections: half of the open files that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, soft // 2)


def _no_memory() -> ApiError:
    message = (
        f"Corral is receiving {UNVERIFIED_MAX_BYTES // 1024**2} MiB of requests that are not verified yet, which is its maximum. "
        "Please reduce your request rate, then retry."
    )
    return ServiceUnavailable(message)


def _return_free_memory() -> None:
    import ctypes  # here: importing it would slow down every start

    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
