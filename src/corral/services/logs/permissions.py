"""The permissions that operations of CloudWatch Logs need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.services.logs.common import group_name
from corral.store import Store

STREAMS = frozenset({"DeleteLogStream", "GetLogEvents", "PutLogEvents"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    given = params.get("logGroupName") or params.get("logGroupIdentifier")
    arns: list[str]
    if given:
        part = f"log-stream:{params['logStreamName']}" if operation in STREAMS and params.get("logStreamName") else "*"
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}:{part}"]
    elif given := params.get("resourceArn"):
        is_group = ":log-group:" in given  # the handler ignores the region and the account in this ARN
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{group_name(given)}" if is_group else given]
    else:
        arns = [f"arn:aws:logs:{caller.region}:{caller.account}:log-group:*"] if operation == "DescribeLogGroups" else []
    return on_resources(f"logs:{operation}", arns, request_tags(params))
