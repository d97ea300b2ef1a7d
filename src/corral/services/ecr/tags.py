"""Tags of repositories: those that cost centres read, not those of images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.image import Repository
from corral.services.caller import Caller
from corral.services.ecr.naming import arn, find, violated
from corral.services.tags import TagRules
from corral.store import Store

InvalidTagParameterException = api_error("InvalidTagParameterException")
TooManyTagsException = api_error("TooManyTagsException")

RULES = TagRules(
    InvalidTagParameterException,
    errors={"count": TooManyTagsException},
    texts={"count": "A repository has at most {max} tags."},
    any_character=True,
)


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    tx.store.images.set_repository(replace(repository, tags=RULES.merge(repository.tags, RULES.read(params["tags"]))))
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    repository = _tagged(tx, params, caller)
    tx.store.images.set_repository(replace(repository, tags=RULES.remove(repository.tags, params["tagKeys"])))
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": RULES.to_list(_tagged(tx, params, caller).tags)}


def _tagged(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Repository:
    given, own = params["resourceArn"], arn(caller, "")
    if not given.startswith(own):
        raise violated("resourceArn", f"Invalid ARN: {given} is not that of a repository of yours, {own}NAME")
    return find(tx, caller, given.removeprefix(own))
