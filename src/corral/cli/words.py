"""How things are said to people: ages, ids, tables; and JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

SHORT_ID = 8  # digits of a task's id: enough for a person, and verbs take any prefix that is unique
PIPE_COLUMNS = 240  # what nobody looks at in a terminal is not cut to the width of one
_TASK_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")


def say(text: str) -> None:
    """To the person, beside the output proper."""
    click.echo(f"corral: {text}", err=True)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def with_short_ids(text: str) -> str:
    return _TASK_ID.sub(r"\1", text)


def server_time(reply: Mapping[str, Any]) -> datetime | None:
    """The time at the server when it answered: ages are told by its clock, not by ours."""
    return parsed_date(reply["ResponseMetadata"]["HTTPHeaders"].get("date"))


def parsed_date(header: str | None) -> datetime | None:
    return parsedate_to_datetime(header) if header else None


def age(since: datetime | None, now: datetime | None) -> str:
    """`42s`, `5m`, `3h`, `12d`."""
    if since is None or now is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only lately
    """Seconds, said as `30s`, `90m`, `4h`, `1d`, `1h30m` or a plain number."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text.isdecimal() and int(text) > 0:
            return int(text)
        match = _DURATION.fullmatch(text)
        seconds = (
            sum(int(part) * size for part, size in zip(match.groups(default="0"), _UNITS.values(), strict=True)) if match else 0
        )
        if not seconds:
            self.fail(f"'{value}' is no duration: say it as 30s, 90m, 4h, 1d or 1h30m.", param, ctx)
        return seconds


_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in _UNITS))
DURATION = Duration()


def duration(seconds: int) -> str:
    """`45s`, `1m 05s`, `1h 30m`, `2d 3h`: the two largest units."""
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3_600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h {seconds % 3_600 // 60:02}m"
    return f"{seconds // 86_400}d {seconds % 86_400 // 3_600}h"


def in_bytes(number: int) -> str:
    """`512 B`, `1.5 MiB`, `23.0 GiB`."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def console() -> Console:
    from rich.console import Console

    seen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if seen else PIPE_COLUMNS, highlight=False, emoji=False, markup=False)
