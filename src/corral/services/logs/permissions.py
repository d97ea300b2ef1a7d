"""The permissions that operations of CloudWatch Logs need, and the facts about log groups and streams that policies can test.

A stream belongs to the owner of the task that writes it, and its group may belong to another owner. So operations on many streams
of a group count as those on a resource of the caller, and show only the streams that the caller may read (LISTED).
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.operations.listings import Listed
from corral.services.logs.common import group_name
from corral.store import Store
from corral.telemetry import LogStore

STREAMS = frozenset({"CreateLogStream", "DeleteLogStream", "GetLogEvents", "PutLogEvents"})  # operations on one stream


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    given = params.get("logGroupName") or params.get("logGroupIdentifier")
    arns: list[str]
    if given:
        is_stream = operation in STREAMS and operation != "CreateLogStream" and params.get("logStreamName")
        part = f"log-stream:{params['logStreamName']}" if is_stream else "*"
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}:{part}"]
    elif given := params.get("resourceArn"):
        is_group = ":log-group:" in given  # the handler ignores the region and the account in this ARN
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}" if is_group else given]
    else:
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:*"] if operation == "DescribeLogGroups" else []
    return on_resources(f"logs:{operation}", arns, request_tags(params))


def resource_facts(tx: Tx[Any], caller: Caller, permission: Permission) -> ResourceFacts | None:
    """Return the facts of a log group or a stream, which are in the database of another lane. None: they are unknown here."""
    if permission.action.partition(":")[2] in LISTED:
        return ResourceFacts()

    def read(tx: Tx[LogStore]) -> ResourceFacts:
        return _facts(tx, caller.region, permission.resource)

    found: ResourceFacts | None = read(tx) if isinstance(tx.store, LogStore) else tx.settings.server.read_lane("logs", read)
    return found


def _facts(tx: Tx[LogStore], region: str, resource_arn: str) -> ResourceFacts:
    """Return the facts of ARN:log-group:GROUP, with `:*` or `:log-stream:STREAM`.

    A stream that does not exist counts as one of the owner of its group.
    """
    name, _, stream_name = resource_arn.partition(":log-group:")[2].removesuffix(":*").partition(":log-stream:")
    group = tx.store.group(region, name)
    if group is None:
        return ResourceFacts()
    stream = tx.store.stream(region, name, stream_name) if stream_name else None
    return ResourceFacts(stream.owner if stream is not None else group.owner, group.details.get("tags", {}))


def _owner_of_group(tx: Tx[LogStore], caller: Caller, params: Params, element: Any) -> str | None:
    group = tx.store.group(caller.region, element["logGroupName"])
    return group.owner if group is not None else None


def _owner_of_stream(tx: Tx[LogStore], caller: Caller, params: Params, element: Any) -> str | None:
    group = group_name(params.get("logGroupName") or params.get("logGroupIdentifier") or "")
    return tx.store.owner_of_stream(caller.region, group, element["logStreamName"])


LISTED = {
    "DescribeLogGroups": Listed(("logGroups",), _owner_of_group),
    "DescribeLogStreams": Listed(("logStreams",), _owner_of_stream),
    "DescribeMetricFilters": Listed(("metricFilters",), _owner_of_group),
    "FilterLogEvents": Listed(("events",), _owner_of_stream),
    "ListLogGroups": Listed(("logGroups",), _owner_of_group),
}
