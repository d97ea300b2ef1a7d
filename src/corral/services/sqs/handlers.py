"""The operations of SQS and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.sqs import message_receipts, move_tasks, queues, receive_message, send_message

HANDLERS = handlers_in("sqs", globals())

OPEN_TO_CONTAINERS = frozenset(
    {
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
        "DeleteMessage",
        "DeleteMessageBatch",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListQueues",
        "ReceiveMessage",
        "SendMessage",
        "SendMessageBatch",
    }
)
