"""What live screens share: the keys that the user presses, tables and graphs."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from corral.cli.printing.safe_text import SafeText

SEQUENCE_S = 0.05  # the longest time between the bytes of one key
BARS = " ▁▂▃▄▅▆▇█"
WIDE = 120  # a screen with at least this many columns has wider tables


@contextmanager
def read_keys() -> Iterator[Any]:
    """Yield a function that waits for a key, for at most the seconds in its argument.

    The function returns the character of the key, or an empty string if no key was pressed.
    """
    import termios
    import tty

    if not sys.stdin.isatty():
        yield lambda wait_s: select.select([], [], [], wait_s) and ""
        return
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        raw = termios.tcgetattr(0)
        raw[6][termios.VSUSP] = b"\0"  # Ctrl-Z would stop the program and leave its screen
        termios.tcsetattr(0, termios.TCSANOW, raw)
        yield _read_keys
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _read_keys(wait_s: float) -> str:
    found = os.read(0, 1024) if select.select([0], [], [], wait_s)[0] else b""
    if found.endswith(b"\x1b") and select.select([0], [], [], SEQUENCE_S)[0]:  # the rest of the sequence of an arrow key
        found += os.read(0, 1024)
    return found.decode("utf-8", "replace")


def plain_table() -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", expand=True, padding=(0, 1, 0, 0), collapse_padding=True)


def one_line(text: SafeText) -> SafeText:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def styled(text: str, style: str) -> SafeText:
    from corral.cli.printing.safe_text import SafeText

    return SafeText(text, style=style)


def draw_graph(values: list[float | None], size: int) -> SafeText:
    """Draw the history as `size` bars. The newest bar is at the right. Each bar shows the maximum value of its interval."""
    bars = []
    for at in range(size):
        known = [value for value in values[at * len(values) // size : (at + 1) * len(values) // size] if value is not None]
        bars.append(BARS[max(1, min(8, round(max(known) / 12.5)))] if known else "·")
    return styled("".join(bars), "green")
