"""The limit on the memory of requests whose signatures are not verified yet."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from operator import itemgetter
from typing import Protocol

from corral.core.errors import ApiError, ServiceUnavailable
from corral.server.allocator import return_free_memory

BODIES_MAX_BYTES = 64 * 1024 * 1024  # the total of bodies, over all connections
HEADS_MAX_BYTES = 32 * 1024 * 1024  # the total of incomplete heads, over all connections
WAITING_MAX = 64  # the most requests of one peer that wait until memory for their body is free
WAIT_MAX_S = 20.0  # the longest wait of such a request
PATIENCE_S = 1.0  # after this wait, the requests of peers that have more memory make room
UNVERIFIED_BYTES_PER_S = 100 * 1024 * 1024  # the rate at which large unverified bodies are received, over all connections
# If unverified requests have taken at least this much memory, free memory is returned to the system after TRIM_AFTER_S.
TRIM_MIN_BYTES = 16 * 1024 * 1024
TRIM_AFTER_S = 1.0


class Holder(Protocol):
    """A connection that takes memory."""

    @property
    def peer(self) -> object:
        """The clients that share this memory fairly with the other peers."""

    def evict(self, error: ApiError) -> None:
        """Release the memory, and close the connection with an error."""


class UnverifiedMemory:
    """Counts the memory of requests whose signatures are not verified yet.

    A body that does not fit into the limit waits, and is not read in the meantime. If memory is short, the peer that has the most
    of it makes room: so a peer whose requests never end cannot keep other peers from sending theirs.
    """

    def __init__(self, max_bytes: int = BODIES_MAX_BYTES) -> None:
        self.free_bytes = self._max_bytes = max_bytes
        self._holders: dict[object, dict[Holder, int]] = {}  # by peer; the oldest first
        self._held: dict[object, int] = {}  # the total of each peer
        self._waiting: dict[object, deque[tuple[Holder, int, asyncio.Future[None]]]] = {}  # by peer
        self._is_trim_due = False
        self._next_at_s = 0.0

    async def pace(self, size: int) -> None:
        """Wait until the rate limit allows more bytes. `size` is the number of bytes that were just received.

        Without this limit, clients that send fast would block the event loop.
        """
        now_s = asyncio.get_running_loop().time()
        self._next_at_s = max(self._next_at_s, now_s) + size / UNVERIFIED_BYTES_PER_S
        await asyncio.sleep(self._next_at_s - now_s)

    def take_now(self, holder: Holder, size: int) -> bool:
        """Take memory. If too little is free, evict the oldest requests of the peer that has the most.

        Return whether the memory was taken: a request does not evict itself.
        """
        while size > self.free_bytes:
            oldest = self._oldest_of_largest()
            if oldest is None or oldest is holder:
                return False
            oldest.evict(self._no_memory())
        self._hold(holder, size)
        return True

    def try_take(self, holder: Holder, size: int) -> bool:
        """Take memory if enough is free and no other request of this peer waits. Return whether it was taken."""
        if size > self.free_bytes or holder.peer in self._waiting:
            return False
        self._hold(holder, size)
        return True

    async def take(self, holder: Holder, size: int) -> None:
        """Wait until enough memory is free, and take it. After PATIENCE_S, peers that have more memory make room.

        Raise ServiceUnavailable if too many requests of this peer wait already, or if the wait takes too long.
        """
        if self.try_take(holder, size):
            return
        queue = self._waiting.setdefault(holder.peer, deque())
        if len(queue) >= WAITING_MAX:
            raise self._no_memory()
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        waiting = (holder, size, granted)
        queue.append(waiting)
        patience = loop.call_later(PATIENCE_S, self._make_room, holder, size)
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self.give_back(holder, size)
            else:
                with suppress(ValueError):  # `_grant` has already removed this entry
                    queue.remove(waiting)
                self._grant()
            if isinstance(error, TimeoutError):
                raise self._no_memory() from None
            raise
        finally:
            patience.cancel()

    def give_back(self, holder: Holder, size: int) -> None:
        """Give memory back, unless `release` has done it. The waiting requests of a peer get it in the order of their arrival."""
        held = self._holders.get(holder.peer, {}).get(holder, 0)
        self._hold(holder, -min(size, held))
        self._grant()

    def release(self, holder: Holder) -> None:
        """Give back all memory of a connection. It is granted to others with the next `give_back`."""
        self._hold(holder, -self._holders.get(holder.peer, {}).get(holder, 0))

    def trim_soon(self) -> None:
        """Return free memory to the system after TRIM_AFTER_S. Otherwise the allocator would keep the memory of large bodies."""
        if not self._is_trim_due:
            self._is_trim_due = True
            asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim)

    def _hold(self, holder: Holder, size: int) -> None:
        if not size:
            return
        if size < 0 and self._max_bytes - self.free_bytes >= TRIM_MIN_BYTES:
            self.trim_soon()
        peer = holder.peer
        holders = self._holders.setdefault(peer, {})
        holders[holder] = holders.get(holder, 0) + size
        if not holders[holder]:
            del holders[holder]
        self._held[peer] = self._held.get(peer, 0) + size
        if not holders:
            del self._holders[peer], self._held[peer]
        self.free_bytes -= size

    def _oldest_of_largest(self) -> Holder | None:
        if not self._held:
            return None
        peer, _ = max(self._held.items(), key=itemgetter(1))
        return next(iter(self._holders[peer]))

    def _make_room(self, holder: Holder, size: int) -> None:
        """Evict the oldest requests of peers that have more memory than the peer of this request would have."""
        wanted = self._held.get(holder.peer, 0) + size
        while size > self.free_bytes:
            oldest = self._oldest_of_largest()
            if oldest is None or self._held[oldest.peer] <= wanted or oldest.peer is holder.peer:
                break
            oldest.evict(self._no_memory())
        self._grant()

    def _grant(self) -> None:
        """Grant free memory to the peers that have the least of it first."""
        for peer in sorted(self._waiting, key=lambda each: self._held.get(each, 0)):
            queue = self._waiting[peer]
            while queue and queue[0][1] <= self.free_bytes:
                holder, size, granted = queue.popleft()
                if not granted.done():
                    self._hold(holder, size)
                    granted.set_result(None)
            if not queue:
                del self._waiting[peer]

    def _no_memory(self) -> ApiError:
        message = (
            f"Corral is receiving {self._max_bytes // 1024**2} MiB of requests that are not verified yet, which is its maximum. "
            "Please reduce your request rate, then retry."
        )
        return ServiceUnavailable(message)

    def _trim(self) -> None:
        self._is_trim_due = False
        asyncio.get_running_loop().run_in_executor(None, return_free_memory)
