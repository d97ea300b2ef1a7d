"""The places of connections: which connection is closed when there are too many, and whose memory makes room."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.errors import ApiError
from corral.process.peer_names import PeerNames
from corral.server.http.connection_limits import (
    CLAIMS_SHARE,
    CONTAINERS_SHARE,
    OVERFLOW,
    REFUSED_AT_ONCE,
    REFUSED_MAX,
    REFUSED_PER_S,
    REFUSED_S,
    STRANGERS_SHARE,
    VERIFIED_IDLE_MIN_S,
    ConnectionLimits,
    Place,
)
from corral.server.http.peers import RemoteHost
from corral.server.http.unverified_memory import WAITING_MAX, UnverifiedMemory
from eventually import DEADLINE_S

MAX = 80
NOW_S = 1000.0


class Client:
    """A connection without a socket."""

    def __init__(self, limits: ConnectionLimits, address: str, *, is_new: bool = False, host: RemoteHost | None = None) -> None:
        self.is_new = is_new
        self.idle_s = 0
        self.error: ApiError | None = None
        self.is_closed = False
        self.place: Place = limits.connected(self, address if host is None else host.peer_name)

    def turn_away(self, error: ApiError) -> None:
        self.error, self.is_closed = error, True

    def shut_down(self) -> None:
        self.is_closed = True


def test_the_peer_with_the_most_strangers_makes_room_and_its_idlest_first() -> None:
    limits = ConnectionLimits(MAX)
    few = [Client(limits, "192.0.2.7") for _ in range(5)]
    many = [Client(limits, "192.0.2.8", is_new=True) for _ in range(MAX - 5)]
    for client in many:
        client.is_new = False
    many[0].place.is_active()
    new = [Client(limits, "192.0.2.7") for _ in range(10)]
    assert [client for client in few + many + new if client.is_closed] == many[1:11]
    assert limits.count == MAX
    for client in few + many + new:
        client.place.give_back()
    assert limits.count == 0 and not limits._peers


def test_clients_behind_a_gateway_count_for_their_host() -> None:
    """The connections of gateways come from the door, which is on this machine. Its own clients do not make room for them."""
    limits = ConnectionLimits(MAX)
    local = [Client(limits, "127.0.0.1") for _ in range(10)]
    other = [Client(limits, "127.0.0.1", host=RemoteHost("b", "192.0.2.9")) for _ in range(10)]
    many = [Client(limits, "127.0.0.1", host=RemoteHost("a", "192.0.2.8")) for _ in range(MAX)]
    assert not any(client.is_closed for client in local + other)
    assert sum(client.is_closed for client in many) == 20


def test_new_connections_stay_open_for_a_while_if_all_places_are_verified() -> None:
    limits = ConnectionLimits(MAX)
    verified = [Client(limits, "192.0.2.7", is_new=True) for _ in range(MAX)]
    for client in verified:
        client.place.verify()
    new = [Client(limits, "192.0.2.8", is_new=True) for _ in range(OVERFLOW + 3)]
    assert [client.is_closed for client in new] == [True] * 3 + [False] * OVERFLOW
    with pytest.raises(ApiError, match="80 open connections"):
        new[-1].place.verify()
    verified[3].idle_s, verified[4].idle_s = VERIFIED_IDLE_MIN_S, VERIFIED_IDLE_MIN_S + 1
    new[-1].place.verify()
    assert [client for client in verified if client.is_closed] == [verified[4]] and verified[4].error is None
    assert len(limits.verified) == MAX


def test_containers_have_a_part_of_the_connections_and_the_task_with_the_most_makes_room() -> None:
    limits = ConnectionLimits(MAX)

    def verified(task_id: str | None, count: int) -> list[Client]:
        made = []
        for _ in range(count):
            client = Client(limits, "192.0.2.7", is_new=True)
            made.append(client)
            try:
                client.place.verify(task_id)
            except ApiError as error:
                client.place.evict(error)
        return made

    half = MAX // CONTAINERS_SHARE
    greedy = verified("greedy", half + 5)
    assert [client.is_closed for client in greedy] == [False] * half + [True] * 5, "the task itself has the most"
    other = verified("other", half)
    assert [client.is_closed for client in greedy[:half]] == [True] * (half // 2) + [False] * (half // 2)
    assert [client.is_closed for client in other] == [False] * (half // 2) + [True] * (half // 2)
    root = verified(None, MAX - half)
    assert not any(client.is_closed for client in root)
    for client in greedy + other + root:
        client.place.give_back()
    assert limits.count == 0 and not limits.of_tasks and not limits.verified


def test_a_peer_keeps_a_limited_number_of_strangers() -> None:
    limits = ConnectionLimits(MAX)
    clients = [Client(limits, "192.0.2.7", is_new=True) for _ in range(MAX - 10)]
    limits.tick()
    assert not any(client.is_closed for client in clients), "their requests may still arrive"
    for client in clients:
        client.is_new = False
    clients[0].place.verify()
    limits.tick()
    assert sum(not client.is_closed for client in clients) == MAX // STRANGERS_SHARE + 1
    assert not clients[0].is_closed and not clients[-1].is_closed


def test_the_reserved_places_are_shared_by_the_peers() -> None:
    limits, reserved = ConnectionLimits(MAX), MAX // CLAIMS_SHARE
    others = [Client(limits, "192.0.2.8") for _ in range(reserved)]
    ours = [Client(limits, "192.0.2.7") for _ in range(2)]
    for client in others + ours:
        client.place.claim()
    assert [client.is_closed for client in others + ours] == [True] * 2 + [False] * reserved
    assert others[0].error is not None and "not verified yet" in others[0].error.message
    ours[0].place.verify()
    more = Client(limits, "192.0.2.9")
    more.place.claim()
    assert not others[2].is_closed, "a verified connection has left its reserved place"


def test_a_peer_with_refused_requests_has_no_reserved_places_for_a_minute() -> None:
    limits = ConnectionLimits(MAX)
    wrong, ours = Client(limits, "192.0.2.8"), Client(limits, "192.0.2.7")
    for _ in range(REFUSED_MAX):
        wrong.place.claim()
        assert wrong.place.refuse(ApiError(""), NOW_S) == 0.0
    wrong.place.give_back()
    again = Client(limits, "192.0.2.8")
    for client in (again, ours):
        client.place.claim()
    assert not again.place.peer.claimants and list(ours.place.peer.claimants) == [ours.place]
    for _ in range(REFUSED_S + 1):
        limits.tick()
    again.place.claim()
    assert list(again.place.peer.claimants) == [again.place]


def test_a_peer_with_refused_requests_gets_its_errors_at_a_limited_rate() -> None:
    limits = ConnectionLimits(MAX)
    wrong, ours, verified = (Client(limits, "192.0.2.8"), Client(limits, "192.0.2.7"), Client(limits, "192.0.2.8"))
    verified.place.verify()
    at_once = [wrong.place.refuse(ApiError(""), NOW_S) for _ in range(REFUSED_MAX + REFUSED_AT_ONCE)]
    assert at_once == [0.0] * (REFUSED_MAX + REFUSED_AT_ONCE)
    wrong.place.give_back()
    again = Client(limits, "192.0.2.8")
    late = [again.place.refuse(ApiError(""), NOW_S) for _ in range(3)]
    assert late == pytest.approx([at / REFUSED_PER_S for at in (1, 2, 3)], abs=1e-6), "one after the other, on any connection"
    assert [each.place.refuse(ApiError(""), NOW_S) for each in (ours, verified)] == [0.0, 0.0]
    assert again.place.refuse(ApiError(""), NOW_S + 1.0) == 0.0


def test_names_of_peers() -> None:
    names = PeerNames()
    found = {
        address: names.name((address, 4000), ("192.0.2.1", 4566))
        for address in ("192.0.2.7", "2001:db8:1:2:3::4", "::ffff:192.0.2.7", "127.9.9.9")
    }
    assert list(found.values()) == ["192.0.2.7", "2001:db8:1:2::/64", "192.0.2.7", "loopback"]


def test_the_peer_with_the_most_memory_makes_room_for_another_one() -> None:
    async def check() -> None:
        limits = ConnectionLimits(MAX)
        memory = limits.memory = UnverifiedMemory(100)
        large, small = [Client(limits, "192.0.2.8") for _ in range(6)], Client(limits, "192.0.2.7")
        assert [memory.try_take(client.place, 25) for client in large] == [True] * 4 + [False] * 2
        waiting = [asyncio.ensure_future(memory.take(client.place, 25)) for client in large[4:]]
        await asyncio.sleep(0)
        await asyncio.wait_for(memory.take(small.place, 30), DEADLINE_S)
        assert [client.is_closed for client in large] == [True] * 2 + [False] * 4
        assert not any(each.done() for each in waiting), "20 bytes are free"
        large[2].place.give_back()
        memory.give_back(large[2].place, 25)
        await asyncio.wait_for(waiting[0], DEADLINE_S)
        small.place.give_back()
        memory.give_back(small.place, 30)
        await asyncio.wait_for(waiting[1], DEADLINE_S)
        for client in large:
            client.place.give_back()
        assert memory.free_bytes == 100 and not memory._holders and not memory._held and not memory._waiting

    asyncio.run(check())


def test_each_peer_has_its_own_queue_for_memory() -> None:
    async def check() -> None:
        limits = ConnectionLimits(MAX)
        memory = limits.memory = UnverifiedMemory(100)
        first = Client(limits, "192.0.2.8")
        assert memory.try_take(first.place, 80)
        waiting = [asyncio.ensure_future(memory.take(first.place, 80)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="reduce your request rate"):
            await memory.take(first.place, 80)
        assert memory.try_take(Client(limits, "192.0.2.7").place, 20), "another peer need not wait"
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not memory._waiting

    asyncio.run(check())
