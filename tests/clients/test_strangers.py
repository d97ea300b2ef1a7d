"""Clients without valid credentials, of this and of another Unix account, do not crowd out clients that sign their requests."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from clients.test_connection_limits import (
    ACTION,
    BODY_MAX_BYTES,
    MIB,
    address,
    connected,
    cpu_s,
    head_of,
    memory_mib,
    response,
    signed_by,
)
from corral.server.http.connection_limits import CONNECTIONS_MAX, STRANGERS_SHARE
from harness import Corral, eventually

OURS, OTHER = os.getuid(), 65534
as_root = pytest.mark.skipif(OURS != 0, reason="only root can start processes of other accounts")


class Strangers:
    """Connections of a process of another account, or of this one."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def open_count(self) -> int:
        """The number of connections that the server has not closed."""
        self._control.send(b"?")
        return int(self._control.recv(16))


@contextmanager
def strangers(corral: Corral, account: int, count: int, data: bytes = b"") -> Iterator[Strangers]:
    """Open connections, send the same bytes on each, and keep them open."""
    ours, theirs = socket.socketpair()
    server = address(corral)
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            _keep_connections(theirs, server, account, count, data)
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        ours.settimeout(120)
        assert ours.recv(1) == b"!", "the connections were not made"
        yield Strangers(ours)
    os.waitpid(child, 0)


def _keep_connections(control: socket.socket, server: tuple[str, int], account: int, count: int, data: bytes) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if account != OURS:
        os.setgroups([])
        os.setgid(account)
        os.setuid(account)
    kept = []
    for _ in range(count):
        kept.append(connection := socket.socket())
        with suppress(OSError):
            connection.connect(server)
            connection.sendall(data)
    control.send(b"!")
    while control.recv(1):
        control.send(str(sum(map(_is_open, kept))).encode())


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def signed(corral: Corral) -> bytes:
    return signed_by(corral.keys["secret_key"], corral, ACTION) + ACTION


def is_served(corral: Corral, *parts: bytes) -> bool:
    """Whether a signed request on a new connection gets its response at the first attempt."""
    with connected(corral) as connection:
        for part in parts:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(part)
        return response(connection)[0] == 200


@as_root
@pytest.mark.parametrize("account", [OTHER, OURS])
def test_idle_strangers_do_not_keep_signed_clients_out(corral, account):
    queue = corral.client("sqs").create_queue(QueueName=f"polled-{account}")["QueueUrl"]
    with ExitStack() as stack:
        bystander = stack.enter_context(connected(corral)) if account == OTHER else None
        worker = corral.new_client("sqs")
        worker.list_queues()
        polling = stack.enter_context(ThreadPoolExecutor(1)).submit(worker.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
        idle = stack.enter_context(strangers(corral, account, 5_000))
        assert [is_served(corral, signed(corral)) for _ in range(100)] == [True] * 100
        fresh = corral.new_client("sqs")
        fresh.send_message(QueueUrl=queue, MessageBody="sent during the attack")
        [message] = polling.result(60)["Messages"]
        assert message["Body"] == "sent during the attack", "the connection of the worker stayed open"
        eventually(lambda: idle.open_count() < CONNECTIONS_MAX - 300, "the connections of one account are limited")
        assert idle.open_count() > CONNECTIONS_MAX // STRANGERS_SHARE - 200, "not more than needed are closed"
        assert bystander is None or _is_open(bystander), "a stranger of another account stays open"


@as_root
@pytest.mark.parametrize("account", [OTHER, OURS])
def test_requests_that_never_end_do_not_keep_signed_clients_out(corral, account):
    """Their heads name a valid access key, so their bodies are read, within a limit of connections and a limit of memory."""
    base_mib = memory_mib(corral)
    with strangers(corral, account, 1_000, signed_by("wrong", corral, bytes(100)) + b"x") as unfinished:
        eventually(lambda: unfinished.open_count() < 1_000, "the reserved places are limited")
        assert is_served(corral, signed_by(corral.keys["secret_key"], corral, ACTION), ACTION)
        corral.new_client("sts").get_caller_identity()
    assert memory_mib(corral) - base_mib < 100


@as_root
def test_bodies_that_never_end_do_not_keep_the_bodies_of_another_account_out(corral):
    large = ACTION + b"&A=" + b"a" * 2 * MIB
    head = signed_by(corral.keys["secret_key"], corral, large)
    with strangers(corral, OTHER, 100, signed_by("wrong", corral, bytes(BODY_MAX_BYTES)) + bytes(1000)):
        assert is_served(corral, head, large[:MIB], large[MIB:])
        with connected(corral) as verified:
            verified.sendall(signed(corral))
            assert response(verified)[0] == 200
            for _ in range(3):
                verified.sendall(head + large)
                assert response(verified)[0] == 200, "a verified connection does not share memory with strangers"


@as_root
def test_heads_that_never_end_do_not_keep_the_heads_of_another_account_out(corral):
    start = head_of(corral, 0, {f"x-{number}": "y" * 6_000 for number in range(10)}).removesuffix(b"\r\n")
    whole = signed(corral)
    with ExitStack() as stack:
        for count, unfinished in ((1_200, start), (100, start[:1_000]), (100, start[:100])):
            stack.enter_context(strangers(corral, OTHER, count, unfinished))
        connections = [stack.enter_context(connected(corral)) for _ in range(50)]
        for connection in connections:
            connection.sendall(whole[:100])
        for connection in connections:
            connection.sendall(whole[100:])
            assert response(connection)[0] == 200


@as_root
def test_wrong_signatures_cost_only_their_own_account_the_reserved_places(corral):
    wrong = signed_by("wrong", corral, ACTION) + ACTION
    unfinished = signed_by("wrong", corral, bytes(100)) + b"x"
    with ExitStack() as stack:
        stack.enter_context(strangers(corral, OTHER, 50, wrong))
        others = stack.enter_context(strangers(corral, OTHER, 1_000, unfinished))
        ours = stack.enter_context(strangers(corral, OURS, 400, unfinished))
        assert is_served(corral, signed_by(corral.keys["secret_key"], corral, ACTION), ACTION)
        assert ours.open_count() == 400, "this account has its reserved places"
        assert others.open_count() == 1_000, "the other account has none, and its requests count as those of strangers"


def test_the_server_waits_while_it_has_no_free_file(corral):
    """Without a free file, the kernel cannot give new connections to the server."""
    assert corral.process is not None
    pid = corral.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    corral.client("sts").get_caller_identity()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
    before_s = cpu_s(corral)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(corral)) for _ in range(50)]
        for _ in range(20):
            corral.client("sts").get_caller_identity()
        assert cpu_s(corral) - before_s < 1.0, "the server does not spin"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: is_served(corral, signed(corral)))
        del waiting
