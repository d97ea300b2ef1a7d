"""Corral serves the AWS container APIs on your own GPU machine."""

__version__ = "0.1.0"
