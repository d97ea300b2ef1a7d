"""Tags of parameters; nothing else that SSM tags is here."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.ssm.naming import ValidationException
from corral.store import Store

InvalidResourceId = api_error("InvalidResourceId")
InvalidResourceType = api_error("InvalidResourceType")
TooManyTagsError = api_error("TooManyTagsError")

TAGS_MAX = 50
KEY_MAX_CHARACTERS = 128
VALUE_MAX_CHARACTERS = 256


def add_tags_to_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tags = _tags(tx, params, caller)
    tx.store.parameters.set_tags(caller.region, params["ResourceId"], check_tags(tags, params["Tags"]))
    return {}


def remove_tags_from_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    left = {key: value for key, value in _tags(tx, params, caller).items() if key not in params["TagKeys"]}
    tx.store.parameters.set_tags(caller.region, params["ResourceId"], left)
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"TagList": [{"Key": key, "Value": value} for key, value in _tags(tx, params, caller).items()]}


def check_tags(tags: dict[str, str], added: list[dict[str, str]]) -> dict[str, str]:
    """Both together, by SSM's rules."""
    for tag in added:
        if not 1 <= len(tag["Key"]) <= KEY_MAX_CHARACTERS or len(tag["Value"]) > VALUE_MAX_CHARACTERS:
            raise ValidationException(
                f"A tag's key has from 1 to {KEY_MAX_CHARACTERS} characters, its value at most {VALUE_MAX_CHARACTERS}."
            )
        if tag["Key"].lower().startswith("aws:"):
            raise ValidationException(f"Tag keys that begin with aws: are reserved: {tag['Key']}.")
    merged = tags | {tag["Key"]: tag["Value"] for tag in added}
    if len(merged) > TAGS_MAX:
        raise TooManyTagsError(f"A parameter has at most {TAGS_MAX} tags.")
    return merged


def _tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, str]:
    if params["ResourceType"] != "Parameter":
        raise InvalidResourceType(f"{params['ResourceType']} is not a valid resource type here: Corral has parameters only.")
    tags = tx.store.parameters.tags(caller.region, params["ResourceId"])
    if tags is None:
        raise InvalidResourceId(f"The resource ID is not valid: there is no parameter {params['ResourceId']}.")
    return tags
