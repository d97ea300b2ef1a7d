"""`corral aws`: the aws command with the endpoint filled in."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import find, in_the_way, variables


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    short_help="Run the aws command against this Corral.",
)
@data_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[AWS ARGUMENTS]...")
def aws(data: Data, arguments: tuple[str, ...]) -> None:
    """Run the aws command with the endpoint and the keys filled in; everything after `aws` is its own.

    version 1 of it ignores AWS_ENDPOINT_URL for some services, so the endpoint is given as an option.
    """
    program = aws_program()
    where, environment = find(data), dict(os.environ)
    endpoint = where.endpoint_url or environment.get("AWS_ENDPOINT_URL")
    if where.endpoint_url:
        for name in in_the_way(environment):
            del environment[name]
        environment |= variables(where)
    given = any(word.partition("=")[0] == "--endpoint-url" for word in arguments)
    added = ["--endpoint-url", endpoint] if endpoint and not given else []
    os.execve(program, ["aws", *added, *arguments], environment)


def aws_program() -> str:
    """The one installed with Corral, else the user's own."""
    beside = Path(sys.executable).parent / "aws"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("aws")
    if found is None:
        raise Failed(f"there is no aws command, neither {beside} nor on PATH: pip install awscli")
    return found
