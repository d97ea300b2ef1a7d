"""Adds the time to each line that a process of Corral writes to its log file: log records, tracebacks and printed lines."""

from __future__ import annotations

import io
import re
import sys
import time
from threading import Lock
from typing import TextIO

from corral.core.clock import WallClock

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ")


class TimedLines(io.TextIOBase):
    """Writes lines to another stream, each with the local time. A line is written when it is complete."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._unfinished = ""
        self._lock = Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            if lines:
                stamp = _stamp(WallClock().now_s())
                self._stream.write("".join(f"{stamp}{line}\n" for line in lines))
                self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def add_times_to_output() -> None:
    """Add the time to everything that this process writes to standard output and standard error from now on."""
    sys.stdout, sys.stderr = TimedLines(sys.stdout), TimedLines(sys.stderr)


def without_time(line: str) -> str:
    return _STAMP.sub("", line, count=1) if _STAMP.match(line) else line


def _stamp(now_s: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now_s))}.{int(now_s * 1000) % 1000:03d} "
