"""`corral exec`: a command beside a running task, in its environment, as if it ran here."""

from __future__ import annotations

import os
import shlex
import sys

import click

from corral.cli import tasks
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.suggest import task_ids
from corral.cli.where import client, cluster_option, find, is_aws


@click.command(
    name="exec",
    context_settings={"allow_interspersed_args": False},  # what follows the task is the command's
    short_help="Run a command beside a running task.",
)
@data_option
@click.option("--container", "-c", metavar="NAME", help="Which container of the task, where it has several.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input on to it.")
@click.option("--tty", "-t", "has_terminal", is_flag=True, help="Give it a terminal.")
@cluster_option("Whose task; an ARN names its own.")
@click.argument("task", metavar="TASK", shell_complete=task_ids("RUNNING"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def exec_(
    data: Data,
    container: str | None,
    interactive: bool,
    has_terminal: bool,
    cluster: str | None,
    task: str,
    command: tuple[str, ...],
) -> None:
    """Run a command beside a container of a running task: with its environment, folder and GPUs. Exits as the command does.

    In a terminal it gets one, as with -t: window size, Ctrl-C and all. Otherwise its input is empty without -i. A TASK is an id,
    the beginning of one, or an ARN. It must have been run with enableExecuteCommand; `corral run` does that.
    """
    if has_terminal and not os.isatty(0):
        raise click.UsageError("-t needs standard input to be a terminal; -i alone passes a pipe on.")
    has_terminal = has_terminal or (os.isatty(0) and os.isatty(1) and not interactive)
    where = find(data)
    if is_aws(where):
        raise Failed("the endpoint is AWS, whose channel wants its own plugin: use `aws ecs execute-command --interactive`.")
    ecs = client(where, "ecs")
    of_cluster, task_id = tasks.find(ecs, task, cluster or where.cluster)
    named = {"container": container} if container else {}
    words = command[1:] if command[0] == "--" else command
    reply = ecs.execute_command(cluster=of_cluster, task=task_id, command=shlex.join(words), interactive=has_terminal, **named)
    from corral.cli.session import Session

    sys.exit(Session(reply["session"], has_terminal=has_terminal, reads=interactive or has_terminal).attend())
