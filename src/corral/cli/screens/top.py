"""`corral top` shows the GPUs, their utilization, the instances and the tasks, and refreshes the screen.

Keys select a task, stop it and show its log, and a page of help. The last line of the screen names the keys, or says what the last
key did. All requests are sent from the one thread that draws the screen. If a request fails, the screen shows the error and
continues.
"""

from __future__ import annotations

import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, find_endpoint, get_status
from corral.cli.printing.errors import CliError, error_line
from corral.cli.printing.live_screen import one_line, read_keys, styled
from corral.cli.printing.output import console, print_json, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.task_logs import log_streams
from corral.cli.screens.top_tables import frame, task_rows

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from corral.cli.printing.safe_text import SafeConsole, SafeText
    from corral.cli.runs.log_states import TaskLogStream

REFRESH_S = 1.0
LOG_EVENTS = 1_000  # the log is read from this many events before its end
LOG_LINES = 10_000  # the most lines of a log that are kept
TERMINATED = 143  # the exit code after SIGTERM
SHOWN_MAX = 200  # the most tasks of each kind that GetStatus returns
_SEQUENCE = re.compile(r"\x1b(?:\[|O)([0-9;]*[A-Za-z~])|(.)", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SEQUENCES = {  # the end of the escape sequence of a key → its name
    "A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "4~": "end", "5~": "page up", "6~": "page down",
}  # fmt: skip
CHARACTERS = {
    "k": "up", "j": "down", "g": "home", "G": "end", " ": "page down", "\r": "log", "\n": "log", "l": "log", "s": "stop",
    "x": "stop", "h": "help", "?": "help", "q": "quit", "Q": "quit", "\x1b": "quit", "\x03": "quit",
}  # fmt: skip
KEYS = "↑↓ select  l log  s stop  h help  q quit"
LOG_KEYS = "↑↓ scroll  G end  q back"
HELP = """\
↑ ↓  k j       select a task
Home End  g G  select the first or the last task
l  Enter       read the log of the selected task
s  x           stop the selected task; y confirms it
h  ?           this help
q  Esc         back, or quit

Running tasks are first, then waiting tasks in the order in
which they will start. `corral ps` lists all tasks, and
`corral show TASK` says everything about one of them."""


def parse_keys(text: str) -> list[str]:
    """Return the names of the pressed keys. A key without a name is its character. Omit unknown escape sequences."""
    found = []
    for sequence, character in _SEQUENCE.findall(text):
        key = SEQUENCES.get(sequence) if sequence else CHARACTERS.get(character, character)
        found += [key] if key else []
    return found


class Footed(NamedTuple):
    """A screen whose last line is `footer`."""

    body: RenderableType
    footer: SafeText
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for line in console.render_lines(self.body, options.update(height=max(1, self.height - 1))):
            yield from line
            yield Segment.line()
        yield self.footer


class LogView:
    """The end of the log of one task. It grows while the task runs."""

    def __init__(self, endpoint: Endpoint, row: dict[str, Any]) -> None:
        self._endpoint = endpoint
        self._row = row
        self._definition: dict[str, Any] | None = None
        self._tokens: dict[TaskLogStream, str] = {}
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._state = ""
        self._back = 0  # how many lines are below the screen

    def read(self) -> None:
        ecs = client(self._endpoint, "ecs", self._row["region"])
        described = tasks.describe(ecs, [self._row["task"]], self._row["cluster"])
        if not described:
            self._state = "ECS no longer shows the task"
            return
        [task] = described
        self._state = tasks.state(task)
        if "startedAt" not in task:
            self._state += f": {shorten_ids(tasks.reason(task))}"
        if self._definition is None:
            self._definition = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
        streams = log_streams(self._definition, task)
        for stream in streams:
            prefix = f"{stream.container} | " if len(streams) > 1 else ""
            for message in self._new_events(stream):
                text = _COLOUR.sub("", message.rstrip("\r\n")).rpartition("\r")[2]  # of a progress bar, only its last state
                self._lines.append(prefix + text)
                self._back += bool(self._back)  # the lines on the screen stay

    def _new_events(self, stream: TaskLogStream) -> Iterator[str]:
        logs = client(self._endpoint, "logs", stream.region)
        token = self._tokens.get(stream)
        where = {"nextToken": token, "startFromHead": True} if token else {"startFromHead": False, "limit": LOG_EVENTS}
        with suppress(logs.exceptions.ResourceNotFoundException):  # the task has not printed anything yet
            reply = logs.get_log_events(logGroupName=stream.group, logStreamName=stream.name, **where)
            self._tokens[stream] = reply["nextForwardToken"]
            yield from (event["message"] for event in reply["events"])

    def scroll(self, key: str, height: int) -> None:
        steps = {"up": 1, "down": -1, "page up": height - 3, "page down": 3 - height, "home": LOG_LINES, "end": -LOG_LINES}
        self._back = max(0, min(self._back + steps.get(key, 0), len(self._lines) - 1))

    def screen(self, out: SafeConsole, trouble: str) -> RenderableType:
        from rich.console import Group

        from corral.cli.printing.safe_text import SafeText

        head = one_line(SafeText.assemble((_name(self._row), "bold"), f"  {self._state}"))
        room = max(1, out.height - 2)
        shown: deque[Any] = deque(maxlen=room)
        last = len(self._lines) - self._back
        for line in list(self._lines)[max(0, last - room) : last]:
            shown.extend(SafeText(line or " ").wrap(out, out.width))
        body = [*shown] or [styled("The log is empty so far.", "dim")]
        below = f"  {self._back} more lines below" if self._back else ""
        return Footed(Group(head, *body), _footer(trouble or LOG_KEYS + below, trouble), out.height)


class TopScreen:
    def __init__(self, endpoint: Endpoint, out: SafeConsole, page: dict[str, Any], date: str | None) -> None:
        self._endpoint, self._out = endpoint, out
        self._page, self._date = page, date
        self._selected: str | None = None  # a task id
        self._at = 0  # the position of the selected task
        self._trouble = ""  # why the last request failed
        self._said = ""  # what the last key did; shown until the next key
        self._confirms: dict[str, Any] | None = None  # the task that `y` stops
        self._helps = False
        self._log: LogView | None = None

    def watch(self) -> None:
        from rich.live import Live

        with _exit_on_termination(), read_keys() as pressed, Live(console=self._out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(self._screen(), refresh=True)
                keys = parse_keys(pressed(REFRESH_S))
                for key in keys:
                    if not self._act(key):
                        return
                if not keys or self._log is not None:
                    self._attempt(self._refresh)

    def _refresh(self) -> None:
        if self._log is not None:
            self._log.read()
            return
        shown = min(SHOWN_MAX, self._out.height + self._at)
        self._page, self._date = get_status(self._endpoint, tasks=shown)
        self._select(self._at)

    def _attempt(self, call: Callable[[], None]) -> None:
        """Send requests. If one fails, show why."""
        try:
            call()
            self._trouble = ""
        except Exception as error:
            self._trouble = error.message if isinstance(error, CliError) else error_line(error) or repr(error)

    def _screen(self) -> RenderableType:
        from corral.cli.printing.safe_text import SafeText

        out = self._out
        if self._helps:
            return Footed(SafeText(HELP), _footer("any key returns"), out.height)
        if self._log is not None:
            return self._log.screen(out, self._trouble)
        body = frame(self._page, self._date, out.width, out.height - 1, self._trouble, self._selected)
        return Footed(body, _footer(self._said or KEYS, self._said), out.height)

    # Keys

    def _act(self, key: str) -> bool:
        """Handle a key. Return False if it ends the program."""
        confirms, self._confirms, self._said = self._confirms, None, ""
        if self._helps:
            self._helps = False
        elif confirms is not None:
            if key in ("y", "Y"):
                self._attempt(lambda: self._stop(confirms))
        elif self._log is not None:
            if key == "quit":
                self._log = None
                self._attempt(self._refresh)
            else:
                self._log.scroll(key, self._out.height)
        elif key == "quit":
            return False
        elif key == "help":
            self._helps = True
        elif key in ("up", "down", "page up", "page down", "home", "end"):
            self._move(key)
        elif key in ("stop", "log"):
            self._use(key)
        return True

    def _move(self, key: str) -> None:
        page, count = max(1, self._out.height // 2), len(self._rows())
        steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -count, "end": count}
        self._select(self._at + steps[key] if self._selected is not None else 0 if key != "end" else count, moves=True)

    def _select(self, at: int, *, moves: bool = False) -> None:
        """Select the task at a position. Without `moves`, select the same task as before, if it is still on the page."""
        rows = self._rows()
        if self._selected is None and not moves:
            return
        if not moves:
            at = next((number for number, row in enumerate(rows) if row["task"] == self._selected), at)
        self._at = max(0, min(at, len(rows) - 1))
        self._selected = rows[self._at]["task"] if rows else None

    def _use(self, key: str) -> None:
        row = next((row for row in self._rows() if row["task"] == self._selected), None)
        if row is None:
            self._said = "select a task first, with ↑ and ↓" if self._rows() else "there are no tasks"
        elif key == "log":
            self._log = LogView(self._endpoint, row)
        else:
            self._confirms = row
            self._said = f"stop {_name(row)}? y/n"

    def _stop(self, row: dict[str, Any]) -> None:
        client(self._endpoint, "ecs", row["region"]).stop_task(cluster=row["cluster"], task=row["task"])
        self._said = f"{_name(row)} is stopping"
        self._refresh()

    def _rows(self) -> list[dict[str, Any]]:
        return [row for row in task_rows(self._page) if "task" in row]


def _name(row: dict[str, Any]) -> str:
    return f"{tasks.title(row['taskName'], row['arrayIndex'])} ({tasks.short(row['task'])})"


def _footer(text: str, important: str = "") -> SafeText:
    return one_line(styled(text, "bold yellow" if important else "dim"))


@contextmanager
def _exit_on_termination() -> Iterator[None]:
    """Let SIGTERM end the program in the same way as an exception, so that the terminal is restored."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command(short_help="Watch GPUs and tasks live.")
@data_option
@click.option("--once", is_flag=True, help="Print once and exit. Default if the output is not a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one sample as JSON.")
def top(data: DataFolder, once: bool, as_json: bool) -> None:
    """Show the GPUs, their utilization in the last two minutes, the instances, and the running and waiting tasks.

    The screen is refreshed until you press q. Other keys select a task, stop it, and show its log. Press h for help.
    """
    endpoint, out = find_endpoint(data), console()
    # Request the page before the live screen starts, so that an error is printed as one line.
    page, date = get_status(endpoint, tasks=None if as_json else out.height)
    if as_json:
        print_json(page)
    elif once or not sys.stdout.isatty():
        out.print(frame(page, date, out.width, None))
    else:
        from corral.cli.screens.top import TopScreen

        TopScreen(endpoint, out, page, date).watch()
