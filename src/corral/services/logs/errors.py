"""The errors of CloudWatch Logs: one class per error code."""

from corral.errors import api_error

InvalidParameterException = api_error("InvalidParameterException")
LimitExceededException = api_error("LimitExceededException")
ResourceAlreadyExistsException = api_error("ResourceAlreadyExistsException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
TooManyTagsException = api_error("TooManyTagsException")
ValidationException = api_error("ValidationException")
