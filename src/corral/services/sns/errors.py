"""The errors of SNS: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.errors import ApiError, api_error

AuthorizationErrorException = api_error("AuthorizationErrorException", 403)
BatchEntryIdsNotDistinctException = api_error("BatchEntryIdsNotDistinctException")
BatchRequestTooLongException = api_error("BatchRequestTooLongException")
FilterPolicyLimitExceededException = api_error("FilterPolicyLimitExceededException", 403)
InvalidParameterException = api_error("InvalidParameterException")
InvalidParameterValueException = api_error("InvalidParameterValueException")
NotFoundException = api_error("NotFoundException", 404)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
TagLimitExceededException = api_error("TagLimitExceededException")


def invalid(parameter: str, reason: str = "") -> ApiError:
    return InvalidParameterException(f"Invalid parameter: {parameter}{f' Reason: {reason}' if reason else ''}")


def no_such_topic() -> ApiError:
    return NotFoundException("Topic does not exist")


def no_such_subscription() -> ApiError:
    return NotFoundException("Subscription does not exist")
