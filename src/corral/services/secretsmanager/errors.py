"""The errors of Secrets Manager: one class per error code."""

from corral.aws.error_classes import error_classes
from corral.core.errors import api_error

ValidationException = api_error("ValidationException")
AccessDeniedException = api_error("AccessDeniedException")

__getattr__ = error_classes("secretsmanager", globals())
