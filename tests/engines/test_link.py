"""Links between the server and the agents of hosts: messages of any size, slow readers, and how a link ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from corral.channel.command_relay import HEAD
from corral.node.link import MESSAGE_MAX_BYTES, UNREAD_MAX_BYTES, Link, attach, pass_on
from eventually import soon

PART = bytes(64 * 1024)


def with_links(check: Callable[[Link, Link], Awaitable[None]]) -> None:
    async def run() -> None:
        one, other = socket.socketpair()
        await check(await attach(one), await attach(other))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_messages_of_any_size_arrive_in_order() -> None:
    sent = [b"", b"\n", b"x" * 5, bytes(range(256)) * 40_000, *(b"%d" % number for number in range(1000)), b"y" * 3_000_000]

    async def check(one: Link, other: Link) -> None:
        for payload in sent:
            one.send(b"k", payload)
        assert [await other.receive() for _ in sent] == [(b"k", payload) for payload in sent]

    with_links(check)


def test_a_slow_reader_stops_the_sender() -> None:
    """Also through the agent, which passes the messages of a session on."""

    async def check(one: Link, other: Link) -> None:
        first, last = socket.socketpair()
        source, target = await attach(first), await attach(last)
        passing = asyncio.create_task(pass_on(other, source))
        sent = 0

        async def send() -> None:
            nonlocal sent
            while True:
                await one.send_slowly(b"o", PART)
                sent += 1

        sending = asyncio.create_task(send())
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
        assert sent * len(PART) < 4 * (UNREAD_MAX_BYTES + 2 * 1024 * 1024)
        for number in range(sent):
            assert await target.receive() == (b"o", PART), number
        await soon(lambda: sent > before, "the sender goes on")
        sending.cancel()
        one.close("enough")
        while not passing.done():
            assert await target.receive() == (b"o", PART)
            await asyncio.sleep(0)
        assert other.end_reason == "enough"

    with_links(check)


def test_both_ends_send_while_one_closes() -> None:
    async def check(one: Link, other: Link) -> None:
        for _ in range(20):
            one.send(b"o", PART)
            other.send(b"i", PART)
        one.close("the command has ended")
        received = 0
        while (message := await other.receive()) is not None:
            other.send(b"i", b"late")
            received += len(message[1])
        assert received == 20 * len(PART) and other.end_reason == "the command has ended"

    with_links(check)


def test_both_ends_close() -> None:
    async def check(one: Link, other: Link) -> None:
        one.close("one")
        other.close("other")
        await soon(lambda: one._transport is None and other._transport is None, "closed")
        assert (one.end_reason, other.end_reason) == ("one", "other")

    with_links(check)


@pytest.mark.parametrize("sent", [HEAD.pack(b"k", MESSAGE_MAX_BYTES + 1), b""])
def test_a_message_that_is_too_long_or_an_end_without_a_reason(sent: bytes) -> None:
    async def run() -> None:
        one, other = socket.socketpair()
        link = await attach(one)
        with other:
            other.send(sent)
            other.shutdown(socket.SHUT_WR)
            assert await link.receive() is None
            assert ("at most" in link.end_reason) == bool(sent)

    asyncio.run(asyncio.wait_for(run(), 60))
