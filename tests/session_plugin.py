"""A substitute for AWS's session-manager-plugin, which is in no package registry.

It is written from the published layout of the plugin's messages and from the plugin's behaviour: where each field is, what it
acknowledges and when, what it sends again. It imports nothing of Corral. Like the plugin it is not ready at once after the
handshake, and drops earlier messages without an acknowledgement. Only the websocket comes from a library (wsproto).

    python session_plugin.py SESSION REGION StartSession PROFILE PARAMETERS ENDPOINT        as `aws ecs execute-command` calls it
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import sys
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import wsproto
from wsproto import events

TYPE_AT, VERSION_AT, CREATED_AT, SEQUENCE_AT, FLAGS_AT, ID_AT, DIGEST_AT, KIND_AT, LENGTH_AT, PAYLOAD_AT = (
    4, 36, 40, 48, 56, 64, 80, 112, 116, 120,
)  # fmt: skip
OUTPUT, SIZE, REQUEST, RESPONSE, COMPLETE, FLAG = 1, 3, 5, 6, 7, 10
TERMINATE = 2
RESEND_S = 0.2
WAIT_MAX_S = 30.0


class Refused(Exception):
    """The server did not open the websocket."""


def serialize(word: str, sequence: int, kind: int, payload: bytes, flags: int = 0) -> bytes:
    made = bytearray(PAYLOAD_AT)
    made[0:4] = LENGTH_AT.to_bytes(4)
    made[TYPE_AT:VERSION_AT] = word.encode().ljust(32, b" ")
    made[VERSION_AT:CREATED_AT] = (1).to_bytes(4)
    made[CREATED_AT:SEQUENCE_AT] = int(time.time() * 1000).to_bytes(8)
    made[SEQUENCE_AT:FLAGS_AT] = sequence.to_bytes(8)
    made[FLAGS_AT:ID_AT] = flags.to_bytes(8)
    name = uuid.uuid4().bytes
    made[ID_AT:DIGEST_AT] = name[8:16] + name[0:8]  # the less significant half first
    made[DIGEST_AT:KIND_AT] = hashlib.sha256(payload).digest()
    made[KIND_AT:LENGTH_AT] = kind.to_bytes(4)
    made[LENGTH_AT:PAYLOAD_AT] = len(payload).to_bytes(4)
    return bytes(made) + payload


class Plugin:
    def __init__(self, session: dict[str, str], *, size: tuple[int, int] = (80, 24), token: str | None = None) -> None:
        self.session = session
        self.size = size
        self.received = b""
        self.closed: str | None = None  # the text of channel_closed
        self.sent_again = 0  # messages that came a second time
        self.kinds: list[int] = []
        self._partial = b""
        self._ready = False
        self._expected = 0
        self._early: dict[int, bytes] = {}
        self._sequence = 0
        self._unacknowledged: dict[int, tuple[bytes, float]] = {}
        self._channel = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        url = urlsplit(session["streamUrl"])
        self.socket = socket.create_connection((url.hostname, url.port), 10)
        self.socket.sendall(self._channel.send(events.Request(host=url.netloc, target=f"{url.path}?{url.query}")))
        self._until_open()
        opening = {"MessageSchemaVersion": "1.0", "RequestId": str(uuid.uuid4()), "ClientId": str(uuid.uuid4())}
        opening["TokenValue"] = session["tokenValue"] if token is None else token
        self.socket.sendall(self._channel.send(events.TextMessage(json.dumps(opening))))

    def _until_open(self) -> None:
        while True:
            for event in self._channel.events():
                if isinstance(event, events.RejectConnection):
                    raise Refused(str(event.status_code))
                if isinstance(event, events.AcceptConnection):
                    return
            self._channel.receive_data(self.socket.recv(65536) or None)

    # -- actions of the user -----------------------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        for at in range(0, len(data), 1024):
            self._stream(OUTPUT, data[at : at + 1024])

    def resize(self, columns: int, rows: int) -> None:
        self._stream(SIZE, json.dumps({"cols": columns, "rows": rows}).encode())

    def terminate(self) -> None:
        self._stream(FLAG, TERMINATE.to_bytes(4))

    def until(self, text: bytes) -> bytes:
        """Wait until this text has been received, and return all output."""
        self._listen(lambda: text in self.received)
        return self.received

    def wait_for(self, check: Any) -> None:
        """Wait until `check` is true. Meanwhile receive, and resend unacknowledged messages, as the plugin always does."""
        self._listen(check)

    def until_closed(self) -> str:
        self._listen(lambda: self.closed is not None)
        assert self.closed is not None
        return self.closed

    def hang_up(self) -> None:
        """Close the connection without a message, like a client that is killed."""
        self.socket.close()

    # -- the channel -------------------------------------------------------------------------------------------------

    def _listen(self, enough: Any) -> None:
        give_up_at = time.monotonic() + WAIT_MAX_S
        while not enough():
            assert time.monotonic() < give_up_at, f"still waiting; received {self.received[-500:]!r}"
            self.step(RESEND_S / 4)

    def step(self, wait_s: float, *more: int) -> list[int]:
        """Receive for this time, and resend unacknowledged messages. Return which of `more` are readable."""
        readable, _, _ = select.select([self.socket, *more], [], [], wait_s)
        if self.socket in readable:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionResetError
            self._channel.receive_data(part)
            for event in self._channel.events():
                if isinstance(event, events.BytesMessage):
                    self._partial += event.data
                    if event.message_finished:
                        whole, self._partial = self._partial, b""
                        self._handle(whole)
                elif isinstance(event, events.Ping):
                    self.socket.sendall(self._channel.send(event.response()))
                elif isinstance(event, events.CloseConnection) and self.closed is None:
                    raise ConnectionResetError(event.reason)
        now = time.monotonic()
        for sequence, (message, sent_at) in list(self._unacknowledged.items())[:1]:
            if now > sent_at + RESEND_S:
                self._unacknowledged[sequence] = message, now
                self._send(message)
        return [fd for fd in more if fd in readable]

    def _handle(self, message: bytes) -> None:
        word = message[TYPE_AT:VERSION_AT].strip(b" \0").decode()
        payload = message[int.from_bytes(message[0:4]) + 4 :]
        assert int.from_bytes(message[CREATED_AT:SEQUENCE_AT]) > 0
        assert len(payload) == int.from_bytes(message[LENGTH_AT:PAYLOAD_AT])
        assert hashlib.sha256(payload).digest() == message[DIGEST_AT:KIND_AT]
        if word == "acknowledge":
            self._unacknowledged.pop(json.loads(payload)["AcknowledgedMessageSequenceNumber"], None)
        elif word == "channel_closed":
            said = json.loads(payload)
            assert said["SessionId"] == self.session["sessionId"]
            self.closed = said["Output"]
        elif word == "output_stream_data":
            self._output(message)

    def _output(self, message: bytes) -> None:
        sequence = int.from_bytes(message[SEQUENCE_AT:FLAGS_AT])
        if sequence < self._expected:
            self.sent_again += 1
        elif sequence > self._expected:
            self._acknowledge(message)
            self._early[sequence] = message
        elif self._process(message):
            self._acknowledge(message)
            self._expected += 1
            while (early := self._early.pop(self._expected, None)) is not None:
                self._process(early)
                self._expected += 1

    def _process(self, message: bytes) -> bool:
        """Handle a message. Return False if the plugin is not ready for it."""
        kind, payload = int.from_bytes(message[KIND_AT:LENGTH_AT]), message[PAYLOAD_AT:]
        self.kinds.append(kind)
        if kind == REQUEST:
            [action] = json.loads(payload)["RequestedClientActions"]
            assert action["ActionType"] == "SessionType"
            assert action["ActionParameters"]["SessionType"] in ("InteractiveCommands", "NonInteractiveCommands")
            done = [{"ActionType": "SessionType", "ActionStatus": 1, "ActionResult": None, "Error": ""}]
            answer = {"ClientVersion": "1.2.707.0", "ProcessedClientActions": done, "Errors": []}
            self._stream(RESPONSE, json.dumps(answer).encode())
        elif kind == COMPLETE:
            self.resize(*self.size)
        elif not self._ready:
            self._ready = True
            return False
        else:
            self.received += payload  # the plugin prints all other kinds
        return True

    def _acknowledge(self, message: bytes) -> None:
        name = message[ID_AT:DIGEST_AT]
        content = {
            "AcknowledgedMessageType": message[TYPE_AT:VERSION_AT].strip(b" \0").decode(),
            "AcknowledgedMessageId": str(uuid.UUID(bytes=name[8:16] + name[0:8])),
            "AcknowledgedMessageSequenceNumber": int.from_bytes(message[SEQUENCE_AT:FLAGS_AT]),
            "IsSequentialMessage": True,
        }
        self._send(serialize("acknowledge", 0, 0, json.dumps(content).encode(), 3))

    def _stream(self, kind: int, payload: bytes) -> None:
        message = serialize("input_stream_data", self._sequence, kind, payload)
        self._unacknowledged[self._sequence] = message, time.monotonic()
        self._sequence += 1
        self._send(message)

    def _send(self, message: bytes) -> None:
        self.socket.sendall(self._channel.send(events.BytesMessage(message)))


def main(words: list[str]) -> None:
    if not words:
        print("\nThe Session Manager plugin was installed successfully. Use the AWS CLI to start a session.\n")
        return
    session, region, operation, _, parameters, endpoint = words
    assert operation == "StartSession" and region and endpoint.startswith("http")
    assert json.loads(parameters)["Target"].startswith("ecs:default_")
    plugin, reading, printed = Plugin(json.loads(session)), [0], 0
    print(f"\nStarting session with SessionId: {plugin.session['sessionId']}", flush=True)
    while plugin.closed is None:
        if plugin.step(RESEND_S / 4, *reading):
            typed = os.read(0, 1024)
            reading = [0] if typed else []
            if typed:
                plugin.type(typed)
        os.write(1, plugin.received[printed:])
        printed = len(plugin.received)
    print(f"\n\nExiting session with sessionId: {plugin.session['sessionId']}.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
