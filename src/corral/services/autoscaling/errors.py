"""The errors of Auto Scaling: one class per error code."""

from corral.errors import ApiError, api_error

ActiveInstanceRefreshNotFoundFault = api_error("ActiveInstanceRefreshNotFoundFault")
AlreadyExistsFault = api_error("AlreadyExistsFault")
IdempotentParameterMismatchError = api_error("IdempotentParameterMismatchError")
InstanceRefreshInProgressFault = api_error("InstanceRefreshInProgressFault")
InvalidNextToken = api_error("InvalidNextToken")
IrreversibleInstanceRefreshFault = api_error("IrreversibleInstanceRefreshFault")
LimitExceededFault = api_error("LimitExceededFault")
ResourceContentionFault = api_error("ResourceContentionFault", 500)
ResourceInUseFault = api_error("ResourceInUseFault")
ScalingActivityInProgressFault = api_error("ScalingActivityInProgressFault")
ValidationError = api_error("ValidationError")


def group_not_found(name: str) -> ApiError:
    return ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")


def instance_not_in_group(instance_id: str, group: str | None = None) -> ApiError:
    if group is None:
        return ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")
    return ValidationError(f"The instance {instance_id} is not part of Auto Scaling group {group}.")
