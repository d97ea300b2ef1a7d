"""SQS: a text per parameter. Its model has almost no constraints.

The entries of a batch fail one by one, so what SendMessage checks of one message is checked with the queue, in services/sqs.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, usual_wording

OF_MESSAGES = (
    "All", "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
    "MessageDeduplicationId", "MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn",
)  # fmt: skip
OF_QUEUES = (
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
            max=10,
            code="TooManyEntriesInBatchRequest",
            text="Maximum number of entries per request are {max}. You have sent {length}.",
        ),
    )


ENTRY_ID = Limit(
    pattern="[A-Za-z0-9_-]{1,80}",
    code="InvalidBatchEntryId",
    text="A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.",
)
QUEUE_ARN = Limit(
    pattern=r"arn:[a-z-]+:sqs:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,80}(\.fifo)?",
    text="You must use this format to specify the {name}: arn:<partition>:<service>:<region>:<account-id>:<resource-id>",
)
PAGE = Limit(min=1, max=1000, text=_invalid("MaxResults", "MaxResults must be an integer between {min} and {max}."))

TABLE = ConstraintTable(
    usual_wording("InvalidParameterValue"),
    {
        "CreateQueue.Attributes<key>": _unknown(),
        "SetQueueAttributes.Attributes<key>": _unknown(),
        "GetQueueAttributes.AttributeNames[]": _unknown(*OF_QUEUES),
        "ReceiveMessage.AttributeNames[]": _unknown(*OF_MESSAGES, *OF_QUEUES[1:]),  # those of queues are ignored
        "ReceiveMessage.MessageSystemAttributeNames[]": _unknown(*OF_MESSAGES),
        "ReceiveMessage.MaxNumberOfMessages": Limit(
            min=1, max=10, text=_invalid("MaxNumberOfMessages", "Must be between {min} and {max}, if provided.")
        ),
        "ReceiveMessage.VisibilityTimeout": Limit(
            min=0, max=43_200, text=_invalid("VisibilityTimeout", "Must be between {min} and {max}, if provided.")
        ),
        "ReceiveMessage.WaitTimeSeconds": Limit(
            min=0, max=20, text=_invalid("WaitTimeSeconds", "Must be >= {min} and <= {max}, if provided.")
        ),
        "SendMessage.MessageSystemAttributes<key>": Limit(text="Message system attribute name '{value}' is invalid."),
        "SendMessageBatchRequestEntry.MessageSystemAttributes<key>": Unchecked("an entry of a batch fails alone"),
        "SendMessageBatch.Entries": _entries("SendMessageBatchRequestEntry"),
        "DeleteMessageBatch.Entries": _entries("DeleteMessageBatchRequestEntry"),
        "ChangeMessageVisibilityBatch.Entries": _entries("ChangeMessageVisibilityBatchRequestEntry"),
        "SendMessageBatchRequestEntry.Id": ENTRY_ID,
        "DeleteMessageBatchRequestEntry.Id": ENTRY_ID,
        "ChangeMessageVisibilityBatchRequestEntry.Id": ENTRY_ID,
        "StartMessageMoveTask.MaxNumberOfMessagesPerSecond": Limit(
            min=1, max=500, text=_invalid("MaxNumberOfMessagesPerSecond", "Must be between {min} and {max}.")
        ),
        "*.SourceArn": QUEUE_ARN,
        "*.DestinationArn": QUEUE_ARN,
        "ListMessageMoveTasks.MaxResults": Limit(
            min=1, max=10, text=_invalid("MaxResults", "Must be between {min} and {max}, if provided.")
        ),
        "ListQueues.MaxResults": PAGE,
        "ListDeadLetterSourceQueues.MaxResults": PAGE,
        "AddPermission.Label": Limit(
            pattern="[A-Za-z0-9_-]{1,80}",
            text=_invalid("Label", "Label can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."),
        ),
        "AddPermission.AWSAccountIds": Limit(min=1, text=_invalid("PrincipalId", "Unable to verify.")),
        "AddPermission.AWSAccountIds[]": Limit(pattern="[0-9]{12}", text=_invalid("PrincipalId", "Unable to verify.", "[{value}]")),
        "AddPermission.Actions": (
            Limit(min=1, text="The request must contain the parameter Actions."),
            Limit(max=7, code="OverLimit", status=403, text="{length} Actions were found, maximum allowed is {max}."),
        ),
        "AddPermission.Actions[]": Limit(
            enum=ACTIONS,
            text=_invalid("ActionName", "Please refer to the appropriate WSDL for a list of valid actions.", "SQS:{value}"),
        ),
    },
)
