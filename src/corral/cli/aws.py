"""`corral aws` runs the user's own aws command with Corral's endpoint and keys. Corral does not install the aws command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from glob import glob
from itertools import pairwise

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client_environment, conflicting_variables, find_endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message

VERSION_S = 15.0  # `aws --version` is stopped after this time
HOW_TO_INSTALL = (
    "install version 2 (https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html; its installer needs no root "
    "with `./aws/install -i ~/.local/aws-cli -b ~/.local/bin`), or version 1 with `pipx install awscli`."
)
TAIL_OF_VERSION_1 = "version 1 of aws has no `aws logs tail`, so use `corral logs -f`"
ENVIRONMENT_OF_VERSION_1 = (
    "the aws command on PATH ({}) is version 1, which sends the calls of `aws sqs` to AWS itself: use `corral aws sqs`, or pass "
    "--endpoint-url, or install version 2."
)
HEAD_BYTES = 256
OWN_DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "aws", "data")  # the model of Corral's own service
_FOLDER = re.compile(r"/awscli-([0-9]+)\.[^/]*$")
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
    environment["AWS_DATA_PATH"] = os.pathsep.join(filter(None, (OWN_DATA, environment.get("AWS_DATA_PATH"))))
    given = any(argument.partition("=")[0] == "--endpoint-url" for argument in arguments)
    added = ["--endpoint-url", url] if url and not given else []
    if any(pair == ("logs", "tail") for pair in pairwise(arguments)) and is_version_1(program):
        print_message(TAIL_OF_VERSION_1)
    os.execve(program, ["aws", *added, *arguments], environment)


def aws_program() -> str:
    """Return the path of the first aws command on PATH. Raise a CliError if there is none."""
    found = shutil.which("aws")
    if found is None:
        raise CliError(f"there is no aws command on PATH: {HOW_TO_INSTALL}")
    return found


def warn_of_version_1() -> None:
    """Print a message if the aws command ignores the endpoint that `corral env` sets. The output of `corral env` is not changed.

    In a terminal, run `aws --version` if the files of the command do not show its version, for example those of pyenv.
    """
    program = shutil.which("aws")
    if program is not None and (is_version_1(program) if sys.stderr.isatty() else installed_version(program) == 1):
        print_message(ENVIRONMENT_OF_VERSION_1.format(program))


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
    """Whether an aws command is version 1. If its files do not show the version, run `aws --version`."""
    found = installed_version(program)
    return (aws_version(program)[0] if found is None else found) == 1


def installed_version(program: str) -> int | None:
    """Return the major version of an aws command without running it, because that takes up to a second. None: it is not known.

    A compiled program is version 2. Version 1 is a Python script, and version 2 can be one, too. The version of a script is in the
    name of the folder with its metadata: `awscli-1.46.2.dist-info`.
    """
    try:
        with open(program, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return None
    if head.startswith(b"\x7fELF"):
        return 2
    first = os.fsdecode(head.partition(b"\n")[0])
    if not first.startswith("#!") or "python" not in first:
        return None
    interpreter = first[2:].split()[0]
    bases = [os.path.dirname(os.path.dirname(each)) for each in (os.path.realpath(program), program, interpreter)]
    patterns = [f"{base}/lib/python*/{kind}-packages/awscli-*.*-info" for base in bases for kind in ("site", "dist")]
    found = [path for pattern in dict.fromkeys(patterns) for path in glob(pattern)]
    versions = {int(match[1]) for path in found if (match := _FOLDER.search(path))}
    return versions.pop() if len(versions) == 1 else None
