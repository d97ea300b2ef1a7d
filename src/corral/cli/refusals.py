"""What goes wrong, in one line, and the exit codes.

0    done
1    refused or failed; stderr says why in one line
2    wrong usage (click's own)
3    no Corral runs on this data folder
124  `corral run --time`: the time was over, and the task was stopped
125  `corral run`: the task has no exit code (it never started, or its host was lost)
130  interrupted
141  `corral run`, `corral exec`: whoever read its output has gone; the task, or the command beside it, was stopped
"""

from __future__ import annotations

import sys
from typing import IO, Any

import click

TIMED_OUT = 124
NO_EXIT_CODE = 125
INTERRUPTED = 130
PIPE_BROKE = 141


class Failed(click.ClickException):
    """The user can put this right."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"corral: {self.message}", err=True)


class NotRunning(Failed):
    exit_code = 3


def in_one_line(error: Exception) -> str | None:
    """What a client library or the system refused, for a person; None for what nobody foresaw."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
    exceptions = sys.modules.get("botocore.exceptions")  # if nobody imported it, nobody raised one of its errors
    if exceptions is None:
        return None
    if isinstance(error, exceptions.ClientError):
        said = error.response["Error"]
        return f"{error.operation_name}: {said.get('Message') or 'refused'} ({said['Code']})"
    if isinstance(error, exceptions.EndpointConnectionError):
        return f"nothing answers at {error.kwargs.get('endpoint_url')}: start Corral (`corral up --detach`), or mend the endpoint."
    if isinstance(error, exceptions.BotoCoreError):
        return " ".join(str(error).split())
    return None
