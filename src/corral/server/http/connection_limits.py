"""Limits on the resources that a client can use before it is authenticated: connections, and the memory of unverified requests.

A *stranger* is a connection that has sent no request with valid credentials yet. When there are too many connections, Corral closes
a stranger of the peer (`peers.py`) that has the most strangers: the one that has sent nothing for the longest time. So clients
without credentials cannot use up all connections, and a peer with many connections does not harm other peers.

A stranger *claims* an access key while the body of a request arrives whose head names a valid access key. A number of places is
reserved for such connections. Only a valid signature keeps the place. A peer that sends many requests without valid credentials
loses the reserved places for a minute, and gets its errors at a limited rate.

Programs in containers have valid credentials, but their connections must not keep others out either. So all of them together have a
part of the connections, and the task with the most makes room for other tasks.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Protocol

from corral.core.errors import ApiError, ServiceUnavailable
from corral.server.http.unverified_memory import HEADS_MAX_BYTES, UnverifiedMemory

CONNECTIONS_MAX = 4000
OVERFLOW = 64  # up to this many new connections above the maximum stay open for a second, so that their requests get an error
STRANGERS_SHARE = 2  # a peer may keep half of the maximum as strangers for longer than a second
CLOSED_PER_S = 250  # the most of them that are closed at a time, because others wait meanwhile, and the clients connect again
CLAIMS_SHARE = 8  # an eighth of the maximum is reserved for strangers that claim an access key
CONTAINERS_SHARE = 2  # programs in containers may have half of the maximum
VERIFIED_IDLE_MIN_S = 10  # a verified connection without a request for this long makes room for a new verified one
REFUSED_MAX = 20  # the refused requests of a peer within REFUSED_S after which it has no reserved places
REFUSED_S = 60
REFUSED_PER_S = 200  # such a peer gets this many errors per second, because each costs time that others need
REFUSED_AT_ONCE = 32  # after a pause, it gets up to this many errors at once
FLOOD_ARRIVALS_MAX = 200  # the connections that a peer may open in a second while the queue of new connections is long
FILES_MAX = 1 << 20  # Corral does not raise its limit of open files above this


class Connection(Protocol):
    @property
    def is_new(self) -> bool:
        """Whether the connection was opened less than a second ago, so that its request may still arrive."""

    @property
    def idle_s(self) -> int:
        """The time without a request. 0 while a request is served."""

    def turn_away(self, error: ApiError) -> None:
        """Send an error response and close the connection."""

    def shut_down(self) -> None:
        """Close the connection after all requests that have arrived have their responses."""


class Peer:
    """The connections of one peer that are not verified, and the number of its refused requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0  # also the verified ones
        self.arrivals = 0  # the new connections since the last tick
        self.strangers: dict[Place, None] = {}  # the one whose last request is the oldest comes first
        self.claimants: dict[Place, None] = {}  # the oldest first
        self.refused = 0
        self.refused_since_s = 0
        self._next_error_s = 0.0  # when the rate allows its next error

    def delay_error(self, now_s: float) -> float:
        """Return the number of seconds until the rate allows the next error, and count this error."""
        earliest_s = max(self._next_error_s, now_s - REFUSED_AT_ONCE / REFUSED_PER_S)
        self._next_error_s = earliest_s + 1 / REFUSED_PER_S
        return max(0.0, earliest_s - now_s)

    @property
    def is_suspended(self) -> bool:
        return self.refused >= REFUSED_MAX


class Place:
    """The place of one connection in the limits."""

    __slots__ = ("_group", "_limits", "connection", "is_verified", "peer", "task_id")

    def __init__(self, limits: ConnectionLimits, connection: Connection, peer: Peer) -> None:
        self.connection = connection
        self.peer = peer
        self.is_verified = False
        self.task_id: str | None = None  # the task of a program in a container, if its request was the first with valid credentials
        self._limits = limits
        self._group: dict[Place, None] | None = None  # None: the place was given back
        self._move(peer.strangers)

    def is_active(self) -> None:
        """Record that the connection has sent the head of a request."""
        if self._group is self.peer.strangers:
            self._move(self.peer.strangers)

    def claim(self) -> None:
        """Take a reserved place until `verify` or `refuse` is called: the head of a request names a valid access key."""
        if self._group is self.peer.strangers and not self.peer.is_suspended:
            self._move(self.peer.claimants)
            self._limits.limit_claimants()

    def verify(self, task_id: str | None = None) -> None:
        """Record that a request of this connection had valid credentials. `task_id` is the task of a program in a container.

        Raise an error if there are too many verified connections. The caller must close the connection then.
        """
        if self._group is not None and not self.is_verified:
            if task_id is not None:
                self._limits.make_room_for_task(task_id)
            self._limits.make_room_for_verified(self)
            self._move(self._limits.verified)
            self.is_verified = True
            if task_id is not None:
                self.task_id = task_id
                self._limits.of_tasks.setdefault(task_id, {})[self] = None

    def refuse(self, error: ApiError, now_s: float) -> float:
        """Record that a request had no valid credentials. Return the number of seconds after which the client gets the error."""
        if self._group is self.peer.claimants:
            self._move(self.peer.strangers)
        if self.is_verified or error.status >= 500:
            return 0.0
        self._limits.count_refused(self.peer)
        return self.peer.delay_error(now_s) if self.peer.is_suspended else 0.0

    def give_back(self) -> None:
        """Give the place and all memory back."""
        if self._group is not None:
            del self._group[self]
            self._group = None
            del self.connection  # it refers to this place, and a cycle would keep both in memory for long
            self._limits.given_back(self)

    def evict(self, error: ApiError) -> None:
        """Give the place back, and close the connection with an error."""
        connection = self.connection
        self.give_back()
        connection.turn_away(error)

    @property
    def memory(self) -> UnverifiedMemory:
        """The total in which the bodies of this connection are counted."""
        return self._limits.verified_memory if self.is_verified else self._limits.memory

    def take_head_memory(self, size: int) -> bool:
        """Take memory for a part of a head that is not complete. Return whether it was taken."""
        return self._limits.heads_memory.take_now(self, size)

    def give_back_head_memory(self, size: int) -> None:
        self._limits.heads_memory.give_back(self, size)

    def _move(self, group: dict[Place, None]) -> None:
        if self._group is not None:
            del self._group[self]
        group[self] = None
        self._group = group


class ConnectionLimits:
    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self.connections_max = connections_max
        self.memory = UnverifiedMemory()  # for bodies of strangers
        self.verified_memory = UnverifiedMemory()  # for bodies of connections that were verified before
        self.heads_memory = UnverifiedMemory(HEADS_MAX_BYTES)
        self.verified: dict[Place, None] = {}
        self.of_tasks: dict[str, dict[Place, None]] = {}  # task id → the verified places of its containers, the oldest first
        self.count = 0  # the connections that have a place
        self._peers: dict[str, Peer] = {}
        self._seconds = 0

    def admits(self, peer_name: str, *, is_flood: bool) -> bool:
        """Count a new connection of a peer. Return whether the server may serve it.

        In a flood, it may not if the peer has opened more than FLOOD_ARRIVALS_MAX connections in this second.
        """
        peer = self._peer(peer_name)
        peer.arrivals += 1
        return not is_flood or peer.arrivals <= FLOOD_ARRIVALS_MAX

    def connected(self, connection: Connection, peer_name: str) -> Place:
        """Give a place to a new connection.

        If there are more than `connections_max`, close a stranger. A stranger that is new is closed only if there are also more
        than OVERFLOW connections above this maximum.
        """
        peer = self._peer(peer_name)
        peer.connections += 1
        self.count += 1
        place = Place(self, connection, peer)
        if self.count > self.connections_max:
            oldest = self._oldest_but(place)
            if not oldest.connection.is_new or self.count > self.connections_max + OVERFLOW:
                oldest.evict(self.too_many())
        return place

    def given_back(self, place: Place) -> None:
        self.count -= 1
        place.peer.connections -= 1
        self._forget_if_unused(place.peer)
        if place.task_id is not None:
            del self.of_tasks[place.task_id][place]
            if not self.of_tasks[place.task_id]:
                del self.of_tasks[place.task_id]
        for memory in (self.memory, self.verified_memory, self.heads_memory):
            memory.release(place)

    def tick(self) -> None:
        """Close strangers of peers that have too many for longer than a second. The server calls this method once a second."""
        self._seconds += 1
        for peer in tuple(self._peers.values()):
            peer.arrivals = 0
            self._close_strangers(peer)
            if self._seconds - peer.refused_since_s > REFUSED_S:
                peer.refused = 0
            self._forget_if_unused(peer)

    def _close_strangers(self, peer: Peer) -> None:
        """Close the strangers that a peer has too many, except new ones."""
        for _ in range(min(CLOSED_PER_S, len(peer.strangers) - self.connections_max // STRANGERS_SHARE)):
            oldest = next(iter(peer.strangers))
            if oldest.connection.is_new:
                return
            oldest.evict(self._too_many_strangers(peer))

    def count_refused(self, peer: Peer) -> None:
        if not peer.refused:
            peer.refused_since_s = self._seconds
        peer.refused += 1

    def limit_claimants(self) -> None:
        """Close the oldest claimant of the peer that has the most claimants, if there are more claimants than reserved places.

        This counts as a refused request: the peer has claimed an access key and has not sent the rest of its request.
        """
        if sum(len(peer.claimants) for peer in self._peers.values()) > self.connections_max // CLAIMS_SHARE:
            largest = max(self._peers.values(), key=lambda peer: len(peer.claimants))
            self.count_refused(largest)
            next(iter(largest.claimants)).evict(self._too_many_claimants())

    def make_room_for_task(self, task_id: str) -> None:
        """Close the oldest connection of the task that has the most, if containers have too many.

        Raise an error if it is the task itself that has the most.
        """
        if sum(map(len, self.of_tasks.values())) >= self.connections_max // CONTAINERS_SHARE:
            most = max(self.of_tasks.values(), key=len)
            if len(most) <= len(self.of_tasks.get(task_id, ())):
                raise self._too_many_of_containers()
            next(iter(most)).evict(self._too_many_of_containers())

    def make_room_for_verified(self, place: Place) -> None:
        """Close another connection if there are too many: a stranger, or else the verified connection that is idle for the longest.

        Raise an error if all other connections are verified and in use.
        """
        if len(self.verified) >= self.connections_max:
            idlest = max(self.verified, key=lambda each: each.connection.idle_s)
            connection = idlest.connection
            if connection.idle_s < VERIFIED_IDLE_MIN_S:
                raise self.too_many()
            idlest.give_back()
            connection.shut_down()
        elif self.count > self.connections_max and (oldest := self._oldest_but(place)) is not place:
            oldest.evict(self.too_many())

    def too_many(self) -> ApiError:
        message = (
            f"Corral has {self.connections_max} open connections, which is its maximum. Close connections that you do not use, "
            f"then retry. The maximum is {CONNECTIONS_MAX}, or half the limit of open files (ulimit -Hn) if this half is smaller."
        )
        return ServiceUnavailable(message)

    def _too_many_strangers(self, peer: Peer) -> ApiError:
        maximum = self.connections_max // STRANGERS_SHARE
        message = (
            f"The client {peer.name} has more than {maximum} connections on which it has sent no valid credentials, which is the "
            "maximum. Close connections that you do not use, then retry."
        )
        return ServiceUnavailable(message)

    def _too_many_of_containers(self) -> ApiError:
        maximum = self.connections_max // CONTAINERS_SHARE
        message = (
            f"Programs in containers have {maximum} connections, which is their maximum, and this task has the most of them. Close "
            "connections that you do not use, then retry."
        )
        return ServiceUnavailable(message)

    def _too_many_claimants(self) -> ApiError:
        message = (
            f"Corral is receiving {self.connections_max // CLAIMS_SHARE} requests that are not verified yet, which is its maximum. "
            "Please reduce your request rate, then retry."
        )
        return ServiceUnavailable(message)

    def _oldest_but(self, place: Place) -> Place:
        """Return the stranger that has been idle for the longest, of the peer that has the most strangers.

        If `place` is the only stranger, return the oldest claimant. If there is none, return `place`.
        """
        most_strangers = max(self._peers.values(), key=lambda peer: len(peer.strangers)).strangers
        most_claimants = max(self._peers.values(), key=lambda peer: len(peer.claimants)).claimants
        return next((each for group in (most_strangers, most_claimants) for each in group if each is not place), place)

    def _peer(self, name: str) -> Peer:
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = Peer(name)
        return peer

    def _forget_if_unused(self, peer: Peer) -> None:
        if not peer.connections and not peer.refused and not peer.arrivals:
            self._peers.pop(peer.name, None)


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
