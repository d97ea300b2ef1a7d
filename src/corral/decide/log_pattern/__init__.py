"""Filter patterns of CloudWatch Logs. `parse` compiles the text of a pattern to a `LogPattern`.

The parameter accepts three languages. A pattern in braces tests the members of JSON messages (selectors.py), a pattern in
brackets tests the fields between spaces (fields.py), and any other pattern is a list of terms (terms.py). Each pattern has a hint
that SQLite can check before Python matches a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.decide.log_pattern.fields import parse_fields
from corral.decide.log_pattern.reader import InvalidPattern, Reader
from corral.decide.log_pattern.selectors import parse_selectors
from corral.decide.log_pattern.terms import parse_terms
from corral.model.message_hint import Hint

__all__ = ["InvalidPattern", "LogPattern", "parse"]

PATTERN_MAX_CHARACTERS = 1024


class LogPattern(Protocol):
    @property
    def hint(self) -> Hint:
        """A condition that every matching message satisfies."""

    @property
    def exact(self) -> bool:
        """Whether every message that satisfies the hint matches."""

    @property
    def regexes(self) -> int:
        """The number of regular expressions in the pattern."""

    @property
    def has_fields(self) -> bool:
        """Whether the pattern names parts of a message, which the dimensions of a metric filter need."""

    def matches(self, message: str) -> bool: ...

    def extract(self, message: str) -> Mapping[str, str]:
        """Name → text of the parts that the pattern names in a matching message."""


def parse(text: str) -> LogPattern:
    """Raises InvalidPattern, whose message has the fault and its position."""
    if len(text) > PATTERN_MAX_CHARACTERS:
        raise InvalidPattern(f"a pattern can have at most {PATTERN_MAX_CHARACTERS} characters", PATTERN_MAX_CHARACTERS)
    reader = Reader(text)
    first = reader.peek()
    if first == "{":
        return parse_selectors(reader)
    if first == "[":
        return parse_fields(reader)
    return parse_terms(reader)
