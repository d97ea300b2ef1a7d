"""The errors of SQS: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.errors import ApiError, api_error

BatchEntryIdsNotDistinct = api_error("BatchEntryIdsNotDistinct")
BatchRequestTooLong = api_error("BatchRequestTooLong")
InvalidAddress = api_error("InvalidAddress")
InvalidAttributeName = api_error("InvalidAttributeName")
InvalidAttributeValue = api_error("InvalidAttributeValue")
InvalidMessageContents = api_error("InvalidMessageContents")
InvalidParameterValue = api_error("InvalidParameterValue")
MessageNotInflight = api_error("MessageNotInflight")
MissingParameter = api_error("MissingParameter")
OverLimit = api_error("OverLimit", 403)
PurgeQueueInProgress = api_error("PurgeQueueInProgress", 403)
QueueDoesNotExist = api_error("QueueDoesNotExist")
QueueNameExists = api_error("QueueNameExists")
ReceiptHandleIsInvalid = api_error("ReceiptHandleIsInvalid", 404)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
UnsupportedOperation = api_error("UnsupportedOperation")

NOT_FOR_THIS_TYPE = "The request include parameter that is not valid for this queue type."  # AWS's text


def no_such_queue() -> ApiError:
    return QueueDoesNotExist("The specified queue does not exist.")


def invalid(value: object, parameter: str, reason: str) -> ApiError:
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")
