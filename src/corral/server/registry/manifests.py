"""Manifests by tag and by digest, lists of tags and repositories, and referrers.

A referrer is an image that refers to another image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from corral import aws
from corral.access.caller import Caller
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.decide.objects.manifest import OCI_INDEX
from corral.model.image import RegistryImage
from corral.model.numbers import whole_number
from corral.model.settings import Settings
from corral.server.http.request_body import Receive, next_piece
from corral.server.lanes import Lane
from corral.server.registry.errors import VERSION, Denied, ManifestInvalid, SizeInvalid, TagInvalid
from corral.server.registry.requests import PAGE_MAX, RegistryRequest, digest_of
from corral.services.ecr.errors import ImageNotFoundException
from corral.services.ecr.image_storage import MANIFEST_MAX_BYTES, drop_image, put_image, tag_refusal
from corral.services.ecr.repository_names import find
from corral.store import Store

PULL_RECORD_INTERVAL_S = 60.0  # for each image, the time of a pull is stored at most once in this interval
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


class Manifests:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids

    async def show(self, request: RegistryRequest) -> aws.Response:
        response, _ = self._find(request)
        return aws.Response(200, [*response.headers, ("Content-Length", str(len(response.body)))], b"")

    async def read(self, request: RegistryRequest) -> aws.Response:
        """Return the manifest with exactly the bytes that the client has pushed.

        The Accept header is ignored, because a manifest that is converted to another format would have another digest.
        """
        response, pulled_image = self._find(request)
        if pulled_image is not None:
            await self._state.submit(lambda tx: tx.store.images.set_pulled(pulled_image, tx.now_s))
        return response

    async def put(self, request: RegistryRequest) -> aws.Response:
        is_digest = ":" in request.reference
        if not is_digest and not _TAG.fullmatch(request.reference):
            rule = "a tag has 1 to 128 letters, digits, '.', '_' or '-', and does not begin with '.' or '-'"
            raise TagInvalid(f"{request.reference!r} is not a valid tag: {rule}.")
        tag, digest = (None, digest_of(request.reference)) if is_digest else (request.reference, None)
        body = await _whole(request.receive)
        media_type = request.head.headers.get("content-type", "").partition(";")[0].strip() or None
        image: RegistryImage = await self._state.submit(partial(_put, request.caller, request.name, body, media_type, tag, digest))
        location = f"/v2/{request.name}/manifests/{image.digest}"
        headers = [VERSION, ("Location", location), ("Docker-Content-Digest", image.digest)]
        if image.subject is not None:
            headers.append(("OCI-Subject", image.subject))
        return aws.Response(201, headers, b"")

    async def delete(self, request: RegistryRequest) -> aws.Response:
        await self._state.submit(partial(_delete, request.caller, request.name, request.reference))
        return aws.Response(202, [VERSION], b"")

    async def tags(self, request: RegistryRequest) -> aws.Response:
        return self._list(request, "tags", partial(_tags, request.caller, request.name), {"name": request.name})

    async def catalog(self, request: RegistryRequest) -> aws.Response:
        return self._list(request, "repositories", partial(_repositories, request.caller), {})

    async def referrers(self, request: RegistryRequest) -> aws.Response:
        wanted = request.query.get("artifactType")
        last = request.query.get("last", "")
        handler = partial(_referrers, request.caller, request.name, digest_of(request.reference), wanted, last)
        found, has_more = await self._state.read(handler, self._settings, self._ids)
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found}
        headers = [VERSION, ("Content-Type", OCI_INDEX)]
        if wanted is not None:
            headers.append(("OCI-Filters-Applied", "artifactType"))
        if has_more:
            query = urlencode({"last": found[-1]["digest"], **({"artifactType": wanted} if wanted is not None else {})})
            headers.append(("Link", f'<{request.head.path}?{query}>; rel="next"'))
        return aws.Response(200, headers, orjson.dumps(index))

    def _find(self, request: RegistryRequest) -> tuple[aws.Response, RegistryImage | None]:
        """Return the response with the manifest. Also return the image if the time of this pull must be stored, otherwise None."""

        def read(tx: Tx[Store]) -> tuple[RegistryImage, bytes, bool]:
            image = _image(tx, request.caller, request.name, request.reference)
            if request.route.controls_host and ":" not in request.reference:
                _check_writer(tx, request)
            recorded_lately = image.pulled_at_s is not None and tx.now_s < image.pulled_at_s + PULL_RECORD_INTERVAL_S
            return image, tx.store.images.manifest(image), recorded_lately

        image, manifest, recorded_lately = self._state.read_now(read, self._settings, self._ids)
        headers = [VERSION, ("Content-Type", image.media_type), ("Docker-Content-Digest", image.digest)]
        headers.append(("ETag", f'"{image.digest}"'))
        return aws.Response(200, headers, manifest), None if recorded_lately else image

    def _list(self, request: RegistryRequest, what: str, names_after: Any, more: dict[str, Any]) -> aws.Response:
        """Return one page of sorted names, with a link to the next page if there are more names."""
        given = whole_number(request.query.get("n", ""), PAGE_MAX)
        limit = PAGE_MAX if given is None else given
        names: Sequence[str] = self._state.read_now(
            partial(names_after, request.query.get("last", ""), limit + 1), self._settings, self._ids
        )
        headers = [VERSION, ("Content-Type", "application/json")]
        if limit and len(names) > limit:
            headers.append(("Link", f'<{request.head.path}?n={limit}&last={quote(names[limit - 1], safe="")}>; rel="next"'))
        return aws.Response(200, headers, orjson.dumps({**more, what: names[:limit]}))


async def _whole(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        data, more = await next_piece(receive)
        parts.append(data)
        size += len(data)
        if size > MANIFEST_MAX_BYTES:
            raise SizeInvalid(f"The manifest is larger than the maximum of {MANIFEST_MAX_BYTES} bytes.")
    if not size:
        raise ManifestInvalid("The request has no manifest.")
    return b"".join(parts)


# Transactions of the state store


def _image(tx: Tx[Store], caller: Caller, name: str, reference: str) -> RegistryImage:
    """Find an image by tag or by digest. Raise ImageNotFoundException if it does not exist."""
    repository = find(tx, caller, name)
    key = {"digest": digest_of(reference)} if ":" in reference else {"tag": reference}
    image = tx.store.images.image(repository.id, **key)
    if image is None:
        raise ImageNotFoundException("Requested image not found")
    return image


def _check_writer(tx: Tx[Store], request: RegistryRequest) -> None:
    """Raise Denied if a container set the tag that may not run programs on the host."""
    if (refused := tag_refusal(tx, find(tx, request.caller, request.name), request.reference)) is not None:
        raise Denied(refused)


def _put(
    caller: Caller, name: str, body: bytes, media_type: str | None, tag: str | None, digest: str | None, tx: Tx[Store]
) -> RegistryImage:
    return put_image(tx, find(tx, caller, name), body, media_type, tag, digest, writer=caller.writer).image


def _delete(caller: Caller, name: str, reference: str, tx: Tx[Store]) -> None:
    """Delete a tag, or the image with a digest and all its tags. An image that an image index contains cannot be deleted."""
    image = _image(tx, caller, name, reference)
    if ":" not in reference:
        tx.store.images.drop_tag(image.repository_id, reference)
        return
    if indexes := tx.store.images.indexes_with(image.repository_id, image.digest):
        raise Denied(f"Requested image referenced by manifest list: [{', '.join(indexes)}]")
    drop_image(tx, image)


def _tags(caller: Caller, name: str, after: str, limit: int, tx: Tx[Store]) -> list[str]:
    return tx.store.images.tags(find(tx, caller, name).id, after, limit)


def _repositories(caller: Caller, after: str, limit: int, tx: Tx[Store]) -> list[str]:
    found = tx.store.images.repositories(caller.region, after, limit)
    return [repository.name for repository in found if caller.sees is None or caller.sees(repository.owner)]


def _referrers(
    caller: Caller, name: str, digest: str, artifact_type: str | None, last: str, tx: Tx[Store]
) -> tuple[list[dict[str, Any]], bool]:
    """Return the referrers of an image after `last`, in the format of an image index, and whether there are more.

    A page is limited by the size of the manifests that are read for it: each can have annotations of some megabytes.
    """
    images = tx.store.images.referrers(find(tx, caller, name).id, digest)
    begin = next((at for at, image in enumerate(images, 1) if image.digest == last), 0)
    matching = [image for image in images[begin:] if artifact_type in (None, image.artifact_type)]
    found: list[dict[str, Any]] = []
    read_bytes = 0
    for image in matching[:PAGE_MAX]:
        found.append(_described(tx, image))
        read_bytes += found[-1]["size"]
        if read_bytes > MANIFEST_MAX_BYTES:
            break
    return found, len(found) < len(matching)


def _described(tx: Tx[Store], image: RegistryImage) -> dict[str, Any]:
    manifest = tx.store.images.manifest(image)
    described: dict[str, Any] = {"mediaType": image.media_type, "digest": image.digest, "size": len(manifest)}
    if image.artifact_type is not None:
        described["artifactType"] = image.artifact_type
    if annotations := orjson.loads(manifest).get("annotations"):
        described["annotations"] = annotations
    return described
