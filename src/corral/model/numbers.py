"""Converts text from callers, for example in names, tokens, headers and queries, to whole numbers.

Text has several traps. `str.isdigit` accepts digits of other alphabets, and digits that `int` refuses (²). `int` refuses more than
4,300 digits. SQLite refuses more than 64 bits. So code that gets such text calls this module, and does not call `int` itself.
"""

from __future__ import annotations

INT64_MAX = 2**63 - 1
DIGITS_MAX = 19  # the number of digits of INT64_MAX


def whole_number(text: str, most: int = INT64_MAX) -> int | None:
    """Convert a text of ASCII digits to a number from 0 to `most`. Return None for any other text."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > DIGITS_MAX:
        return None
    number = int(digits)
    return number if number <= most else None
