"""Control characters in text that others wrote: they could change what a terminal shows, or what it does."""

from __future__ import annotations

import re

# C0 and C1 controls except tab and newline, overrides of the writing direction, line separators, and surrogates.
CONTROL = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
_CONTROLS = re.compile(CONTROL)


def escape_controls(text: str) -> str:
    """Show control characters as `\\x1b` or `\\u202e`, so that text of tasks cannot control the terminal."""
    return _CONTROLS.sub(escape_match, text)


def escape_match(match: re.Match[str]) -> str:
    number = ord(match[0])
    if match[0] == "\r":
        return "\\r"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
