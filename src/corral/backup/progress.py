"""Prints the progress of a long operation as lines of JSON. The `corral` command reads these lines and displays the progress."""

from __future__ import annotations

import json
import sys
from time import monotonic
from typing import Any

INTERVAL_S = 0.1


class ProgressLines:
    def __init__(self) -> None:
        self._step = ""
        self._done = 0
        self._shown_s = 0.0

    def begin(self, step: str) -> None:
        self._step, self._done, self._shown_s = step, 0, 0.0

    def at(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes are processed."""
        self._done = done
        now_s = monotonic()
        if now_s - self._shown_s >= INTERVAL_S or done == total:
            self._shown_s = now_s
            _print({"step": self._step, "done": done, "total": total})

    def add(self, size: int, total: int) -> None:
        self.at(self._done + size, total)


def print_result(result: Any) -> None:
    _print({"result": result})


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), file=sys.stdout, flush=True)
