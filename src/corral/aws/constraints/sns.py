"""The constraints of SNS that botocore's model lacks.

This table does not cover constraints that depend on the topic or on the protocol of the subscription. The handlers in
`services/sns/` check them.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

BATCH_MAX_ENTRIES = 10
ID_MAX_CHARACTERS = 80
PROTOCOLS = ("application", "email", "email-json", "firehose", "http", "https", "lambda", "sms", "sqs")
ACTIONS = (
    "*", "AddPermission", "DeleteTopic", "GetDataProtectionPolicy", "GetTopicAttributes", "ListSubscriptionsByTopic",
    "ListTagsForResource", "Publish", "PutDataProtectionPolicy", "RemovePermission", "SetTopicAttributes", "Subscribe",
)  # fmt: skip

TABLE = ConstraintTable(
    usual_wording("ValidationError"),
    {
        "Subscribe.Protocol": Limit(
            enum=PROTOCOLS,
            code="InvalidParameterException",
            text="Invalid parameter: Amazon SNS does not support this protocol string: {value}",
        ),
        "PublishBatch.PublishBatchRequestEntries": (
            Limit(min=1, code="EmptyBatchRequestException", text="The batch request doesn't contain any entries."),
            Limit(
                max=BATCH_MAX_ENTRIES,
                code="TooManyEntriesInBatchRequestException",
                text="The batch request contains more entries than permissible.",
            ),
        ),
        "PublishBatchRequestEntry.Id": Limit(
            pattern=f"[A-Za-z0-9_-]{{1,{ID_MAX_CHARACTERS}}}",
            code="InvalidBatchEntryIdException",
            text="The Id of a batch entry in a batch request doesn't abide by the specification.",
        ),
        "AddPermission.Label": Limit(
            pattern=f"[A-Za-z0-9_-]{{1,{ID_MAX_CHARACTERS}}}", code="InvalidParameterException", text="Invalid parameter: Label"
        ),
        "AddPermission.AWSAccountId": Limit(min=1, code="InvalidParameterException", text="Invalid parameter: AWSAccountId"),
        "AddPermission.AWSAccountId[]": Limit(
            pattern="[0-9]{12}", code="InvalidParameterException", text="Invalid parameter: AWSAccountId"
        ),
        "AddPermission.ActionName": Limit(min=1, code="InvalidParameterException", text="Invalid parameter: ActionName"),
        "AddPermission.ActionName[]": Limit(
            enum=ACTIONS,
            code="InvalidParameterException",
            text="Invalid parameter: Policy statement action out of service scope!",
        ),
    },
)
