"""Tags of repositories: those that cost centres read, not those of images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.image import Repository
from corral.services.caller import Caller
from corral.services.ecr.naming import arn, find, violated
from corral.store import Store

InvalidTagParameterException = api_error("InvalidTagParameterException")
TooManyTagsException = api_error("TooManyTagsException")

TAGS_MAX = 50
KEY_MAX, VALUE_MAX = 128, 256  # characters


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    tx.store.images.set_repository(replace(repository, tags=merged(repository.tags, params["tags"])))
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    left = {key: value for key, value in repository.tags.items() if key not in params["tagKeys"]}
    tx.store.images.set_repository(replace(repository, tags=left))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": [{"Key": key, "Value": value} for key, value in _tagged(tx, params, caller).tags.items()]}


def merged(tags: dict[str, str], added: list[dict[str, str]]) -> dict[str, str]:
    """Both together, by ECR's rules."""
    for tag in added:
        key, value = tag["Key"], tag["Value"]
        if not 1 <= len(key) <= KEY_MAX or len(value) > VALUE_MAX:
            raise InvalidTagParameterException(f"A tag's key has 1 to {KEY_MAX} characters, its value at most {VALUE_MAX}: {key}")
        if key.lower().startswith("aws:"):
            raise InvalidTagParameterException(f"Tag keys that begin with aws: are reserved: {key}")
    together = tags | {tag["Key"]: tag["Value"] for tag in added}
    if len(together) > TAGS_MAX:
        raise TooManyTagsException(f"A repository has at most {TAGS_MAX} tags.")
    return together


def _tagged(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Repository:
    given, own = params["resourceArn"], arn(caller, "")
    if not given.startswith(own):
        raise violated("resourceArn", f"Invalid ARN: {given} is not that of a repository of yours, {own}NAME")
    return find(tx, caller, given.removeprefix(own))
