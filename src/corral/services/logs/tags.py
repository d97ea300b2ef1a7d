"""Tags of log groups, in the present way and in the older one."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.logs.naming import InvalidParameterException, ResourceNotFoundException, existing_group, group_of
from corral.telemetry import Group, LogStore

TooManyTagsException = api_error("TooManyTagsException")

TAGS_MAX = 50
KEY_MAX_CHARACTERS = 128
VALUE_MAX_CHARACTERS = 256
SIGNS = frozenset("_.:/=+-@")


def tag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, tags = _tagged(tx, params, caller), params["tags"]
    check_tags(tags)
    merged = _tags(group) | tags
    if len(merged) > TAGS_MAX:
        raise TooManyTagsException(f"A log group has at most {TAGS_MAX} tags.", resourceName=params["resourceArn"])
    _set(tx, group, merged)
    return {}


def untag_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, _tagged(tx, params, caller), params["tagKeys"])
    return {}


def list_tags_for_resource(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(_tagged(tx, params, caller))}


def tag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, tags = existing_group(tx, caller, params["logGroupName"]), params["tags"]
    check_tags(tags)
    merged = _tags(group) | tags
    if len(merged) > TAGS_MAX:
        raise InvalidParameterException(f"A log group has at most {TAGS_MAX} tags.")
    _set(tx, group, merged)
    return {}


def untag_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _remove(tx, existing_group(tx, caller, params["logGroupName"]), params["tags"])
    return {}


def list_tags_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"tags": _tags(existing_group(tx, caller, params["logGroupName"]))}


def check_tags(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidParameterException(f"A log group has at most {TAGS_MAX} tags.")
    for key, value in tags.items():
        if key.lower().startswith("aws:"):
            raise InvalidParameterException(f"The tag key '{key}' is reserved: aws: is for AWS.")
        if not 1 <= len(key) <= KEY_MAX_CHARACTERS or len(value) > VALUE_MAX_CHARACTERS:
            raise InvalidParameterException(
                f"A tag's key has from 1 to {KEY_MAX_CHARACTERS} characters and its value up to {VALUE_MAX_CHARACTERS}: '{key}'."
            )
        if not all(character.isalnum() or character.isspace() or character in SIGNS for character in key + value):
            raise InvalidParameterException(f"A tag holds letters, digits, spaces and {''.join(sorted(SIGNS))} only: '{key}'.")


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
    _set(tx, group, {key: value for key, value in _tags(group).items() if key not in keys})
