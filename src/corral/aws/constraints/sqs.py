"""The constraints of SQS. botocore's model of SQS has almost no constraints, so the numbers are in `model/sqs_limits.py`.

This table does not cover the contents of messages. The handlers in `services/sqs/` check them, because an invalid message in a
batch request must not fail the other messages.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, usual_wording
from corral.model.sqs_limits import (
    ACTIONS_MAX,
    BATCH_ENTRY_ID_MAX_CHARACTERS,
    BATCH_MAX_ENTRIES,
    LABEL_MAX_CHARACTERS,
    MOVE_RATE_MAX,
    MOVE_TASKS_MAX,
    PAGE_MAX,
    QUEUE_NAME_MAX_CHARACTERS,
    RECEIVE_MAX_MESSAGES,
    VISIBILITY_MAX_S,
    WAIT_MAX_S,
)

MESSAGE_ATTRIBUTES = (
    "All", "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
    "MessageDeduplicationId", "MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn",
)  # fmt: skip
QUEUE_ATTRIBUTES = (
    "All", "Policy", "VisibilityTimeout", "MaximumMessageSize", "MessageRetentionPeriod", "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible", "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
    "ApproximateNumberOfMessagesDelayed", "DelaySeconds", "ReceiveMessageWaitTimeSeconds", "RedrivePolicy", "FifoQueue",
    "ContentBasedDeduplication", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "DeduplicationScope", "FifoThroughputLimit",
    "RedriveAllowPolicy", "SqsManagedSseEnabled",
)  # fmt: skip
ACTIONS = (
    "*", "AddPermission", "CancelMessageMoveTask", "ChangeMessageVisibility", "DeleteMessage", "DeleteQueue",
    "GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMessageMoveTasks", "ListQueueTags", "PurgeQueue",
    "ReceiveMessage", "RemovePermission", "SendMessage", "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
)  # fmt: skip


def _invalid(parameter: str, reason: str, shown: str = "{value}") -> str:
    return f"Value {shown} for parameter {parameter} is invalid. Reason: {reason}"


def _unknown(*names: str) -> Limit:
    return Limit(enum=names or None, code="InvalidAttributeName", text="Unknown Attribute {value}.")


def _entries(name: str) -> tuple[Limit, ...]:
    return (
        Limit(min=1, code="EmptyBatchRequest", text=f"There should be at least one {name} in the request."),
        Limit(
            max=BATCH_MAX_ENTRIES,
            code="TooManyEntriesInBatchRequest",
            text="Maximum number of entries per request are {max}. You have sent {length}.",
        ),
    )


ENTRY_ID = Limit(
    pattern=f"[A-Za-z0-9_-]{{1,{BATCH_ENTRY_ID_MAX_CHARACTERS}}}",
    code="InvalidBatchEntryId",
    text="A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    f"It can be at most {BATCH_ENTRY_ID_MAX_CHARACTERS} letters long.",
)
QUEUE_ARN = Limit(
    pattern=rf"arn:[a-z-]+:sqs:[a-z0-9-]+:\d{{12}}:[A-Za-z0-9_-]{{1,{QUEUE_NAME_MAX_CHARACTERS}}}(\.fifo)?",
    text="You must use this format to specify the {name}: arn:<partition>:<service>:<region>:<account-id>:<resource-id>",
)
PAGE = Limit(min=1, max=PAGE_MAX, text=_invalid("MaxResults", "MaxResults must be an integer between {min} and {max}."))

TABLE = ConstraintTable(
    usual_wording("InvalidParameterValue"),
    {
        "CreateQueue.Attributes<key>": _unknown(),
        "SetQueueAttributes.Attributes<key>": _unknown(),
        "GetQueueAttributes.AttributeNames[]": _unknown(*QUEUE_ATTRIBUTES),
        # SQS accepts the names of queue attributes here, and ignores them.
        "ReceiveMessage.AttributeNames[]": _unknown(*MESSAGE_ATTRIBUTES, *QUEUE_ATTRIBUTES[1:]),
        "ReceiveMessage.MessageSystemAttributeNames[]": _unknown(*MESSAGE_ATTRIBUTES),
        "ReceiveMessage.MaxNumberOfMessages": Limit(
            min=1,
            max=RECEIVE_MAX_MESSAGES,
            text=_invalid("MaxNumberOfMessages", "Must be between {min} and {max}, if provided."),
        ),
        "ReceiveMessage.VisibilityTimeout": Limit(
            min=0, max=VISIBILITY_MAX_S, text=_invalid("VisibilityTimeout", "Must be between {min} and {max}, if provided.")
        ),
        "ReceiveMessage.WaitTimeSeconds": Limit(
            min=0, max=WAIT_MAX_S, text=_invalid("WaitTimeSeconds", "Must be >= {min} and <= {max}, if provided.")
        ),
        "SendMessage.MessageSystemAttributes<key>": Limit(text="Message system attribute name '{value}' is invalid."),
        "SendMessageBatchRequestEntry.MessageSystemAttributes<key>": Unchecked("the handler checks each entry of a batch"),
        "SendMessageBatch.Entries": _entries("SendMessageBatchRequestEntry"),
        "DeleteMessageBatch.Entries": _entries("DeleteMessageBatchRequestEntry"),
        "ChangeMessageVisibilityBatch.Entries": _entries("ChangeMessageVisibilityBatchRequestEntry"),
        "SendMessageBatchRequestEntry.Id": ENTRY_ID,
        "DeleteMessageBatchRequestEntry.Id": ENTRY_ID,
        "ChangeMessageVisibilityBatchRequestEntry.Id": ENTRY_ID,
        "StartMessageMoveTask.MaxNumberOfMessagesPerSecond": Limit(
            min=1, max=MOVE_RATE_MAX, text=_invalid("MaxNumberOfMessagesPerSecond", "Must be between {min} and {max}.")
        ),
        "*.SourceArn": QUEUE_ARN,
        "*.DestinationArn": QUEUE_ARN,
        "ListMessageMoveTasks.MaxResults": Limit(
            min=1, max=MOVE_TASKS_MAX, text=_invalid("MaxResults", "Must be between {min} and {max}, if provided.")
        ),
        "ListQueues.MaxResults": PAGE,
        "ListDeadLetterSourceQueues.MaxResults": PAGE,
        "AddPermission.Label": Limit(
            pattern=f"[A-Za-z0-9_-]{{1,{LABEL_MAX_CHARACTERS}}}",
            text=_invalid(
                "Label",
                f"Label can only include alphanumeric characters, hyphens, or underscores. 1 to {LABEL_MAX_CHARACTERS} in length.",
            ),
        ),
        "AddPermission.AWSAccountIds": Limit(min=1, text=_invalid("PrincipalId", "Unable to verify.")),
        "AddPermission.AWSAccountIds[]": Limit(pattern="[0-9]{12}", text=_invalid("PrincipalId", "Unable to verify.", "[{value}]")),
        "AddPermission.Actions": (
            Limit(min=1, text="The request must contain the parameter Actions."),
            Limit(max=ACTIONS_MAX, code="OverLimit", status=403, text="{length} Actions were found, maximum allowed is {max}."),
        ),
        "AddPermission.Actions[]": Limit(
            enum=ACTIONS,
            text=_invalid("ActionName", "Please refer to the appropriate WSDL for a list of valid actions.", "SQS:{value}"),
        ),
    },
)
