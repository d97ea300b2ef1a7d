"""A client of the registry that sends single requests of OCI's distribution API and returns the raw responses."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from harness import REGION, Corral

OCI_IMAGE = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest_of(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def new_repository(corral: Corral, region: str = REGION, **about: Any) -> str:
    name = f"tests/r{uuid4().hex[:12]}"
    corral.client("ecr", region).create_repository(repositoryName=name, **about)
    return name


def password_of(corral: Corral, region: str = REGION) -> str:
    [token] = corral.client("ecr", region).get_authorization_token()["authorizationData"]
    user, _, password = b64decode(token["authorizationToken"]).decode().partition(":")
    assert user == "AWS"
    return password


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error response."""
        [error] = self.json["errors"]
        assert error["message"]
        return error["code"]

    @property
    def message(self) -> str:
        return self.json["errors"][0]["message"]


class Registry:
    """Sends its requests over one connection as long as the server keeps it open."""

    def __init__(self, corral: Corral, password: str | None = None, user: str = "AWS") -> None:
        password = password_of(corral) if password is None else password
        self.authorization = {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
        self.address = urlsplit(corral.url)
        self.connection = http.client.HTTPConnection(self.address.hostname or "", self.address.port, timeout=30)

    def __call__(self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> Answer:
        """Keyword arguments are headers: `content_type` is Content-Type. A body of several pieces is sent in chunks."""
        sent = self.authorization | {name.replace("_", "-"): value for name, value in headers.items()}
        chunked = body is not None and not isinstance(body, bytes)
        if chunked:
            sent["Transfer-Encoding"] = "chunked"
        with suppress(
            ConnectionResetError, BrokenPipeError
        ):  # the server may refuse a layer and close before the layer is complete
            self.connection.request(method, path, body, sent, encode_chunked=chunked)
        answer = self.connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        assert found["docker-distribution-api-version"] == "registry/2.0"
        return Answer(answer.status, found, answer.read())

    def begin(self, name: str) -> str:
        """Begin an upload and return its location."""
        answer = self("POST", f"/v2/{name}/blobs/uploads/")
        assert answer.status == 202, answer
        assert answer.headers["range"] == "0-0"
        return answer.headers["location"]

    def push(self, name: str, data: bytes) -> str:
        """Push a layer as Docker does: a chunked stream, then the digest. Returns the digest."""
        sent = self("PATCH", self.begin(name), iter([data[:100], data[100:]] if data[100:] else [data]))
        assert sent.status == 202, sent
        done = self("PUT", f"{sent.headers['location']}?digest={digest_of(data)}")
        assert (done.status, done.headers["docker-content-digest"]) == (201, digest_of(data)), done
        return digest_of(data)

    def put(self, name: str, reference: str, manifest: bytes, media_type: str = OCI_IMAGE) -> Answer:
        return self("PUT", f"/v2/{name}/manifests/{reference}", manifest, content_type=media_type)

    def push_image(self, name: str, reference: str, *layers: bytes, **more: Any) -> bytes:
        """Push layers and a manifest, and return the manifest."""
        config = json.dumps({"architecture": "amd64", "os": "linux", "is": str(uuid4())}).encode()
        for data in (config, *layers):
            self.push(name, data)
        manifest = image_of(config, *layers, **more)
        answer = self.put(name, reference, manifest)
        assert answer.status == 201, answer
        assert answer.headers["docker-content-digest"] == digest_of(manifest)
        return manifest


def part(data: bytes, media_type: str = LAYER) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def image_of(config: bytes, /, *layers: bytes, **more: Any) -> bytes:
    parts = {"config": part(config, CONFIG), "layers": [part(each) for each in layers]}
    document = {"schemaVersion": 2, "mediaType": OCI_IMAGE, **parts}
    return json.dumps(document | more, indent=1).encode()


def index_of(*manifests: bytes) -> bytes:
    parts = [part(each, OCI_IMAGE) for each in manifests]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": parts}).encode()


@contextmanager
def half_sent(
    registry: Registry, path: str, data: bytes, length: int, method: str = "PATCH"
) -> Iterator[http.client.HTTPConnection]:
    """Send only a part of the bytes that a request announces."""
    connection = http.client.HTTPConnection(registry.address.hostname or "", registry.address.port, timeout=30)
    connection.putrequest(method, path)
    for name, value in registry.authorization.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    connection.send(data)
    yield connection
    connection.close()
