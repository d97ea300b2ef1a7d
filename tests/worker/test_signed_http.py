"""SignedHttp sends requests with the signature of botocore, and reads responses as HTTP/1.1 allows them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials

from corral.worker.signed_http import EMPTY_SHA256, CannotConnect, SignedHttp, SigningScope, signed_head

KEYS = ReadOnlyCredentials("AKIA", "secret", None)
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
LARGE = bytes(range(256)) * 4096


class ScriptedServer:
    """Answers each request with the next response. After CUT_OFF, or instead of a response None, it closes the connection."""

    def __init__(self, responses: list[bytes | None]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/bucket/"
        self.connections = 0
        self.requests: list[bytes] = []
        self._responses = iter(responses)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while request := connection.recv(65_536):
                    self.requests.append(request)
                    response = next(self._responses)
                    if response is not None:
                        connection.sendall(response)
                    if response in (None, CUT_OFF):
                        break


Serve = Callable[[list[bytes | None]], ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ScriptedServer] = []

    def start(responses: list[bytes | None]) -> ScriptedServer:
        servers.append(ScriptedServer(responses))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def response(body: bytes, head: str = "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n") -> bytes:
    return head.format(len(body)).encode() + body


def headers_of(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("token", [None, "a/token+="])
def test_the_signature_of_a_get_is_that_of_botocore(token):
    path = "/images/a%20b%2Bc/%C3%BC~.jpg"
    request = AWSRequest("GET", f"http://127.0.0.1:4566{path}")
    S3SigV4Auth(Credentials("AKIA", "secret", token), "s3", "eu-west-1").add_auth(request)
    scope = SigningScope("eu-west-1", "s3", request.context["timestamp"])
    headers = {"host": "127.0.0.1:4566", "x-amz-content-sha256": EMPTY_SHA256}
    first, sent = headers_of(signed_head("GET", path, headers, EMPTY_SHA256, scope, ReadOnlyCredentials("AKIA", "secret", token)))
    assert first == f"GET {path} HTTP/1.1"
    assert sent == {"host": "127.0.0.1:4566", **{name.lower(): value for name, value in request.headers.items()}}


def test_the_signature_of_a_post_is_that_of_botocore():
    body, headers = b'{"QueueUrl": "x"}', {"content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.ReceiveMessage"}
    request = AWSRequest("POST", "http://127.0.0.1:4566/", headers=headers, data=body)
    SigV4Auth(Credentials("AKIA", "secret"), "sqs", "eu-west-1").add_auth(request)
    scope = SigningScope("eu-west-1", "sqs", request.context["timestamp"])
    headers["host"] = "127.0.0.1:4566"
    _, sent = headers_of(signed_head("POST", "/", headers, sha256(body).hexdigest(), scope, KEYS))
    assert sent == {"host": "127.0.0.1:4566", **{name.lower(): value for name, value in request.headers.items()}}


def test_a_connection_is_used_again(serve):
    server = serve([response(b"one"), response(b""), response(LARGE)])
    http = SignedHttp(server.url, "us-east-1", "s3")
    assert [http.get("/bucket/k", KEYS) for _ in range(3)] == [b"one", b"", LARGE]
    assert server.connections == 1


def test_a_connection_that_the_server_closed_is_replaced(serve):
    server = serve([response(b"one"), None, response(b"two")])
    http = SignedHttp(server.url, "us-east-1", "s3")
    assert http.get("/bucket/k", KEYS) == b"one"
    assert http.get("/bucket/k", KEYS) == b"two"
    assert server.connections == 2


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_other_responses_are_left_to_boto3(serve, head):
    server = serve([response(b"body", head), response(b"two")])
    http = SignedHttp(server.url, "us-east-1", "s3")
    assert http.get("/bucket/k", KEYS) is None
    assert http.get("/bucket/k", KEYS) == b"two"
    assert server.connections == 2


def test_an_incomplete_response_is_an_error(serve):
    server = serve([CUT_OFF])
    with pytest.raises(ConnectionResetError):
        SignedHttp(server.url, "us-east-1", "s3").get("/bucket/k", KEYS)


def test_a_new_connection_that_the_server_closes_is_an_error(serve):
    server = serve([None])
    with pytest.raises(ConnectionResetError):
        SignedHttp(server.url, "us-east-1", "s3").get("/bucket/k", KEYS)
    assert server.connections == 1


def test_a_closed_port():
    with pytest.raises(CannotConnect):
        SignedHttp("http://127.0.0.1:1/bucket/", "us-east-1", "s3").get("/bucket/k", KEYS)
