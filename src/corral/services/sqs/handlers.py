"""The operations of SQS, and who serves them."""

from corral.services.sqs import deleting, moving, permissions, queues, receiving, sending, tags

HANDLERS = {
    "CreateQueue": queues.create_queue,
    "DeleteQueue": queues.delete_queue,
    "GetQueueUrl": queues.get_queue_url,
    "ListQueues": queues.list_queues,
    "GetQueueAttributes": queues.get_queue_attributes,
    "SetQueueAttributes": queues.set_queue_attributes,
    "PurgeQueue": queues.purge_queue,
    "TagQueue": tags.tag_queue,
    "UntagQueue": tags.untag_queue,
    "ListQueueTags": tags.list_queue_tags,
    "AddPermission": permissions.add_permission,
    "RemovePermission": permissions.remove_permission,
    "SendMessage": sending.send_message,
    "SendMessageBatch": sending.send_message_batch,
    "ReceiveMessage": receiving.receive_message,
    "DeleteMessage": deleting.delete_message,
    "DeleteMessageBatch": deleting.delete_message_batch,
    "ChangeMessageVisibility": deleting.change_message_visibility,
    "ChangeMessageVisibilityBatch": deleting.change_message_visibility_batch,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "StartMessageMoveTask": moving.start_message_move_task,
    "CancelMessageMoveTask": moving.cancel_message_move_task,
    "ListMessageMoveTasks": moving.list_message_move_tasks,
}
