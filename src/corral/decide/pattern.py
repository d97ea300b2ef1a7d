"""Regular expressions of callers: RE2's, whose time grows with the text and with nothing else.

Python's own `re` tries one way after another, and a few characters of pattern can keep it busy for years.
"""

from __future__ import annotations

from typing import Any

MEMORY_MAX_BYTES = 8 * 1024 * 1024  # of a compiled one


class PatternError(ValueError):
    """The pattern cannot be read; why."""


class Pattern:
    def __init__(self, text: str) -> None:
        self._compiled = _compiled(text)

    def matches(self, text: str) -> bool:
        """Whether the whole text is such a thing, as Java's `matches` has it."""
        return self._compiled.fullmatch(text) is not None

    def found_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None


def _compiled(text: str) -> Any:
    import re2  # it takes some milliseconds, and few ever need it

    options = re2.Options()
    options.max_mem = MEMORY_MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        (why,) = error.args
        raise PatternError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from None
