"""`bench/attack_connections.py [NAME…] [--seconds N]`: clients without credentials, against clients that open new connections.

Like `bench/attack.py`, with the same columns. Each signed request is the first on a new connection. The attackers run as another
Unix account if this script runs as root, and as the same account otherwise. `same account` in a name: always as the same account.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle

from attack import CALLERS, MIB, PACE_S, Arena, Load, _form, _hold, _pump, main, repeat
from client import Unanswered, Wire

OTHER_ACCOUNT = 65534


def idle(arena: Arena) -> None:
    """5,000 connections that send nothing."""
    _hold(arena, 5_000, b"", b"")


def unfinished(arena: Arena) -> None:
    """2,000 requests that name a valid access key, and whose body of 100 bytes never ends."""
    _hold(arena, 2_000, _form(arena, bytes(100), True, {}), b"")


def large_unfinished(arena: Arena) -> None:
    """200 requests that name a valid access key and send 16 MB byte by byte."""
    _hold(arena, 200, _form(arena, bytes(16 * MIB), True, {}), b"x")


def wrong_signatures(arena: Arena) -> None:
    """Requests with wrong signatures on 8 connections, as fast as they are answered."""
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    repeat(arena, _form(arena, body, True, {}) + body, 8)


def reconnecting(arena: Arena) -> None:
    """A wrong signature on each of 200 connections, which are opened again as soon as they are answered."""
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    _pump(arena, [_form(arena, body, True, {"connection": "close"}) + body] * 200)


def closing(arena: Arena) -> None:
    """Connections that are closed as soon as they are open, one after the other."""
    while not arena.is_over():
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", arena.port))
        connection.close()


def nothing(arena: Arena) -> None:
    """No attack: the baseline."""
    while not arena.is_over():
        time.sleep(0.1)


def as_other_account(attack: Callable[[Arena], None], arena: Arena) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_ACCOUNT)
        os.setuid(OTHER_ACCOUNT)
    attack(arena)


ATTACKS: dict[str, Callable[[Arena], None]] = {
    "no attack": nothing,
    "5,000 idle connections": partial(as_other_account, idle),
    "5,000 idle connections, same account": idle,
    "2,000 unfinished requests": partial(as_other_account, unfinished),
    "2,000 unfinished requests, same account": unfinished,
    "200 unfinished bodies of 16 MB": partial(as_other_account, large_unfinished),
    "wrong signatures": partial(as_other_account, wrong_signatures),
    "wrong signatures on new connections": partial(as_other_account, reconnecting),
    "connections that are closed at once": partial(as_other_account, closing),
}


class NewConnections(Load):
    """Four callers that open a new connection for each request."""

    def _call(self, number: int) -> None:
        requests = cycle(self._requests[number:] + self._requests[:number])
        due = time.perf_counter() + PACE_S * number / CALLERS
        while not self._stopping.is_set():
            time.sleep(max(0.0, due - time.perf_counter()))
            figures = self.figures
            try:
                wire = Wire(self._local.port)
                try:
                    wire.ask(next(requests))
                    figures.times_s.append(time.perf_counter() - due)
                finally:
                    wire.close()
            except (OSError, Unanswered) as error:
                figures.failures.append(str(error))
            due = max(due + PACE_S, time.perf_counter() - 1.0)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(main(ATTACKS, others=NewConnections))
