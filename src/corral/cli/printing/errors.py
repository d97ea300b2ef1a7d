"""Converts errors to one line on stderr, and defines these exit codes:

0    success
1    refused or failed; one line on stderr contains the reason
2    wrong usage (click's exit code)
3    Corral is not running on this data folder
124  `corral run --time`, `corral wait`: the task was stopped at its time limit
125  `corral run`, `corral wait`: the task has no exit code (it never started, or its host was lost)
126  `corral run`: the command cannot be executed; it was not submitted
127  `corral run`: the command does not exist; it was not submitted
130  interrupted (Ctrl-C)
141  `corral run`, `corral exec`: the reader of the output closed the pipe, and the task or the command was stopped
"""

from __future__ import annotations

import re
import sys
from typing import IO, Any

import click

from corral.cli.printing.output import print_message

TIMED_OUT = 124
NO_EXIT_CODE = 125
INTERRUPTED = 130
BROKEN_PIPE = 141


_TAG = re.compile(
    r"(?:\b[Tt]he tags? )?\bcorral:(after-any|after|array|gpu-ids|hold|name|not-before|preemptible|priority|requeue|time-limit|"
    r"turns)\b"
    r"(?!-)(?::[0-9]+)?"
)
_RENAMED = {"not-before": "at", "time-limit": "time"}


class CliError(click.ClickException):
    """An error that the user can fix."""

    def show(self, file: IO[Any] | None = None) -> None:
        print_message(self.message)


class RunNotFound(CliError):
    """ECS has no such task. Corral's history of ended runs may have it."""


class NotRunning(CliError):
    exit_code = 3


class TasksLost(CliError):
    """The data folder was deleted while a command used its server. The server ends its tasks and then itself."""

    exit_code = NO_EXIT_CODE


class CommandNotExecutable(CliError):
    exit_code = 126  # as in a shell


class CommandNotFound(CliError):
    exit_code = 127  # as in a shell


def error_line(error: Exception) -> str | None:
    """Return one line for an error of the operating system or of an AWS client. Return None for other errors: they are bugs."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    refused = sys.modules["corral.cli.client.json_client"].ApiRefusal if "corral.cli.client.json_client" in sys.modules else ()
    if isinstance(error, refused):
        return _refusal_line(error)
    exceptions = sys.modules.get("botocore.exceptions")  # if the module was not imported, botocore did not raise the error
    if exceptions is None:
        return None
    if isinstance(error, exceptions.ClientError):
        return _refusal_line(error)
    if isinstance(error, exceptions.EndpointConnectionError):
        url = error.kwargs.get("endpoint_url")
        return f"cannot connect to {url}: start Corral with `corral up --detach`, or correct AWS_ENDPOINT_URL."
    if isinstance(error, exceptions.BotoCoreError):
        return " ".join(str(error).split())
    return None


def _refusal_line(error: Any) -> str:
    details = error.response["Error"]
    return f"{error.operation_name}: {name_options(details.get('Message') or 'refused')} ({details['Code']})"


def name_options(text: str) -> str:
    """Replace the tags of queue options in a text of the server by the options of `corral run`, which set these tags."""
    return _TAG.sub(lambda found: f"--{_RENAMED.get(found[1], found[1])}", text)


def connection_failed(error: Exception) -> bool:
    """Whether the server did not respond, so that it is not known whether it has received the request."""
    exceptions = sys.modules.get("botocore.exceptions")
    if exceptions is not None and isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError):
        return True
    lean = sys.modules.get("corral.cli.client.http")
    return isinstance(error, (OSError, lean.ConnectionFailed) if lean is not None else OSError)
