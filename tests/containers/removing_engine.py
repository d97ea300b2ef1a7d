"""An engine that is removing containers that have not started, as during `docker system prune`."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from pathlib import Path

from engines.dockerd import Dockerd

CHANGES_CONTAINER = re.compile(rb"(POST \S*/containers/\w+/start|DELETE \S*/containers/)")
MESSAGE = "container is marked for removal and cannot be started"


class RemovingEngine:
    """A socket in front of an engine. It refuses requests to start or remove a container with status 409, and describes containers
    that have not started as `dead`: the first `refusals` times of either kind."""

    def __init__(self, dockerd: Dockerd, path: Path, refusals: int) -> None:
        self.host = f"unix://{path}"
        self.refusals = refusals
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
                threading.Thread(target=self._requests, args=(client, engine), daemon=True).start()
                threading.Thread(target=self._responses, args=(engine, client), daemon=True).start()

    def _requests(self, client: socket.socket, engine: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := client.recv(1 << 20):
                if self.refusals and CHANGES_CONTAINER.match(part):
                    self.refusals -= 1
                    body = json.dumps({"message": MESSAGE}).encode()
                    client.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                else:
                    engine.sendall(part)
            engine.shutdown(socket.SHUT_WR)

    def _responses(self, engine: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := engine.recv(1 << 20):
                if self.refusals and b'"Status":"created"' in part:
                    self.refusals -= 1
                    part = part.replace(b'"Status":"created"', b'"Status":   "dead"')  # as long, so that lengths stay right
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
