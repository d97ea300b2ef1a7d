"""The errors of ECR: one class per error code."""

from corral.aws.error_classes import error_classes

__getattr__ = error_classes("ecr", globals())
