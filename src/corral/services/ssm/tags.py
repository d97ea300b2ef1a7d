"""Tags of parameters; nothing else that SSM tags is here."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.ssm.naming import ValidationException
from corral.services.tags import TagRules
from corral.store import Store

InvalidResourceId = api_error("InvalidResourceId")
InvalidResourceType = api_error("InvalidResourceType")
TooManyTagsError = api_error("TooManyTagsError")

RULES = TagRules(
    ValidationException,
    errors={"count": TooManyTagsError},
    texts={"count": "A parameter has at most {max} tags."},
    any_character=True,  # the model has a pattern
)


def add_tags_to_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tags = RULES.merge(_tags(tx, params, caller), RULES.read(params["Tags"]))
    tx.store.parameters.set_tags(caller.region, params["ResourceId"], tags)
    return {}


def remove_tags_from_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    left = RULES.remove(_tags(tx, params, caller), params["TagKeys"])
    tx.store.parameters.set_tags(caller.region, params["ResourceId"], left)
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"TagList": RULES.to_list(_tags(tx, params, caller))}


def _tags(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, str]:
    if params["ResourceType"] != "Parameter":
        raise InvalidResourceType(f"{params['ResourceType']} is not a valid resource type here: Corral has parameters only.")
    tags = tx.store.parameters.tags(caller.region, params["ResourceId"])
    if tags is None:
        raise InvalidResourceId(f"The resource ID is not valid: there is no parameter {params['ResourceId']}.")
    return tags
