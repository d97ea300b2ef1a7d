"""The errors of CloudWatch: one class per error code."""

from corral.errors import api_error

DashboardInvalidInputError = api_error("DashboardInvalidInputError")
DashboardNotFoundError = api_error("DashboardNotFoundError", 404)
InvalidFormatFault = api_error("InvalidFormatFault")
InvalidNextToken = api_error("InvalidNextToken")
InvalidParameterCombinationException = api_error("InvalidParameterCombinationException")
InvalidParameterValueException = api_error("InvalidParameterValueException")
MissingRequiredParameterException = api_error("MissingRequiredParameterException")
ResourceNotFound = api_error("ResourceNotFound", 404)
ResourceNotFoundException = api_error("ResourceNotFoundException", 404)
ValidationException = api_error("ValidationException")  # for the query protocol, `aws/` replaces this code by ValidationError
