"""The errors of Lambda: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.errors import ApiError, api_error

InvalidParameterValueException = api_error("InvalidParameterValueException")
InvalidRequestContentException = api_error("InvalidRequestContentException")
PolicyLengthExceededException = api_error("PolicyLengthExceededException")
PreconditionFailedException = api_error("PreconditionFailedException", 412)
RequestTooLargeException = api_error("RequestTooLargeException", 413)
ResourceConflictException = api_error("ResourceConflictException", 409)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
ServiceException = api_error("ServiceException", 500)
TooManyRequestsException = api_error("TooManyRequestsException", 429)

ISOLATED = (
    "Corral was started with --isolate, so it runs no Lambda functions: they are processes of this machine, without a container. "
    "Start Corral with --no-isolate, or run the code as an ECS task."
)


def no_such_function(arn: str) -> ApiError:
    return ResourceNotFoundException(f"Function not found: {arn}")
