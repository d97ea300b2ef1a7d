"""`corral run`: a command as a task, as if it ran here."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import click

from corral.cli import tasks
from corral.cli.follow import Interrupt, LogPlace, News, follow
from corral.cli.here import Data, data_option
from corral.cli.refusals import INTERRUPTED, NO_EXIT_CODE, PIPE_BROKE, Failed
from corral.cli.where import Where, client, find, is_aws
from corral.cli.words import print_json, say, with_short_ids

HOST_IMAGE = "corral/host"  # a plain process of this machine
CONTAINER = "main"
LOG_GROUP = "/corral/run"
RESERVED_MIB = 128  # what a task without --memory takes of the host
NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The task gets GPUs, endpoint and credentials of its own; the rest is the shell's business with itself.
NOT_PASSED = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "_", "SHLVL", "OLDPWD", "COLUMNS", "LINES"}


@click.command(
    context_settings={"allow_interspersed_args": False},  # what follows the command's name is the command's
    short_help="Run a command as a task and show its output.",
)
@data_option
@click.option("--gpus", type=click.IntRange(0, 64), default=0, show_default=True, help="How many GPUs it gets for itself.")
@click.option("--cpu", type=click.IntRange(0), metavar="UNITS", default=0, help="CPU to set aside; 1024 units are one core.")
@click.option("--memory", type=click.IntRange(6), metavar="MIB", help=f"Memory to set aside (default: {RESERVED_MIB}).")
@click.option("--name", metavar="FAMILY", help="The task definition's family (default: the command's name).")
@click.option("--env", "extra", metavar="K=V", multiple=True, help="A variable, on top of the present environment; repeat it.")
@click.option("--image", default=HOST_IMAGE, show_default=True, help="Another one gets neither this folder nor the environment.")
@click.option("--detach", "-d", is_flag=True, help="Print the task's id and leave it.")
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log goes to stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def run(
    data: Data, gpus: int, cpu: int, memory: int | None, name: str | None, extra: tuple[str, ...], image: str, detach: bool,
    as_json: bool, command: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a command as a task, here and in this environment, and show its output. Exits as the command does.

    It waits for its GPUs in line and says why. Ctrl-C stops it; a second Ctrl-C leaves at once.
    """
    where = find(data)
    if image == HOST_IMAGE and is_aws(where):
        raise Failed("the endpoint is AWS, which cannot run processes of this machine: give an --image.")
    family = name if name is not None else _family(command[0])
    if not NAME.fullmatch(family):
        raise click.BadParameter("use letters, digits, _ and -.", param_hint="--name")
    container = _container(image, command, gpus, cpu, memory, _environment(extra, whole=image == HOST_IMAGE))
    news: News = SimpleQueue()
    if not detach:
        _queue_interrupts(news)
    task, place = _start(where, family, container)
    if detach:
        print_json(task) if as_json else click.echo(tasks.id_of(task))
        return
    _attend(where, task, place, news, as_json)


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


def _container(
    image: str, command: tuple[str, ...], gpus: int, cpu: int, memory: int | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "essential": True,
        "command": list(command),
        "cpu": cpu,
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
        **({"memory": memory} if memory else {"memoryReservation": RESERVED_MIB}),
    }
    if image == HOST_IMAGE:
        container["workingDirectory"] = os.getcwd()
    if gpus:
        container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
    return container


def _start(where: Where, family: str, container: dict[str, Any]) -> tuple[dict[str, Any], LogPlace]:
    """Register and run. Without a launch type: so it waits for room instead of failing."""
    ecs = client(where, "ecs")
    options = {"awslogs-group": LOG_GROUP, "awslogs-region": ecs.meta.region_name, "awslogs-stream-prefix": family}
    container["logConfiguration"] = {"logDriver": "awslogs", "options": {**options, "awslogs-create-group": "true"}}
    definition = ecs.register_task_definition(family=family, containerDefinitions=[container])["taskDefinition"]
    reply = ecs.run_task(cluster=tasks.CLUSTER, taskDefinition=definition["taskDefinitionArn"], startedBy="corral-run")
    if not reply["tasks"]:
        failure = reply["failures"][0]
        raise Failed(f"not started: {failure.get('reason')} {failure.get('detail', '')}".strip())
    task = reply["tasks"][0]
    return task, LogPlace(None, LOG_GROUP, f"{family}/{CONTAINER}/{tasks.id_of(task)}")


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


def _attend(where: Where, task: dict[str, Any], place: LogPlace, news: News, as_json: bool) -> None:
    """Show how it goes, to the end, and end as it did."""
    task_id = tasks.id_of(task)
    narrator = _Narrator(task_id)

    def stop() -> None:
        client(where, "ecs").stop_task(cluster=tasks.CLUSTER, task=task_id, reason="corral run was interrupted")

    def interrupted() -> None:
        stop()
        say(f"stopping task {tasks.short(task_id)}; Ctrl-C again leaves it to end by itself")

    def show(events: list[dict[str, Any]]) -> None:
        out = sys.stderr if as_json else sys.stdout
        try:
            out.write("".join(f"{event['message']}\n" for event in events))
            out.flush()
        except BrokenPipeError:  # nobody reads it any more: a program of one's own would be killed by that, so this one is
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            stop()
            sys.exit(PIPE_BROKE)

    try:
        narrator.tell(task)
        ended = follow(
            where, tasks.CLUSTER, task_id, lambda _: place, show, news=news, on_task=narrator.tell, on_interrupt=interrupted
        )
    except KeyboardInterrupt:
        say(f"left; see `corral logs -f {tasks.short(task_id)}`")
        sys.exit(INTERRUPTED)
    except Exception:
        say(f"task {tasks.short(task_id)} goes on by itself; see `corral logs -f {tasks.short(task_id)}`")
        raise
    if as_json:
        print_json(ended)
    codes = tasks.exit_codes(ended)
    if not codes:
        say(f"task {tasks.short(task_id)} has no exit code: {tasks.reason(ended)}")
    sys.exit(codes[0] if codes else INTERRUPTED if ended.get("stopCode") == "UserInitiated" else NO_EXIT_CODE)


class _Narrator:
    """Says on stderr what a person would ask meanwhile: why it waits, and which GPUs it got. Each thing once."""

    def __init__(self, task_id: str) -> None:
        self._name = f"task {tasks.short(task_id)}"
        self._said = ""

    def tell(self, task: dict[str, Any]) -> None:
        if task["lastStatus"] == "PROVISIONING":
            text = f"{self._name} waits: {with_short_ids(tasks.reason(task))}"
        elif task["lastStatus"] in ("PENDING", "RUNNING"):
            gpus = tasks.gpu_ids(task)
            text = f"{self._name} starts" + (f" on {', '.join(gpus)}" if gpus else "")  # a short one is never seen running
        else:
            return
        if text != self._said:
            self._said = text
            say(text)
