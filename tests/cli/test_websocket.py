"""The websocket of `corral exec`. wsproto is the other side."""

from __future__ import annotations

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, RejectConnection, Request, TextMessage

from corral.cli.client.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameReader,
    OpeningRequest,
    WrongWebSocket,
    close_reason,
    frame,
)

SIZES = (0, 1, 3, 4, 125, 126, 65_535, 65_536, 200_001)
HEAD = b"HTTP/1.1 101 X\r\nSec-WebSocket-Accept: "


def opened() -> WSConnection:
    """A server that has accepted a websocket."""
    opening, server = OpeningRequest("127.0.0.1:4566", "/a?b=c"), WSConnection(ConnectionType.SERVER)
    server.receive_data(opening.data)
    [request] = server.events()
    assert isinstance(request, Request) and (request.host, request.target) == ("127.0.0.1:4566", "/a?b=c")
    head, _, after = server.send(AcceptConnection()).partition(b"\r\n\r\n")
    assert opening.refused(head) is None and after == b""
    return server


def test_the_server_reads_frames_of_every_size() -> None:
    server = opened()
    for size in SIZES:
        server.receive_data(frame(BINARY, payload := bytes(at % 251 for at in range(size))))
        parts = list(server.events())
        assert all(isinstance(part, BytesMessage) for part in parts) and parts[-1].message_finished
        assert b"".join(part.data for part in parts) == payload
    server.receive_data(frame(TEXT, "größe".encode()) + frame(PONG, b"p"))
    assert [type(event) for event in server.events()] == [TextMessage, Pong]


def test_frames_of_the_server_are_read_in_pieces_of_any_size() -> None:
    server, sent = opened(), b""
    payloads = [bytes(at % 241 for at in range(size)) for size in SIZES]
    for payload in payloads:
        sent += server.send(BytesMessage(payload))
    for step in (1, 7, 4_096, len(sent)):
        reader, found = FrameReader(), []
        for at in range(0, len(sent), step):
            reader.feed(sent[at : at + step])
            found += reader.messages()
        assert found == [(BINARY, payload) for payload in payloads]


def test_a_message_may_have_several_frames_with_a_ping_between_them() -> None:
    server, reader = opened(), FrameReader()
    reader.feed(server.send(TextMessage("a", message_finished=False)) + server.send(Ping(b"p")))
    reader.feed(server.send(TextMessage("b")) + server.send(BytesMessage(b"c")))
    reader.feed(server.send(CloseConnection(1001, "größe")))
    *found, (kind, payload) = reader.messages()
    assert found == [(PING, b"p"), (TEXT, b"ab"), (BINARY, b"c")]
    assert kind == CLOSE and close_reason(payload) == "größe" and close_reason(b"") == ""


@pytest.mark.parametrize(
    "data",
    [b"\x80\x01a", b"\x02\x01a\x82\x01b", b"\xc2\x01a", b"\x82\x81mask", b"\x09\x00", b"\x83\x00"],
    ids=["continues nothing", "two messages", "extension", "masked", "half a ping", "unknown kind"],
)
def test_frames_that_are_not_allowed_are_refused(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(WrongWebSocket):
        list(reader.messages())


def test_a_refusal_has_its_status() -> None:
    opening, server = OpeningRequest("h", "/"), WSConnection(ConnectionType.SERVER)
    server.receive_data(opening.data)
    list(server.events())
    assert opening.refused(server.send(RejectConnection(status_code=403)).partition(b"\r\n\r\n")[0]) == 403


@pytest.mark.parametrize("head", [b"SSH-2.0", b"HTTP/1.1 x", HEAD + b"other", b"HTTP/1.1 101 X"])
def test_other_responses_are_no_websocket(head: bytes) -> None:
    with pytest.raises(WrongWebSocket):
        OpeningRequest("h", "/").refused(head)
