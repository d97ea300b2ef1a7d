"""Layers, which the specification calls blobs: whether they are there, their bytes, and how they come."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from corral import aws
from corral.core import Tx
from corral.decide.byte_range import Unsatisfiable, span_of
from corral.ids import Ids
from corral.model.blob import Slice, StoredBlob
from corral.model.image import Layer
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.server.registry.asked import Asked, digest_of, plain_name
from corral.server.registry.errors import VERSION, BlobUnknown, Denied, DigestInvalid, RangeInvalid
from corral.server.registry.uploads import SHA256, Upload, Uploads
from corral.server.request_body import BodyReceiver
from corral.services.caller import Caller
from corral.services.ecr.naming import find
from corral.services.ecr.pushing import add_layer, drop_layer, hold_layer
from corral.store import Store

_CHUNK = re.compile(r"(?:bytes[ =])?(\d{1,18})-(\d{1,18})(?:/.*)?", re.ASCII)

T = TypeVar("T")


class Layers:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids, intake: BodyReceiver) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids
        self._intake = intake
        self._uploads = Uploads(intake, ids)

    # What is there

    async def show(self, asked: Asked) -> aws.Response:
        """Is it there? Whoever asks is about to push an image with it, so it counts as wanted from now on."""
        layer, is_unused = self._look(partial(_found, asked.caller, asked.name, digest_of(asked.reference)))
        if is_unused:
            await self._state.submit(partial(_hold, asked.caller, asked.name, layer.digest))
        return aws.Response(200, [*_about(layer), ("Content-Length", str(layer.size))], b"")

    async def read(self, asked: Asked) -> aws.Response:
        return self._look(partial(_bytes, asked.caller, asked.name, digest_of(asked.reference), asked.head.headers.get("range")))

    async def delete(self, asked: Asked) -> aws.Response:
        await self._state.submit(partial(_drop, asked.caller, asked.name, digest_of(asked.reference)))
        return aws.Response(202, [VERSION], b"")

    # What comes

    async def begin(self, asked: Asked) -> aws.Response:
        """An upload; or at once a layer, whose bytes are in this request or in another repository."""
        query = asked.query
        if "mount" in query and "from" in query:
            mount = partial(
                _mount, asked.caller, asked.name, digest_of(query["mount"]), plain_name(query["from"], asked.caller.region)
            )
            if (layer := await self._state.submit(mount)) is not None:
                return _made(asked.name, layer.digest)
        repository_id = self._repository_id(asked)
        digest = digest_of(query["digest"]) if "digest" in query else None
        upload = self._uploads.open(repository_id)
        return _progress(202, asked.name, upload) if digest is None else await self._finish(asked, upload, digest)

    async def progress(self, asked: Asked) -> aws.Response:
        return _progress(204, asked.name, self._upload(asked))

    async def send(self, asked: Asked) -> aws.Response:
        """Some bytes of a layer, or all of them."""
        upload = self._upload(asked)
        await self._uploads.take(upload, asked.receive, _announced(asked, upload))
        return _progress(202, asked.name, upload)

    async def finish(self, asked: Asked) -> aws.Response:
        """The last bytes, if any: now it must be what its digest says."""
        upload, digest = self._upload(asked), digest_of(asked.query.get("digest", ""))
        return await self._finish(asked, upload, digest)

    async def cancel(self, asked: Asked) -> aws.Response:
        await self._uploads.drop(self._upload(asked))
        return aws.Response(204, [VERSION], b"")

    async def _finish(self, asked: Asked, upload: Upload, digest: str) -> aws.Response:
        arrived = await self._uploads.finish(upload, asked.receive, _announced(asked, upload))
        found = f"sha256:{arrived.digests[SHA256].hex()}"
        if found != digest:
            await self._intake.erase([arrived.blob])
            raise DigestInvalid(f"The bytes that came have the digest {found}, not {digest}. Nothing of them is kept.")
        await self._intake.commit(arrived, self._state, partial(_add, asked.caller, asked.name, digest))
        return _made(asked.name, digest)

    def _upload(self, asked: Asked) -> Upload:
        return self._uploads.find(asked.reference, self._repository_id(asked))

    def _repository_id(self, asked: Asked) -> int:
        return self._look(lambda tx: find(tx, asked.caller, asked.name)).id

    def _look(self, handler: Callable[[Tx[Store]], T]) -> T:
        return self._state.look(handler, self._settings, self._ids)


def _announced(asked: Asked, upload: Upload) -> int | None:
    """How many bytes this chunk says that it has; it must go on where the upload stands."""
    header = asked.head.headers.get("content-range")
    if header is None:
        return None
    found = _CHUNK.fullmatch(header.strip())
    if found is None or int(found[1]) != upload.size or int(found[2]) < upload.size:
        error = RangeInvalid(f"The chunk is {header}, but the upload stands at {upload.size}.")
        error.headers |= dict(_position(asked.name, upload))
        raise error
    return int(found[2]) - int(found[1]) + 1


def _position(name: str, upload: Upload) -> list[tuple[str, str]]:
    return [
        ("Location", f"/v2/{name}/blobs/uploads/{upload.id}"),
        ("Range", f"0-{max(0, upload.size - 1)}"),
        ("Docker-Upload-UUID", upload.id),
    ]


def _progress(status: int, name: str, upload: Upload) -> aws.Response:
    return aws.Response(status, [VERSION, *_position(name, upload)], b"")


def _made(name: str, digest: str) -> aws.Response:
    headers = [VERSION, ("Location", f"/v2/{name}/blobs/{digest}"), ("Docker-Content-Digest", digest)]
    return aws.Response(201, headers, b"")


def _about(layer: Layer) -> list[tuple[str, str]]:
    return [
        VERSION,
        ("Content-Type", "application/octet-stream"),
        ("Docker-Content-Digest", layer.digest),
        ("ETag", f'"{layer.digest}"'),
        ("Accept-Ranges", "bytes"),
    ]


# In the state's lane, or beside it


def _found(caller: Caller, name: str, digest: str, tx: Tx[Store]) -> tuple[Layer, bool]:
    """The layer, and whether no image of this repository has it."""
    repository = find(tx, caller, name)
    layer = tx.store.images.layer(repository.id, digest)
    if layer is None:
        raise BlobUnknown(f"The repository {name} has no layer {digest}.")
    return layer, tx.store.images.is_unused(repository.id, digest)


def _bytes(caller: Caller, name: str, digest: str, range_header: str | None, tx: Tx[Store]) -> aws.Response:
    layer, _ = _found(caller, name, digest, tx)
    headers = _about(layer)
    try:
        span = span_of(range_header, layer.size) if range_header is not None else None
    except Unsatisfiable:
        error = RangeInvalid(f"The layer has {layer.size} bytes; there are none in {range_header}.")
        error.headers["Content-Range"] = f"bytes */{layer.size}"
        raise error from None
    first, count = span or (0, layer.size)
    if span is not None:
        headers.append(("Content-Range", f"bytes {first}-{first + count - 1}/{layer.size}"))
    slices: tuple[Slice, ...] = tx.store.objects.slices(layer.content, first, count)
    return aws.Response(200 if span is None else 206, headers, b"", slices)


def _hold(caller: Caller, name: str, digest: str, tx: Tx[Store]) -> None:
    repository = find(tx, caller, name)
    layer = tx.store.images.layer(repository.id, digest)
    if layer is None:
        raise BlobUnknown(f"The repository {name} has no layer {digest}.")
    hold_layer(tx, repository, layer)


def _drop(caller: Caller, name: str, digest: str, tx: Tx[Store]) -> None:
    _, is_unused = _found(caller, name, digest, tx)
    if not is_unused:
        raise Denied(f"An image of {name} has the layer {digest}: delete the image.")
    drop_layer(tx, find(tx, caller, name), digest)


def _mount(caller: Caller, name: str, digest: str, source: str, tx: Tx[Store]) -> Layer | None:
    """A layer of another repository of the same region becomes one of this too. None: there is none, and it has to be sent."""
    repository, other = find(tx, caller, name), tx.store.images.repository(caller.region, source)
    layer = tx.store.images.layer(other.id, digest) if other is not None else None
    if layer is not None:
        hold_layer(tx, repository, layer)
    return layer


def _add(caller: Caller, name: str, digest: str, arrived: StoredBlob, tx: Tx[Store]) -> None:
    add_layer(tx, find(tx, caller, name), digest, arrived)
