"""A registry that serves a few images, as slowly as a test requires."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engines.dockerd import busybox_files, layer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


class SmallRegistry:
    def __init__(self) -> None:
        self._manifests: dict[str, bytes] = {}  # by `name/tag` and by `name/digest`
        self._blobs: dict[str, bytes] = {}
        self.may_go_on = threading.Event()  # a download of a layer stops at half of it until this is set
        self.may_go_on.set()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                match self.path.removeprefix("/v2/").split("/"):
                    case [""]:
                        self._answer(200, "application/json", b"{}")
                    case [name, "manifests", reference] if f"{name}/{reference}" in registry._manifests:
                        self._answer(200, MANIFEST, registry._manifests[f"{name}/{reference}"])
                    case [_, "blobs", digest] if digest in registry._blobs:
                        self._answer(200, "application/octet-stream", registry._blobs[digest])
                    case _:
                        self._answer(
                            404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
                        )

            do_HEAD = do_GET

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", digest_of(body))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body[: len(body) // 2])
                    if kind == "application/octet-stream" and len(body) > 100_000:
                        registry.may_go_on.wait()
                    self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"localhost:{self._server.server_port}"

    def push(self, name: str, text: str) -> str:
        """Add an image of busybox that prints a text. Return the digest of its manifest."""
        files, links = busybox_files()
        tar = layer({**files, "text": text.encode()}, links)
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": ["cat", "/text"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar)]},
            "history": [{"created_by": "a test"}],
        }
        blobs = [(CONFIG, json.dumps(config).encode()), (LAYER, gzip.compress(tar, 1, mtime=0))]
        self._blobs |= {digest_of(data): data for _, data in blobs}
        first, second = ({"mediaType": kind, "size": len(data), "digest": digest_of(data)} for kind, data in blobs)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": first, "layers": [second]}).encode()
        image, _, tag = name.partition(":")
        self._manifests[f"{image}/{tag}"] = self._manifests[f"{image}/{digest_of(manifest)}"] = manifest
        return digest_of(manifest)

    def __enter__(self) -> SmallRegistry:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_go_on.set()
        self._server.shutdown()
        self._server.server_close()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
