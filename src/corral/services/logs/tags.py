"""Tags of log groups, in the present way and in the older one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.logs.naming import InvalidParameterException, ResourceNotFoundException, existing_group, group_of
from corral.services.tags import TagRules
from corral.telemetry import Group, LogStore

TooManyTagsException = api_error("TooManyTagsException")

RULES = TagRules(
    InvalidParameterException,
    errors={"count": TooManyTagsException},
    texts={"count": "A log group has at most {max} tags."},
    any_character=True,  # the model has a pattern
)
OLDER = replace(RULES, errors={})  # TagLogGroup knows no TooManyTagsException


def tag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = _tagged(tx, params, caller)
    RULES.check(params["tags"])
    _set(tx, group, RULES.merge(_tags(group), params["tags"], resourceName=params["resourceArn"]))
    return {}


def untag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, _tagged(tx, params, caller), params["tagKeys"])
    return {}


def list_tags_for_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(_tagged(tx, params, caller))}


def tag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    OLDER.check(params["tags"])
    _set(tx, group, OLDER.merge(_tags(group), params["tags"]))
    return {}


def untag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, existing_group(tx, caller, params["logGroupName"]), params["tags"])
    return {}


def list_tags_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(existing_group(tx, caller, params["logGroupName"]))}


def _tagged(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> Group:
    arn = params["resourceArn"]
    if ":log-group:" not in arn:
        if ":destination:" in arn:
            raise ResourceNotFoundException("The specified destination does not exist.")
        raise InvalidParameterException("The resourceArn must be that of a log group: arn:aws:logs:REGION:ACCOUNT:log-group:NAME")
    return existing_group(tx, caller, group_of(arn))


def _tags(group: Group) -> dict[str, str]:
    return dict(group.details.get("tags", {}))


def _set(tx: Tx[LogStore], group: Group, tags: dict[str, str]) -> None:
    tx.store.set_details(group.id, group.details | {"tags": tags})


def _remove(tx: Tx[LogStore], group: Group, keys: list[str]) -> None:
    _set(tx, group, RULES.remove(_tags(group), keys))
