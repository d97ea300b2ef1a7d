"""Whole numbers in texts of callers: names, tokens, headers and queries.

`str.isdigit` accepts digits that `int` refuses (²) and those of other alphabets, `int` refuses more than 4,300 digits, and SQLite
refuses more than 64 bits. So text becomes a number here, and nowhere else.
"""

from __future__ import annotations

INT64_MAX = 2**63 - 1
DIGITS_MAX = 19  # of INT64_MAX


def whole_number(text: str, most: int = INT64_MAX) -> int | None:
    """The number from 0 to `most` that the ASCII digits of a text write; None for any other text."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > DIGITS_MAX:
        return None
    number = int(digits)
    return number if number <= most else None
