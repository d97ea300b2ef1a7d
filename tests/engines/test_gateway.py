"""The gateway of a joined host with its spawner. It leads to a door of the test, and to a server that sends back what it gets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from corral.core.errors import Refused
from corral.model.agent_protocol import ServerPlace
from corral.node import server_access
from corral.node.gateway import Turns
from corral.node.gateway_keeper import GatewayKeeper
from corral.node.gateway_ports import GatewayName, find_gateway, read_server_is_here, refuse_if_taken
from corral.node.host import machine_id
from corral.process.relay import Relays, TlsEnd
from engines.nodes import NodeFolder, is_running, kill
from engines.spawners import start_spawner
from eventually import eventually
from ports import free_port

DEADLINE_S = 120  # starts six processes, one after the other
ELSEWHERE = "another boot/1"


class Pki:
    """An authority that has signed one certificate for the door, and one for hosts."""

    def __init__(self, folder: Path) -> None:
        self.authority, key = self._certificate("authority", None, None)
        self.files = {server_access.AUTHORITY: self._pem(self.authority)}
        for names in ((server_access.KEY, server_access.CERTIFICATE), ()):
            signed, own = self._certificate(server_access.SERVER_NAME, self.authority, key)
            private = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            if names:
                self.files |= {names[0]: private, names[1]: self._pem(signed)}
            else:
                (folder / "door.pem").write_bytes(self._pem(signed) + private)
        (folder / "authority.pem").write_bytes(self.files[server_access.AUTHORITY])
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "door.pem")
        self.context.load_verify_locations(folder / "authority.pem")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.set_alpn_protocols([server_access.GATEWAY])

    def _certificate(
        self, name: str, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key, subject, now = ec.generate_private_key(ec.SECP256R1()), _name(name), datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer.subject if issuer else subject, subject, key.public_key(), x509.random_serial_number(), now, now + timedelta(1)
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(issuer_key or key, hashes.SHA256()), key

    def _pem(self, certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class World:
    """A door that leads to a server which sends back what it gets, and folders of hosts that have joined it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pki = Pki(folder)
        self.nodes: list[NodeFolder] = []
        self.port = free_port()

    async def open(self) -> None:
        self.relays, self.door = Relays(), socket.create_server(("127.0.0.1", 0))
        self.door.setblocking(False)
        self._tasks = {asyncio.create_task(self._accept())}

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            plain, _ = await loop.sock_accept(self.door)
            tls = TlsEnd(plain, self.pki.context, server_side=True)
            with suppress(OSError):
                await self.relays.handshake(tls)
                ours, theirs = socket.socketpair()
                self.relays.add(theirs, tls)
                ours.setblocking(False)
                self._tasks.add(asyncio.create_task(self._echo(ours)))

    async def _echo(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection, suppress(OSError):
            while data := await loop.sock_recv(connection, 65536):
                await loop.sock_sendall(connection, data)

    def join(self, name: str) -> NodeFolder:
        node = NodeFolder(self.folder / name)
        address = f"127.0.0.1:{self.door.getsockname()[1]}"
        record = server_access.Joined(door=address, host_id=name, name=name, port=self.port, account="123456789012")
        (node.data / server_access.RECORD).write_bytes(msgspec.json.encode(record))
        for file, content in self.pki.files.items():
            (node.data / file).write_bytes(content)
        start_spawner(node, "none")
        self.nodes.append(node)
        return node

    def gateways(self, node: NodeFolder) -> list[int]:
        mark = b"\0--data\0" + os.fsencode(node.data) + b"\0"
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if mark in line and b"\0corral.node.gateway\0" in line and is_running(int(entry.name)):
                    found.append(int(entry.name))
        return found

    async def echo(self) -> None:
        """Send bytes through the gateway and back, and end the connection in order."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = os.urandom(300_000)
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    def is_port_free(self) -> bool:
        try:
            socket.create_server(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        for node in self.nodes:
            for pid in [*self.gateways(node), node.spawner_pid()]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(world: World, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await world.open()
        async with asyncio.timeout(DEADLINE_S):
            await body()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_the_port_stays_taken_and_serves_while_gateway_agent_and_spawner_are_killed(world: World) -> None:
    async def body() -> None:
        node = world.join("one")
        keeper = GatewayKeeper(node.data, containers=False)
        await keeper.open()
        keeper.server_at(ServerPlace(world.port, ELSEWHERE))
        await world.echo()
        [gateway] = world.gateways(node)
        idle = await asyncio.open_connection("127.0.0.1", world.port)

        kill(gateway)
        await world.echo()  # the connection waits for the next gateway
        assert await idle[0].read() == b""
        idle[1].close()
        [gateway] = world.gateways(node)

        # the spawner: the agent gives the sockets to the next one
        kill(node.spawner_pid())
        start_spawner(node, "none")
        keeper.spawner_connected()

        # agent and gateway at once: the spawner holds the port
        await keeper.close(end=False)
        kill(gateway)
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", world.port))
        waiting = asyncio.create_task(world.echo())
        again = GatewayKeeper(node.data, containers=False)
        await again.open()
        await waiting
        await again.close(end=True)
        kill(world.gateways(node)[0])
        await until(world.is_port_free)  # as soon as the spawner has let it go

    run(world, body)


def test_agents_of_one_account_share_a_gateway_and_the_other_takes_over(world: World) -> None:
    async def body() -> None:
        first, second = world.join("one"), world.join("two")
        owner, other = (GatewayKeeper(node.data, containers=False) for node in (first, second))
        await owner.open()
        await other.open()
        assert len(world.gateways(first)) == 1
        assert not world.gateways(second)
        await owner.close(end=True)
        kill(world.gateways(first)[0])
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", world.port))  # the other agent and its spawner hold the port
        await world.echo()
        assert len(world.gateways(second)) == 1
        assert not world.gateways(first)
        refuse_if_taken(GatewayName.of(second.data).server, world.port, ELSEWHERE)
        await other.close(end=True)

    run(world, body)


def test_a_stranger_on_the_port_is_refused_and_named_unless_it_is_the_server_itself(world: World) -> None:
    async def body() -> None:
        node = world.join("one")
        pin, place = GatewayName.of(node.data).server, ServerPlace(world.port, ELSEWHERE)
        with socket.create_server(("127.0.0.1", world.port)):
            names = rf"cannot listen on 127.0.0.1 port {world.port}: process {os.getpid()} .*listens on it"
            with pytest.raises(Refused, match=names):
                refuse_if_taken(pin, world.port, ELSEWHERE)
            keeper = GatewayKeeper(node.data, containers=False)
            await keeper.open()
            keeper.server_at(place)
            with pytest.raises(Refused, match=names):
                await keeper.failed
            await keeper.close(end=True)

            refuse_if_taken(pin, world.port, machine_id())
            here = GatewayKeeper(node.data, containers=False)
            await here.open()
            await until(lambda: world.gateways(node))  # the keeper tries again until it knows where the server is
            [trying] = world.gateways(node)
            here.server_at(ServerPlace(world.port, machine_id()))
            await until(lambda: not Path(f"/proc/{trying}").exists())  # it ends because the server listens on the port
            assert read_server_is_here(node.data)
            assert not here.failed.done()
            await here.close(end=True)
        # The server was stopped, and its port is free. The agent of its machine does not take it.
        again = GatewayKeeper(node.data, containers=False)
        await again.open()
        socket.create_server(("127.0.0.1", world.port)).close()
        assert not again.failed.done()
        await again.close(end=True)

    run(world, body)


def test_a_gateway_that_is_starting_does_not_take_the_port_of_a_server_that_was_killed(world: World) -> None:
    async def body() -> None:
        node = world.join("one")
        keeper = GatewayKeeper(node.data, containers=False)
        opening = asyncio.create_task(keeper.open())
        await until(lambda: world.gateways(node))
        for pid in world.gateways(node):
            os.kill(pid, signal.SIGSTOP)  # a slow start
        keeper.server_at(ServerPlace(world.port, machine_id()))
        await opening
        assert not world.gateways(node)
        assert world.is_port_free()
        await keeper.close(end=True)

    run(world, body)


def test_a_gateway_ends_when_the_server_is_found_on_its_machine(world: World) -> None:
    async def body() -> None:
        node = world.join("one")
        keeper = GatewayKeeper(node.data, containers=False)
        await keeper.open()
        assert not world.is_port_free()
        keeper.server_at(ServerPlace(world.port, machine_id()))
        await until(world.is_port_free)
        await until(lambda: not world.gateways(node))
        assert not keeper.failed.done()
        await keeper.close(end=True)

    run(world, body)


def test_a_gateway_of_another_account_is_a_stranger(world: World) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    name = GatewayName("pin", world.port)
    squat = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
    squat += f"s.bind({name.address(0)!r}); s.listen(); print(flush=True); c, _ = s.accept(); c.send(b'loopback'); sys.stdin.read()"
    stranger = subprocess.Popen([sys.executable, "-c", squat], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        assert find_gateway(name) is None
    finally:
        stranger.kill()
        stranger.communicate()
        eventually(lambda: stranger.returncode is not None, "the end of the stranger")


def test_peers_take_turns_for_handshakes() -> None:
    async def check() -> None:
        turns, order, free = Turns(1), list[str](), asyncio.Event()

        async def handshake(peer: str) -> None:
            async with turns.turn(peer):
                order.append(peer)
                await free.wait()

        peers = ["first", "many", "many", "gone", "many", "one"]
        running = []
        for peer in peers:
            running.append(asyncio.create_task(handshake(peer)))
            await asyncio.sleep(0)  # the tasks ask for their turns one after the other
        running[3].cancel()
        free.set()
        await asyncio.gather(*running, return_exceptions=True)
        assert order == ["first", "many", "one", "many", "many"]
        async with turns.turn("again"):  # each turn was given back
            pass

    asyncio.run(check())
