"""The operations of SQS and their handlers."""

from corral.services.sqs import message_receipts, move_tasks, queues, receive_message, send_message

HANDLERS = {
    "CreateQueue": queues.create_queue,
    "DeleteQueue": queues.delete_queue,
    "GetQueueUrl": queues.get_queue_url,
    "ListQueues": queues.list_queues,
    "GetQueueAttributes": queues.get_queue_attributes,
    "SetQueueAttributes": queues.set_queue_attributes,
    "PurgeQueue": queues.purge_queue,
    "TagQueue": queues.tag_queue,
    "UntagQueue": queues.untag_queue,
    "ListQueueTags": queues.list_queue_tags,
    "AddPermission": queues.add_permission,
    "RemovePermission": queues.remove_permission,
    "SendMessage": send_message.send_message,
    "SendMessageBatch": send_message.send_message_batch,
    "ReceiveMessage": receive_message.receive_message,
    "DeleteMessage": message_receipts.delete_message,
    "DeleteMessageBatch": message_receipts.delete_message_batch,
    "ChangeMessageVisibility": message_receipts.change_message_visibility,
    "ChangeMessageVisibilityBatch": message_receipts.change_message_visibility_batch,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "StartMessageMoveTask": move_tasks.start_message_move_task,
    "CancelMessageMoveTask": move_tasks.cancel_message_move_task,
    "ListMessageMoveTasks": move_tasks.list_message_move_tasks,
}

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
