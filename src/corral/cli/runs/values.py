"""Values of the options of `corral run`: numbers of GPUs, sizes, times of day, and the indexes of an array.

Each kind of value has a click type, which parses the text and says how to write it correctly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

import click

from corral.cli.printing.output import DURATION

GPUS_MAX = 64
MEMORY_MIN_MIB = 6  # the smallest memory that ECS accepts for a container
MEMORY_MAX_MIB = 2**31 - 1
MEMBERS_MAX = 10_000  # tasks of an array
INDEX_MAX = 10**9 - 1
CALL_TASKS = 10  # the maximum number of tasks that one RunTask call starts
REQUEUE_MAX = 100
CPU_MAX = 2**31 - 1
PRIORITY_MAX = 1_000
UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))

_SIZE = r"([0-9]{1,10})([kmgt]?)(?:i?b)?"
_KIB = {"k": 1, "m": 2**10, "": 2**10, "g": 2**20, "t": 2**30}  # a number without a unit is MiB, as in ECS
_CLOCK = r"(?:(today|tomorrow)\s+)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?"
_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?"


class GpuCount(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() == "all":
            return "ALL"
        if not re.fullmatch("[0-9]{1,4}", str(value)) or int(value) > GPUS_MAX:
            self.fail(f"'{value}' is neither a number from 0 to {GPUS_MAX} nor 'all'.", param, ctx)
        return str(int(value))


class MemorySize(click.ParamType):  # type: ignore[type-arg]
    """Parses `16g`, `512m`, `1t` or a plain number of MiB into MiB. Units are powers of 1024."""

    name = "SIZE"

    def __init__(self, min_mib: int) -> None:
        self._min_mib = min_mib

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(_SIZE, str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"'{value}' is not a size: write it as 512m or 16g, or as a number of MiB.", param, ctx)
        mib = int(match[1]) * _KIB[match[2].lower()] // 2**10
        if not self._min_mib <= mib <= MEMORY_MAX_MIB:
            self.fail(f"'{value}' is {mib} MiB: a task has from {self._min_mib} to {MEMORY_MAX_MIB} MiB.", param, ctx)
        return mib


class StartTime(NamedTuple):
    """The value of --at: a delay, a time of day, or an absolute time. Exactly one of the three is set."""

    delay_s: int | None = None
    clock: time | None = None
    tomorrow: bool | None = None  # with `clock`: tomorrow (True), today (False), or the next time that the clock shows it (None)
    at: datetime | None = None  # without a time zone, it is a local time

    def resolve(self, now: datetime) -> datetime:
        """Return the time in the local time zone. Raise BadParameter if the time has passed."""
        now = now.astimezone()
        if self.delay_s is not None:
            return now + timedelta(seconds=self.delay_s)
        if self.clock is not None:
            at = _on_day(now, bool(self.tomorrow), self.clock)
            if at <= now and self.tomorrow is None:
                at = _on_day(now, True, self.clock)
        else:
            assert self.at is not None
            at = self.at.astimezone()
        if at <= now:
            shown = at.isoformat(sep=" ", timespec="seconds")
            raise click.BadParameter(f"{shown} has passed: give a later time.", param_hint="--at")
        return at


def _on_day(now: datetime, tomorrow: bool, clock: time) -> datetime:
    """Return when the clock shows this time today or tomorrow. The offset from UTC may change until then (summer time)."""
    return datetime.combine(now.date() + timedelta(days=tomorrow), clock).astimezone()


class StartTimeType(click.ParamType):  # type: ignore[type-arg]
    """Parses the value of --at: `+2h`, `18:30`, `tomorrow 8:00`, `2026-01-31T08:00`."""

    name = "WHEN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StartTime:
        text = str(value).strip()
        if text.startswith("+"):
            return StartTime(delay_s=DURATION.convert(text[1:], param, ctx))
        found = _start_time(text)
        if found is None:
            self.fail(f"'{value}' is not a time: write it as 18:30, 'tomorrow 8:00', +2h or 2026-01-31T08:00.", param, ctx)
        return found


def _start_time(text: str) -> StartTime | None:
    try:
        if (match := re.fullmatch(_CLOCK, text, re.IGNORECASE)) is not None:
            clock = time(int(match[2]), int(match[3]), int(match[4] or 0))
            return StartTime(clock=clock, tomorrow=match[1].lower() == "tomorrow" if match[1] else None)
        if not re.match("[0-9]{4}-", text):
            return None
        at = datetime.fromisoformat(text)
        at.astimezone()  # refuses times of other time zones that are before the year 1 or after the year 9999
        return StartTime(at=at)
    except (ValueError, OverflowError):
        return None


class ArraySpec(NamedTuple):
    """The value of --array: the sorted indexes of the members, and how many members run at the same time (0: no limit)."""

    indexes: tuple[int, ...]
    limit: int = 0


class ArrayType(click.ParamType):  # type: ignore[type-arg]
    """Parses `0-99`, `0-99%8` (at most 8 at once), `0-99:2` (every second index) and `0,2,5-9`."""

    name = "INDEXES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ArraySpec:
        text, percent, limit = str(value).replace(" ", "").partition("%")
        if percent and not (re.fullmatch("[0-9]{1,9}", limit) and int(limit)):
            self.fail(f"'{value}': write after % how many tasks run at the same time, as in 0-99%8.", param, ctx)
        indexes: set[int] = set()
        for part in text.split(","):
            found = _indexes(part)
            if found is None:
                self.fail(f"'{value}' is not a list of indexes: write it as 0-99, 0-99%8, 0-99:2 or 0,2,5-9.", param, ctx)
            if len(found) > MEMBERS_MAX or len(indexes := indexes | set(found)) > MEMBERS_MAX:
                self.fail(f"'{value}' has more than {MEMBERS_MAX} indexes: submit several smaller arrays.", param, ctx)
        return ArraySpec(tuple(sorted(indexes)), min(int(limit), MEMBERS_MAX) if percent else 0)


def _indexes(part: str) -> range | None:
    match = re.fullmatch(_RANGE, part)
    if match is None:
        return None
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, last + 1, step) if step and last >= first else None


def whole_units(seconds: int) -> str:
    """Format seconds as the user writes them, in the largest unit that needs no fraction: `90s`, `5m`, `2h`."""
    size, unit = next((size, unit) for size, unit in UNITS if seconds % size == 0)
    return f"{seconds // size}{unit}"


def call_batches(indexes: Sequence[int]) -> Iterator[range]:
    """Split sorted indexes into ranges of at most ten, one for each RunTask call.

    The tag of a call contains only a first index and a step, so the indexes of a range have equal distances.
    """
    start = 0
    while start < len(indexes):
        step = indexes[start + 1] - indexes[start] if start + 1 < len(indexes) else 1
        end = start + 1
        while end < len(indexes) and end - start < CALL_TASKS and indexes[end] - indexes[end - 1] == step:
            end += 1
        yield range(indexes[start], indexes[end - 1] + 1, step)
        start = end


GPU_COUNT = GpuCount()
MEMORY_SIZE = MemorySize(MEMORY_MIN_MIB)
GPU_MEMORY_SIZE = MemorySize(1)
START_TIME = StartTimeType()
ARRAY = ArrayType()
