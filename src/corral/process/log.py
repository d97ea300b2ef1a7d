"""Sets up the log of Corral's processes, which is written to standard error. `corral up` shows it on the terminal."""

from __future__ import annotations

import logging
import sys

from corral.process.control_characters import escape_controls
from corral.process.log_times import TimedLines


class EscapingFormatter(logging.Formatter):
    """Escapes control characters, because names, errors and paths in log records may come from tasks and clients."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


def log_to_stderr(line_format: str) -> None:
    """Write log records to standard error. Each line has its time, also those of a traceback."""
    handler = logging.StreamHandler(TimedLines(sys.stderr))
    handler.setFormatter(EscapingFormatter(line_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
