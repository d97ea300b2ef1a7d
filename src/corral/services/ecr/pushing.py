"""Images and layers come and go. What PutImage and the registry do alike is here."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import NamedTuple

from corral.core import Tx
from corral.decide.manifest import NotAManifest, read_manifest
from corral.model.blob import GARBAGE, StoredBlob
from corral.model.image import Image, Layer, Manifest, Repository
from corral.model.objects import ContentPart
from corral.services.ecr.naming import (
    ImageDigestDoesNotMatchException,
    ImageTagAlreadyExistsException,
    InvalidParameterException,
    LayersNotFoundException,
    ReferencedImagesNotFoundException,
)
from corral.store import Store

UNUSED = "layers:"  # the key under which layers that no image has are looked at
UNUSED_KEPT_S = 3600.0  # a push sends layers first and the image that has them last
LEFT = "repositories:"  # the key under which deleted repositories are cleared away
MANIFEST_MAX_BYTES = 4 * 1024 * 1024


class Pushed(NamedTuple):
    image: Image
    was_there: bool  # with this very tag: nothing has changed


def put_image(
    tx: Tx[Store], repository: Repository, body: bytes, media_type: str | None, tag: str | None, digest: str | None = None
) -> Pushed:
    """An image, once all that it consists of is there. `digest`: what the client thinks that it is."""
    found = f"sha256:{sha256(body).hexdigest()}"
    if digest is not None and digest != found:
        raise ImageDigestDoesNotMatchException(f"The image digest is {found}, not {digest} as the request says.")
    try:
        manifest = read_manifest(body, media_type)
    except NotAManifest as error:
        raise InvalidParameterException(f"Invalid parameter at 'imageManifest': {error}.") from None
    images = tx.store.images
    image = images.image(repository.id, digest=found)
    was_there = image is not None and (tag is None or tag in image.tags)
    if tag is not None and not was_there:
        _check_tag(tx, repository, tag)
    if image is None:
        size = _size_of_parts(tx, repository, manifest)
        images.add_image(repository.id, found, replace(manifest, size=size), body, tx.now_s)
        image = images.image(repository.id, digest=found)
        assert image is not None
    if tag is not None and not was_there:
        images.set_tag(image, tag)
        image = images.image(repository.id, digest=found)
        assert image is not None
    return Pushed(image, was_there)


def is_immutable(repository: Repository, tag: str) -> bool:
    """A tag that may not move to another image."""
    said = repository.about.get("imageTagMutability", "MUTABLE")
    filters = repository.about.get("imageTagMutabilityExclusionFilters", ())
    excluded = said.endswith("_WITH_EXCLUSION") and any(fnmatchcase(tag, each["filter"]) for each in filters)
    return bool(said.startswith("IMMUTABLE") != excluded)


def _check_tag(tx: Tx[Store], repository: Repository, tag: str) -> None:
    if is_immutable(repository, tag) and tx.store.images.image(repository.id, tag=tag) is not None:
        raise ImageTagAlreadyExistsException(
            f"The image tag '{tag}' already exists in the '{repository.name}' repository and cannot be overwritten because "
            "the tag is immutable."
        )


def _size_of_parts(tx: Tx[Store], repository: Repository, manifest: Manifest) -> int:
    """Of all its layers, or of the largest image of an index, as ECR counts. All of them must be there."""
    images = tx.store.images
    if missing := [digest for digest in manifest.layers if images.layer(repository.id, digest) is None]:
        raise LayersNotFoundException(
            f"Layers with digests '{', '.join(missing)}' required for pushing image into repository with name "
            f"'{repository.name}' do not exist"
        )
    parts = {digest: images.image(repository.id, digest=digest) for digest in manifest.images}
    if missing := [digest for digest, part in parts.items() if part is None]:
        raise ReferencedImagesNotFoundException(
            f"Images with digests '{', '.join(missing)}' required for pushing image into repository with name "
            f"'{repository.name}' do not exist"
        )
    return max((part.size for part in parts.values() if part is not None), default=manifest.size)


def drop_image(tx: Tx[Store], image: Image) -> None:
    """It and its tags. Its layers go later, unless another image gets them."""
    tx.store.images.drop_image(image, tx.now_s)
    look_at_layers(tx)


def add_layer(tx: Tx[Store], repository: Repository, digest: str, arrived: StoredBlob) -> Layer:
    """Bytes that have come for this repository. Those that are here already are kept once."""
    part = ContentPart(1, arrived.blob, arrived.size, "", {}, tx.now_s)
    content = tx.store.objects.add_content(part)
    layer = tx.store.images.any_layer(digest)
    if layer is None:
        layer = Layer(digest, content, arrived.size)
        tx.store.images.add_layer(layer)
    elif tx.store.objects.release(content):
        tx.changed(GARBAGE)
    hold_layer(tx, repository, layer)
    return layer


def hold_layer(tx: Tx[Store], repository: Repository, layer: Layer) -> None:
    """This repository has that layer from now on, wherever it came from."""
    tx.store.images.hold_layer(repository.id, layer.digest, tx.now_s)
    look_at_layers(tx)


def drop_layer(tx: Tx[Store], repository: Repository, digest: str) -> None:
    """At once, if no image of this repository has it."""
    release(tx, tx.store.images.drop_layer(repository.id, digest))


def drop_repository(tx: Tx[Store], repository: Repository) -> None:
    """With all that is in it: that goes some at a time."""
    tx.store.images.leave_repository(repository.id)
    tx.mark(LEFT)


def look_at_layers(tx: Tx[Store]) -> None:
    """Ask for a look at unused layers when the first of them is old enough to go."""
    since_s = tx.store.images.first_unused_s()
    if since_s is not None:
        tx.due(UNUSED, max(since_s + UNUSED_KEPT_S, tx.now_s))


def release(tx: Tx[Store], contents: list[int]) -> None:
    """Let go of contents that no layer has any more."""
    released = [tx.store.objects.release(content) for content in contents]
    if any(released):
        tx.changed(GARBAGE)
