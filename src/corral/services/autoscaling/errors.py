"""The errors of Auto Scaling: one class per error code."""

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError, api_error

__getattr__ = error_classes("autoscaling", globals())

ValidationError = api_error("ValidationError")


def group_not_found(name: str) -> ApiError:
    return ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")


def instance_not_in_group(instance_id: str, group: str | None = None) -> ApiError:
    if group is None:
        return ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")
    return ValidationError(f"The instance {instance_id} is not part of Auto Scaling group {group}.")
