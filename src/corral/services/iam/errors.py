"""The errors of IAM: one class per error code."""

from corral.errors import api_error

DeleteConflictException = api_error("DeleteConflictException", 409)
EntityAlreadyExistsException = api_error("EntityAlreadyExistsException", 409)
InvalidInputException = api_error("InvalidInputException")
LimitExceededException = api_error("LimitExceededException", 409)
MalformedPolicyDocumentException = api_error("MalformedPolicyDocumentException")
NoSuchEntityException = api_error("NoSuchEntityException", 404)
ValidationError = api_error("ValidationError")
