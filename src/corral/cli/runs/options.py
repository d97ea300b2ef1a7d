"""The options of `corral run`, and the tags of a task that contain the options for which ECS has no parameter.

The tags begin with `corral:`. Any ECS client can set them (docs/runs.md). On AWS they have no effect, so `corral run` refuses these
options there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from corral.cli.client.endpoint import Endpoint, cluster_option, is_aws
from corral.cli.printing.errors import CliError, RunNotFound
from corral.cli.printing.output import DURATION
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import check_name, find_dependencies, name_tags
from corral.cli.runs.notify import notify_option
from corral.cli.runs.submission import REFUSE_UNFIT_TAG
from corral.cli.runs.values import (
    ARRAY,
    CPU_MAX,
    GPU_COUNT,
    GPU_MEMORY_SIZE,
    MEMORY_SIZE,
    PRIORITY_MAX,
    REQUEUE_MAX,
    START_TIME,
    ArraySpec,
    StartTime,
)

HOST_IMAGE = "corral/host"  # not a real image: the task runs as a process on this machine
TIME_LIMIT_TAG = "corral:time-limit"  # seconds
PRIORITY_TAG = "corral:priority"
NOT_BEFORE_TAG = "corral:not-before"  # seconds since 1970
AFTER_TAG = "corral:after"  # task ids and array:ID, separated by spaces; a longer list continues in corral:after:2 and so on
AFTER_ANY_TAG = "corral:after-any"
REQUEUE_TAG = "corral:requeue"
PREEMPTIBLE_TAG = "corral:preemptible"  # `true`, or `kill` with --preempt kill
TURNS_TAG = "corral:turns"  # seconds
GPU_IDS_TAG = "corral:gpu-ids"
GIT_TAG = "corral:git"
SHIPPED_TAG = "corral:shipped"  # what --ship did with the folder
TAG_MAX = 256  # characters of a tag's value
DEPENDENCIES_MAX = 100  # tasks and arrays that one task can wait for
TRUE = "true"
TURN_MIN_S = 10
# Options without an effect on AWS.
CORRAL_ONLY = (
    "array", "after", "after_any", "priority", "requeue", "preemptible", "preempt", "turns", "hold", "at", "wait_anyway", "gpu_ids",
    "gpu_model", "host",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class RunArguments(NamedTuple):
    """The values of the options, as click has parsed them. None or an empty value means that the option was not given."""

    gpus: str | None
    share: bool
    gpu_memory: int | None  # MiB
    cpu: int | None
    memory: int | None  # MiB
    limit_s: int | None
    interactive: bool
    name: str | None
    workdir: Path | None
    env: tuple[str, ...]
    env_file: tuple[Path, ...]
    image: str | None
    gpu_ids: str | None
    gpu_model: str | None
    host: str | None
    ship: bool
    array: ArraySpec | None
    after: tuple[str, ...]
    after_any: tuple[str, ...]
    priority: int | None
    requeue: int | None
    preemptible: bool
    preempt: str | None
    turns: int | None  # seconds
    hold: bool
    at: StartTime | None
    wait_anyway: bool
    cluster: str | None
    detach: bool
    detach_on_hangup: bool
    notify: tuple[str, ...]
    as_json: bool

    @property
    def runs_here(self) -> bool:
        """Whether the task is a process of this machine, not a container."""
        return self.image in (None, HOST_IMAGE)

    @property
    def folder(self) -> str | None:
        """The working directory of the task. None: the container uses the working directory of its image."""
        if self.runs_here:
            try:
                return os.path.abspath(self.workdir or os.curdir)
            except FileNotFoundError:
                raise CliError("the current folder was deleted: change to another folder, or name one with --workdir.") from None
        return str(self.workdir) if self.workdir else None


def queue_options(command: F) -> F:
    """Add the options of `corral run` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--gpus", "-g", type=GPU_COUNT, help="GPUs to reserve: a number, or `all` GPUs of a host (default: 0)."),
    click.option("--share", is_flag=True, help="Share one GPU with other tasks that also use --share. Requires --gpu-memory."),
    click.option("--gpu-memory", type=GPU_MEMORY_SIZE, help="With --share: memory to reserve on the GPU: 20g, 512m, or MiB."),
    click.option("--cpu", type=click.IntRange(0, CPU_MAX), metavar="UNITS", help="CPU to reserve; 1024 units are one core."),
    click.option("--memory", type=MEMORY_SIZE, help=f"Memory to reserve: 16g, 512m, or MiB (default: {tasks.RESERVED_MIB})."),
    click.option(
        "--time", "-t", "limit_s", type=DURATION, help="Stop the task after 90s, 30m, 1h30m, 1:30:00 ... with exit code 124."
    ),
    click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the command. A terminal stays a terminal."),
    click.option("--name", "-n", help="The name of the task (default: the name of the script)."),
    click.option("--workdir", "-w", type=click.Path(path_type=Path), metavar="FOLDER", help="The working directory."),
    click.option("--env", "-e", metavar="K=V", multiple=True, help="Add a variable to the current environment. Can be repeated."),
    click.option(
        "--env-file", type=click.Path(path_type=Path), metavar="FILE", multiple=True,
        help="Add the variables of a file: lines NAME=VALUE. Can be repeated.",
    ),
    click.option(
        "--image",
        help=f"Default: {HOST_IMAGE}, a process of this machine. Other images get neither this folder nor the environment.",
    ),
    click.option(
        "--gpu-ids", type=click.Choice(["uuid", "index"]), help="How CUDA_VISIBLE_DEVICES names the GPUs (default: uuid)."
    ),
    click.option("--gpu-model", metavar="MODEL", help="Use GPUs of this model, for example H200."),
    click.option("--host", metavar="NAME", help="Run on this host: `corral status` shows their names."),
    click.option("--ship", is_flag=True, help="Send this folder, without what .gitignore names, to the host of the run."),
    click.option("--array", type=ARRAY, help="One task per index: 0-99, 0-99%8 (8 at once), 0-99:2, 0,2,5-9. See $CORRAL_INDEX."),
    click.option(
        "--after", metavar="TASK", multiple=True, shell_complete=complete_tasks("RUNNING", "WAITING"),
        help="Start when TASK has ended with exit code 0. Can be repeated.",
    ),
    click.option(
        "--after-any", metavar="TASK", multiple=True, shell_complete=complete_tasks("RUNNING", "WAITING"),
        help="Start when TASK has ended, with any exit code. Can be repeated.",
    ),
    click.option(
        "--priority", type=click.IntRange(-PRIORITY_MAX, PRIORITY_MAX), metavar="N", help="Higher numbers start first (default: 0)."
    ),
    click.option(
        "--requeue", type=click.IntRange(1, REQUEUE_MAX), metavar="[=N]",
        help="Run the task again if it fails, or if the machine is restarted: once, or up to N times.",
    ),
    click.option("--preemptible", is_flag=True, help="Lend the GPUs: tasks with a higher priority pause this one."),
    click.option(
        "--preempt", type=click.Choice(["pause", "kill"]),
        help="What happens then: pause (default), or kill: stop it and run it again. Implies --preemptible.",
    ),
    click.option("--turns", type=DURATION, help="Take turns of 5m, 1h … on the GPUs with other tasks that have --turns, too."),
    click.option("--hold", is_flag=True, help="Do not start the task before `corral release`."),
    click.option("--at", type=START_TIME, help="Do not start before 18:30, 'tomorrow 8:00', +2h, 2026-01-31T08:00."),
    click.option("--wait-anyway", is_flag=True, help="Wait even if no host has enough GPUs, CPU or memory."),
    cluster_option("The cluster in which the task runs."),
    click.option("--detach", "-d", is_flag=True, help="Print the task's id and return. With --array, print the array's id."),
    click.option("--detach-on-hangup", is_flag=True, help="If the terminal closes, the task keeps running."),
    notify_option,
    click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log is printed to stderr."),
)  # fmt: skip


def split_arguments(parameters: Sequence[click.Parameter], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of `corral run` into its options and the rest, which begins with `--` or with the command.

    A bare `--requeue` becomes `--requeue=1`, so that the next argument is not its value. `-it`, which users of docker type, becomes
    `-i`: a task in a terminal gets a terminal.
    """
    valued = {flag for option in parameters if isinstance(option, click.Option) and not option.is_flag for flag in option.opts}
    options: list[str] = []
    rest = list(given)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        if word == "-it":
            options.append("-i")
            continue
        if word == "--requeue":
            if rest and rest[0].isdecimal():  # a number is almost certainly not the program to run
                raise click.UsageError(f"--requeue {rest[0]} is ambiguous: write --requeue={rest[0]}.")
            options.append("--requeue=1")
            continue
        options.append(word)
        if word.startswith("--"):
            needs_value = "=" not in word and word in valued
        else:  # short options: -d, -dg1, -g 1
            first = next((at for at in range(1, len(word)) if f"-{word[at]}" in valued), len(word))
            needs_value = first == len(word) - 1
        if needs_value and rest:
            options.append(rest.pop(0))
    return options, rest


def check_options(options: RunArguments, *, is_file: bool) -> None:
    """Refuse options that cannot be used together."""
    check_name(options.name)
    _check_sharing(options)
    if options.interactive and options.detach:
        raise click.UsageError("-i cannot be used with --detach.")
    if options.interactive and options.detach_on_hangup:
        raise click.UsageError("-i cannot be used with --detach-on-hangup: the program loses its input with the terminal.")
    if options.interactive and options.array is not None:
        raise click.UsageError("-i cannot be used with --array: the members of an array share no terminal.")
    if options.interactive and options.requeue is not None:
        raise click.UsageError("-i cannot be used with --requeue: a task that is run again has no terminal.")
    if options.interactive and (is_file or not options.runs_here):
        raise click.UsageError("-i requires a command that runs as a process of this machine, not FILE.json or --image.")
    if is_file and options.image is not None:
        raise click.UsageError("--image cannot be used with FILE.json, which names its images.")
    if is_file and options.workdir is not None:
        raise click.UsageError("--workdir cannot be used with FILE.json: set workingDirectory in the file.")
    if (options.turns is not None or options.preemptible or options.preempt) and options.share:
        raise click.UsageError("--preemptible, --preempt and --turns cannot be used with --share: only whole GPUs are lent.")
    if options.turns is not None and options.turns < TURN_MIN_S:
        raise click.BadParameter(f"a turn lasts at least {TURN_MIN_S} seconds.", param_hint="--turns")
    if options.ship and (is_file or not options.runs_here):
        raise click.UsageError("--ship requires a command that runs as a process, not FILE.json or --image.")
    if options.runs_here and options.workdir is not None and not options.workdir.is_dir():
        raise click.BadParameter(f"'{options.workdir}' is not a folder.", param_hint="--workdir")


def _check_sharing(options: RunArguments) -> None:
    if options.share and options.gpu_memory is None:
        raise click.UsageError("--share requires --gpu-memory: how much memory of the GPU the task needs, for example 20g.")
    if options.gpu_memory is not None and not options.share:
        raise click.UsageError("--gpu-memory requires --share: without it, a task has all memory of its GPUs.")
    if options.share and options.gpus not in (None, "1"):
        raise click.UsageError(f"--share cannot be used with --gpus {options.gpus.lower()}: a task shares one GPU. Omit --gpus.")


def check_endpoint(endpoint: Endpoint, options: RunArguments, *, is_file: bool) -> None:
    """Refuse options that have no effect on AWS."""
    if not is_aws(endpoint):
        return
    if options.interactive:
        raise CliError("the endpoint is AWS, which cannot reach this terminal: -i works only with this machine's Corral.")
    if not is_file and options.runs_here:
        raise CliError("the endpoint is AWS, which cannot run processes of this machine: choose an image with --image.")
    if options.limit_s is not None:
        raise CliError("the endpoint is AWS, which has no time limits for tasks: --time works only with Corral.")
    for flag in CORRAL_ONLY:
        value = getattr(options, flag)
        if value is not None and value is not False and value != ():
            raise CliError(
                f"the endpoint is AWS, where ECS tasks have no --{flag.replace('_', '-')}: it works only with Corral. "
                "`corral pipeline` runs jobs with arrays, dependencies and retries on AWS Batch."
            )


def queue_tags(
    endpoint: Endpoint, options: RunArguments, name: str | None, cluster: str, now: datetime, git: str, shipped: str = ""
) -> list[dict[str, str]]:
    """Return the tags of the task, except the tag of its array. On AWS, return only the tag with the name of the task.

    `now` is the server's time.
    """
    tags = {tag["key"]: tag["value"] for tag in name_tags(name)} if name else {}
    if is_aws(endpoint):
        return _pairs(tags)
    if options.limit_s is not None:
        tags[TIME_LIMIT_TAG] = str(options.limit_s)
    if options.priority is not None:
        tags[PRIORITY_TAG] = str(options.priority)
    if options.requeue is not None:
        tags[REQUEUE_TAG] = str(options.requeue)
    if options.preemptible or options.preempt:
        tags[PREEMPTIBLE_TAG] = "kill" if options.preempt == "kill" else TRUE
    if options.turns is not None:
        tags[TURNS_TAG] = str(options.turns)
    if options.hold:
        tags[tasks.HOLD_TAG] = TRUE
    if options.at is not None:
        tags[NOT_BEFORE_TAG] = str(int(options.at.resolve(now).timestamp()))
    if not options.wait_anyway:
        tags[REFUSE_UNFIT_TAG] = TRUE
    if options.gpu_ids:
        tags[GPU_IDS_TAG] = options.gpu_ids
    if git:
        tags[GIT_TAG] = git
    if shipped:
        tags[SHIPPED_TAG] = shipped
    for key, given in ((AFTER_TAG, options.after), (AFTER_ANY_TAG, options.after_any)):
        tags |= dependency_tags(key, [each for run in given for each in _dependencies(endpoint, run, cluster)])
    return _pairs(tags)


def _dependencies(endpoint: Endpoint, given: str, cluster: str) -> list[str]:
    """Return the tasks and arrays that an argument of --after names. If ECS no longer describes the task, search the history."""
    try:
        return find_dependencies(endpoint, given, cluster)
    except RunNotFound:
        from corral.cli.runs.recorded_runs import find_recorded

        recorded = [run.task for run in find_recorded(endpoint, given)]
        if not recorded:
            raise
    members = Counter(map(tasks.array_id, recorded))
    return [f"array:{of}" if (of := tasks.array_id(task)) and members[of] > 1 else tasks.id_of(task) for task in recorded]


def dependency_tags(key: str, dependencies: Sequence[str]) -> dict[str, str]:
    """Return the tags that name these dependencies. A tag has room for seven task ids, so more ids need several tags."""
    values = [""]
    for each in dict.fromkeys(dependencies):
        longer = f"{values[-1]} {each}".strip()
        if len(longer) <= TAG_MAX:
            values[-1] = longer
        else:
            values.append(each)
    if len(dependencies) > DEPENDENCIES_MAX:
        flag = f"--{key.partition(':')[2]}"
        raise CliError(f"{len(dependencies)} tasks are too many for {flag}: name an array, or at most {DEPENDENCIES_MAX} tasks.")
    return {key if at == 1 else f"{key}:{at}": value for at, value in enumerate(values, 1) if value}


def _pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]
