"""`corral run`: a command as a task, as if it ran here; or a task definition from a file."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import click

from corral.cli import tasks
from corral.cli.attend import Attended, attend
from corral.cli.definitions import first_essential, read_definition
from corral.cli.follow import Interrupt, News
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.where import Where, client, cluster_option, find, is_aws
from corral.cli.words import DURATION, print_json

HOST_IMAGE = "corral/host"  # a plain process of this machine
CONTAINER = "main"
LOG_GROUP = "/corral/run"
RESERVED_MIB = 128  # what a task without --memory takes of the host
GPUS_MAX = 64
TIME_LIMIT_TAG = "corral:time-limit"  # seconds from the task's start to its stop
NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The task gets GPUs, endpoint and credentials of its own; the rest is the shell's business with itself.
NOT_PASSED = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "_", "SHLVL", "OLDPWD", "COLUMNS", "LINES"}


class GpuCount(click.ParamType):  # type: ignore[type-arg]  # generic only lately
    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() == "all":
            return "ALL"
        if not str(value).isdecimal() or int(value) > GPUS_MAX:
            self.fail(f"'{value}' is neither a number from 0 to {GPUS_MAX} nor 'all'.", param, ctx)
        return str(int(value))


class Words(click.Command):
    """Remembers whether `--` stood before the command: `run -- x.json` is a program, `run x.json` a task definition."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("command") or ()
        before = given[: len(given) - len(command)]
        ctx.meta["dashed"] = bool(before) and before[-1] == "--"
        return rest


@click.command(
    cls=Words,
    context_settings={"allow_interspersed_args": False},  # what follows the command's name is the command's
    short_help="Run a command as a task and show its output.",
)
@data_option
@click.option("--gpus", type=GpuCount(), help="How many GPUs it gets for itself: a number, or all of a host (default: 0).")
@click.option("--cpu", type=click.IntRange(0), metavar="UNITS", help="CPU to set aside; 1024 units are one core.")
@click.option("--memory", type=click.IntRange(6), metavar="MIB", help=f"Memory to set aside (default: {RESERVED_MIB}).")
@click.option("--time", "limit_s", type=DURATION, help="Stop it after this time: 90s, 30m, 4h, 1d, 1h30m. Exit code 124.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input on to it.")
@click.option("--tty", "-t", "has_terminal", is_flag=True, help="Give it a terminal: -it for shells and debuggers.")
@click.option("--name", metavar="FAMILY", help="The task definition's family (default: the command's name).")
@click.option("--env", "extra", metavar="K=V", multiple=True, help="A variable, on top of the present environment; repeat it.")
@click.option("--image", help=f"Default: {HOST_IMAGE}. Another one gets neither this folder nor the environment.")
@cluster_option("Where it runs.")
@click.option("--detach", "-d", is_flag=True, help="Print the task's id and leave it.")
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log goes to stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE.json | [--] COMMAND...")
@click.pass_context
def run(
    ctx: click.Context, data: Data, gpus: str | None, cpu: int | None, memory: int | None, limit_s: int | None, interactive: bool,
    has_terminal: bool, name: str | None, extra: tuple[str, ...], image: str | None, cluster: str | None, detach: bool,
    as_json: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a command as a task, here and in this environment, and show its output. Exits as the command does.

    It waits for its GPUs in line and says why. Ctrl-C stops it; a second Ctrl-C leaves at once.

    With FILE.json, a task definition as register-task-definition takes it, that is registered and run; the options and a
    command after -- override what it says.
    """
    is_file = not ctx.meta["dashed"] and _names_a_file(command)
    interactive = interactive or has_terminal
    _check(name, interactive, has_terminal, detach, is_file, image)
    where = find(data)
    cluster = cluster or where.cluster
    _check_endpoint(where, limit_s, interactive, is_file, image or HOST_IMAGE)
    session = None
    if interactive:
        from corral.cli.attached import Attached

        session = Attached(has_terminal=has_terminal, out=2 if as_json else 1)
    try:
        if is_file:
            definition, override = _from_file(command, name, gpus, cpu, memory, extra)
        else:
            override = None
            wanted = session.wrap(command) if session else list(command)
            container = _container(image or HOST_IMAGE, wanted, gpus, cpu, memory, extra)
            definition = _definition(where, name or _family(command[0]), container)
        news: News = SimpleQueue()
        if not detach:
            _queue_interrupts(news)
        if session:
            session.listen()
        task, registered = _start(where, cluster, definition, override, limit_s)
        if detach:
            print_json(task) if as_json else click.echo(tasks.id_of(task))
            return
        attend(Attended(where, cluster, task, registered, news, as_json, limit_s, session))
    finally:
        if session:
            session.close()


def _names_a_file(command: tuple[str, ...]) -> bool:
    return command[0].endswith(".json") and os.path.isfile(command[0]) and command[1:2] in ((), ("--",))


def _check(name: str | None, interactive: bool, has_terminal: bool, detach: bool, is_file: bool, image: str | None) -> None:
    if name is not None and not NAME.fullmatch(name):
        raise click.BadParameter("use letters, digits, _ and -.", param_hint="--name")
    if interactive and detach:
        raise click.UsageError("-i and -t need you to stay: they do not go with --detach.")
    if interactive and (is_file or image not in (None, HOST_IMAGE)):
        raise click.UsageError("-i and -t go with a command that runs as a process of this machine, not with a FILE or an --image.")
    if has_terminal and not os.isatty(0):
        raise click.UsageError("-t needs standard input to be a terminal; -i alone passes a pipe on.")
    if is_file and image is not None:
        raise click.UsageError("--image does not go with a FILE, which names its images.")


def _check_endpoint(where: Where, limit_s: int | None, interactive: bool, is_file: bool, image: str) -> None:
    if not is_aws(where):
        return
    if limit_s is not None:
        raise Failed("the endpoint is AWS, where nothing would stop the task in time: --time works on Corral only.")
    if interactive:
        raise Failed("the endpoint is AWS, which cannot reach this terminal: -i and -t work on this machine's Corral only.")
    if not is_file and image == HOST_IMAGE:
        raise Failed("the endpoint is AWS, which cannot run processes of this machine: give an --image.")


def _family(program: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", Path(program).name).strip("-")[:255] or "run"


def _environment(extra: tuple[str, ...], *, whole: bool) -> dict[str, str]:
    """The present environment as a shell would pass it on, less what the task has of its own; then what was given."""
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
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)  # JSON carries only text


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _gpu_requirement(gpus: str) -> dict[str, Any]:
    return {"resourceRequirements": [{"type": "GPU", "value": gpus}]} if gpus != "0" else {}


def _container(
    image: str, command: list[str], gpus: str | None, cpu: int | None, memory: int | None, extra: tuple[str, ...]
) -> dict[str, Any]:
    here = {"workingDirectory": os.getcwd()} if image == HOST_IMAGE else {}
    return {
        "name": CONTAINER,
        "image": image,
        "essential": True,
        "command": command,
        "cpu": cpu or 0,
        "environment": _pairs(_environment(extra, whole=image == HOST_IMAGE)),
        **({"memory": memory} if memory else {"memoryReservation": RESERVED_MIB}),
        **_gpu_requirement(gpus or "0"),
        **here,
    }


def _definition(where: Where, family: str, container: dict[str, Any]) -> dict[str, Any]:
    region = client(where, "ecs").meta.region_name
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
    """The definition in the file, and what the command line says otherwise of its first essential container."""
    definition = read_definition(Path(command[0]))
    if name:
        definition["family"] = name
    override: dict[str, Any] = {
        **({"command": list(command[2:])} if command[2:] else {}),
        **({"environment": _pairs(_environment(extra, whole=False))} if extra else {}),
        **({"cpu": cpu} if cpu is not None else {}),
        **({"memory": memory} if memory is not None else {}),
        **(_gpu_requirement(gpus) if gpus is not None else {}),
    }
    return definition, {"name": first_essential(definition), **override} if override else None


def _start(
    where: Where, cluster: str, definition: dict[str, Any], override: dict[str, Any] | None, limit_s: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Register and run. Without a launch type: so it waits for room instead of failing."""
    ecs = client(where, "ecs")
    registered = ecs.register_task_definition(**definition)["taskDefinition"]
    more: dict[str, Any] = {"overrides": {"containerOverrides": [override]}} if override else {}
    if limit_s is not None:
        more["tags"] = [{"key": TIME_LIMIT_TAG, "value": str(limit_s)}]
    if not is_aws(where):
        more["enableExecuteCommand"] = True  # `corral exec`; on AWS it takes a role that not every task has
    arn = registered["taskDefinitionArn"]
    reply = ecs.run_task(cluster=cluster, taskDefinition=arn, startedBy="corral-run", **more)
    if not reply["tasks"]:
        failure = reply["failures"][0]
        raise Failed(f"not started: {failure.get('reason')} {failure.get('detail', '')}".strip())
    return reply["tasks"][0], registered


def _queue_interrupts(news: News) -> None:
    """Ctrl-C takes its place among the news, so that no request is torn in the middle; a second one does not wait."""
    seen: list[int] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        news.put(Interrupt())

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
