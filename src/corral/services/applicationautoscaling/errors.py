"""The errors of Application Auto Scaling: one class per error code."""

from corral.errors import ApiError, api_error

InvalidNextTokenException = api_error("InvalidNextTokenException")
LimitExceededException = api_error("LimitExceededException")
ObjectNotFoundException = api_error("ObjectNotFoundException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
TooManyTagsException = api_error("TooManyTagsException")
ValidationException = api_error("ValidationException")


def not_found(kind: str, resource: str, dimension: str, name: str = "") -> ApiError:
    """Return the error for a scalable target, a policy or a scheduled action that does not exist."""
    place = f"service namespace: ecs, resource ID: {resource}, scalable dimension: {dimension}"
    return ObjectNotFoundException(f"No {kind} for {place}{f', {name}' if name else ''}")
