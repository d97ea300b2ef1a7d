"""What the door refuses: strangers, guessed tokens, foreign and revoked certificates, and reports about runs of other hosts."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.channel.command_relay import HEAD
from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.model.agent_protocol import PROTOCOL, Hello, LogChunk, Report
from corral.model.joined_host import JoinAnswer, JoinRequest
from corral.model.run import Observed
from corral.node.joined_host import renew
from corral.node.server_access import (
    AGENT,
    AUTHORITY,
    GATEWAY,
    JOIN,
    SERVER_NAME,
    SESSION,
    context,
    host_context,
    read_record,
    split_address,
)
from corral.server.door.authority import Authority
from each import check_each
from harness import REGION, eventually
from harness import SESSION as SESSION_OF_TESTS
from hosts.joined import JoinedHost, Server, running_server
from hosts.raw_agent import connect, receive, send, why_ended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "data", "none") as running:
        yield running


# More connections than the door accepts from strangers, which send nothing.
SILENT = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
address = sys.argv[1], int(sys.argv[2])
connections = [socket.create_connection(address, source_address=("127.0.0.3", 0)) for _ in range(1_100)]
print("open", flush=True)
sys.stdin.read()
"""


def tls_of(server: Server, kind: str) -> ssl.SSLContext:
    return context(
        kind, None, (server.corral.data / "door" / "authority.pem").read_text().partition("-----END PRIVATE KEY-----\n")[2]
    )


def ask(server: Server, request: JoinRequest, source: str = "127.0.0.1") -> JoinAnswer:
    with connect(server, tls_of(server, JOIN), source) as connection, connection.makefile("rb") as lines:
        lines.readline()
        connection.sendall(msgspec.json.encode(request) + b"\n")
        return msgspec.json.decode(lines.readline(), type=JoinAnswer)


def request(token: str, name: str, key: EllipticCurvePrivateKey | None = None, **members: Any) -> JoinRequest:
    signed = (
        x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key or generate_private_key(SECP256R1()), SHA256())
    )
    pem = signed.public_bytes(Encoding.PEM).decode()
    given = {"protocol": PROTOCOL, "version": "test", "time_s": WallClock().now_s(), **members}
    return JoinRequest(signing_request=given.pop("signing_request", pem), token=token.rpartition(".")[0], name=name, **given)


def rest(connection: ssl.SSLSocket) -> bytes:
    """Read until the other end closes the connection."""
    found = b""
    with suppress(ssl.SSLError, ConnectionError):
        while part := connection.recv(65_536):
            found += part
    return found


def test_strangers_can_only_ask_to_join(server: Server, tmp_path: Path) -> None:
    for kind in (AGENT, SESSION):
        with connect(server, tls_of(server, kind)) as connection:
            assert b"has presented no certificate" in rest(connection)
    with connect(server, tls_of(server, GATEWAY)) as connection:
        connection.sendall(b"GET /_corral/health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP" not in rest(connection)
    with connect(server, tls_of(server, "corral-agent/99")) as connection:
        assert b"another version of the protocol" in rest(connection)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    other = Authority(foreign, WallClock().now_s())
    key = generate_private_key(SECP256R1())
    from corral.server.door.authority import read_request

    pem = other.issue_host(read_request(request("a.b.c", "x", key).signing_request), "0" * 32, WallClock().now_s(), 3600.0).pem
    (foreign / "host.pem").write_text(pem)
    (foreign / "host.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tls = tls_of(server, AGENT)
    tls.load_cert_chain(foreign / "host.pem", foreign / "host.key")
    with pytest.raises((ssl.SSLError, ConnectionError)), connect(server, tls) as connection:
        connection.recv(1)
        raise ConnectionError("closed")


def test_too_much_or_nothing_from_strangers_ends_only_their_connections(server: Server) -> None:
    with connect(server, tls_of(server, JOIN)) as connection:
        with suppress(OSError):
            for _ in range(64):
                connection.sendall(b"a" * 65_536)
        assert b"certificate" not in rest(connection).partition(b"\n")[2]
    silent = subprocess.Popen(
        [sys.executable, "-c", SILENT, *map(str, split_address(server.door))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert silent.stdout is not None and silent.stdout.readline() == b"open\n"
        assert ask(server, request(server.token(), "while-others-are-slow")).certificate
    finally:
        silent.kill()
        silent.wait()


def test_guesses_are_limited_by_address(server: Server) -> None:
    token = server.token()
    # One failure is forgiven every two seconds, so the guesses are sent at the same time.
    guesses = [request(f"{token[:8]}.{number:032x}.pin", "guesser") for number in range(48)]
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda guess: ask(server, guess, "127.0.0.9").error, guesses))
    assert any("is not valid" in each for each in answers) and any("Too many" in each for each in answers)
    assert "Too many" in ask(server, request(token, "guesser"), "127.0.0.9").error
    assert ask(server, request(token, "not-the-guesser")).certificate


def test_a_signing_request_does_not_choose_names(server: Server) -> None:
    key = generate_private_key(SECP256R1())
    wanted = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    built = x509.CertificateSigningRequestBuilder().subject_name(wanted)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
    pem = built.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()
    answer = ask(server, request(server.token(), "ambitious", signing_request=pem))
    certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    [name] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == answer.host_id
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{answer.host_id}.hosts.corral.internal"]


def test_a_host_cannot_pose_as_the_server(server: Server, tmp_path: Path) -> None:
    posing = server.host(tmp_path / "posing", "posing")
    assert posing.join(server.token()).returncode == 0
    received: list[bytes] = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(posing.folder / "host.pem", posing.folder / "host.key")
    tls.set_alpn_protocols([JOIN])
    offer = {"authority": (posing.folder / AUTHORITY).read_text(), "protocol": PROTOCOL, "version": "fake"}

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            plain, _ = listener.accept()
            with suppress(OSError), tls.wrap_socket(plain, server_side=True) as connection:
                connection.sendall(json.dumps({**offer, "port": 1, "machine": ""}).encode() + b"\n")
                received.append(connection.recv(65_536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        victim = JoinedHost(tmp_path / "victim", server, "victim", door=f"127.0.0.1:{listener.getsockname()[1]}")
        done = victim.join(server.token())
        thread.join(30)
    assert done.returncode == 1 and "The certificate of the server" in done.stderr
    assert not any(received) and not victim.folder.exists()


def test_tokens_and_hosts_that_are_refused_leave_nothing(server: Server, tmp_path: Path) -> None:
    used = server.token()
    assert ask(server, request(used, "first-user")).certificate
    revoked = server.token()
    server.corral.own("RevokeJoinToken", id=revoked[:8])
    expired = server.corral.own("CreateJoinToken", ttl=1.0)["token"]
    eventually(lambda: all(each["id"] != expired[:8] for each in server.corral.own("ListJoinTokens")["tokens"]), "it has expired")
    token = server.token(uses=2)
    foreign = f"{token.rpartition('.')[0]}.{'A' * 43}"
    late, early = WallClock().now_s() - 4000, WallClock().now_s() + 4000

    def is_refused(case: tuple[str, str, str, dict[str, Any]]) -> None:
        given, name, text, members = case
        assert text in ask(server, request(given, name, **members), "127.0.0.7").error

    cases = [
        (used, "second-user", "is used up: it was for 1 host", {}),
        (revoked, "a", "is not one of this server, or it was revoked", {}),
        (expired, "a", "has expired", {}),
        (token, "first-user", "is taken by another host", {}),
        (token, "a b", "The name 'a b' is not valid", {}),
        (token, "a", " s behind the clock of the server", {"time_s": late}),
        (token, "a", " s ahead of the clock of the server", {"time_s": early}),
        (token, "a", "The versions of Corral differ", {"protocol": PROTOCOL + 1}),
        (token, "a", "signing request", {"signing_request": "nonsense"}),
    ]
    check_each(cases, is_refused)
    for number, (given, text) in enumerate(
        [("a.b", "is not complete"), (foreign, "has not created this token"), (used, "used up")]
    ):
        host = server.host(tmp_path / f"refused{number}", f"refused{number}")
        done = host.join(given)
        assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr
        assert not host.folder.exists()
    [left] = [each for each in server.corral.own("ListJoinTokens")["tokens"] if each["id"] == token[:8]]
    assert left["used"] == 0


def test_a_repeated_request_is_the_same_host(server: Server) -> None:
    """The host has not got the first answer."""
    token, key = server.token(), generate_private_key(SECP256R1())
    first, second = (ask(server, request(token, "twice", key)) for _ in range(2))
    assert first.host_id == second.host_id and first.certificate != second.certificate
    assert "used up" in ask(server, request(token, "another")).error


def test_an_agent_of_another_version_is_refused(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "old", "old")
    assert host.join(server.token()).returncode == 0
    hello = Hello("", "boot", "name", 1024, 1024, [], [], protocol=PROTOCOL + 1, version="9.9")
    with connect(server, host_context(host.folder, AGENT)) as connection:
        send(connection, {"hello": hello})
        assert "the versions of Corral differ: the host has 9.9" in why_ended(connection)


def test_a_host_with_another_mainboard_that_renews_its_certificate_or_joins_again_can_be_accepted(
    server: Server, tmp_path: Path
) -> None:
    host = server.host(tmp_path / "moved", "moved")
    assert host.join(server.token(), "--machine", "board-uuid=a").returncode == 0
    record = read_record(host.folder)
    assert record is not None
    with pytest.raises(Refused, match="board-uuid differs"):
        renew(host.folder, record, {"board-uuid": "b"})
    server.corral.own("AcceptHost", host="moved")
    renew(host.folder, record, {"board-uuid": "b"})
    assert "board-uuid differs" in host.join(server.token(), "--machine", "board-uuid=c").stderr
    server.corral.own("AcceptHost", host="moved")
    assert host.join(server.token(), "--machine", "board-uuid=c").returncode == 0


def test_a_host_reports_only_about_its_own_runs_and_gpus(server: Server, tmp_path: Path) -> None:
    honest, liar = server.host(tmp_path / "honest", "honest"), server.host(tmp_path / "liar", "liar")
    for host in (honest, liar):
        assert host.join(server.token()).returncode == 0
    honest.start()
    server.wait_until_up("honest")
    corral = server.corral
    ecs, logs = corral.client("ecs"), corral.client("logs")
    arn = server.run(["sh", "-c", "echo mine; sleep 300"], gpus=1)
    server.wait(arn, "RUNNING")
    own = server.described("honest")
    [gpu_id] = ecs.describe_tasks(tasks=[arn])["tasks"][0]["containers"][0]["gpuIds"]
    run_id = run_ids(honest)[0]
    hello = {"host_id": honest.host_id, "boot_id": "b", "name": "honest", "cpu_units": 1024, "memory_mib": 1024, "runs": [],
             "gpus": [{"gpu_id": gpu_id, "index": 0, "model": "stolen", "memory_mib": 1, "simulated": True}]}  # fmt: skip
    with connect(server, host_context(liar.folder, AGENT)) as connection:
        send(connection, {"hello": hello})
        assert "welcome" in receive(connection)
        chunk = LogChunk(run_id, 5, 20, [(1_700_000_000_000, "forged")], 20)
        ended = Observed(run_id, stopped_at_s=1.0, exit_code=0)
        sample = {"gpu_id": gpu_id, "utilization_percent": 99.0, "memory_used_mib": 1}
        send(connection, {"report": msgspec.to_builtins(Report([ended], [chunk])) | {"gpus": [sample]}})
        while "ack" not in receive(connection):
            pass
    described = server.described("honest")
    assert described["gpus"][0]["model"] == own["gpus"][0]["model"] and described["state"] == "UP"
    assert server.described("liar")["gpus"] == []
    assert server.state(arn) == "RUNNING"
    messages = eventually(lambda: [each["message"] for each in logs.filter_log_events(logGroupName="/tests")["events"]], "output")
    assert "forged" not in messages and "mine" in messages
    shown = next(gpu for gpu in corral.own("DescribeGpus")["gpus"] if gpu["id"] == gpu_id)
    assert shown["utilizationPercent"] != 99.0
    ecs.stop_task(task=arn)


def test_a_host_cannot_fill_the_server(server: Server, tmp_path: Path) -> None:
    """With what it says about itself, with one message, or with connections."""
    flooding = server.host(tmp_path / "flooding", "flooding")
    assert flooding.join(server.token()).returncode == 0
    tls = host_context(flooding.folder, AGENT)
    hello = Hello("", "boot", "name", 1024, 1024, [], [])

    def is_refused(case: tuple[dict[str, Any], str]) -> None:
        members, text = case
        with connect(server, tls) as connection:
            send(connection, {"hello": msgspec.to_builtins(hello) | members})
            assert text in why_ended(connection)

    many = [{"run_id": str(number)} for number in range(20_001)]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"runs": many}, "Expected `array` of length <= 20000 - at `$.hello.runs`"),
        ({"machine": {str(number): "m" for number in range(17)}}, "at `$.hello.machine`"),
        ({"docker": "d" * 5000}, "Expected `str` of length <= 4096 - at `$.hello.docker`"),
        ({"options": {"cluster": "allocation/" + "0" * 32}}, "cluster 'allocation/00"),  # as if it belonged to an instance
    ]
    check_each(cases, is_refused)
    with connect(server, tls) as connection:
        connection.sendall(HEAD.pack(b"m", 17 * 1024 * 1024))
        assert "a message has 17825792 bytes" in why_ended(connection)
    with ExitStack() as opened:
        for _ in range(32):
            opened.enter_context(connect(server, tls))
        eventually(lambda: is_too_many(server, tls), "one is refused")
        assert ask(server, request(server.token(), "not-the-flooding-one")).certificate


def is_too_many(server: Server, tls: ssl.SSLContext) -> bool:
    with connect(server, tls) as connection:
        send(connection, {"session": "none"})
        return "32 connections of this host have sent no message yet" in why_ended(connection)


def run_ids(host: JoinedHost) -> list[str]:
    return [path.name for path in (host.folder / "node" / "output").iterdir()]


def test_a_revoked_host_is_disconnected_at_once_and_can_join_again(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "bad", "bad").joined().start()
    server.wait_until_up("bad")
    arn = server.run(["sleep", "600"], host="bad", gpus=1)
    ecs = server.corral.client("ecs")
    server.wait(arn, "RUNNING")
    before = host.host_id
    with connect(server, host_context(host.folder, SESSION)) as session:
        server.corral.own("RevokeHost", host="bad")
        assert not server.described("bad")["connected"]  # so no task is placed on it
        rest(session)
    eventually(lambda: "its certificate was revoked" in host.log(), "the agent was refused")
    assert server.described("bad")["state"] == "REVOKED"
    for _ in range(5):
        with connect(server, host_context(host.folder, AGENT)) as agent:
            send(agent, {"hello": "x" * 50_000})  # the server has not read it when it refuses the host
            assert "its certificate was revoked" in why_ended(agent)
    with connect(server, host_context(host.folder, SESSION)) as session:
        assert "its certificate was revoked" in why_ended(session)
    assert server.state(arn) == "RUNNING"  # its lease stays
    host.kill("corral.node")
    assert host.join(server.token()).returncode == 0
    host.start()
    server.wait_until_up("bad")
    assert host.host_id == before
    ecs.stop_task(task=arn)
    server.wait(arn, "STOPPED")


def test_a_session_does_not_decide_which_machines_join(server: Server) -> None:
    keys = server.corral.client("sts").get_session_token()["Credentials"]
    session = SESSION_OF_TESTS.client(
        "corral", region_name=REGION, endpoint_url=server.corral.url, aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"], aws_session_token=keys["SessionToken"],
    )  # fmt: skip
    revoke, revoke_host = partial(session.revoke_join_token, id="a"), partial(session.revoke_host, host="a")
    for refused in (session.create_join_token, session.list_join_tokens, revoke, revoke_host):
        with pytest.raises(session.exceptions.AccessDeniedException, match="Sessions cannot decide"):
            refused()
