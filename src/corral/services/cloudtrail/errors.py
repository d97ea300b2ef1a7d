"""The errors of CloudTrail: one class per error code."""

from corral.aws.error_classes import error_classes

__getattr__ = error_classes("cloudtrail", globals())
