"""Parse the manifests of container images, in the schemas of Docker and OCI.

The manifest of an image lists its configuration and its layers. The manifest of an index lists the images for several platforms.
"""

from __future__ import annotations

import re
from typing import Any

from corral.model.image import Manifest
from corral.model.json_documents import read_json

DOCKER_IMAGE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
OCI_IMAGE = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
IMAGES, INDEXES = (DOCKER_IMAGE, OCI_IMAGE), (DOCKER_LIST, OCI_INDEX)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SIZE_MAX = 2**50  # maximum size of a layer in bytes: no disk is larger, and the sum of many layers fits into SQLite's 64 bits
FOREIGN = re.compile(r"application/vnd\.(docker\.image\.rootfs\.foreign|oci\.image\.layer\.nondistributable)\.")


class NotAManifest(ValueError):
    """Corral does not accept the document as a manifest. The message says why."""


def read_manifest(body: bytes, media_type: str | None) -> Manifest:
    """Parse a manifest. `media_type` is the media type in the request; None if the request has none."""
    try:
        document = read_json(body)
    except ValueError as error:
        raise NotAManifest(f"The manifest is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise NotAManifest("The manifest is not a JSON object")
    kind = _kind(document, media_type)
    subject = _digest(document["subject"], "subject") if document.get("subject") else None
    artifact_type = document.get("artifactType")
    if kind in INDEXES:
        images = tuple(dict.fromkeys(_digest(each, "manifests") for each in _list(document, "manifests")))
        return Manifest(kind, _text(artifact_type), {}, images, subject, 0)
    if not isinstance(document.get("config"), dict):
        raise NotAManifest("The manifest has no config")
    layers = [each for each in _list(document, "layers") if not _is_foreign(each)]
    sizes = {_digest(each, "layers"): _size(each) for each in layers}
    parts = {_digest(document["config"], "config"): _size(document["config"]), **sizes}
    if artifact_type is None:
        artifact_type = document["config"].get("mediaType")
    return Manifest(kind, _text(artifact_type), parts, (), subject, sum(sizes.values()))


def _kind(document: dict[str, Any], media_type: str | None) -> str:
    """Return the media type of a manifest. If an older OCI manifest has no mediaType, derive the type from its other members."""
    own = document.get("mediaType")
    if media_type and own and media_type != own:
        raise NotAManifest(f"The manifest has the mediaType {own}, but the request has {media_type}")
    kind = media_type or own or (OCI_INDEX if "manifests" in document else OCI_IMAGE)
    version = document.get("schemaVersion")
    if version != 2 or kind not in (*IMAGES, *INDEXES):
        kinds = ", ".join((*IMAGES, *INDEXES))
        raise NotAManifest(
            f"A manifest with schemaVersion {version} and type {kind} is not supported: use schemaVersion 2 and one of {kinds}"
        )
    return str(kind)


def _is_foreign(descriptor: Any) -> bool:
    """Whether a layer is foreign: the registry does not store it, because its licence forbids that. The manifest has its URL."""
    return isinstance(descriptor, dict) and bool(FOREIGN.match(str(descriptor.get("mediaType"))))


def _list(document: dict[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise NotAManifest(f"The manifest has no list of {name}")
    return found


def _digest(descriptor: Any, where: str) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise NotAManifest(f"The digest {digest!r} in {where} of the manifest is not valid: use sha256: and 64 hexadecimal digits")
    return digest


def _text(artifact_type: Any) -> str | None:
    if artifact_type is not None and not isinstance(artifact_type, str):
        raise NotAManifest(f"The artifactType {artifact_type!r} of the manifest is not a string")
    return artifact_type


def _size(descriptor: dict[str, Any]) -> int:
    size = descriptor.get("size")
    if type(size) is not int or not 0 <= size <= SIZE_MAX:
        raise NotAManifest(
            f"The size {size!r} of {descriptor.get('digest')} in the manifest is not valid: use the number of its bytes"
        )
    return size
