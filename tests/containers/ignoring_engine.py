"""An engine that accepts requests for GPUs and ignores them, like podman's Docker-compatible API."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class IgnoringEngine:
    def __init__(self, path: Path) -> None:
        self.removed: list[str] = []
        self._stop = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path.endswith("/events"):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.flush()
                    engine._stop.wait()
                    self.close_connection = True
                elif path.endswith("/containers/json"):
                    self._answer([])
                elif path.endswith("/containers/c1/json"):
                    self._answer({"Id": "c1", "HostConfig": {}, "State": {"Status": "created"}})
                else:
                    self._answer({"ApiVersion": "1.41", "Version": "4.3.1", "Arch": "amd64", "NCPU": 2})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer({"Id": "c1"}, 201)

            def do_DELETE(self) -> None:
                engine.removed.append(self.path.partition("?")[0].rpartition("/")[2])
                self._answer(None, 204)

            def _answer(self, value: Any, status: int = 200) -> None:
                body = b"" if value is None else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)

    def __enter__(self) -> IgnoringEngine:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
