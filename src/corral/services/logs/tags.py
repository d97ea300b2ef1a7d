"""Tags of log groups: TagResource and the older operations, such as TagLogGroup."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.tags import TagRules
from corral.services.logs.common import existing_group, group_name
from corral.services.logs.errors import InvalidParameterException, ResourceNotFoundException, TooManyTagsException
from corral.telemetry import LogGroup, LogStore

RULES = TagRules(
    InvalidParameterException,
    errors={"count": TooManyTagsException},
    texts={"count": "A log group has at most {max} tags."},
    any_character=True,  # botocore's model has a pattern, which is checked before
)
LOG_GROUP_RULES = replace(RULES, errors={})  # the older operations have no TooManyTagsException


def tag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = _tagged_group(tx, params, caller)
    RULES.check(params["tags"])
    _set(tx, group, RULES.merge(_tags(group), params["tags"], resourceName=params["resourceArn"]))
    return {}


def untag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, _tagged_group(tx, params, caller), params["tagKeys"])
    return {}


def list_tags_for_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(_tagged_group(tx, params, caller))}


def tag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    LOG_GROUP_RULES.check(params["tags"])
    _set(tx, group, LOG_GROUP_RULES.merge(_tags(group), params["tags"]))
    return {}


def untag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, existing_group(tx, caller, params["logGroupName"]), params["tags"])
    return {}


def list_tags_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(existing_group(tx, caller, params["logGroupName"]))}


def _tagged_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> LogGroup:
    arn = params["resourceArn"]
    if ":log-group:" not in arn:
        if ":destination:" in arn:
            raise ResourceNotFoundException("The specified destination does not exist.")
        raise InvalidParameterException("The resourceArn must be that of a log group: arn:aws:logs:REGION:ACCOUNT:log-group:NAME")
    return existing_group(tx, caller, group_name(arn))


def _tags(group: LogGroup) -> dict[str, str]:
    return dict(group.details.get("tags", {}))


def _set(tx: Tx[LogStore], group: LogGroup, tags: dict[str, str]) -> None:
    tx.store.set_details(group.id, group.details | {"tags": tags})


def _remove(tx: Tx[LogStore], group: LogGroup, keys: list[str]) -> None:
    _set(tx, group, RULES.remove(_tags(group), keys))
