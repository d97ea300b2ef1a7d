"""`corral aws` runs the user's own aws command with Corral's endpoint and keys. Corral does not install the aws command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import click

from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import client_environment, conflicting_variables, find_endpoint
from corral.cli.errors import CliError
from corral.cli.output import print_message

VERSION_S = 15.0  # `aws --version` is stopped after this time
HOW_TO_INSTALL = (
    "install version 2 (https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html; its installer needs no root "
    "with `./aws/install -i ~/.local/aws-cli -b ~/.local/bin`), or version 1 with `pipx install awscli`."
)
SQS_OF_VERSION_1 = "version 1 of aws ignores AWS_ENDPOINT_URL for SQS, so use `corral aws sqs`, or pass --endpoint-url"
TAIL_OF_VERSION_1 = "version 1 of aws has no `aws logs tail`, so use `corral logs -f`"
_VERSION = re.compile(r"aws-cli/([0-9]+)\.\S+")


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    short_help="Run the aws command with this Corral.",
)
@data_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[AWS ARGUMENTS]...")
def aws(data: DataFolder, arguments: tuple[str, ...]) -> None:
    """Run the first aws command on PATH with Corral's endpoint and keys. All arguments are passed to aws.

    The endpoint is passed with --endpoint-url, because version 1 of aws ignores AWS_ENDPOINT_URL for SQS.
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
    warning = _warning(arguments)
    if warning and is_version_1(program):
        print_message(warning)
    os.execve(program, ["aws", *added, *arguments], environment)


def aws_program() -> str:
    """Return the path of the first aws command on PATH. Raise a CliError if there is none."""
    found = shutil.which("aws")
    if found is None:
        raise CliError(f"there is no aws command on PATH: {HOW_TO_INSTALL}")
    return found


def _warning(arguments: tuple[str, ...]) -> str | None:
    """Return a warning about what version 1 of aws does differently for these arguments, or None.

    `corral aws sqs` works with version 1, but plain `aws sqs` does not. The warning about SQS is shown only in a terminal: a script
    that calls `corral aws sqs` works, so it needs no warning.
    """
    if "sqs" in arguments and sys.stderr.isatty():
        return SQS_OF_VERSION_1
    if any(pair == ("logs", "tail") for pair in pairwise(arguments)):
        return TAIL_OF_VERSION_1
    return None


def aws_version(program: str) -> tuple[int | None, str]:
    """Run `aws --version`. Return the major version and the text, for example (2, "aws-cli/2.31.0").

    If the version is unknown, return (None, "").
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=VERSION_S)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    # Early releases of version 1 print their version to stderr.
    found = _VERSION.search(done.stdout) or _VERSION.search(done.stderr)
    return (int(found[1]), found[0]) if found else (None, "")


def is_version_1(program: str) -> bool:
    """Whether an aws command is version 1. Version 1 is a script, so a compiled program is not version 1.

    Ask a script for its version, because version 2 can be a script, too.
    """
    try:
        with open(program, "rb") as file:
            if file.read(4) == b"\x7fELF":
                return False
    except OSError:
        return False
    return aws_version(program)[0] == 1
