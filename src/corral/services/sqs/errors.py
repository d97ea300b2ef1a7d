"""The errors of SQS: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError, api_error

__getattr__ = error_classes("sqs", globals())

InvalidParameterValue = api_error("InvalidParameterValue")
MissingParameter = api_error("MissingParameter")
OverLimit = api_error("OverLimit", 403)
PurgeQueueInProgress = api_error("PurgeQueueInProgress", 403)
QueueDoesNotExist = __getattr__("QueueDoesNotExist")
ReceiptHandleIsInvalid = api_error("ReceiptHandleIsInvalid", 404)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)

NOT_FOR_THIS_TYPE = "The request include parameter that is not valid for this queue type."  # AWS's text


def no_such_queue() -> ApiError:
    return QueueDoesNotExist("The specified queue does not exist.")


def invalid(value: object, parameter: str, reason: str) -> ApiError:
    return InvalidParameterValue(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")
