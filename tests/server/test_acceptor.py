"""How the server accepts connections, over loopback sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack

import uvloop

from corral.server.http.acceptor import FLOOD_SHARE, Acceptor
from corral.server.http.connection_limits import FLOOD_ARRIVALS_MAX, ConnectionLimits
from corral.server.http.open_connections import OpenConnections
from eventually import DEADLINE_S

TURNS = 10


class Server:
    """A server whose protocols only count, by the address of the client."""

    def __init__(self, backlog: int) -> None:
        self.served: Counter[str] = Counter()
        self.open = OpenConnections(0.0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.acceptor = Acceptor(
            self.listener, ConnectionLimits(), lambda there, here: str(there[0]), self._make, self.open.run, backlog, lambda: 0.0
        )

    def _make(self, name: str, here: str) -> asyncio.Protocol:
        self.served[name] += 1
        return asyncio.Protocol()

    def connect(self, address: str, count: int, held: ExitStack) -> list[socket.socket]:
        made = []
        for _ in range(count):
            client = held.enter_context(socket.socket())
            client.bind((address, 0))
            client.setblocking(False)
            client.connect_ex(self.listener.getsockname())
            made.append(client)
        return made


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_all_connections_that_wait_are_accepted_within_a_few_turns_of_the_event_loop() -> None:
    async def check() -> None:
        server = Server(backlog=2048)
        with ExitStack() as held:
            server.connect("127.0.0.1", 200, held)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert server.served == {"127.0.0.1": 200}
            server.acceptor.close()

    uvloop.run(check())


def test_in_a_flood_a_peer_keeps_a_limited_number_of_new_connections_and_others_keep_all() -> None:
    async def check() -> None:
        backlog = FLOOD_ARRIVALS_MAX + 100
        server = Server(backlog)
        with ExitStack() as held:
            greedy = server.connect("127.0.0.1", FLOOD_ARRIVALS_MAX + 40, held)
            others = server.connect("127.0.0.2", 20, held)
            assert len(greedy) + len(others) > backlog // FLOOD_SHARE
            async with asyncio.timeout(DEADLINE_S):
                while sum(server.served.values()) < FLOOD_ARRIVALS_MAX + 20:
                    await asyncio.sleep(0)
            assert server.served == {"127.0.0.1": FLOOD_ARRIVALS_MAX, "127.0.0.2": 20}
            assert [is_closed(client) for client in greedy] == [False] * FLOOD_ARRIVALS_MAX + [True] * 40
            assert not any(is_closed(client) for client in others)
            again = server.connect("127.0.0.1", backlog // FLOOD_SHARE - 1, held)
            async with asyncio.timeout(DEADLINE_S):
                while server.served["127.0.0.1"] < FLOOD_ARRIVALS_MAX + len(again):
                    await asyncio.sleep(0)
            assert not any(is_closed(client) for client in again), "few connections wait, so it is not a flood"
            server.acceptor.close()

    uvloop.run(check())


def test_connections_that_are_closed_already_are_not_served() -> None:
    async def check() -> None:
        server = Server(backlog=64)
        with ExitStack() as held:
            for client in server.connect("127.0.0.1", 20, held):
                client.close()
            sending = server.connect("127.0.0.1", 20, held)
            for client in sending:
                client.send(b"x")
                client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(DEADLINE_S):
                while sum(server.served.values()) < 20:
                    await asyncio.sleep(0)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert server.served == {"127.0.0.1": 20}
            server.acceptor.close()

    uvloop.run(check())


def test_a_full_table_of_files_ends_no_acceptor() -> None:
    """The error is not repeated in each turn of the loop, and connections are accepted when there is room again."""

    class Full:
        def __init__(self, listener: socket.socket) -> None:
            self.listener, self.errors = listener, 0

        def accept(self) -> tuple[socket.socket, object]:
            if self.errors < 2:
                self.errors += 1
                raise OSError(24, "Too many open files")
            return self.listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self.listener, name)

    async def check() -> None:
        server = Server(backlog=64)
        full = Full(server.listener)
        server.acceptor._listener = full  # type: ignore[assignment]
        with ExitStack() as held:
            server.connect("127.0.0.1", 1, held)
            async with asyncio.timeout(DEADLINE_S):
                while not server.served:
                    await asyncio.sleep(0.01)
            assert full.errors == 2
            server.acceptor.close()

    uvloop.run(check())
