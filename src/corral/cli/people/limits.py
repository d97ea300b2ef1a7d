"""`corral limits` sets, lists and removes the limits of users and groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint
from corral.cli.printing.output import DURATION, format_bytes, format_duration, print_json, print_table, print_text
from corral.cli.runs.values import PRIORITY_MAX

NONE = "none"


class LimitOption(NamedTuple):
    option: str
    member: str  # in the API
    type: Any
    about: str
    shown: Callable[[Any], str] = str


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """Parses `16g`, `512m`, `1t` or a plain number of MiB into bytes or MiB. Units are powers of 1024."""

    name = "SIZE"

    def __init__(self, unit: int) -> None:
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"([0-9]{1,12})([kmgt]?)(?:i?b)?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"'{value}' is not a size: write it as 512m, 16g or 2t, or as a number of MiB.", param, ctx)
        bits = {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[match[2].lower()]
        return int(match[1]) * (1 << bits) // self._unit


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


LIMITS = (
    LimitOption("gpus", "gpus", click.IntRange(0), "GPUs held at once."),
    LimitOption("waiting", "waitingGpus", click.IntRange(0), "GPUs for which tasks wait."),
    LimitOption("gpu-hours", "gpuHoursPerWeek", click.FloatRange(0), "GPU-hours in the last seven days.", _number),
    LimitOption(
        "time", "longestS", DURATION, "The longest time limit of a task, such as 12h.", lambda s: format_duration(round(s))
    ),
    LimitOption("memory", "memoryMiB", Size(2**20), "Memory of tasks at once, such as 64g.", lambda mib: format_bytes(mib * 2**20)),
    LimitOption("priority", "priority", click.IntRange(0, PRIORITY_MAX), "The highest priority."),
    LimitOption("stored", "storedBytes", Size(1), "Bytes of objects and image layers, such as 500g.", format_bytes),
    LimitOption("requests", "requestsPerSecond", click.FloatRange(0.1), "Requests per second.", _number),
    LimitOption("weight", "weight", click.FloatRange(0.001), "The weight in the line (not a limit).", lambda weight: f"{weight:g}"),
)


class Subject(click.ParamType):  # type: ignore[type-arg]
    """Parses `user:NAME`, `group:NAME`, `everyone` or `root` into the name of the subject in the API."""

    name = "SUBJECT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, name = str(value).replace("/", ":", 1).partition(":")
        if value in ("everyone", "root"):
            return str(value)
        if kind not in ("user", "group") or not name:
            self.fail(f"'{value}' is not valid: write user:NAME, group:NAME, everyone or root.", param, ctx)
        return f"{kind}/{name}"


@click.group(invoke_without_command=True, short_help="Set and show the limits of people.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the limits as JSON.")
@click.pass_context
def limits(context: click.Context, data: DataFolder, as_json: bool) -> None:
    """Set and show the limits of users and groups.

    \b
    corral limits                          show limits and their use
    corral limits set user:ann --gpus 4    set limits of a user
    corral limits set group:lab --gpus 8   set limits of a group together
    corral limits set everyone --time 12h  set limits of each user
    corral limits remove user:ann          remove limits
    """
    context.obj = data
    if context.invoked_subcommand is not None:
        return
    found, _ = call(find_endpoint(data), "DescribeLimits", {})
    if as_json:
        print_json(found["limits"])
    elif not found["limits"]:
        print_text("No limits. `corral limits set user:NAME --gpus 4` sets one.")
    else:
        _print_limits(found["limits"])


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for limit in reversed(LIMITS):
        command = click.option(f"--{limit.option}", limit.member, type=_OrNone(limit.type), help=limit.about)(command)
    return command


class _OrNone(click.ParamType):  # type: ignore[type-arg]
    """A value of another type, or `none`, which removes the limit."""

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self.name = type_.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NONE if value == NONE else self._type.convert(value, param, ctx)


@limits.command("set", short_help="Set limits.")
@data_option
@click.argument("subject", type=Subject())
@_options
@click.option("--json", "as_json", is_flag=True, help="Print the limits of the subject as JSON.")
@click.pass_obj
def set_(outer: DataFolder, /, subject: str, data: DataFolder, as_json: bool, **given: Any) -> None:
    """Set limits of user:NAME, group:NAME, everyone or root. Other limits stay. The value `none` removes a limit.

    A change acts at once, and stops nothing that runs.
    """
    values = {member: value for member, value in given.items() if value is not None}
    if not values:
        raise click.UsageError(f"Name a limit: {', '.join(f'--{limit.option}' for limit in LIMITS)}.")
    removed = [member for member, value in values.items() if value == NONE]
    kept = {member: value for member, value in values.items() if value != NONE}
    _change(data if data.chosen else outer, {"subject": subject, "limits": kept, "remove": removed}, as_json=as_json)


@limits.command(short_help="Remove limits.")
@data_option
@click.argument("subject", type=Subject())
@click.argument("names", nargs=-1, type=click.Choice([limit.option for limit in LIMITS]), metavar="[LIMIT]...")
@click.option("--json", "as_json", is_flag=True, help="Print the limits that are left as JSON.")
@click.pass_obj
def remove(outer: DataFolder, subject: str, names: tuple[str, ...], data: DataFolder, as_json: bool) -> None:
    """Remove limits of user:NAME, group:NAME, everyone or root: all of them, or those that you name, such as `gpus`."""
    removed = [limit.member for limit in LIMITS if not names or limit.option in names]
    _change(data if data.chosen else outer, {"subject": subject, "remove": removed}, as_json=as_json)


def _change(data: DataFolder, request: dict[str, Any], *, as_json: bool) -> None:
    changed, _ = call(find_endpoint(data), "SetLimits", request)
    if as_json:
        print_json(changed)
    elif not changed["limits"]:
        print_text(f"{_name(changed['subject'])} has no limits.")
    else:
        _print_limits([changed])


def _print_limits(found: list[dict[str, Any]]) -> None:
    print_table(
        [
            {
                "SUBJECT": _name(each["subject"]),
                "LIMIT": limit.option,
                "VALUE": limit.shown(each["limits"][limit.member]),
            }
            for each in found
            for limit in LIMITS
            if limit.member in each["limits"]
        ]
    )


def _name(subject: str) -> str:
    return subject.replace("/", ":", 1)
