"""`corral run` runs a command, or a task definition from a file, as a task. With `--array`, it runs a task for each index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, NotCorral, client, find_endpoint, get_status, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_line, print_message, server_time
from corral.cli.runs import tasks
from corral.cli.runs.command_lookup import refuse_missing_command
from corral.cli.runs.environment import is_text, variables, with_environment
from corral.cli.runs.git_commit import GitCommit
from corral.cli.runs.host_choice import placement_constraints
from corral.cli.runs.names import default_name, family_of, image_name
from corral.cli.runs.notify import NO_NOTIFICATIONS, RunNotifications, notifications_of
from corral.cli.runs.options import (
    HOST_IMAGE,
    RunArguments,
    check_endpoint,
    check_options,
    queue_options,
    queue_tags,
    split_arguments,
)
from corral.cli.runs.signals import RunSignals
from corral.cli.runs.submission import ArrayPart, Submission, run_tasks
from corral.cli.runs.values import ArraySpec

if TYPE_CHECKING:
    from corral.cli.runs.ship import Shipped
    from corral.cli.runs.terminal import RunTerminal

CONTAINER = "main"
LOG_GROUP = "/corral/run"
SHIPPED_FOLDER = "CORRAL_SHIPPED_FOLDER"  # the variable with the manifest of a shipped folder: model/shipped_folder.py


class RunCommand(click.Command):
    """Records whether `--` precedes the command. `run -- x.json` runs a program, but `run x.json` runs a task definition."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, rest = split_arguments(self.params, args)
        ctx.meta["dashed"] = rest[:1] == ["--"]
        return super().parse_args(ctx, options + rest)


@click.command(
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False},  # options after the command's name are arguments of the command
    short_help="Run a command as a task and show its output.",
)
@data_option
@queue_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="FILE.json | [--] COMMAND...")
@click.pass_context
def run(ctx: click.Context, /, data: DataFolder, command: tuple[str, ...], **given: Any) -> None:
    """Run a command as a task in the current folder and environment. Show its output, and exit with its exit code.

    The task waits until its GPUs are free, and `corral run` prints why it waits. Ctrl-C sends SIGINT to the program, the second
    Ctrl-C sends SIGTERM, the third SIGKILL. A task that still waits is stopped at once. SIGTERM, and a terminal that closes, stop
    the task.

    With --image, COMMAND can be omitted: the container runs the command of its image. A command that does not exist on this machine
    is refused at once, with exit code 127.

    FILE.json contains a task definition in the format of register-task-definition. `corral run` registers it and runs a task.
    Options, and a command after --, override values of the task definition.
    """
    options = RunArguments(**given)
    if not command and options.runs_here:
        raise click.UsageError("name a command, a FILE.json, or an image with --image, which runs the image's own command.")
    signals = RunSignals(detach_on_hangup=options.detach_on_hangup)
    is_file = not ctx.meta["dashed"] and _names_a_file(command)
    if not ctx.meta["dashed"] and command and command[0].endswith(".json") and not os.path.exists(command[0]):
        raise CliError(f"{command[0]} does not exist: name a file with a task definition, or write -- before a command.")
    check_options(options, is_file=is_file)
    git = GitCommit(options.folder or os.curdir)
    endpoint = find_endpoint(data)
    notify = notifications_of(options.notify, data)
    check_endpoint(endpoint, options, is_file=is_file)
    constraints = placement_constraints(endpoint, options)
    if not options.runs_here and command:
        _report_ignored_image(endpoint)
    terminal = None
    if options.interactive:
        from corral.cli.runs.terminal import RunTerminal

        out = 2 if options.as_json else 1
        terminal = RunTerminal(has_terminal=os.isatty(0) and os.isatty(out), out=out)
    try:
        wanted = terminal.wrap(command) if terminal else list(command)
        submission = _prepare(endpoint, data, options, command, wanted, git, constraints, is_file=is_file)
        if terminal:
            terminal.listen()
        submit_and_wait(
            submission,
            array=options.array,
            detach=options.detach,
            as_json=options.as_json,
            limit_s=options.limit_s,
            terminal=terminal,
            signals=signals,
            notifications=RunNotifications(notify, submission.name, data, endpoint, submission.cluster),
        )
    finally:
        if terminal:
            terminal.close()


def submit_and_wait(
    submission: Submission,
    *,
    array: ArraySpec | None = None,
    parts: Sequence[ArrayPart] = (),
    detach: bool,
    as_json: bool,
    limit_s: int | None,
    terminal: RunTerminal | None = None,
    signals: RunSignals | None = None,
    notifications: RunNotifications = NO_NOTIFICATIONS,
) -> None:
    """Run the task or the array. With `detach`, print its id. Otherwise wait for its end, and exit with its exit code.

    `parts` are the members of the array. Without `parts`, all members are submitted in the same way.
    """
    signals = signals or RunSignals()
    if array is not None:
        from corral.cli.runs.arrays import ArrayRun, submit_array, wait_for_array

        members = submit_array(parts or [ArrayPart(submission, array.indexes)], array.limit, signals)
        if detach:
            signals.submitted()
            notifications.send_later(list(members.members.values()))
            print_json(members.described()) if as_json else print_line(members.id)
        else:
            wait_for_array(ArrayRun(submission, members, signals, as_json, notifications))
        return
    [task] = run_tasks(submission, signals)
    if detach:
        signals.submitted()
        notifications.send_later([tasks.id_of(task)])
        print_json(task) if as_json else print_line(tasks.id_of(task))
    else:
        from corral.cli.runs.foreground_run import ForegroundRun, wait_in_foreground

        about = submission.endpoint, submission.cluster, task, submission.definition
        wait_in_foreground(ForegroundRun(*about, signals, as_json, limit_s, terminal, notifications))


def _report_ignored_image(endpoint: Endpoint) -> None:
    """Print a message if no host has a container engine, so that the command will be a plain process."""
    if is_aws(endpoint):
        return
    try:
        hosts = get_status(endpoint, tasks=1)[0]["hosts"]
    except NotCorral:
        return
    if not any(host["docker"] for host in hosts):
        print_message("--image has no effect: Corral has no Docker engine here, so the command runs as a process of this machine.")


def _names_a_file(command: tuple[str, ...]) -> bool:
    return bool(command) and command[0].endswith(".json") and os.path.isfile(command[0]) and command[1:2] in ((), ("--",))


def _prepare(
    endpoint: Endpoint, data: DataFolder, options: RunArguments, command: tuple[str, ...], wanted: list[str], git: GitCommit,
    constraints: list[dict[str, str]], *, is_file: bool,
) -> Submission:  # fmt: skip
    """Register the task definition, and return it with the other parameters of RunTask.

    `command` is the command of the user. `wanted` is the command of the task: with -i, it begins with a program that relays the
    terminal.
    """
    cluster, name = options.cluster or endpoint.cluster, options.name
    folder, shipped = options.folder, None
    for word in (*command, folder or ""):
        if not is_text(word):
            raise CliError(f"{word!a} is not UTF-8, but a command and its folder must be: rename it, or put it into a script.")
    values = variables(options.env, options.env_file, inherits=options.runs_here and not is_file)
    if is_file:
        definition, override = _from_file(command, options)
    else:
        if options.runs_here:
            awaits = bool(options.after or options.after_any)
            refuse_missing_command(endpoint, command, folder or os.curdir, values, waits_for_runs=awaits, host=options.host)
        name = name or default_name(command or (image_name(str(options.image)),))
        shipped = _shipped(endpoint, data, options)
        definition, override = _definition(endpoint, family_of(name), _container(options, wanted, shipped)), {}
    if constraints:  # in the definition, so that `corral rerun` has them, too
        definition["placementConstraints"] = [*definition.get("placementConstraints", ()), *constraints]
    named = {"name": tasks.first_essential(definition), **override}
    override = with_environment(endpoint, named, values)
    reply = client(endpoint, "ecs").register_task_definition(**definition)
    now = server_time(reply)
    assert now is not None, "every HTTP response has a Date header"
    tags = queue_tags(endpoint, options, name, cluster, now, git.read(), shipped.text if shipped is not None else "")
    name = name or str(definition["family"])
    return Submission(endpoint, cluster, name, reply["taskDefinition"], override if len(override) > 1 else None, tags)


def _shipped(endpoint: Endpoint, data: DataFolder, options: RunArguments) -> Shipped | None:
    if not options.ship:
        return None
    from corral.cli.runs.ship import ship  # it needs botocore

    return ship(endpoint, data, Path(options.folder or os.curdir))


def _gpu_requirement(options: RunArguments) -> dict[str, Any]:
    """Return the GPUs of the container: whole GPUs, memory of a GPU that it shares, or nothing."""
    if options.share:
        strategy = {"nvidiaMps": {"memory": options.gpu_memory}}
        return {"resourceRequirements": [{"type": "GPU", "sharingStrategy": strategy}]}
    gpus = options.gpus or "0"
    return {"resourceRequirements": [{"type": "GPU", "value": gpus}]} if gpus != "0" else {}


def _container(options: RunArguments, command: list[str], shipped: Shipped | None) -> dict[str, Any]:
    """Return the definition of the container. A shipped folder is part of it, so that `corral rerun` runs in the same folder."""
    place: dict[str, Any] = {"workingDirectory": options.folder} if options.folder else {}
    if shipped is not None and shipped.manifest:
        place = {"environment": [{"name": SHIPPED_FOLDER, "value": shipped.manifest}]}
    return {
        "name": CONTAINER,
        "image": options.image or HOST_IMAGE,
        "essential": True,
        **({"command": command} if command else {}),  # without a command, the container runs the command of its image
        "cpu": options.cpu or 0,
        **({"memory": options.memory} if options.memory else {"memoryReservation": tasks.RESERVED_MIB}),
        **_gpu_requirement(options),
        **place,
    }


def _definition(endpoint: Endpoint, family: str, container: dict[str, Any]) -> dict[str, Any]:
    region = client(endpoint, "ecs").meta.region_name
    log_options = {
        "awslogs-group": LOG_GROUP,
        "awslogs-region": region,
        "awslogs-stream-prefix": family,
        "awslogs-create-group": "true",
    }
    container["logConfiguration"] = {"logDriver": "awslogs", "options": log_options}
    return {"family": family, "containerDefinitions": [container]}


def _from_file(command: tuple[str, ...], options: RunArguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the task definition in the file, and the override from the command line for the first essential container."""
    definition = tasks.read_definition(Path(command[0]))
    if options.name:
        definition["family"] = family_of(options.name)
    override: dict[str, Any] = {
        **({"command": list(command[2:])} if command[2:] else {}),
        **({"cpu": options.cpu} if options.cpu is not None else {}),
        **({"memory": options.memory} if options.memory is not None else {}),
        **_gpu_requirement(options),
    }
    return definition, override
