"""Match regular expressions that callers send, with RE2.

RE2 needs time proportional to the length of the text. Python's `re` backtracks: a short pattern of a caller could occupy it for
years. But RE2 takes long to compile a pattern with many repetitions, for example minutes if `a{0,1000}` is repeated 200 times, and
stops all other threads meanwhile. So the repetitions are counted before.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MEMORY_MAX_BYTES = 8 * 1024 * 1024  # per compiled pattern
REPETITIONS_MAX = 1_500  # RE2 compiles such a pattern in about 10 ms
UNICODE_CLASS_SIZE = 100  # a class such as \p{L} takes as long as so many characters

_TOKEN = re.compile(
    r"(?P<open>\((?:\?(?:P?<\w*>|[a-zA-Z-]*:?))?)|(?P<close>\))|(?P<repeat>\{(\d+)(?:,(\d*))?\})|(?P<optional>[?*+])"
    r"|(?P<atom>\\[pP](?:\{[^}]*\}|.)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|.)",
    re.DOTALL,
)
_UNICODE_CLASS = re.compile(r"\\[pP]")


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


def _repetitions(pattern: str) -> int:
    """Return how many copies of characters and classes the repetitions of a pattern stand for. Nested repetitions multiply."""
    found, last, outer = 0, 0, [0]  # the size of the last character, class or group, and of what precedes it in each open group
    for token in _TOKEN.finditer(pattern):
        if token["repeat"]:
            last *= max(int(number[:4]) for number in (token[4], token[5]) if number)
            found += last
        elif token["optional"]:
            found += 1
        elif token["close"]:
            last += outer.pop() if len(outer) > 1 else 0
        else:
            outer[-1] += last
            last = 0
            if token["open"]:
                outer.append(0)
            elif unicode_classes := len(_UNICODE_CLASS.findall(token["atom"])):
                last = unicode_classes * UNICODE_CLASS_SIZE
                found += last
            else:
                last = 1
    return found


@lru_cache(maxsize=128)  # re2 also has a cache of 128 patterns, but its look-up is slow
def _compiled(text: str) -> Any:
    import re2  # imported on first use: it takes a few milliseconds

    if _repetitions(text) > REPETITIONS_MAX:
        raise PatternError(f"its repetitions stand for more than {REPETITIONS_MAX} characters or classes")
    options = re2.Options()
    options.max_mem = MEMORY_MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        (why,) = error.args
        raise PatternError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from None
