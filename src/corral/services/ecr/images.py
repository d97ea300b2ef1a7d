"""Images of a repository: listed, described, got, put and deleted. Layers come and go through the registry."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.decide.manifest import DIGEST
from corral.model.image import Image, Repository
from corral.services.caller import Caller
from corral.services.ecr import pushing
from corral.services.ecr.naming import (
    PAGES,
    ImageAlreadyExistsException,
    ImageNotFoundException,
    InvalidParameterException,
    check_unpaged,
    identity,
    meant,
)
from corral.store import Store

TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,299}")
TAGGED = {"ANY": None, "TAGGED": True, "UNTAGGED": False}
DIGITS_MAX = 18  # of a number that SQLite takes
ACTIVE = "ACTIVE"  # all are: there is no archive here


class Unmeant(Exception):
    """An imageId of a batch that means nothing: the code and the reason of its failure."""


def list_images(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Each image once for each of its tags, or once without one."""
    repository = meant(tx, params, caller)

    def listed(after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        if not _is_about_active(params):
            return []
        number, _, tag = after.partition("/")
        found = tx.store.images.names(repository.id, (_number(number), tag), limit, _is_tagged(params))
        return [(f"{each.number}/{each.tag}", _id(each.digest, each.tag or None)) for each in found]

    page, token = PAGES.page(params, listed)
    return {"imageIds": page, **token}


def describe_images(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """As they were pushed. Of those that are asked for each must be there."""
    repository = meant(tx, params, caller)
    if (ids := params.get("imageIds")) is not None:
        check_unpaged(params, "imageIds", "filter")
        named = {image.number: image for image in (_existing(tx, repository, each, caller) for each in ids)}
        return {"imageDetails": [_details(caller, repository, image) for image in named.values()]}

    def listed(after: str, limit: int) -> list[tuple[str, Image]]:
        if not _is_about_active(params):
            return []
        found = tx.store.images.images(repository.id, _number(after), limit, _is_tagged(params))
        return [(str(image.number), image) for image in found]

    page, token = PAGES.page(params, listed)
    return {"imageDetails": [_details(caller, repository, image) for image in page], **token}


def batch_get_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Manifests, byte by byte as they were pushed. None is converted: its digest would be another."""
    repository, accepted = meant(tx, params, caller), params.get("acceptedMediaTypes")
    images, failures = list[dict[str, Any]](), list[dict[str, Any]]()
    for given in params["imageIds"]:
        try:
            image = _meant(tx, repository, given)
            if accepted and image.media_type not in accepted:
                raise Unmeant("ImageNotFound", f"Requested image is of type {image.media_type}, which the request does not accept")
        except Unmeant as unmeant:
            failures.append(_failure(given, unmeant))
        else:
            images.append(_shown(tx, caller, repository, image, given.get("imageTag")))
    return {"images": images, "failures": failures}


def put_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """An image whose layers the registry has; or another tag for one."""
    repository, tag = meant(tx, params, caller), params.get("imageTag")
    body = params["imageManifest"].encode()
    pushed = pushing.put_image(tx, repository, body, params.get("imageManifestMediaType"), tag, params.get("imageDigest"))
    if pushed.was_there:
        and_tag = f" and tag '{tag}'" if tag is not None else ""
        raise ImageAlreadyExistsException(
            f"Image with digest '{pushed.image.digest}'{and_tag} already exists in the repository with name '{repository.name}' in "
            f"registry with id '{caller.account}'"
        )
    return {"image": _shown(tx, caller, repository, pushed.image, tag)}


def batch_delete_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """By digest an image goes with all its tags; by tag only the tag goes, and with its last one the image."""
    repository = meant(tx, params, caller)
    deleted, failures = list[dict[str, Any]](), list[dict[str, Any]]()
    for given in params["imageIds"]:
        try:
            deleted += _delete(tx, repository, given)
        except Unmeant as unmeant:
            failures.append(_failure(given, unmeant))
    return {"imageIds": deleted, "failures": failures}


def batch_check_layer_availability(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = meant(tx, params, caller)
    layers, failures = list[dict[str, Any]](), list[dict[str, Any]]()
    for digest in params["layerDigests"]:
        if not DIGEST.fullmatch(digest):
            code = "InvalidLayerDigest" if digest else "MissingLayerDigest"
            why = f"Invalid request parameters: layer digest should satisfy the regex '{DIGEST.pattern}'"
            failures.append({"layerDigest": digest, "failureCode": code, "failureReason": why})
        elif (layer := tx.store.images.layer(repository.id, digest)) is not None:
            layers.append({"layerDigest": digest, "layerAvailability": "AVAILABLE", "layerSize": layer.size})
        else:
            layers.append({"layerDigest": digest, "layerAvailability": "UNAVAILABLE"})
    return {"layers": layers, "failures": failures}


def existing(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Repository, Image]:
    """The one image that a request is about."""
    repository = meant(tx, params, caller)
    return repository, _existing(tx, repository, params["imageId"], caller)


def as_given(image_id: dict[str, str]) -> str:
    """An imageId as ECR's messages write it."""
    digest, tag = image_id.get("imageDigest", "null"), image_id.get("imageTag", "null")
    return f"{{imageDigest:'{digest}', imageTag:'{tag}'}}"


def _delete(tx: Tx[Store], repository: Repository, given: dict[str, str]) -> list[dict[str, Any]]:
    image, tag = _meant(tx, repository, given), given.get("imageTag")
    if tag is not None and len(image.tags) > 1:
        tx.store.images.drop_tag(repository.id, tag)
        return [_id(image.digest, tag)]
    if indexes := tx.store.images.indexes_with(repository.id, image.digest):
        raise Unmeant("ImageReferencedByManifestList", f"Requested image referenced by manifest list: [{', '.join(indexes)}]")
    pushing.drop_image(tx, image)
    return [_id(image.digest, each) for each in image.tags or (None,)]


def _meant(tx: Tx[Store], repository: Repository, given: dict[str, str]) -> Image:
    """The image of an imageId; Unmeant says what is wrong with it."""
    digest, tag = given.get("imageDigest"), given.get("imageTag")
    if digest is None and tag is None:
        raise Unmeant("MissingDigestAndTag", "Invalid request parameters: both tag and digest cannot be null")
    if digest is not None and not DIGEST.fullmatch(digest):
        why = f"Invalid request parameters: image digest should satisfy the regex '{DIGEST.pattern}'"
        raise Unmeant("InvalidImageDigest", why)
    if tag is not None and not TAG.fullmatch(tag):
        raise Unmeant("InvalidImageTag", f"Invalid request parameters: image tag should satisfy the regex '{TAG.pattern}'")
    found = tx.store.images.image(repository.id, digest=digest, tag=tag)
    if found is None and digest is not None and tag is not None and tx.store.images.image(repository.id, tag=tag) is not None:
        raise Unmeant("ImageTagDoesNotMatchDigest", f"Requested image tag '{tag}' is on another image than '{digest}'")
    if found is None:
        raise Unmeant("ImageNotFound", "Requested image not found")
    return found


def _existing(tx: Tx[Store], repository: Repository, given: dict[str, str], caller: Caller) -> Image:
    try:
        return _meant(tx, repository, given)
    except Unmeant as unmeant:
        code, why = unmeant.args
        if code in ("ImageNotFound", "ImageTagDoesNotMatchDigest"):
            raise ImageNotFoundException(
                f"The image with imageId {as_given(given)} does not exist within the repository with name '{repository.name}' in "
                f"the registry with id '{caller.account}'"
            ) from None
        raise InvalidParameterException(why) from None


def _details(caller: Caller, repository: Repository, image: Image) -> dict[str, Any]:
    """Of scans nothing is said: there are none."""
    optional = {
        "imageTags": list(image.tags) or None,
        "artifactMediaType": image.artifact_type,
        "subjectManifestDigest": image.subject,
        "lastRecordedPullTime": image.pulled_at_s,
    }
    return {
        **identity(caller, repository),
        "imageDigest": image.digest,
        "imageSizeInBytes": image.size,
        "imagePushedAt": image.pushed_at_s,
        "imageManifestMediaType": image.media_type,
        "imageStatus": ACTIVE,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _shown(tx: Tx[Store], caller: Caller, repository: Repository, image: Image, tag: str | None) -> dict[str, Any]:
    return {
        **identity(caller, repository),
        "imageId": _id(image.digest, tag),
        "imageManifest": tx.store.images.manifest(image).decode(),
        "imageManifestMediaType": image.media_type,
    }


def _id(digest: str, tag: str | None) -> dict[str, str]:
    return {"imageDigest": digest, **({"imageTag": tag} if tag is not None else {})}


def _failure(given: dict[str, str], unmeant: Unmeant) -> dict[str, Any]:
    code, why = unmeant.args
    return {"imageId": given, "failureCode": code, "failureReason": why}


def _is_tagged(params: dict[str, Any]) -> bool | None:
    return TAGGED[params.get("filter", {}).get("tagStatus", "ANY")]


def _is_about_active(params: dict[str, Any]) -> bool:
    return params.get("filter", {}).get("imageStatus", ACTIVE) in (ACTIVE, "ANY")


def _number(token: str) -> int:
    if token and not (token.isdecimal() and len(token) < DIGITS_MAX):
        raise PAGES.wrong_token()
    return int(token or 0)
