"""LookupEvents: the records of the audit as events of CloudTrail, the newest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.audit.record import AuditRecord
from corral.audit.trail import KEPT_DAYS, Position, records_back
from corral.core.clock import WallSeconds
from corral.core.transactions import Tx
from corral.model import principal
from corral.operations.pagination import Pagination
from corral.services.cloudtrail.errors import (
    InvalidLookupAttributesException,
    InvalidNextTokenException,
    InvalidTimeRangeException,
    UnsupportedOperationException,
)

EVENT_VERSION = "1.11"
READ_MAX = 20_000  # the records that one call reads; a page of a rare event may be empty, and has a token
STEP_RECORDS = 500  # after so many records, the read makes way for others
PAGES = Pagination(
    InvalidNextTokenException,
    limit="MaxResults",
    token="NextToken",
    next_token="NextToken",
    default=50,
    largest=50,
)
SOURCES = {"application-autoscaling": "autoscaling", "cloudwatch": "monitoring"}  # services whose event source has another name
# How CloudFormation writes the name of a service in the types of its resources.
TYPES = {
    "application-autoscaling": "ApplicationAutoScaling", "autoscaling": "AutoScaling", "batch": "Batch",
    "cloudformation": "CloudFormation", "cloudwatch": "CloudWatch", "corral": "Corral", "lambda": "Lambda", "logs": "Logs",
    "secretsmanager": "SecretsManager",
}  # fmt: skip
_NAMED = re.compile(r"(\w*?)(?:Name|Id|ARN|Arn|Url)s?")
# Members of requests that name a resource by its kind alone, by service.
KINDS = {
    "batch": re.compile(r"computeEnvironment|job|jobDefinition|jobQueue"),
    "corral": re.compile(r"(gpu|host|instance|queue|task|user)s?"),
    "ecs": re.compile(r"(capacityProvider|cluster|containerInstance|service|task|taskDefinition|taskSet)s?"),
    "s3": re.compile(r"Bucket"),
}
_POSITION = re.compile(r"(\d{4}-\d{2}-\d{2}):(\d{1,15})")


def lookup_events(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    attribute = _attribute(params)
    if "EventCategory" in params:
        raise UnsupportedOperationException("Corral records no insight events: omit EventCategory.")
    from_s = max(params.get("StartTime", 0.0), tx.wall_s - KEPT_DAYS * 86_400)
    until_s = params.get("EndTime", tx.wall_s)
    if params.get("StartTime", 0.0) > until_s:
        raise InvalidTimeRangeException("The start time must be before the end time.")
    limit = PAGES.limit_of(params) or 1
    before = PAGES.position(params, _position) if "NextToken" in params else None
    events: list[dict[str, Any]] = []
    last: Position | None = None
    for number, (position, record) in enumerate(records_back(Path(tx.settings.audit_folder), from_s, until_s, before)):
        if len(events) == limit or number == READ_MAX:
            return {"Events": events, **PAGES.more(_text(last))}
        if number % STEP_RECORDS == 0:
            tx.step()
        last = position
        if attribute is None or _has(record, *attribute):
            events.append(_event(record))
    return {"Events": events}


def _attribute(params: Mapping[str, Any]) -> tuple[str, str] | None:
    given = params.get("LookupAttributes") or []
    if len(given) > 1:
        raise InvalidLookupAttributesException("You can use only one lookup attribute in a request.")
    return (given[0]["AttributeKey"], given[0]["AttributeValue"]) if given else None


def _position(text: str) -> Position:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return Position(found[1], int(found[2]))


def _text(position: Position | None) -> str | None:
    return f"{position.day}:{position.offset}" if position is not None else None


def _has(record: AuditRecord, key: str, value: str) -> bool:
    if key == "ResourceName":
        return any(name == value or name.rpartition("/")[2] == value for _, name in resources(record))
    if key == "ResourceType":
        return any(type_ == value for type_, _ in resources(record))
    shown = {
        "AccessKeyId": record.access_key_id,
        "EventId": record.id,
        "EventName": record.operation,
        "EventSource": source(record),
        "ReadOnly": str(record.reads).lower(),
        "Username": username(record),
    }
    return shown[key] == value


def source(record: AuditRecord) -> str:
    return f"{SOURCES.get(record.service, record.service)}.amazonaws.com"


def username(record: AuditRecord) -> str:
    return record.session if record.kind == principal.ASSUMED_ROLE else record.name or record.kind


def resources(record: AuditRecord) -> Iterator[tuple[str, str]]:
    """Yield the type and the name of each resource that the parameters or the result name."""
    found = dict.fromkeys([*_named(record.service, record.params), *_named(record.service, record.found)])
    yield from found


def _named(service: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth == 2 or not isinstance(value, Mapping):
        return
    for member, inner in value.items():
        what = _kind(service, member)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, str) and what is not None:
                yield f"AWS::{TYPES.get(service, service.upper())}::{what[:1].upper()}{what[1:]}", each
            elif isinstance(each, Mapping):
                yield from _named(service, each, depth + 1)


def _kind(service: str, member: str) -> str | None:
    """Return the kind of resource that a member of a request or result names, or None if it names none."""
    if (matched := _NAMED.fullmatch(member)) is not None:
        return matched[1]
    return member.removesuffix("s") if service in KINDS and KINDS[service].fullmatch(member) else None


def _event(record: AuditRecord) -> dict[str, Any]:
    event = {
        "EventId": record.id,
        "EventName": record.operation,
        "ReadOnly": str(record.reads).lower(),
        "EventTime": WallSeconds(record.at_s),
        "EventSource": source(record),
        "Username": username(record),
        "Resources": [{"ResourceType": type_, "ResourceName": name} for type_, name in resources(record)],
        "CloudTrailEvent": orjson.dumps(_document(record)).decode(),
    }
    return event | ({"AccessKeyId": record.access_key_id} if record.access_key_id else {})


def _document(record: AuditRecord) -> dict[str, Any]:
    """Return an event in CloudTrail's own form."""
    account = record.arn.split(":")[4] if record.arn.startswith("arn:") else ""
    return {
        "eventVersion": EVENT_VERSION,
        "userIdentity": _identity(record, account),
        "eventTime": datetime.fromtimestamp(record.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "eventSource": source(record),
        "eventName": record.operation,
        "awsRegion": record.region,
        "sourceIPAddress": record.source,
        "userAgent": record.agent,
        **({"errorCode": record.error, "errorMessage": record.message} if record.error else {}),
        "requestParameters": None if record.omitted else _lower(record.params) or None,
        "responseElements": _lower(record.found) or None,
        "additionalEventData": {"owner": record.owner, **({"deniedCalls": record.repeats} if record.repeats else {})},
        "requestID": record.request_id,
        "eventID": record.id,
        "readOnly": record.reads,
        "eventType": "AwsApiCall",
        "managementEvent": not record.is_data,
        "recipientAccountId": account,
        "eventCategory": "Data" if record.is_data else "Management",
    }


def _identity(record: AuditRecord, account: str) -> dict[str, Any]:
    key = {"accessKeyId": record.access_key_id} if record.access_key_id else {}
    common = {"arn": record.arn, "accountId": account, **key}
    if record.kind == principal.ROOT:
        return {"type": "Root", "principalId": account, **common}
    if record.kind == principal.ASSUMED_ROLE:
        issuer = {
            "type": "Role", "arn": f"arn:aws:iam::{account}:role/{record.name}", "accountId": account, "userName": record.name,
        }  # fmt: skip
        return {
            "type": "AssumedRole", "principalId": f"{record.name}:{record.session}", **common,
            "sessionContext": {"sessionIssuer": issuer},
        }  # fmt: skip
    if record.kind == principal.SERVICE:
        return {"type": "AWSService", "invokedBy": record.name}
    kind = {"user": "IAMUser", principal.FEDERATED_USER: "FederatedUser"}.get(record.kind, record.kind)
    return {"type": kind, **common, "userName": record.name}


def _lower(value: Any) -> Any:
    """Write the names of members with a small first letter, as CloudTrail does."""
    if isinstance(value, Mapping):
        return {f"{name[:1].lower()}{name[1:]}": _lower(inner) for name, inner in value.items()}
    return [_lower(each) for each in value] if isinstance(value, list) else value
