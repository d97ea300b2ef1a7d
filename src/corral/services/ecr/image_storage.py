"""Adds and deletes images and layers. The API of ECR and the registry share these functions. A layer is a file (blob)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from hashlib import sha256
from typing import NamedTuple

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.objects.manifest import NotAManifest, read_manifest
from corral.model.agent_protocol import ImagePush
from corral.model.blob import GARBAGE, StoredBlob
from corral.model.image import Layer, Manifest, RegistryImage, Repository
from corral.model.objects import ContentPart
from corral.services.ecr import errors
from corral.services.ecr.image_names import OwnImage, host_image
from corral.store import Store

UNUSED_LAYERS = "layers:"  # the key of the reconciler that deletes unused layers
# An unused layer is kept this long, because a push sends the layers first and the image at the end.
UNUSED_KEPT_S = 3600.0
DELETED_REPOSITORIES = "repositories:"  # the key of the reconciler that deletes the contents of deleted repositories
MANIFEST_MAX_BYTES = 4 * 1024 * 1024


class PushedImage(NamedTuple):
    image: RegistryImage
    existed: bool  # True if the repository already had this image with this tag, so that nothing has changed


def put_image(
    tx: Tx[Store],
    repository: Repository,
    body: bytes,
    media_type: str | None,
    tag: str | None,
    digest: str | None = None,
    *,
    writer: str | None,
) -> PushedImage:
    """Add an image and set its tag. `digest` is the digest that the client expects, and `writer` is the client's `Caller.writer`.

    The repository must already have the layers of the image. If the image is an index, which is a list of images, the repository
    must already have these images.
    """
    found = f"sha256:{sha256(body).hexdigest()}"
    if digest is not None and digest != found:
        raise errors.ImageDigestDoesNotMatchException(f"The digest of the manifest is {found}, but the request has {digest}.")
    try:
        manifest = read_manifest(body, media_type)
    except NotAManifest as error:
        raise errors.InvalidParameterException(f"Invalid parameter at 'imageManifest': {error}.") from None
    images = tx.store.images
    image = images.image(repository.id, digest=found)
    existed = image is not None and (tag is None or tag in image.tags)
    if tag is not None and not existed:
        _check_tag(tx, repository, tag)
    if image is None:
        size = _size_of_parts(tx, repository, manifest)
        images.add_image(repository.id, found, replace(manifest, size=size), body, tx.now_s)
        image = images.image(repository.id, digest=found)
        assert image is not None
    if tag is not None and not existed:
        images.set_tag(image, tag, writer)
        image = images.image(repository.id, digest=found)
        assert image is not None
    elif tag is not None and writer is None:
        images.set_tag(image, tag, None)  # a container may have set the tag; now it is the tag of this caller
    for host in tx.store.hosts.all():
        if host["connected"]:
            for controls_host in (False, True):
                pulled = host_image(tx.settings, repository.region, repository.name, controls_host=controls_host)
                tx.pushed_image(host["id"], ImagePush(pulled, [found] if tag is None else [found, tag]))
    return PushedImage(image, existed)


def tag_refusal(tx: Tx[Store], repository: Repository, tag: str, trusted: str = "") -> str | None:
    """Return the error text if a container set the tag that may not run programs on the host. Otherwise return None.

    `trusted` is the `Caller.writer` of one that needs no such permission.
    """
    writer = tx.store.images.tag_writer(repository.id, tag)
    if writer is None or writer == trusted:
        return None
    from corral.access.object_writers import writer_refusal  # imported only here, because containers push few images

    return writer_refusal(tx, f"the tag {tag} of the repository {repository.name}", [writer])


def image_refusal(tx: Tx[Store], image: OwnImage, trusted: str = "") -> str | None:
    """Return the same for the tag in an image name. A digest in the name identifies the content, so its writer does not count."""
    name, _, tag = image.name.partition(":")
    repository = tx.store.images.repository(image.region, name) if "@" not in image.name else None
    return tag_refusal(tx, repository, tag or "latest", trusted) if repository is not None else None


def is_immutable(repository: Repository, tag: str) -> bool:
    """Return whether a tag of this repository must not be moved to another image."""
    mutability = repository.about.get("imageTagMutability", "MUTABLE")
    filters = repository.about.get("imageTagMutabilityExclusionFilters", ())
    excluded = mutability.endswith("_WITH_EXCLUSION") and any(fnmatchcase(tag, each["filter"]) for each in filters)
    return bool(mutability.startswith("IMMUTABLE") != excluded)


def _check_tag(tx: Tx[Store], repository: Repository, tag: str) -> None:
    if is_immutable(repository, tag) and tx.store.images.image(repository.id, tag=tag) is not None:
        raise errors.ImageTagAlreadyExistsException(
            f"The image tag '{tag}' already exists in the '{repository.name}' repository and cannot be overwritten because "
            "the tag is immutable."
        )


def _size_of_parts(tx: Tx[Store], repository: Repository, manifest: Manifest) -> int:
    """Return the size of all layers of an image. For an index, return the size of its largest image, as ECR does.

    Raise an error if a layer or an image of the index is missing.
    """
    images = tx.store.images
    if missing := [digest for digest in manifest.layers if images.layer(repository.id, digest) is None]:
        raise errors.LayersNotFoundException(
            f"Layers with digests '{', '.join(missing)}' required for pushing image into repository with name "
            f"'{repository.name}' do not exist"
        )
    parts = {digest: images.image(repository.id, digest=digest) for digest in manifest.images}
    if missing := [digest for digest, part in parts.items() if part is None]:
        raise errors.ReferencedImagesNotFoundException(
            f"Images with digests '{', '.join(missing)}' required for pushing image into repository with name "
            f"'{repository.name}' do not exist"
        )
    return max((part.size for part in parts.values() if part is not None), default=manifest.size)


def drop_image(tx: Tx[Store], image: RegistryImage) -> None:
    """Delete an image and its tags. Layers that no other image uses are deleted later."""
    tx.store.images.drop_image(image, tx.now_s)
    schedule_layer_cleanup(tx)


def add_layer(tx: Tx[Store], repository: Repository, digest: str, arrived: StoredBlob) -> Layer:
    """Add an uploaded layer to a repository. If the registry already has a layer with this digest, the new bytes are discarded."""
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
    """Add an existing layer to a repository. If the repository already has the layer, and no image uses it, keep it for longer."""
    tx.store.images.hold_layer(repository.id, layer.digest, tx.now_s)
    schedule_layer_cleanup(tx)


def drop_layer(tx: Tx[Store], repository: Repository, digest: str) -> None:
    """Remove a layer from a repository at once. The caller has checked that no image of the repository uses the layer."""
    release(tx, tx.store.images.drop_layer(repository.id, digest))


def drop_repository(tx: Tx[Store], repository: Repository) -> None:
    """Delete a repository. A reconciler deletes its images and layers later, in batches."""
    tx.store.images.mark_repository_deleted(repository.id)
    tx.mark(DELETED_REPOSITORIES)


def schedule_layer_cleanup(tx: Tx[Store]) -> None:
    """Schedule the reconciler that deletes unused layers. It runs when the first of them may be deleted."""
    since_s = tx.store.images.first_unused_s()
    if since_s is not None:
        tx.due(UNUSED_LAYERS, max(since_s + UNUSED_KEPT_S, tx.now_s))


def release(tx: Tx[Store], contents: list[int]) -> None:
    """Delete the references of deleted layers to their contents. The blobs of contents without references are deleted later."""
    released = [tx.store.objects.release(content) for content in contents]
    if any(released):
        tx.changed(GARBAGE)
