"""The errors of CloudWatch: one class per error code."""

from corral.aws.error_classes import error_classes

__getattr__ = error_classes("cloudwatch", globals())
