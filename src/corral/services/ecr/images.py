"""Operations on the images of a repository. Clients push and pull layers through the registry (`server/registry/`)."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.objects.manifest import DIGEST
from corral.model.image import TAG_PATTERN, RegistryImage, Repository
from corral.model.numbers import whole_number
from corral.services.ecr import image_storage
from corral.services.ecr.errors import ImageAlreadyExistsException, ImageNotFoundException, InvalidParameterException
from corral.services.ecr.repository_names import PAGES, check_unpaged, identity, requested_repository
from corral.store import Store

TAG = re.compile(TAG_PATTERN)
TAGGED = {"ANY": None, "TAGGED": True, "UNTAGGED": False}
MANIFESTS_MAX_CHARACTERS = 8 * 1024 * 1024  # of all images in a response of BatchGetImage; a manifest alone has up to 4 MiB
ACTIVE = "ACTIVE"  # every image has this status, because Corral has no archive


class ImageIdFailure(Exception):
    """Raised if an image of a batch request cannot be returned or deleted. The arguments are failureCode and failureReason."""


def list_images(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List images. An image is listed once for each of its tags. An image without tags is listed once."""
    repository = requested_repository(tx, params, caller)

    def listed(after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        if not _includes_active(params):
            return []
        number, _, tag = after.partition("/")
        found = tx.store.images.names(repository.id, (_number(number), tag), limit, _is_tagged(params))
        return [(f"{each.number}/{each.tag}", _id(each.digest, each.tag or None)) for each in found]

    page, token = PAGES.page(params, listed)
    return {"imageIds": page, **token}


def describe_images(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe images in the order of their push. If the request has image ids, describe only these images: all must exist."""
    repository = requested_repository(tx, params, caller)
    if (ids := params.get("imageIds")) is not None:
        check_unpaged(params, "imageIds", "filter")
        named = {image.number: image for image in (_existing(tx, repository, each, caller) for each in ids)}
        return {"imageDetails": [_details(caller, repository, image) for image in named.values()]}

    def listed(after: str, limit: int) -> list[tuple[str, RegistryImage]]:
        if not _includes_active(params):
            return []
        found = tx.store.images.images(repository.id, _number(after), limit, _is_tagged(params))
        return [(str(image.number), image) for image in found]

    page, token = PAGES.page(params, listed)
    return {"imageDetails": [_details(caller, repository, image) for image in page], **token}


def batch_get_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return manifests with exactly the bytes that were pushed.

    Corral does not convert manifests, because a converted manifest would have another digest.
    """
    repository, accepted = requested_repository(tx, params, caller), params.get("acceptedMediaTypes")
    images, failures, size = list[dict[str, Any]](), list[dict[str, Any]](), 0
    for given in params["imageIds"]:
        try:
            image = _find_image(tx, repository, given)
            if accepted and image.media_type not in accepted:
                raise ImageIdFailure(
                    "ImageNotFound", f"Requested image is of type {image.media_type}, which the request does not accept"
                )
        except ImageIdFailure as failure:
            failures.append(_failure(given, failure))
        else:
            images.append(_image_response(tx, caller, repository, image, given.get("imageTag")))
            size += len(images[-1]["imageManifest"])
            if size > MANIFESTS_MAX_CHARACTERS:
                why = f"the manifests of these images have more than {MANIFESTS_MAX_CHARACTERS} characters: request fewer images"
                raise InvalidParameterException(f"Invalid parameter at 'imageIds': {why}.")
    return {"images": images, "failures": failures}


def put_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Add an image whose layers are already in the repository, or add a tag to an existing image."""
    repository, tag = requested_repository(tx, params, caller), params.get("imageTag")
    body = params["imageManifest"].encode()
    pushed = image_storage.put_image(
        tx, repository, body, params.get("imageManifestMediaType"), tag, params.get("imageDigest"), writer=caller.writer
    )
    if pushed.existed:
        and_tag = f" and tag '{tag}'" if tag is not None else ""
        raise ImageAlreadyExistsException(
            f"Image with digest '{pushed.image.digest}'{and_tag} already exists in the repository with name '{repository.name}' in "
            f"registry with id '{caller.account}'"
        )
    return {"image": _image_response(tx, caller, repository, pushed.image, tag)}


def batch_delete_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete images. A digest deletes the image with all its tags.

    A tag deletes only this tag. If the image has no other tag, the image is deleted too.
    """
    repository = requested_repository(tx, params, caller)
    deleted, failures = list[dict[str, Any]](), list[dict[str, Any]]()
    for given in params["imageIds"]:
        try:
            deleted += _delete(tx, repository, given)
        except ImageIdFailure as failure:
            failures.append(_failure(given, failure))
    return {"imageIds": deleted, "failures": failures}


def batch_check_layer_availability(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = requested_repository(tx, params, caller)
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


def requested_image(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Repository, RegistryImage]:
    repository = requested_repository(tx, params, caller)
    return repository, _existing(tx, repository, params["imageId"], caller)


def image_id_text(image_id: dict[str, str]) -> str:
    """Format an imageId in the same form as ECR's error messages."""
    digest, tag = image_id.get("imageDigest", "null"), image_id.get("imageTag", "null")
    return f"{{imageDigest:'{digest}', imageTag:'{tag}'}}"


def _delete(tx: Tx[Store], repository: Repository, given: dict[str, str]) -> list[dict[str, Any]]:
    image, tag = _find_image(tx, repository, given), given.get("imageTag")
    if tag is not None and len(image.tags) > 1:
        tx.store.images.drop_tag(repository.id, tag)
        return [_id(image.digest, tag)]
    if indexes := tx.store.images.indexes_with(repository.id, image.digest):
        raise ImageIdFailure(
            "ImageReferencedByManifestList", f"Requested image referenced by manifest list: [{', '.join(indexes)}]"
        )
    image_storage.drop_image(tx, image)
    return [_id(image.digest, each) for each in image.tags or (None,)]


def _find_image(tx: Tx[Store], repository: Repository, given: dict[str, str]) -> RegistryImage:
    """Return the image that an imageId refers to. Raise ImageIdFailure if it does not exist."""
    digest, tag = given.get("imageDigest"), given.get("imageTag")
    if digest is None and tag is None:
        raise ImageIdFailure("MissingDigestAndTag", "Invalid request parameters: both tag and digest cannot be null")
    if digest is not None and not DIGEST.fullmatch(digest):
        why = f"Invalid request parameters: image digest should satisfy the regex '{DIGEST.pattern}'"
        raise ImageIdFailure("InvalidImageDigest", why)
    if tag is not None and not TAG.fullmatch(tag):
        raise ImageIdFailure("InvalidImageTag", f"Invalid request parameters: image tag should satisfy the regex '{TAG.pattern}'")
    found = tx.store.images.image(repository.id, digest=digest, tag=tag)
    if found is None and digest is not None and tag is not None and tx.store.images.image(repository.id, tag=tag) is not None:
        raise ImageIdFailure("ImageTagDoesNotMatchDigest", f"Requested image tag '{tag}' belongs to another image than '{digest}'")
    if found is None:
        raise ImageIdFailure("ImageNotFound", "Requested image not found")
    return found


def _existing(tx: Tx[Store], repository: Repository, given: dict[str, str], caller: Caller) -> RegistryImage:
    try:
        return _find_image(tx, repository, given)
    except ImageIdFailure as failure:
        code, why = failure.args
        if code in ("ImageNotFound", "ImageTagDoesNotMatchDigest"):
            raise ImageNotFoundException(
                f"The image with imageId {image_id_text(given)} does not exist within the repository with name "
                f"'{repository.name}' in the registry with id '{caller.account}'"
            ) from None
        raise InvalidParameterException(why) from None


def _details(caller: Caller, repository: Repository, image: RegistryImage) -> dict[str, Any]:
    """Describe an image. The description has no scan status, because Corral does not scan images."""
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


def _image_response(tx: Tx[Store], caller: Caller, repository: Repository, image: RegistryImage, tag: str | None) -> dict[str, Any]:
    return {
        **identity(caller, repository),
        "imageId": _id(image.digest, tag),
        "imageManifest": tx.store.images.manifest(image).decode(),
        "imageManifestMediaType": image.media_type,
    }


def _id(digest: str, tag: str | None) -> dict[str, str]:
    return {"imageDigest": digest, **({"imageTag": tag} if tag is not None else {})}


def _failure(given: dict[str, str], failure: ImageIdFailure) -> dict[str, Any]:
    code, why = failure.args
    return {"imageId": given, "failureCode": code, "failureReason": why}


def _is_tagged(params: dict[str, Any]) -> bool | None:
    return TAGGED[params.get("filter", {}).get("tagStatus", "ANY")]


def _includes_active(params: dict[str, Any]) -> bool:
    return params.get("filter", {}).get("imageStatus", ACTIVE) in (ACTIVE, "ANY")


def _number(token: str) -> int:
    number = whole_number(token or "0")
    if number is None:
        raise PAGES.wrong_token()
    return number
