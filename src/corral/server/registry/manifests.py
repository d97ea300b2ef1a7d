"""Images by tag and by digest, what tags and repositories there are, and which images are about another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson

from corral import aws
from corral.core import Tx
from corral.decide.manifest import OCI_INDEX
from corral.ids import Ids
from corral.model.image import Image
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.server.registry.asked import PAGE_MAX, Asked, digest_of
from corral.server.registry.errors import VERSION, Denied, ManifestInvalid, SizeInvalid, TagInvalid
from corral.server.request_body import Receive, next_piece
from corral.services.caller import Caller
from corral.services.ecr.naming import ImageNotFoundException, find
from corral.services.ecr.pushing import MANIFEST_MAX_BYTES, drop_image, put_image
from corral.store import Store

PULLED_EVERY_S = 60.0  # a pull is noted when none was for so long
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


class Manifests:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids

    async def show(self, asked: Asked) -> aws.Response:
        response, _ = self._find(asked)
        return aws.Response(200, [*response.headers, ("Content-Length", str(len(response.body)))], b"")

    async def read(self, asked: Asked) -> aws.Response:
        """Byte by byte as it was pushed: its digest is of these bytes, so there is nothing to choose from by the Accept header."""
        response, pulled_image = self._find(asked)
        if pulled_image is not None:
            await self._state.submit(lambda tx: tx.store.images.set_pulled(pulled_image, tx.now_s))
        return response

    async def put(self, asked: Asked) -> aws.Response:
        is_digest = ":" in asked.reference
        if not is_digest and not _TAG.fullmatch(asked.reference):
            raise TagInvalid(f"{asked.reference!r} is no tag.")
        tag, digest = (None, digest_of(asked.reference)) if is_digest else (asked.reference, None)
        body = await _whole(asked.receive)
        media_type = asked.head.headers.get("content-type", "").partition(";")[0].strip() or None
        image: Image = await self._state.submit(partial(_put, asked.caller, asked.name, body, media_type, tag, digest))
        location = f"/v2/{asked.name}/manifests/{image.digest}"
        headers = [VERSION, ("Location", location), ("Docker-Content-Digest", image.digest)]
        if image.subject is not None:
            headers.append(("OCI-Subject", image.subject))
        return aws.Response(201, headers, b"")

    async def delete(self, asked: Asked) -> aws.Response:
        await self._state.submit(partial(_delete, asked.caller, asked.name, asked.reference))
        return aws.Response(202, [VERSION], b"")

    async def tags(self, asked: Asked) -> aws.Response:
        return self._list(asked, "tags", partial(_tags, asked.caller, asked.name), {"name": asked.name})

    async def catalog(self, asked: Asked) -> aws.Response:
        return self._list(asked, "repositories", partial(_repositories, asked.caller), {})

    async def referrers(self, asked: Asked) -> aws.Response:
        wanted = asked.query.get("artifactType")
        handler = partial(_referrers, asked.caller, asked.name, digest_of(asked.reference), wanted)
        found = await self._state.read(handler, self._settings, self._ids)
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found}
        headers = [VERSION, ("Content-Type", OCI_INDEX)]
        if wanted is not None:
            headers.append(("OCI-Filters-Applied", "artifactType"))
        return aws.Response(200, headers, orjson.dumps(index))

    def _find(self, asked: Asked) -> tuple[aws.Response, Image | None]:
        """The manifest; and the image, if this pull of it is to be noted."""

        def look(tx: Tx[Store]) -> tuple[Image, bytes, bool]:
            image = _image(tx, asked.caller, asked.name, asked.reference)
            pulled_lately = image.pulled_at_s is not None and tx.now_s < image.pulled_at_s + PULLED_EVERY_S
            return image, tx.store.images.manifest(image), pulled_lately

        image, manifest, pulled_lately = self._state.look(look, self._settings, self._ids)
        headers = [VERSION, ("Content-Type", image.media_type), ("Docker-Content-Digest", image.digest)]
        headers.append(("ETag", f'"{image.digest}"'))
        return aws.Response(200, headers, manifest), None if pulled_lately else image

    def _list(self, asked: Asked, what: str, names_after: Any, more: dict[str, Any]) -> aws.Response:
        """Some names in order, and where the next are."""
        said = asked.query.get("n", "")
        limit = min(int(said), PAGE_MAX) if said.isascii() and said.isdigit() else PAGE_MAX
        names: Sequence[str] = self._state.look(
            partial(names_after, asked.query.get("last", ""), limit + 1), self._settings, self._ids
        )
        headers = [VERSION, ("Content-Type", "application/json")]
        if limit and len(names) > limit:
            headers.append(("Link", f'<{asked.head.path}?n={limit}&last={quote(names[limit - 1], safe="")}>; rel="next"'))
        return aws.Response(200, headers, orjson.dumps({**more, what: names[:limit]}))


async def _whole(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        data, more = await next_piece(receive)
        parts.append(data)
        size += len(data)
        if size > MANIFEST_MAX_BYTES:
            raise SizeInvalid(f"A manifest has at most {MANIFEST_MAX_BYTES} bytes.")
    if not size:
        raise ManifestInvalid("The request has no manifest.")
    return b"".join(parts)


# In the state's lane, or beside it


def _image(tx: Tx[Store], caller: Caller, name: str, reference: str) -> Image:
    """By tag or by digest."""
    repository = find(tx, caller, name)
    key = {"digest": digest_of(reference)} if ":" in reference else {"tag": reference}
    image = tx.store.images.image(repository.id, **key)
    if image is None:
        raise ImageNotFoundException("Requested image not found")
    return image


def _put(
    caller: Caller, name: str, body: bytes, media_type: str | None, tag: str | None, digest: str | None, tx: Tx[Store]
) -> Image:
    return put_image(tx, find(tx, caller, name), body, media_type, tag, digest).image


def _delete(caller: Caller, name: str, reference: str, tx: Tx[Store]) -> None:
    """A tag alone, or an image with all its tags."""
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
    return [repository.name for repository in tx.store.images.repositories(caller.region, after, limit)]


def _referrers(caller: Caller, name: str, digest: str, artifact_type: str | None, tx: Tx[Store]) -> list[dict[str, Any]]:
    """As an index lists them."""
    found = tx.store.images.about_subject(find(tx, caller, name).id, digest)
    return [_described(tx, image) for image in found[:PAGE_MAX] if artifact_type in (None, image.artifact_type)]


def _described(tx: Tx[Store], image: Image) -> dict[str, Any]:
    manifest = tx.store.images.manifest(image)
    described: dict[str, Any] = {"mediaType": image.media_type, "digest": image.digest, "size": len(manifest)}
    if image.artifact_type is not None:
        described["artifactType"] = image.artifact_type
    if annotations := orjson.loads(manifest).get("annotations"):
        described["annotations"] = annotations
    return described
