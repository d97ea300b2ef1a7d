"""`corral run` runs a command, or a task definition from a file, as a task."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from corral.cli import tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, cluster_option, find_endpoint, is_aws
from corral.cli.errors import CliError
from corral.cli.foreground_run import ForegroundRun, wait_in_foreground
from corral.cli.notify import RunNotifications, notify_option
from corral.cli.output import DURATION, print_json, print_line
from corral.cli.run_names import check_name, default_name, family_of, name_tags
from corral.cli.run_signals import RunSignals

HOST_IMAGE = "corral/host"  # not a real image: the task runs as a process on this machine
CONTAINER = "main"
LOG_GROUP = "/corral/run"
RESERVED_MIB = 128  # the memory reservation of a task without --memory
GPUS_MAX = 64
TIME_LIMIT_TAG = "corral:time-limit"  # the tag contains the time limit in seconds
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that are not passed to the task. Some would override the task's own GPUs, the others describe the user's shell.
NOT_PASSED = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "_", "SHLVL", "OLDPWD", "COLUMNS", "LINES"}


class GpuCount(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() == "all":
            return "ALL"
        if not str(value).isdecimal() or int(value) > GPUS_MAX:
            self.fail(f"'{value}' is neither a number from 0 to {GPUS_MAX} nor 'all'.", param, ctx)
        return str(int(value))


class RunCommand(click.Command):
    """Records whether `--` precedes the command. `run -- x.json` runs a program, but `run x.json` runs a task definition."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("command") or ()
        before = given[: len(given) - len(command)]
        ctx.meta["dashed"] = bool(before) and before[-1] == "--"
        return rest


@click.command(
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False},  # options after the command's name are arguments of the command
    short_help="Run a command as a task and show its output.",
)
@data_option
@click.option("--gpus", type=GpuCount(), help="GPUs to reserve: a number, or `all` GPUs of a host (default: 0).")
@click.option("--cpu", type=click.IntRange(0), metavar="UNITS", help="CPU to reserve; 1024 units are one core.")
@click.option("--memory", type=click.IntRange(6), metavar="MIB", help=f"Memory to reserve (default: {RESERVED_MIB}).")
@click.option("--time", "limit_s", type=DURATION, help="Stop the task after 90s, 30m, 4h, 1d, 1h30m ... with exit code 124.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the command.")
@click.option("--tty", "-t", "has_terminal", is_flag=True, help="Give the command a terminal. Use -it for shells and debuggers.")
@click.option("--name", help="The name of the task (default: the name of the script).")
@click.option("--env", "extra", metavar="K=V", multiple=True, help="Add a variable to the current environment. Can be repeated.")
@click.option("--image", help=f"Default: {HOST_IMAGE}. Other images get neither this folder nor the environment.")
@cluster_option("The cluster in which the task runs.")
@click.option("--detach", "-d", is_flag=True, help="Print the task's id and return.")
@click.option("--detach-on-hangup", is_flag=True, help="If the terminal closes, the task keeps running. Default: it is stopped.")
@notify_option
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log is printed to stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE.json | [--] COMMAND...")
@click.pass_context
def run(
    ctx: click.Context, data: DataFolder, gpus: str | None, cpu: int | None, memory: int | None, limit_s: int | None,
    interactive: bool, has_terminal: bool, name: str | None, extra: tuple[str, ...], image: str | None, cluster: str | None,
    detach: bool, detach_on_hangup: bool, notify: tuple[str, ...], as_json: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a command as a task in the current folder and environment. Show its output, and exit with its exit code.

    The task waits until its GPUs are free, and `corral run` prints why it waits. Ctrl-C sends SIGINT to the program, the second
    Ctrl-C sends SIGTERM, the third SIGKILL. A task that still waits is stopped at once. SIGTERM, and a terminal that closes, stop
    the task.

    FILE.json contains a task definition in the format of register-task-definition. `corral run` registers it and runs a task.
    Options, and a command after --, override values of the task definition.
    """
    signals = RunSignals(detach_on_hangup=detach_on_hangup)
    is_file = not ctx.meta["dashed"] and _names_a_file(command)
    interactive = interactive or has_terminal
    _check(name, interactive, has_terminal, detach, is_file, image)
    if interactive and detach_on_hangup:
        raise click.UsageError("--detach-on-hangup cannot be used with -i and -t: the program loses its input with the terminal.")
    endpoint = find_endpoint(data)
    cluster = cluster or endpoint.cluster
    _check_endpoint(endpoint, limit_s, interactive, is_file, image or HOST_IMAGE)
    terminal = None
    if interactive:
        from corral.cli.run_terminal import RunTerminal

        terminal = RunTerminal(has_terminal=has_terminal, out=2 if as_json else 1)
    try:
        if is_file:
            definition, override = _from_file(command, name, gpus, cpu, memory, extra)
        else:
            override = None
            wanted = terminal.wrap(command) if terminal else list(command)
            container = _container(image or HOST_IMAGE, wanted, gpus, cpu, memory, extra)
            name = name or default_name(command)
            definition = _definition(endpoint, family_of(name), container)
        if terminal:
            terminal.listen()
        tags = name_tags(name) if name else []
        if limit_s is not None:
            tags.append({"key": TIME_LIMIT_TAG, "value": str(limit_s)})
        task, registered = _start(signals, endpoint, cluster, definition, override, tags)
        notifications = RunNotifications(notify, name or registered["family"], data, endpoint, cluster)
        if detach:
            signals.submitted()
            notifications.send_later([tasks.id_of(task)])
            print_json(task) if as_json else print_line(tasks.id_of(task))
            return
        wait_in_foreground(ForegroundRun(endpoint, cluster, task, registered, signals, as_json, limit_s, terminal, notifications))
    finally:
        if terminal:
            terminal.close()


def _names_a_file(command: tuple[str, ...]) -> bool:
    return command[0].endswith(".json") and os.path.isfile(command[0]) and command[1:2] in ((), ("--",))


def _check(name: str | None, interactive: bool, has_terminal: bool, detach: bool, is_file: bool, image: str | None) -> None:
    check_name(name)
    if interactive and detach:
        raise click.UsageError("-i and -t cannot be used with --detach.")
    if interactive and (is_file or image not in (None, HOST_IMAGE)):
        raise click.UsageError("-i and -t require a command that runs as a process of this machine, not FILE.json or --image.")
    if has_terminal and not os.isatty(0):
        raise click.UsageError("-t requires that standard input is a terminal; use -i alone for a pipe.")
    if is_file and image is not None:
        raise click.UsageError("--image cannot be used with FILE.json, which names its images.")


def _check_endpoint(endpoint: Endpoint, limit_s: int | None, interactive: bool, is_file: bool, image: str) -> None:
    if not is_aws(endpoint):
        return
    if limit_s is not None:
        raise CliError("the endpoint is AWS, which has no time limits for tasks: --time works only with Corral.")
    if interactive:
        raise CliError("the endpoint is AWS, which cannot reach this terminal: -i and -t work only with this machine's Corral.")
    if not is_file and image == HOST_IMAGE:
        raise CliError("the endpoint is AWS, which cannot run processes of this machine: choose an image with --image.")


def _environment(extra: tuple[str, ...], *, whole: bool) -> dict[str, str]:
    """Return the environment variables of the task:

    those of --env, and with `whole` also those of this process (see `_is_passed`).
    """
    values = {name: value for name, value in os.environ.items() if _is_passed(name, value)} if whole else {}
    for pair in extra:
        name, equals, value = pair.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise click.BadParameter(f"'{pair}' is not NAME=VALUE.", param_hint="--env")
        values[name] = value
    return values


def _is_passed(name: str, value: str) -> bool:
    if name in NOT_PASSED or name.startswith(("AWS_", "CORRAL_")) or not VARIABLE.fullmatch(name):
        return False
    # JSON cannot contain bytes that are not UTF-8.
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _gpu_requirement(gpus: str) -> dict[str, Any]:
    return {"resourceRequirements": [{"type": "GPU", "value": gpus}]} if gpus != "0" else {}


def _container(
    image: str, command: list[str], gpus: str | None, cpu: int | None, memory: int | None, extra: tuple[str, ...]
) -> dict[str, Any]:
    folder = {"workingDirectory": os.getcwd()} if image == HOST_IMAGE else {}
    return {
        "name": CONTAINER,
        "image": image,
        "essential": True,
        "command": command,
        "cpu": cpu or 0,
        "environment": _pairs(_environment(extra, whole=image == HOST_IMAGE)),
        **({"memory": memory} if memory else {"memoryReservation": RESERVED_MIB}),
        **_gpu_requirement(gpus or "0"),
        **folder,
    }


def _definition(endpoint: Endpoint, family: str, container: dict[str, Any]) -> dict[str, Any]:
    region = client(endpoint, "ecs").meta.region_name
    options = {
        "awslogs-group": LOG_GROUP,
        "awslogs-region": region,
        "awslogs-stream-prefix": family,
        "awslogs-create-group": "true",
    }
    container["logConfiguration"] = {"logDriver": "awslogs", "options": options}
    return {"family": family, "containerDefinitions": [container]}


def _from_file(
    command: tuple[str, ...], name: str | None, gpus: str | None, cpu: int | None, memory: int | None, extra: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the task definition in the file, and the container override from the command line.

    The override is for the first essential container.
    """
    definition = tasks.read_definition(Path(command[0]))
    if name:
        definition["family"] = family_of(name)
    override: dict[str, Any] = {
        **({"command": list(command[2:])} if command[2:] else {}),
        **({"environment": _pairs(_environment(extra, whole=False))} if extra else {}),
        **({"cpu": cpu} if cpu is not None else {}),
        **({"memory": memory} if memory is not None else {}),
        **(_gpu_requirement(gpus) if gpus is not None else {}),
    }
    return definition, {"name": tasks.first_essential(definition), **override} if override else None


def _start(
    signals: RunSignals,
    endpoint: Endpoint,
    cluster: str,
    definition: dict[str, Any],
    override: dict[str, Any] | None,
    tags: list[dict[str, str]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Register the definition and run a task. Pass no launch type, so that the task waits for free resources instead of failing."""
    ecs = client(endpoint, "ecs")
    registered = ecs.register_task_definition(**definition)["taskDefinition"]
    more: dict[str, Any] = {"overrides": {"containerOverrides": [override]}} if override else {}
    if tags:
        more["tags"] = tags
    if not is_aws(endpoint):
        more["enableExecuteCommand"] = True  # `corral exec` needs it; not on AWS, where the task would need a role
    arn = registered["taskDefinitionArn"]
    reply = signals.run_task(ecs, {"cluster": cluster, "taskDefinition": arn, "startedBy": "corral-run", **more})
    if not reply["tasks"]:
        failure = reply["failures"][0]
        raise CliError(f"the task was not started: {failure.get('reason')} {failure.get('detail', '')}".strip())
    return reply["tasks"][0], registered
