"""The connections of the clients that tests use (`harness.py`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import harness
from harness import Corral, RecentConnections


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    peers: list[int]

    def do_GET(self) -> None:
        self.peers.append(self.client_address[1])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Answers.peers = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def test_a_connection_is_used_again_unless_it_was_idle_for_long(port, monkeypatch):
    with RecentConnections("127.0.0.1", port) as pool:
        for reused_max_s in (30.0, 30.0, 0.0):
            monkeypatch.setattr(harness, "REUSED_MAX_S", reused_max_s)
            assert pool.urlopen("GET", "/").status == 200
    first, second, third = Answers.peers
    assert first == second != third


def test_clients_use_such_connections(tmp_path, port, monkeypatch):
    monkeypatch.setattr(Corral, "keys", {"access_key": "a", "secret_key": "b"})
    corral = Corral(tmp_path)
    corral.port = str(port)
    for reused_max_s in (30.0, 30.0, 0.0):
        monkeypatch.setattr(harness, "REUSED_MAX_S", reused_max_s)
        corral.client("s3").head_object(Bucket="any", Key="any")
    first, second, third = Answers.peers
    assert first == second != third
