"""The errors of SNS: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError

__getattr__ = error_classes("sns", globals())

InvalidParameterException = __getattr__("InvalidParameterException")
NotFoundException = __getattr__("NotFoundException")


def invalid(parameter: str, reason: str = "") -> ApiError:
    return InvalidParameterException(f"Invalid parameter: {parameter}{f' Reason: {reason}' if reason else ''}")


def no_such_topic() -> ApiError:
    return NotFoundException("Topic does not exist")


def no_such_subscription() -> ApiError:
    return NotFoundException("Subscription does not exist")
