"""The errors of Application Auto Scaling: one class per error code."""

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError

__getattr__ = error_classes("application-autoscaling", globals())

ObjectNotFoundException = __getattr__("ObjectNotFoundException")


def not_found(kind: str, resource: str, dimension: str, name: str = "") -> ApiError:
    """Return the error for a scalable target, a policy or a scheduled action that does not exist."""
    place = f"service namespace: ecs, resource ID: {resource}, scalable dimension: {dimension}"
    return ObjectNotFoundException(f"No {kind} for {place}{f', {name}' if name else ''}")
