"""The errors of IAM: one class per error code."""

from corral.aws.error_classes import error_classes
from corral.core.errors import api_error

__getattr__ = error_classes("iam", globals())

AccessDenied = api_error("AccessDenied", 403)
ValidationError = api_error("ValidationError")
