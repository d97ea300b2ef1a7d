"""Corral puts your GPUs behind the AWS container APIs."""

__version__ = "0.1.0"
