"""The errors of CloudFormation: one class per error code, and the texts that several operations share."""

from corral.errors import ApiError, api_error

AlreadyExistsException = api_error("AlreadyExistsException")
ChangeSetNotFound = api_error("ChangeSetNotFound", 404)
InsufficientCapabilitiesException = api_error("InsufficientCapabilitiesException")
InvalidChangeSetStatus = api_error("InvalidChangeSetStatus")
TokenAlreadyExistsException = api_error("TokenAlreadyExistsException")
ValidationError = api_error("ValidationError")


def no_such_stack(given: str) -> ApiError:
    """`aws cloudformation deploy` creates the stack if the message ends with "does not exist"."""
    return ValidationError(f"Stack with id {given} does not exist")


def no_such_change_set(given: str) -> ApiError:
    return ChangeSetNotFound(f"ChangeSet [{given}] does not exist")
