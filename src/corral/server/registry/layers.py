"""Layers: existence checks, downloads, deletions and uploads. The OCI specification calls layers blobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from corral import aws
from corral.access.caller import Caller
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.decide.objects.byte_range import Unsatisfiable, span_of
from corral.fleet.limits import why_too_large
from corral.model.blob import Slice, StoredBlob
from corral.model.image import Layer, Repository
from corral.model.settings import Settings
from corral.server.http.request_body import BodyReceiver
from corral.server.lanes import Lane
from corral.server.registry.errors import VERSION, BlobUnknown, Denied, DigestInvalid, RangeInvalid
from corral.server.registry.layer_uploads import SHA256, LayerUpload, LayerUploads
from corral.server.registry.requests import RegistryRequest, digest_of, plain_name
from corral.services.ecr.image_storage import add_layer, drop_layer, hold_layer
from corral.services.ecr.repository_names import find
from corral.store import Store

_CHUNK = re.compile(r"(?:bytes[ =])?(\d{1,18})-(\d{1,18})(?:/.*)?", re.ASCII)

T = TypeVar("T")


class Layers:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids, intake: BodyReceiver) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids
        self._intake = intake
        self._uploads = LayerUploads(intake, ids)

    # Existing layers

    async def show(self, request: RegistryRequest) -> aws.Response:
        """Handle HEAD, with which a client checks whether a layer exists.

        The client will probably push an image with this layer. So a layer that no image uses yet is kept for another hour.
        """
        layer, is_unused = self._read(partial(_found, request.caller, request.name, digest_of(request.reference)))
        if is_unused:
            await self._state.submit(partial(_hold, request.caller, request.name, layer.digest))
        return aws.Response(200, [*_headers(layer), ("Content-Length", str(layer.size))], b"")

    async def read(self, request: RegistryRequest) -> aws.Response:
        return self._read(
            partial(_download, request.caller, request.name, digest_of(request.reference), request.head.headers.get("range"))
        )

    async def delete(self, request: RegistryRequest) -> aws.Response:
        await self._state.submit(partial(_drop, request.caller, request.name, digest_of(request.reference)))
        return aws.Response(202, [VERSION], b"")

    # Uploads

    async def begin(self, request: RegistryRequest) -> aws.Response:
        """Begin an upload.

        The upload is complete at once if the request contains the bytes of the layer, or if the repository in `from` has the layer.
        """
        query = request.query
        if "mount" in query and "from" in query:
            mount = partial(
                _mount, request.caller, request.name, digest_of(query["mount"]), plain_name(query["from"], request.caller.region)
            )
            if (layer := await self._state.submit(mount)) is not None:
                return _created(request.name, layer.digest)
        repository = self._repository(request)
        digest = digest_of(query["digest"]) if "digest" in query else None
        upload = self._uploads.open(
            repository.id, repository.owner, (request.caller.task_id or "") if request.caller.confined else ""
        )
        return _progress(202, request.name, upload) if digest is None else await self._finish(request, upload, digest)

    async def progress(self, request: RegistryRequest) -> aws.Response:
        return _progress(204, request.name, self._upload(request))

    async def send(self, request: RegistryRequest) -> aws.Response:
        """Append one chunk, or all bytes of a layer."""
        upload = self._upload(request)
        await self._uploads.take(upload, request.receive, _announced(request, upload), self._check_unfinished)
        return _progress(202, request.name, upload)

    async def finish(self, request: RegistryRequest) -> aws.Response:
        """Append the last bytes, if any, check the digest and complete the upload."""
        upload, digest = self._upload(request), digest_of(request.query.get("digest", ""))
        return await self._finish(request, upload, digest)

    async def cancel(self, request: RegistryRequest) -> aws.Response:
        await self._uploads.drop(self._upload(request))
        return aws.Response(204, [VERSION], b"")

    async def _finish(self, request: RegistryRequest, upload: LayerUpload, digest: str) -> aws.Response:
        arrived = await self._uploads.finish(upload, request.receive, _announced(request, upload), self._check_unfinished)
        found = f"sha256:{arrived.digests[SHA256].hex()}"
        if found != digest:
            await self._intake.erase([arrived.blob])
            raise DigestInvalid(
                f"The uploaded bytes have the digest {found}, not {digest}. They were discarded: upload the layer again."
            )
        await self._intake.commit(arrived, self._state, partial(_add, request.caller, request.name, digest))
        return _created(request.name, digest)

    def _upload(self, request: RegistryRequest) -> LayerUpload:
        return self._uploads.find(request.reference, self._repository(request).id)

    def _repository(self, request: RegistryRequest) -> Repository:
        return self._read(lambda tx: find(tx, request.caller, request.name))

    def _check_unfinished(self, upload: LayerUpload) -> None:
        """Refuse an upload if its owner may not store all bytes that have arrived. Layers that exist already count again."""
        why = self._read(lambda tx: why_too_large(tx, upload.owner, 0, self._uploads.unfinished) if tx.store.limits.of else None)
        if why is not None:
            raise Denied(why)

    def _read(self, handler: Callable[[Tx[Store]], T]) -> T:
        return self._state.read_now(handler, self._settings, self._ids)


def _announced(request: RegistryRequest, upload: LayerUpload) -> int | None:
    """Return the number of bytes in this chunk according to its Content-Range header. Return None if there is no such header.

    Raise RangeInvalid if the range does not begin directly after the bytes that the upload already has.
    """
    header = request.head.headers.get("content-range")
    if header is None:
        return None
    found = _CHUNK.fullmatch(header.strip())
    if found is None or int(found[1]) != upload.size or int(found[2]) < upload.size:
        error = RangeInvalid(f"The chunk has the range {header}, but the upload has {upload.size} bytes: begin after them.")
        error.headers |= dict(_position(request.name, upload))
        raise error
    return int(found[2]) - int(found[1]) + 1


def _position(name: str, upload: LayerUpload) -> list[tuple[str, str]]:
    return [
        ("Location", f"/v2/{name}/blobs/uploads/{upload.id}"),
        ("Range", f"0-{max(0, upload.size - 1)}"),
        ("Docker-Upload-UUID", upload.id),
    ]


def _progress(status: int, name: str, upload: LayerUpload) -> aws.Response:
    return aws.Response(status, [VERSION, *_position(name, upload)], b"")


def _created(name: str, digest: str) -> aws.Response:
    headers = [VERSION, ("Location", f"/v2/{name}/blobs/{digest}"), ("Docker-Content-Digest", digest)]
    return aws.Response(201, headers, b"")


def _headers(layer: Layer) -> list[tuple[str, str]]:
    return [
        VERSION,
        ("Content-Type", "application/octet-stream"),
        ("Docker-Content-Digest", layer.digest),
        ("ETag", f'"{layer.digest}"'),
        ("Accept-Ranges", "bytes"),
    ]


# Transactions of the state store


def _found(caller: Caller, name: str, digest: str, tx: Tx[Store]) -> tuple[Layer, bool]:
    """Return the layer, and whether it is unused. A layer is unused if no image of this repository contains it."""
    repository = find(tx, caller, name)
    layer = tx.store.images.layer(repository.id, digest)
    if layer is None:
        raise BlobUnknown(f"The repository {name} has no layer {digest}.")
    return layer, tx.store.images.is_unused(repository.id, digest)


def _download(caller: Caller, name: str, digest: str, range_header: str | None, tx: Tx[Store]) -> aws.Response:
    layer, _ = _found(caller, name, digest, tx)
    headers = _headers(layer)
    try:
        span = span_of(range_header, layer.size) if range_header is not None else None
    except Unsatisfiable:
        error = RangeInvalid(f"The range {range_header} is outside the layer, which has {layer.size} bytes.")
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
        raise Denied(f"The layer {digest} belongs to an image of {name}: delete the image first.")
    drop_layer(tx, find(tx, caller, name), digest)


def _mount(caller: Caller, name: str, digest: str, source: str, tx: Tx[Store]) -> Layer | None:
    """Add a layer of another repository in the same region to this repository.

    Return None if the other repository does not have the layer. The client must then upload it.
    """
    repository, other = find(tx, caller, name), tx.store.images.repository(caller.region, source)
    layer = tx.store.images.layer(other.id, digest) if other is not None else None
    if layer is not None:
        _check_room(tx, repository, layer.digest, layer.size)
        hold_layer(tx, repository, layer)
    return layer


def _add(caller: Caller, name: str, digest: str, arrived: StoredBlob, tx: Tx[Store]) -> None:
    repository = find(tx, caller, name)
    _check_room(tx, repository, digest, arrived.size)
    add_layer(tx, repository, digest, arrived)


def _check_room(tx: Tx[Store], repository: Repository, digest: str, more_bytes: int) -> None:
    """Refuse a layer that the repository does not have yet, if its owner may not store so many more bytes."""
    if not tx.store.limits.of or tx.store.images.layer(repository.id, digest) is not None:
        return
    if (why := why_too_large(tx, repository.owner, more_bytes)) is not None:
        raise Denied(why)
