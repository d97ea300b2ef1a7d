"""Escapes control characters in text from tasks and clients, because such characters could control the user's terminal."""

from __future__ import annotations

import re

# C0 and C1 controls except tab and newline, characters that change the writing direction, line separators, and surrogates.
CONTROL = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
_CONTROLS = re.compile(CONTROL)


def escape_controls(text: str) -> str:
    """Replace control characters by escapes such as `\\x1b` or `\\u202e`."""
    return _CONTROLS.sub(escape_match, text)


def escape_match(match: re.Match[str]) -> str:
    number = ord(match[0])
    if match[0] == "\r":
        return "\\r"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
