"""The permissions that operations of SQS need, and the facts about queues that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, of_other_owner, on_resources, request_tags, with_tags
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.model.json_documents import read_json
from corral.operations.listings import Listed
from corral.services.sqs.move_tasks import task_with_handle
from corral.services.sqs.queue_names import arn_of, queue_with_arn
from corral.store import Store

# Operation → action, for actions whose name is not the operation's.
ACTIONS = {
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
    "DeleteMessageBatch": "DeleteMessage",
    "SendMessageBatch": "SendMessage",
}
# Operations on messages. Their requests have neither tags nor attributes of a queue.
MESSAGES = frozenset({*ACTIONS, *ACTIONS.values(), "ReceiveMessage"})
# Operations on the move tasks of a queue → the further actions that AWS requires on this queue.
MOVES = {
    "StartMessageMoveTask": ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes"),
    "CancelMessageMoveTask": ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes"),
    "ListMessageMoveTasks": ("GetQueueAttributes",),
}


def _owner_at(tx: Tx[Store], caller: Caller, params: Params, url: str) -> str:
    queue = tx.store.queues.queue(caller.region, url.rpartition("/")[2])
    return queue.owner if queue is not None else ""


LISTED = {
    "ListDeadLetterSourceQueues": Listed(("queueUrls",), _owner_at),
    "ListQueues": Listed(("QueueUrls",), _owner_at),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation == "ListQueues":
        return on_resources("sqs:ListQueues", (), {})
    if operation in MOVES:
        return _of_move_task(tx, operation, params)
    name = params.get("QueueName") or params.get("QueueUrl", "").rstrip("/").rpartition("/")[2]
    resource = f"arn:aws:sqs:{caller.region}:{caller.account}:{name}"
    if operation in MESSAGES:
        return [Permission(f"sqs:{ACTIONS.get(operation, operation)}", resource)]
    needed = [Permission(f"sqs:{operation}", resource, request_tags(params))]
    if operation == "CreateQueue":
        needed += with_tags("sqs:TagQueue", [resource], params)
    return needed + _to_dead_letters(tx, caller, params)


def _of_move_task(tx: Tx[Store], operation: str, params: Params) -> list[Permission]:
    """The permissions to receive from the source of a move task, and to send to its destination."""
    source = _moved_queue_arn(tx, params["TaskHandle"]) if "TaskHandle" in params else _queue_arn(tx, params.get("SourceArn", ""))
    needed = [Permission(f"sqs:{action}", source) for action in (operation, *MOVES[operation])]
    if params.get("DestinationArn"):
        needed.append(Permission("sqs:SendMessage", _queue_arn(tx, params["DestinationArn"])))
    return needed


def _to_dead_letters(tx: Tx[Store], caller: Caller, params: Params) -> list[Permission]:
    """The permission to send to the dead-letter queue in a request, if it belongs to another owner."""
    attributes = params.get("Attributes")
    redrive = attributes.get("RedrivePolicy") if isinstance(attributes, dict) else None
    try:
        target = read_json(redrive).get("deadLetterTargetArn") if redrive else None
    except (ValueError, AttributeError):  # the handler raises the error later, if the caller has the permissions
        return []
    queue = queue_with_arn(tx, str(target)) if target else None
    return of_other_owner(caller, queue.owner, "sqs:SendMessage", arn_of(tx, queue)) if queue is not None else []


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    queue = queue_with_arn(tx, permission.resource)
    if queue is None:
        return ResourceFacts()
    return ResourceFacts(queue.owner, queue.tags, queue.attributes.get("Policy"))


def _queue_arn(tx: Tx[Store], given: str) -> str:
    """The ARN of the queue that the handler will find. The handler ignores the partition in `given`."""
    queue = queue_with_arn(tx, given)
    return given if queue is None else arn_of(tx, queue)


def _moved_queue_arn(tx: Tx[Store], handle: str) -> str:
    try:
        return _queue_arn(tx, task_with_handle(tx, handle).source_arn)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return UNKNOWN_RESOURCE
