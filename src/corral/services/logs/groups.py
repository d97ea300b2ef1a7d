"""Log groups: creation, listing, deletion, retention and deletion protection."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.logs.common import PAGES, existing_group, group_arn, group_name, now_ms
from corral.services.logs.errors import (
    InvalidOperationException,
    InvalidParameterException,
    ResourceAlreadyExistsException,
    ValidationException,
)
from corral.services.logs.tags import LOG_GROUP_RULES
from corral.telemetry import LogGroup, LogStore

STANDARD = "STANDARD"
LOW_COST = ("INFREQUENT_ACCESS", "ESSENTIALS")  # for DescribeLogGroups these two are the same class
SCAN_BATCH = 1_000


def create_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["logGroupName"]
    if name.startswith("aws/"):
        raise InvalidParameterException("Log groups starting with AWS/ are reserved for AWS.")
    LOG_GROUP_RULES.check(params.get("tags", {}))
    stored = ("tags", "kmsKeyId", "logGroupClass", "deletionProtectionEnabled")
    if not tx.store.add_group(caller.region, name, {key: params[key] for key in stored if key in params}, now_ms(tx), caller.owner):
        raise ResourceAlreadyExistsException("The specified log group already exists")
    return {}


def delete_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    check_unprotected(group)
    tx.store.drop_group(group.id)
    tx.due("purge:", tx.now_s)
    return {}


def put_log_group_deletion_protection(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, group_name(params["logGroupIdentifier"]))
    tx.store.set_details(group.id, group.details | {"deletionProtectionEnabled": params["deletionProtectionEnabled"]})
    return {}


def put_retention_policy(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    tx.store.set_retention(group.id, params["retentionInDays"])
    tx.due("expire:", tx.now_s)
    return {}


def delete_retention_policy(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tx.store.set_retention(existing_group(tx, caller, params["logGroupName"]).id, None)
    return {}


def describe_log_groups(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix, part = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "")
    if prefix and part:
        raise InvalidParameterException("LogGroup name prefix and LogGroup name pattern are mutually exclusive parameters.")
    identifiers = params.get("logGroupIdentifiers")
    if identifiers is not None and (prefix or part or "logGroupClass" in params):
        raise InvalidParameterException(
            "logGroupIdentifiers cannot be combined with logGroupNamePrefix, logGroupNamePattern or logGroupClass."
        )
    wanted = params.get("logGroupClass")

    def listed(after: str, limit: int) -> list[tuple[str, LogGroup]]:
        found = tx.store.groups(
            caller.region,
            after=after,
            limit=limit,
            prefix=prefix,
            part=part,
            classes=LOW_COST if wanted in LOW_COST else (wanted,) if wanted else (),
            names=None if identifiers is None else [group_name(identifier) for identifier in identifiers],
        )
        return [(group.name, group) for group in found]

    page, token = PAGES.page(params, listed)
    filters = tx.store.metric_filter_counts([group.id for group in page])
    describe = _identity if part else _described
    described = [describe(caller, group, filters.get(group.id, 0)) for group in page]
    return {"logGroups": described, **token}


def list_log_groups(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List log groups. Corral has no data sources and no field indexes, so a filter on them matches no group."""
    limit, alternatives = params.get("limit", 50), params.get("logGroupNamePattern", "").split("|")
    classes = (params["logGroupClass"],) if "logGroupClass" in params else ()
    after, found = PAGES.after(params), list[LogGroup]()
    while len(found) <= limit and not ("dataSources" in params or "fieldIndexNames" in params):
        batch = tx.store.groups(caller.region, after=after, limit=SCAN_BATCH, classes=classes)
        found += [group for group in batch if _is_named(group, alternatives) and _is_tagged(group, params.get("logGroupTags", []))]
        if len(batch) < SCAN_BATCH:
            break
        after = batch[-1].name
    described = [
        {"logGroupName": group.name, "logGroupArn": group_arn(caller, group.name), "logGroupClass": _class_of(group)}
        for group in found[:limit]
    ]
    return {"logGroups": described, **PAGES.more(found[limit - 1].name if len(found) > limit else None)}


def check_class(group: LogGroup, operation: str) -> None:
    """Raise the service's error for an operation that only log groups of the class STANDARD have."""
    if _class_of(group) != STANDARD:
        raise InvalidOperationException(
            f"The log group {group.name} is of log-group-class {_class_of(group)}. {operation} is not supported for this log class."
        )


def check_unprotected(group: LogGroup) -> None:
    if group.details.get("deletionProtectionEnabled"):
        raise ValidationException(
            f"The log group {group.name} has deletion protection. Turn it off first: "
            f"aws logs put-log-group-deletion-protection --log-group-identifier {group.name} --no-deletion-protection-enabled"
        )


def _class_of(group: LogGroup) -> str:
    return str(group.details.get("logGroupClass", STANDARD))


def _is_named(group: LogGroup, alternatives: list[str]) -> bool:
    return any(group.name.startswith(part[1:]) if part.startswith("^") else part in group.name for part in alternatives)


def _is_tagged(group: LogGroup, filters: list[dict[str, Any]]) -> bool:
    tags = group.details.get("tags", {})
    return all(
        wanted["key"] in tags
        and (not wanted.get("values") or any(_is_value(tags[wanted["key"]], value) for value in wanted["values"]))
        for wanted in filters
    )


def _is_value(value: str, wanted: str) -> bool:
    """Whether a tag value is the wanted one. `*` in `wanted` is a wildcard, and then case does not count. A prefix `!` negates."""
    if wanted.startswith("!"):
        return not _is_value(value, wanted[1:])
    if "*" not in wanted:
        return value == wanted
    pattern = wanted.lower().replace("[", "[[]").replace("?", "[?]")  # for fnmatch, in which only * shall be a wildcard
    return fnmatchcase(value.lower(), pattern)


def _identity(caller: Caller, group: LogGroup, metric_filters: int) -> dict[str, Any]:
    """Return the members that DescribeLogGroups gives for each request. A request with logGroupNamePattern gets no others."""
    arn = group_arn(caller, group.name)
    return {
        "logGroupName": group.name,
        "creationTime": group.created_ms,
        "metricFilterCount": metric_filters,
        "arn": f"{arn}:*",
        "logGroupArn": arn,
        "logGroupClass": _class_of(group),
    }


def _described(caller: Caller, group: LogGroup, metric_filters: int) -> dict[str, Any]:
    return {
        **_identity(caller, group, metric_filters),
        "storedBytes": group.bytes,
        "deletionProtectionEnabled": bool(group.details.get("deletionProtectionEnabled")),
        **({"retentionInDays": group.retention_days} if group.retention_days is not None else {}),
        **({"kmsKeyId": group.details["kmsKeyId"]} if "kmsKeyId" in group.details else {}),
    }
