"""The permissions that operations of SQS need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.services.sqs.move_tasks import task_with_handle
from corral.services.sqs.queue_names import arn_of, queue_with_arn
from corral.store import Store

# Operation → action, for actions whose name is not the operation's.
ACTIONS = {
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
    "DeleteMessageBatch": "DeleteMessage",
    "SendMessageBatch": "SendMessage",
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    name = params.get("QueueName") or params.get("QueueUrl", "").rstrip("/").rpartition("/")[2]
    arns = [f"arn:aws:sqs:{caller.region}:{caller.account}:{name}"] if name else []
    if operation == "CancelMessageMoveTask":
        arns = [_moved_queue_arn(tx, params.get("TaskHandle", ""))]
    arns += [_queue_arn(tx, params[member]) for member in ("SourceArn", "DestinationArn") if params.get(member)]  # of move tasks
    return on_resources(f"sqs:{ACTIONS.get(operation, operation)}", arns if operation != "ListQueues" else (), request_tags(params))


def _queue_arn(tx: Tx[Store], given: str) -> str:
    """The ARN of the queue that the handler will find. The handler ignores the partition in `given`."""
    queue = queue_with_arn(tx, given)
    return given if queue is None else arn_of(tx, queue)


def _moved_queue_arn(tx: Tx[Store], handle: str) -> str:
    try:
        return _queue_arn(tx, task_with_handle(tx, handle).source_arn)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return UNKNOWN_RESOURCE
