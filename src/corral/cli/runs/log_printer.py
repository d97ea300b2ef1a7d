"""Prints log events of several tasks, each line with the name of its task."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import IO, Any
from zlib import crc32

from corral.cli.printing.output import json_text, log_line
from corral.cli.runs.log_states import LogState, TaskLogStream

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # SGR codes of the colours of the names before the lines, without red


class LogPrinter:
    """Prints events as text or JSON. If there are several logs, each line begins with the name of its log."""

    def __init__(self, names: list[str], *, timestamps: bool, as_json: bool, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._width = max(map(len, names)) if len(names) > 1 else 0
        self._timestamps = timestamps
        self._as_json = as_json
        self._colours = colours_of(names) if self._out.isatty() and not os.environ.get("NO_COLOR") else {}
        self._names: dict[TaskLogStream, str] = {}
        self._task_ids: dict[TaskLogStream, str] = {}

    def add(self, stream: TaskLogStream, task_id: str, name: str) -> None:
        """Set the task and the name of a log. The name of a log that was not added is the name of its container."""
        self._names[stream], self._task_ids[stream] = name, task_id

    def show(self, stream: TaskLogStream, events: list[dict[str, Any]], *, flush: bool = True) -> None:
        self._out.write("".join(self._line(stream, event) for event in events))
        if flush:
            self._out.flush()

    def show_state(self, stream: TaskLogStream, state: LogState) -> None:
        """With --json, print a line for a log that lacks a part of the output."""
        if self._as_json and any(state):
            self._out.write(self._line(stream, state.described()))
            self._out.flush()

    def _line(self, stream: TaskLogStream, event: dict[str, Any]) -> str:
        if self._as_json:
            task = {"task": self._task_ids[stream]} if stream in self._task_ids else {}
            return json_text({**event, "container": stream.container, **task}) + "\n"
        name = f"{self._names.get(stream, stream.container):<{self._width}} | " if self._width else ""
        colour = self._colours.get(self._names.get(stream, stream.container))
        if name and colour:
            name = f"\x1b[{colour}m{name}\x1b[0m"
        at = ""
        if self._timestamps:
            at = datetime.fromtimestamp(event["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")
        return log_line(f"{at}{name}", event["message"], self._out)


def colours_of(names: list[str]) -> dict[str, int]:
    """Return a colour for each name, derived from the name. If an earlier name has the same colour, use the next free colour."""
    chosen: dict[str, int] = {}
    for name in dict.fromkeys(names):
        first = crc32(name.encode()) % len(COLOURS)
        ranked = [COLOURS[(first + step) % len(COLOURS)] for step in range(len(COLOURS))]
        chosen[name] = next((colour for colour in ranked if colour not in chosen.values()), ranked[0])
    return chosen
