"""Finds the constraint table of a service."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from corral.aws.constraints.terms import Table, usual

# Services with a table of their own, imported with their first request.
WITH_TABLE = frozenset({"cloudwatch", "ec2", "ecr", "ecs", "iam", "logs", "s3", "sqs", "ssm", "sts"})
CODES = {"query": "ValidationError", "ec2": "InvalidParameterValue", "rest-xml": "InvalidArgument"}


@cache
def table_of(service: str, protocol: str) -> Table:
    """The table of a service; one that has none uses the usual wording with its protocol's code."""
    if service in WITH_TABLE:
        table: Table = import_module(f"corral.aws.constraints.{service}").TABLE
        return table
    return Table(usual(CODES.get(protocol, "ValidationException")))
