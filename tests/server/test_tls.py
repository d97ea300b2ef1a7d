"""TLS for other machines: addresses to listen on, certificates, and relays whose server ends a connection."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509

from corral.core.errors import Refused
from corral.process.relay import Relays, TlsEnd
from corral.server.door.authority import HTTPS_VALID, Authority
from corral.server.http.listeners import chosen_host, listeners_on
from corral.server.http.outside import is_loopback
from corral.server.http.peers import TlsClient
from corral.server.tls import certificate, front
from corral.server.tls.certificate import RENEW_BEFORE, GivenCertificate, OwnCertificate
from corral.server.tls.certificate_files import CHECK_S, CertificateFiles
from corral.server.tls.opener import TlsChoice, https_url
from corral.server.tls.passed_connections import PassedConnection, open_channel, receive_connections, send_connection
from eventually import DEADLINE_S
from ports import free_port

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("host", "tls", "plain_http", "chosen"),
    [
        ("", False, False, "127.0.0.1"),
        ("", True, False, "0.0.0.0"),
        ("", True, True, "0.0.0.0"),
        ("", False, True, "127.0.0.1"),
        ("127.0.0.1", False, False, "127.0.0.1"),
        ("localhost", False, False, "localhost"),
        ("127.0.1.1", True, False, "127.0.1.1"),
        ("0.0.0.0", False, True, "0.0.0.0"),
        ("10.1.2.3", True, False, "10.1.2.3"),
        ("::", True, False, "::"),
    ],
)
def test_the_address_to_listen_on(host: str, tls: bool, plain_http: bool, chosen: str) -> None:
    assert chosen_host(host, tls=tls, plain_http=plain_http) == chosen


@pytest.mark.parametrize(
    ("host", "tls", "why"),
    [
        ("0.0.0.0", False, "without encryption. Add --tls, or"),
        ("10.1.2.3", False, "without encryption"),
        ("::", False, "without encryption"),
        ("127.0.0.1", True, "do not reach --host 127.0.0.1. Add --host 0.0.0.0"),
        ("no.such.host.invalid", True, "not an address of this machine"),
    ],
)
def test_addresses_that_are_refused(host: str, tls: bool, why: str) -> None:
    with pytest.raises(Refused, match=why):
        chosen_host(host, tls=tls, plain_http=False)


def test_a_further_port_is_on_the_same_address() -> None:
    further = free_port("127.0.1.1")
    found = listeners_on("127.0.1.1", 0, further)
    assert [each.getsockname() for each in found][1:] == [("127.0.1.1", further)]
    for each in found:
        each.close()


def test_addresses_of_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.5", "::", "fe80::1%eth0", "::ffff:10.0.0.5", "169.254.170.2")))


def test_urls() -> None:
    assert https_url("box1", 4566) == "https://box1:4566"
    assert https_url("box1", 443) == "https://box1"
    assert https_url("fd00::5", 4566) == "https://[fd00::5]:4566"


def names_in(path: Path) -> list[str]:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def test_its_own_certificate_follows_the_addresses_and_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["10.0.0.5"]
    monkeypatch.setattr(certificate, "addresses_for_others", lambda: addresses)
    own = OwnCertificate(tmp_path, Authority(tmp_path, NOW_S), "box1.lab, 10.9.9.9", "0.0.0.0")
    path = own.files[0]

    def written(now_s: float) -> bool:
        before = path.read_bytes() if path.exists() else b""
        own.renew(now_s)
        return path.read_bytes() != before

    assert written(NOW_S) and not written(NOW_S + 1)
    assert {"box1.lab", "10.9.9.9", "10.0.0.5", "localhost", "127.0.0.1"} <= set(names_in(path))
    addresses.append("192.168.7.7")
    assert written(NOW_S + 2) and "192.168.7.7" in names_in(path)
    soon_s = NOW_S + (HTTPS_VALID - RENEW_BEFORE).total_seconds()
    assert not written(soon_s - 10) and written(soon_s + 10)
    assert path.stat().st_mode & 0o077 == 0
    assert own.shown_name == "box1.lab"
    assert "PRIVATE" not in (tmp_path / "ca.pem").read_text() and own.trust.bundle == (tmp_path / "ca.pem").read_text()


def written_pair(folder: Path, names: list[str]) -> tuple[Path, Path]:
    """Write a certificate and its key to two files, as certbot does."""
    folder.mkdir(exist_ok=True)
    authority = Authority(folder, NOW_S)
    authority.issue_https(folder / "both.pem", names, NOW_S)
    key, _, rest = (folder / "both.pem").read_text().partition("-----BEGIN CERTIFICATE-----")
    (folder / "key.pem").write_text(key)
    (folder / "certificate.pem").write_text(f"-----BEGIN CERTIFICATE-----{rest}{authority.pem}")
    return folder / "certificate.pem", folder / "key.pem"


def test_a_given_certificate(tmp_path: Path) -> None:
    pair = written_pair(tmp_path / "given", ["*.lab.example", "gpu.lab.example", "10.0.0.5"])
    TlsChoice(str(pair[0]), str(pair[1]), "", 0, plain_http=False).check()
    given = GivenCertificate(tmp_path, str(pair[0]), str(pair[1]), "")
    assert given.shown_name == "gpu.lab.example"  # not the pattern
    assert given.trust.bundle == Authority(tmp_path / "given", NOW_S).pem  # the chain ends with it, so clients may not know it
    without_root = pair[0].read_text().partition("-----END CERTIFICATE-----\n")
    pair[0].write_text(without_root[0] + without_root[1])
    assert GivenCertificate(tmp_path, str(pair[0]), str(pair[1]), "box,other").trust.pin == ""
    assert not (tmp_path / "ca.pem").exists()


def test_files_that_are_refused(tmp_path: Path) -> None:
    certificate_path, key_path = map(str, written_pair(tmp_path / "one", ["a"]))
    other = str(written_pair(tmp_path / "two", ["a"])[1])
    (tmp_path / "empty").touch()
    wrong = {
        ("", key_path): "must be used together",
        ("x.pem", key_path): "not an absolute path",
        (str(tmp_path / "none"), key_path): "No such file",
        (str(tmp_path / "empty"), key_path): "damaged, or not in PEM form",
        (certificate_path, other): "the key does not belong to the certificate",
    }
    for (first, second), why in wrong.items():
        with pytest.raises(Refused, match=why):
            TlsChoice(first, second, "", 0, plain_http=False).check()


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    pair, now_s = written_pair(tmp_path / "given", ["a"]), [0.0]
    files = CertificateFiles(*pair, lambda: now_s[0])
    first = files.context()
    pair[0].write_text("")
    assert files.context() is first  # not looked at yet
    now_s[0] += CHECK_S
    assert files.context() is first  # the empty file cannot be used
    pair[1].unlink()
    written_pair(tmp_path / "given", ["b"])
    now_s[0] += CHECK_S
    assert files.context() is not first


def test_connections_are_passed_with_what_has_arrived() -> None:
    ours, theirs = open_channel()
    client, client_end = socket.socketpair()
    server, server_end = socket.socketpair()
    theirs.setblocking(False)
    send_connection(ours, PassedConnection("account 0", b"\x16\x03\n\x01", client_end, server_end))
    client_end.close()
    server_end.close()
    [passed] = receive_connections(theirs)
    assert passed is not None and passed.name == "account 0" and passed.begun == b"\x16\x03\n\x01"
    client.send(b"from the client")
    server.send(b"from the server")
    assert (passed.client.recv(99), passed.server.recv(99)) == (b"from the client", b"from the server")
    ours.close()
    assert list(receive_connections(theirs)) == [None]
    for each in (theirs, client, server, passed.client, passed.server):
        each.close()


def test_connections_wait_while_the_kernel_or_the_process_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(errno.ETOOMANYREFS, "too many references")] * 2

    def send(channel: socket.socket, passed: PassedConnection) -> None:
        if failures:
            raise failures.pop()
        send_connection(channel, passed)

    async def adopt(connection: socket.socket, client: TlsClient) -> None:
        connection.close()

    async def check() -> None:
        tls = front.TlsFront(tmp_path, cast(Any, None), cast(Any, None), adopt)
        clients = [socket.socketpair() for _ in range(front.WAITING_MAX + 1)]
        for _, theirs in clients:
            tls.take(theirs, b"\x16", TlsClient("account 0", "127.0.0.1"))
        clients[-1][0].settimeout(DEADLINE_S)
        assert clients[-1][0].recv(1) == b""  # no more of them wait for the process, which has not started
        tls._channel, channel = open_channel()
        channel.setblocking(False)
        tls._send()
        passed: list[PassedConnection] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(passed) < front.WAITING_MAX:
                passed += filter(None, receive_connections(channel))
                await asyncio.sleep(0.001)
        assert not failures
        tls.close()
        assert list(receive_connections(channel)) == [None]
        for end in (channel, *(ours for ours, _ in clients), *(end for each in passed for end in each[2:])):
            end.close()

    monkeypatch.setattr(front, "send_connection", send)
    asyncio.run(check())


class Ends:
    """A relay, and both of its ends."""

    async def open(self, folder: Path) -> Ends:
        Authority(folder, NOW_S).issue_https(folder / "both.pem", ["127.0.0.1"], NOW_S)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "both.pem")
        self.relays = Relays()
        self.server, plain = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.plain_client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        trusting = ssl._create_unverified_context()
        shaking = asyncio.get_running_loop().run_in_executor(None, trusting.wrap_socket, self.plain_client)
        end = TlsEnd(accepted, context, server_side=True)
        await self.relays.handshake(end)
        self.client = await shaking
        self.relay = self.relays.add(plain, end, is_of_server=True)
        self.server.setblocking(False)
        return self

    async def until_closed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.relay.is_closed:
                await asyncio.sleep(0.001)


def test_a_server_that_closes_ends_the_connection(tmp_path: Path) -> None:
    async def check() -> None:
        ends = await Ends().open(tmp_path)
        with ends.client, ends.server:
            ends.server.send(b"the whole response")
            ends.server.close()
            await ends.until_closed()  # although the client keeps its connection open
            assert ends.client.recv(99) == b"the whole response" and ends.client.recv(1) == b""

    asyncio.run(check())


def test_a_client_that_reads_nothing_is_found(tmp_path: Path) -> None:
    async def check() -> None:
        ends = await Ends().open(tmp_path)
        with ends.client, ends.server:
            body = os.urandom(1 << 20)
            assert not ends.relay.is_abandoned
            full = 0
            while full < 5:
                try:
                    ends.server.send(body)
                except BlockingIOError:
                    full += 1
                await asyncio.sleep(0.01)
            assert not ends.relay.is_abandoned  # it may still read
            ends.server.close()
            async with asyncio.timeout(DEADLINE_S):
                while not ends.relay.is_abandoned:
                    await asyncio.sleep(0.001)
            ends.relay.close()
            assert not ends.relay.is_abandoned

    asyncio.run(check())
