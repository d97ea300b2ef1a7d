"""What clients without valid credentials can cost others: time before a signature is verified, memory, connections, open files."""

from __future__ import annotations

import gzip
import os
import selectors
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from clients.s3_help import new_bucket
from harness import Corral, container, eventually, wait_stopped

MIB = 1024 * 1024
BODY_MAX_BYTES = 16 * MIB
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ACTION = b"Action=GetCallerIdentity&Version=2011-06-15"
ESCAPES = ACTION + b"&A=" + b"%41" * 5_500_000  # takes seconds to decode
IS_GZIP = {"Content-Encoding": "gzip"}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def address(corral: Corral) -> tuple[str, int]:
    host, _, port = corral.url.removeprefix("http://").partition(":")
    return host, int(port)


@contextmanager
def connected(corral: Corral) -> Iterator[socket.socket]:
    with socket.create_connection(address(corral), timeout=30) as made:
        yield made


def signed_by(secret: str, corral: Corral, body: bytes, headers: Mapping[str, str] = FORM) -> bytes:
    """The head of a form that is signed with the root user's access key and any secret."""
    request = AWSRequest("POST", f"{corral.url}/", headers=dict(headers), data=body)
    SigV4Auth(Credentials(corral.keys["access_key"], secret), "sts", "us-east-1").add_auth(request)
    return head_of(corral, len(body), dict(request.headers.items()))


def head_of(corral: Corral, length: int, headers: Mapping[str, str]) -> bytes:
    lines = ["POST / HTTP/1.1", f"Host: {corral.url.removeprefix('http://')}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def response(connection: socket.socket) -> tuple[int, bytes]:
    """Read one response: its status, and everything up to the end of its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (part := connection.recv(65536))
        assert part, f"the server closed the connection after {received!r}"
    head, _, body = received.partition(b"\r\n\r\n")
    [length] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split(b" ")[1]), head + body


def is_closed(connection: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def cpu_s(corral: Corral) -> float:
    assert corral.process is not None
    fields = Path(f"/proc/{corral.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mib(corral: Corral) -> float:
    assert corral.process is not None
    return int(Path(f"/proc/{corral.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


# --- nothing costly before the signature is verified ------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "plain"])
@pytest.mark.parametrize("credentials", ["none", "unknown key", "wrong secret", "wrong secret, stated hash"])
def test_a_form_is_not_decoded_before_its_signature_is_verified(corral, encoding, credentials):
    body, headers = (gzip.compress(ESCAPES, 9), FORM | IS_GZIP) if encoding == "gzip" else (ESCAPES, FORM)
    if credentials == "none":
        head = head_of(corral, len(body), headers)
    else:
        if credentials.endswith("stated hash"):
            headers = headers | {"X-Amz-Content-SHA256": "0" * 64}
        head = signed_by("wrong", corral, body, headers)
        if credentials == "unknown key":
            head = head.replace(corral.keys["access_key"].encode(), b"AKIAUNKNOWN")
    before_s = cpu_s(corral)
    for _ in range(2):
        with connected(corral) as connection:
            connection.sendall(head + body)
            assert response(connection)[0] == 403
    assert cpu_s(corral) - before_s < 1.0, "decoding one of these forms takes several seconds"


FORMS = 4


def test_forms_with_a_valid_signature_are_decoded_in_every_encoding(corral):
    secret, small = corral.keys["secret_key"], ACTION + b"&A=%41"
    for body, headers in ((small, FORM), (gzip.compress(small), FORM | IS_GZIP), (small + b"%41" * 200_000, FORM)):
        with connected(corral) as connection:
            connection.sendall(signed_by(secret, corral, body, headers) + body)
            status, text = response(connection)
            assert status == 200 and b"<GetCallerIdentityResponse" in text


def test_other_callers_are_served_while_large_forms_are_decoded(corral):
    """The caller has valid credentials, so the forms are decoded, each of which takes a second."""
    body = gzip.compress(ESCAPES[:3_000_000], 9)
    head = signed_by(corral.keys["secret_key"], corral, body, FORM | IS_GZIP)
    sts, served = corral.client("sts"), 0
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(corral)) for _ in range(FORMS)]
        for connection in connections:
            connection.sendall(head + body)
            connection.setblocking(False)
        waiting = connections
        while waiting:
            waiting = [each for each in waiting if not has_response(each)]
            sts.get_caller_identity()
            served += 1
        for connection in connections:
            connection.setblocking(True)
            assert response(connection)[0] == 200
    assert served > 1 + FORMS, "the event loop was blocked"  # if each form blocked it, one request at most were served for each


def has_response(connection: socket.socket) -> bool:
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


def test_the_signature_of_a_form_is_bound_to_its_service(corral):
    """The service is in the credential scope, and `Action` names an operation of that service."""
    body = b"Action=ListUsers&Version=2010-05-08"
    with connected(corral) as connection:
        connection.sendall(signed_by(corral.keys["secret_key"], corral, body) + body)
        status, text = response(connection)
        assert status == 400 and b"InvalidAction" in text and b"sts has no operation" in text


# --- memory -----------------------------------------------------------------------------------------------------------


def test_unverified_bodies_take_bounded_memory_which_is_returned(corral):
    body = bytes(BODY_MAX_BYTES)
    data = signed_by("wrong", corral, body) + body
    corral.client("sts").get_caller_identity()
    base_mib, peak_mib = memory_mib(corral), 0.0
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for _ in range(20):
            connection = stack.enter_context(connected(corral))
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, [0])
        statuses: list[int] = []
        while ready.get_map():
            events = ready.select(30)
            assert events, "no progress"
            peak_mib = max(peak_mib, memory_mib(corral))
            for key, _ in events:
                connection, sent = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                if sent[0] < len(data):
                    with suppress(BlockingIOError):
                        sent[0] += connection.send(memoryview(data)[sent[0] : sent[0] + MIB])
                    continue
                if sent[0] == len(data):
                    ready.modify(connection, selectors.EVENT_READ, [sent[0] + 1])
                    continue
                connection.setblocking(True)
                statuses.append(response(connection)[0])
                ready.unregister(connection)
    assert len(statuses) == 20 and statuses.count(403) >= 4 and set(statuses) <= {403, 503}, "503: the machine is very busy"
    assert peak_mib - base_mib < 150, "64 MiB of bodies at a time, and what is copied of one"
    eventually(lambda: memory_mib(corral) - base_mib < 50, "the memory is returned")


def test_a_request_that_would_wait_too_long_for_memory_is_refused(corral):
    head = signed_by("wrong", corral, bytes(BODY_MAX_BYTES))
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(corral)) for _ in range(4 + 64)]
        for connection in waiting:
            connection.sendall(head)
        body = bytes(MIB)

        def refused() -> bytes | None:
            with connected(corral) as connection:
                connection.sendall(signed_by("wrong", corral, body) + body)
                status, text = response(connection)
                assert status in (403, 503)  # 403: some of the heads have not arrived yet
                return text if status == 503 else None

        assert b"reduce your request rate" in eventually(refused)
        assert corral.client("sts").get_caller_identity(), "a small request needs no memory of these"
    secret = corral.keys["secret_key"]

    def served() -> bool:
        large = ACTION + b"&A=" + b"a" * MIB
        with connected(corral) as connection:
            connection.sendall(signed_by(secret, corral, large) + large)
            return response(connection)[0] == 200

    eventually(served, "the memory is free again")


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_refusal_that_precedes_100_continue_closes_the_connection(corral):
    bucket = new_bucket(corral.client("s3"))

    def put(key: str, **more: str) -> bytes:
        headers = {"Expect": "100-continue", "If-None-Match": "*", **more}
        request = AWSRequest("PUT", f"{corral.url}/{bucket}/{key}", headers=headers, data=b"")
        keys = corral.keys
        S3SigV4Auth(Credentials(keys["access_key"], keys["secret_key"]), "s3", "us-east-1").add_auth(request)
        head = head_of(corral, 0, dict(request.headers.items()))
        return head.replace(b"POST / ", f"PUT /{bucket}/{key} ".encode())

    with connected(corral) as connection:
        connection.sendall(put("a"))
        assert response_after_continue(connection) == 200
        connection.sendall(put("a"))  # the object exists now
        status, text = response(connection)
        assert status == 412 and b"connection: close" in text.lower()
        assert is_closed(connection)


def response_after_continue(connection: socket.socket) -> int:
    received = b""
    while not received.endswith(b"\r\n\r\n") or received.count(b"HTTP/1.1") < 2:
        received += (part := connection.recv(65536))
        assert part
    assert received.startswith(b"HTTP/1.1 100")
    return int(received.split(b"HTTP/1.1 ")[2][:3])


LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300)); os.execv(sys.argv[1], sys.argv[1:])"
CONNECTIONS_MAX = 300 // 2


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral with few open files."""
    made = Corral(tmp_path_factory.mktemp("limited") / "data", "none")
    made._command = [sys.executable, "-c", LIMITED, *made._command]
    yield made.start()
    made.clear()


def test_the_server_raises_its_limit_of_open_files_and_tasks_get_the_original(limited, tmp_path):
    assert limited.process is not None
    [line] = [line for line in Path(f"/proc/{limited.process.pid}/limits").read_text().splitlines() if "open files" in line]
    assert line.split()[3:5] == ["300", "300"]
    ecs = limited.new_client("ecs")
    found = tmp_path / "limits"
    command = ["sh", "-c", f"echo $(ulimit -Sn) $(ulimit -Hn) > {found}.new && mv {found}.new {found}"]
    ecs.register_task_definition(family="limits", containerDefinitions=[container(command)])
    wait_stopped(ecs, [ecs.run_task(taskDefinition="limits")["tasks"][0]["taskArn"]])
    assert found.read_text().split() == ["200", "300"]
    ecs.close()  # its connection would be one more in the next test


def test_a_connection_above_the_maximum_is_refused_with_a_text(limited):
    data = signed_by(limited.keys["secret_key"], limited, ACTION) + ACTION
    with ExitStack() as stack:
        connections = []
        for _ in range(CONNECTIONS_MAX):
            connections.append(connection := stack.enter_context(connected(limited)))
            connection.sendall(data)
            assert response(connection)[0] == 200
        with connected(limited) as late:
            late.sendall(data)
            status, text = response(late)
            assert status == 503 and b"150 open connections" in text and b"ulimit" in text
            assert is_closed(late)
        connections[0].sendall(data)
        assert response(connections[0])[0] == 200, "the others are served"


def test_connections_that_send_nothing_make_room_for_new_ones(limited):
    data = signed_by(limited.keys["secret_key"], limited, ACTION) + ACTION
    with many(limited, CONNECTIONS_MAX) as silent:

        def served() -> bool:
            with connected(limited) as new:
                new.sendall(data)
                return response(new)[0] == 200

        eventually(served, "a connection with credentials")
        status, text = response(silent[0])
        assert status == 503 and b"open connections" in text


@contextmanager
def many(corral: Corral, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connected(corral)) for _ in range(count)]
