"""The permissions that operations of SNS need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.store import Store

ACTIONS = {"PublishBatch": "Publish"}  # operation → action, where their names differ


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on the topic. As on AWS, operations on one subscription have no resource."""
    if operation == "CreateTopic":
        arns = [f"arn:aws:sns:{caller.region}:{caller.account}:{params.get('Name', '')}"]
    else:
        given = params.get("TopicArn") or params.get("TargetArn") or params.get("ResourceArn")
        arns = [given] if given else []
    return on_resources(f"sns:{ACTIONS.get(operation, operation)}", arns, request_tags(params))
