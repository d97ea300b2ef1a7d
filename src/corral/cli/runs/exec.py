"""`corral exec` runs a command in a running task and shows its output."""

from __future__ import annotations

import os
import shlex
import sys
import time
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, cluster_option, find_endpoint, is_aws, long_poll
from corral.cli.client.tls import bundle_of
from corral.cli.printing.errors import CliError
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import find_run

START_MAX_S = 30.0
STARTING = ("PENDING", "ACTIVATING")


@click.command(
    name="exec",
    context_settings={"allow_interspersed_args": False},  # options after TASK are arguments of the command
    short_help="Run a command in a running task.",
)
@data_option
@click.option("--container", "-c", metavar="NAME", help="The container, if the task has several.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the command. This is the default in a terminal.")
@click.option("-t", "has_tty", is_flag=True, hidden=True)  # users of docker type -it; in a terminal, a terminal is the default
@cluster_option("The cluster of the task, if TASK is not an ARN.")
@click.argument("task", metavar="TASK", shell_complete=complete_tasks("RUNNING"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def exec_(
    data: DataFolder,
    container: str | None,
    interactive: bool,
    has_tty: bool,
    cluster: str | None,
    task: str,
    command: tuple[str, ...],
) -> None:
    """Run a command in a running task. The command has the environment, the folder and the GPUs of the task's container.

    In a terminal, the command also gets a terminal. Otherwise pass -i to send standard input to the command. `corral exec`
    exits with the exit code of the command. TASK is a name, an id, a prefix of an id, a glob, or an ARN. A name means the latest
    task with this name. The task must have been started with enableExecuteCommand. `corral run` sets it.
    """
    has_terminal = os.isatty(0) and os.isatty(1)
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("the endpoint is AWS, which requires AWS's own plugin: use `aws ecs execute-command --interactive`.")
    ecs = client(endpoint, "ecs")
    of_cluster, task_id = find_run(endpoint, task, cluster, unfinished=True)
    named = {"container": container} if container else {}
    arguments = command[1:] if command[0] == "--" else command
    request = {"cluster": of_cluster, "task": task_id, "command": shlex.join(arguments), "interactive": has_terminal, **named}
    try:
        reply = ecs.execute_command(**request)
    except ecs.exceptions.InvalidParameterException:
        if not _has_started(ecs, of_cluster, task_id):
            raise
        reply = ecs.execute_command(**request)
    from corral.cli.runs.exec_session import ExecSession

    reads, bundle = interactive or has_terminal, bundle_of(endpoint.ca_bundle)
    session = ExecSession(reply["session"], has_terminal=has_terminal, reads=reads, bundle=bundle)
    sys.exit(session.run())


def _has_started(ecs: Any, cluster: str, task_id: str) -> bool:
    """Wait while the task starts, for at most START_MAX_S. Return whether the task runs now.

    `corral run -d` returns before the program of the task runs, so a user can call `corral exec` too early.
    """
    until_s = time.monotonic() + START_MAX_S
    task = tasks.describe_one(ecs, cluster, task_id)
    while task["lastStatus"] in STARTING and time.monotonic() < until_s:
        with long_poll(START_MAX_S, seen=task.get("version")):
            task = tasks.describe_one(ecs, cluster, task_id)
    return bool(task["lastStatus"] == "RUNNING")
