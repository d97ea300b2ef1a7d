"""Formats output: messages, ages, sizes, short ids and tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import click

from corral.process.control_characters import CONTROL, escape_controls, escape_match

if TYPE_CHECKING:
    from corral.cli.printing.safe_text import SafeConsole

SHORT_ID = 8  # commands display this many digits of a task id, and accept any unique prefix
PIPE_COLUMNS = 240  # the width of tables if the output is not a terminal
INDENT = "  "  # of the lines that follow the first line of a message
KEPT_SPACE = "\ue000"  # a character for private use, at which no line is broken
_COMMAND = re.compile(r"`[^`]+`")
_TASK_ID = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24}\b")

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HTTP_DATE = rf"[A-Z][a-z]{{2}}, (\d\d) ({'|'.join(MONTHS)}) (\d{{4}}) (\d\d):(\d\d):(\d\d) GMT"

_bar: IO[str] | None = None  # the terminal whose last line is a progress bar, which the next line of the log replaces

# In logs, colours (SGR sequences) and a carriage return at the end of a line are kept.
_LOG_CONTROLS = re.compile(rf"(\x1b\[[0-9;:]{{0,64}}m|\r(?=\n|\Z))|{CONTROL}")


def escape_log(text: str, out: IO[str]) -> str:
    """If the output is a terminal, escape the control characters of a log except colours. Otherwise return the text unchanged."""
    return _LOG_CONTROLS.sub(lambda match: match[1] or escape_match(match), text) if out.isatty() else text


def log_line(prefix: str, message: str, out: IO[str]) -> str:
    """Return the text that shows an event of a log. The caller must write it to `out`.

    The message of a progress bar begins with a carriage return (`node/log_shipper.py`). On a terminal, the next line replaces the
    bar. A bar that is longer than the line is cut.
    """
    global _bar
    is_bar = message.startswith("\r") and "\r" not in message[1:]
    text = prefix + (message[1:] if is_bar else message)
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        return f"{escape_log(text, out)}\n"
    erase = "\r\x1b[K" if _bar is out else ""
    _bar = out if is_bar else None
    return f"{erase}\x1b[?7l{escape_log(text, out)}\x1b[?7h" if is_bar else f"{erase}{escape_log(text, out)}\n"


def end_bar() -> None:
    """If the last line on the terminal is a progress bar, keep it, and begin a new line."""
    global _bar
    if _bar is not None:
        out, _bar = _bar, None
        with suppress(OSError):  # the terminal has closed
            out.write("\n")
            out.flush()


def print_message(text: str) -> None:
    """Print a message to stderr, separate from the command's output. On a terminal, break it between words."""
    end_bar()
    line = escape_controls(f"corral: {text}")
    if sys.stderr.isatty():
        with suppress(OSError):  # the terminal has closed
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            line = "\n".join(each for part in line.split("\n") for each in message_lines(part, width))
    click.echo(line, err=True)


def message_lines(text: str, width: int) -> list[str]:
    """Break a message into lines of at most `width` columns. A command in backticks stays on one line if it fits, so that it can be
    copied. The lines that follow the first are indented.
    """
    if width <= len(INDENT) or len(text) <= width:
        return [text]
    from corral.cli.printing.text_table import fold

    whole = _COMMAND.sub(lambda match: match[0].replace(" ", KEPT_SPACE), text)
    first, *_ = fold(whole, width)
    rest = fold(" ".join(whole.split())[len(first) :], width - len(INDENT))
    return [line.replace(KEPT_SPACE, " ") for line in (first, *(INDENT + each for each in rest if each))]


def print_line(text: str = "", style: str = "") -> None:
    """Print a line. `style` is a style for terminals, such as `bold red`."""
    line = escape_controls(text)
    if style and _has_styles():
        from corral.cli.printing.text_table import painted

        line = painted(line, style)
    click.echo(line)


def print_text(text: str, style: str = "") -> None:
    """Print a sentence. On a screen, break it between words, and indent the lines that follow the first."""
    width = screen_width()
    if width is None or len(text) <= width:
        print_line(text, style)
        return
    from corral.cli.printing.text_table import fold

    first, *_ = fold(text, width)
    print_line(first, style)
    for line in fold(" ".join(text.split())[len(first) :], max(1, width - 2)):
        print_line(f"  {line}", style)


def _has_styles() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_progress(text: str = "") -> None:
    """Replace the progress line on stderr. If the text is empty, clear the line."""
    click.echo(f"\r\x1b[K{escape_controls(text)}", nl=False, err=True)


def screen_width() -> int | None:
    """Return the variable COLUMNS, or else the number of columns of the terminal.

    Return None if the output is not a terminal and COLUMNS is not set: then lines are not cut.
    """
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def print_table(rows: Sequence[Mapping[str, str]], **layout: Any) -> None:
    """Print a table. `layout` has the options of `text_table.table_lines`. Without `width`, the screen is the limit."""
    from corral.cli.printing.text_table import table_lines

    layout.setdefault("width", screen_width())
    layout |= {"head_style": "bold"} if _has_styles() else {"styles": None}
    for line in table_lines([{title: escape_controls(cell) for title, cell in row.items()} for row in rows], **layout):
        click.echo(line)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON in ASCII without control characters. `json.dumps` escapes all control characters except DEL."""
    return json.dumps(value, indent=indent, default=_plain).replace("\x7f", "\\u007f")


def print_json(value: Any) -> None:
    click.echo(json_text(value, indent=2))


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def shorten_ids(text: str) -> str:
    return _TASK_ID.sub(r"\1", text)


def server_time(reply: Mapping[str, Any]) -> datetime | None:
    """Return the server's time from the Date header, or None without this header. Commands compute ages with this time."""
    return parsed_date(reply["ResponseMetadata"]["HTTPHeaders"].get("date"))


def parsed_date(header: str | None) -> datetime | None:
    """Return the time in a Date header, or None if the header is missing."""
    if not header:
        return None
    match = re.fullmatch(_HTTP_DATE, header)
    if match is None:  # one of the older formats that HTTP allows
        from email.utils import parsedate_to_datetime  # imported here, because it takes 20 ms

        return parsedate_to_datetime(header)
    day, month, *others = match.groups()
    year, hour, minute, second = map(int, others)
    return datetime(year, MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=UTC)


def parse_time(text: str) -> datetime | None:
    """Parse a value of --since that begins with a year. Without a time zone, it is in UTC. Return None for other values."""
    if not re.match(r"[0-9]{4}-", text):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a time: write it as 2026-01-31T08:00:00Z.", param_hint="--since") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_period(since: str | None) -> dict[str, int]:
    """Return the period that --since begins, as a parameter. The server subtracts an age such as 7d from its own time."""
    if since is None:
        return {}
    at = parse_time(since)
    return {"last": DURATION.convert(since, None, None)} if at is None else {"since": max(0, int(at.timestamp()))}


def age(since: datetime | None, now: datetime | None) -> str:
    """Format the time between two dates: `42s`, `5m`, `3h`, `12d`."""
    if since is None or now is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def ago(since: datetime | None, now: datetime | None) -> str:
    """Format a time in the past: `42s ago`, `5m ago`, `3h ago`, `12d ago`."""
    passed = age(since, now)
    return f"{passed} ago" if passed else ""


def start(at_s: float | None, now: datetime | None) -> str:
    """Format the estimate of a start: `in 42s`, `in 5m`, `now`. Return "" if there is no estimate."""
    if at_s is None or now is None:
        return ""
    left = age(now, datetime.fromtimestamp(at_s, UTC))
    return "now" if left == "0s" else f"in {left}"


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """Parses `30s`, `90m`, `4h`, `1d`, `1h30m`, `1:30:00` or a plain number into seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text.isascii() and text.isdecimal():
            text += "s"
        match = re.fullmatch(_DURATION, text) or re.fullmatch(_CLOCK_DURATION, text)
        seconds = (
            sum(int(part) * size for part, size in zip(match.groups(default="0"), _UNITS.values(), strict=True)) if match else 0
        )
        if seconds > DURATION_MAX_S:
            self.fail(f"'{value}' is too long: a duration is at most {DURATION_MAX_S // _UNITS['d']} days.", param, ctx)
        if seconds <= 0:
            self.fail(f"'{value}' is not a duration: write it as 30s, 90m, 4h, 1d, 1h30m or 1:30:00.", param, ctx)
        return seconds


_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = "".join(f"(?:([0-9]{{1,10}}){unit})?" for unit in _UNITS)
_CLOCK_DURATION = "(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5][0-9]):([0-5][0-9])"  # days-hours:minutes:seconds
DURATION_MAX_S = 10 * 365 * 86_400
DURATION = DurationType()


def format_duration(seconds: int) -> str:
    """Format seconds in their two largest units: `45s`, `1m 05s`, `1h 30m`, `2d 3h`."""
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3_600:
        return f"{seconds // 60}m {seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3_600}h {seconds % 3_600 // 60:02}m"
    return f"{seconds // 86_400}d {seconds % 86_400 // 3_600}h"


def format_bytes(number: int) -> str:
    """Format a size: `512 B`, `1.5 MiB`, `23.0 GiB`."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def console() -> SafeConsole:
    from corral.cli.printing.safe_text import SafeConsole

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return SafeConsole(width=None if has_width else PIPE_COLUMNS)
