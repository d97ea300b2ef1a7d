"""The errors of CloudFormation: one class per error code, and the texts that several operations share."""

from corral.aws.error_classes import error_classes
from corral.core.errors import ApiError
from corral.template_types.schemas import ValidationError as ValidationError

__getattr__ = error_classes("cloudformation", globals())

ChangeSetNotFound = __getattr__("ChangeSetNotFound")


def no_such_stack(given: str) -> ApiError:
    """Return the error. Its text must end with "does not exist", because then `aws cloudformation deploy` creates the stack."""
    return ValidationError(f"Stack with id {given} does not exist")


def absent_stack(given: str) -> ApiError:
    """Return the error of other operations than those that describe stacks: AWS has two texts."""
    return ValidationError(f"Stack [{given}] does not exist")


def no_such_change_set(given: str) -> ApiError:
    return ChangeSetNotFound(f"ChangeSet [{given}] does not exist")
