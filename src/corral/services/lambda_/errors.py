"""The errors of Lambda: one class per error code, and the texts that several operations share."""

from __future__ import annotations

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError, api_error

__getattr__ = error_classes("lambda", globals())

ResourceNotFoundException = __getattr__("ResourceNotFoundException")

ValidationException = api_error("ValidationException")  # an error of all operations, which the model lacks

ISOLATED = (
    "Corral was started with --isolate, so it runs no Lambda functions: they are processes of this machine, without a container. "
    "Start Corral with --no-isolate, or run the code as an ECS task."
)


def no_such_function(arn: str) -> ApiError:
    return ResourceNotFoundException(f"Function not found: {arn}")
