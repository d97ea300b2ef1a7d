"""The errors of Corral's own operations: one class per error code."""

from corral.aws.error_classes import error_classes

__getattr__ = error_classes("corral", globals())
