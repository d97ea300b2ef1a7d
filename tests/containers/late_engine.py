"""An engine that reports out-of-memory kills late: after the end of the container, and after the first request about it."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from engines.dockerd import Dockerd


class LateEngine:
    """A socket in front of an engine. It hides `oom` events, and OOMKilled in the first description of a killed container."""

    def __init__(self, dockerd: Dockerd, path: Path) -> None:
        self.host = f"unix://{path}"
        self.hidden = 0
        self._engine = dockerd.host.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                threading.Thread(target=self._relay, args=(client, engine, False), daemon=True).start()
                threading.Thread(target=self._relay, args=(engine, client, True), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, is_response: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(1 << 20):
                sink.sendall(self._altered(part) if is_response else part)
            sink.shutdown(socket.SHUT_WR)

    def _altered(self, part: bytes) -> bytes:
        """The same number of bytes, so that lengths stay right."""
        part = part.replace(b'"Action":"oom"', b'"Action":"---"').replace(b'"status":"oom"', b'"status":"---"')
        if b'"OOMKilled":true' in part and not self.hidden:
            self.hidden += 1
            part = part.replace(b'"OOMKilled":true', b'"OOMKilled":null')
        return part
