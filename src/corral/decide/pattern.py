"""Match regular expressions that callers send, with RE2.

RE2 needs time proportional to the length of the text. Python's `re` backtracks: a short pattern of a caller could occupy it for
years.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MEMORY_MAX_BYTES = 8 * 1024 * 1024  # per compiled pattern


class PatternError(ValueError):
    """The pattern is invalid. The message says why."""


class Pattern:
    def __init__(self, text: str) -> None:
        self._compiled = _compiled(text)

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. (Java's `matches` has the same meaning.)"""
        return self._compiled.fullmatch(text) is not None

    def found_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None


@lru_cache(maxsize=128)  # re2 also has a cache of 128 patterns, but its look-up is slow
def _compiled(text: str) -> Any:
    import re2  # imported on first use: it takes a few milliseconds

    options = re2.Options()
    options.max_mem = MEMORY_MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        (why,) = error.args
        raise PatternError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from None
