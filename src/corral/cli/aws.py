"""`corral aws` runs the aws command with Corral's endpoint and keys."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client_environment, conflicting_variables, find_endpoint
from corral.cli.errors import CliError


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    short_help="Run the aws command with this Corral.",
)
@data_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[AWS ARGUMENTS]...")
def aws(data: DataFolder, arguments: tuple[str, ...]) -> None:
    """Run the aws command with Corral's endpoint and keys. All arguments are passed to aws.

    The endpoint is passed with --endpoint-url, because version 1 of aws ignores AWS_ENDPOINT_URL for some services.
    """
    program = aws_program()
    endpoint, environment = find_endpoint(data), dict(os.environ)
    url = endpoint.endpoint_url or environment.get("AWS_ENDPOINT_URL")
    if endpoint.endpoint_url:
        for name in conflicting_variables(environment):
            del environment[name]
        environment |= client_environment(endpoint)
    given = any(argument.partition("=")[0] == "--endpoint-url" for argument in arguments)
    added = ["--endpoint-url", url] if url and not given else []
    os.execve(program, ["aws", *added, *arguments], environment)


def aws_program() -> str:
    """Return the path of the aws command. Prefer the aws command that was installed with Corral. Otherwise search PATH."""
    installed = Path(sys.executable).parent / "aws"
    found = str(installed) if os.access(installed, os.X_OK) else shutil.which("aws")
    if found is None:
        raise CliError(f"the aws command is neither at {installed} nor on PATH: install it with `pip install awscli`.")
    return found
