"""The names of SQS's members and errors in the older query protocol. botocore's current model of SQS has only the names for json.

Old clients still use the query protocol: boto3 before 1.29, boto2 and many others. New clients also need the old error codes, which
they read from the header `x-amzn-query-error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SQS_XML_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"

# List shape -> the name of an element. All lists are flattened, so this name replaces the name of the member.
SQS_ELEMENTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
# Map shape -> three names: of an entry, of its key and of its value.
SQS_ENTRIES = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}

# Error shape -> its code in the query protocol. Errors that are not listed have the name of their shape as code.
SQS_QUERY_CODES = {
    "BatchEntryIdsNotDistinct": "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": "AWS.SimpleQueueService.BatchRequestTooLong",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
    "InvalidBatchEntryId": "AWS.SimpleQueueService.InvalidBatchEntryId",
    "KmsAccessDenied": "KMS.AccessDeniedException",
    "KmsDisabled": "KMS.DisabledException",
    "KmsInvalidKeyUsage": "KMS.InvalidKeyUsageException",
    "KmsInvalidState": "KMS.InvalidStateException",
    "KmsNotFound": "KMS.NotFoundException",
    "KmsOptInRequired": "KMS.OptInRequired",
    "KmsThrottled": "KMS.ThrottlingException",
    "MessageNotInflight": "AWS.SimpleQueueService.MessageNotInflight",
    "PurgeQueueInProgress": "AWS.SimpleQueueService.PurgeQueueInProgress",
    "QueueDeletedRecently": "AWS.SimpleQueueService.QueueDeletedRecently",
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
    "UnsupportedOperation": "AWS.SimpleQueueService.UnsupportedOperation",
}

# Error code in the query protocol -> its name in the json protocol, for errors that the model lacks.
SQS_JSON_NAMES = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
}
SQS_ERROR_PREFIX = "com.amazonaws.sqs#"


def sqs_query_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return botocore's model of SQS with the names of the query protocol."""
    return {
        "metadata": {**description["metadata"], "protocol": "query", "xmlNamespace": SQS_XML_NAMESPACE},
        "operations": {name: _operation(name, body) for name, body in description["operations"].items()},
        "shapes": {name: _shape(name, body) for name, body in description["shapes"].items()},
    }


def _operation(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if "output" not in body:
        return dict(body)
    return {**body, "output": {**body["output"], "resultWrapper": f"{name}Result"}}


def _shape(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if name in SQS_ELEMENTS:
        return {**body, "flattened": True, "member": {**body["member"], "locationName": SQS_ELEMENTS[name]}}
    if name in SQS_ENTRIES:
        _, key, value = SQS_ENTRIES[name]
        named = {"key": {**body["key"], "locationName": key}, "value": {**body["value"], "locationName": value}}
        return {**body, "flattened": True, **named}
    if body["type"] != "structure":
        return dict(body)
    return {**body, "members": {member: _member(ref) for member, ref in body["members"].items()}}


def _member(ref: Mapping[str, Any]) -> dict[str, Any]:
    if ref["shape"] in SQS_ENTRIES:
        return {**ref, "locationName": SQS_ENTRIES[ref["shape"]][0]}
    return dict(ref)
