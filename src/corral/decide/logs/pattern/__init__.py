"""Filter patterns of CloudWatch Logs. `parse` compiles the text of a pattern to a `LogPattern`.

The parameter filterPattern accepts three languages. A pattern in braces tests the members of JSON messages (selectors.py). A
pattern in brackets tests the space-separated fields of a message (fields.py). Any other pattern is a list of terms (terms.py). Each
pattern has a hint: a simple condition that SQLite checks first, so that Python has to match fewer messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.decide.logs.pattern.fields import parse_fields
from corral.decide.logs.pattern.reader import InvalidPattern, Reader
from corral.decide.logs.pattern.selectors import parse_selectors
from corral.decide.logs.pattern.terms import parse_terms
from corral.model.message_hint import Hint

__all__ = ["InvalidPattern", "LogPattern", "parse"]

PATTERN_MAX_CHARACTERS = 1024


class LogPattern(Protocol):
    @property
    def hint(self) -> Hint:
        """A condition that every matching message satisfies. A message that does not match can satisfy it, too."""

    @property
    def exact(self) -> bool:
        """Whether every message that satisfies the hint also matches the pattern."""

    @property
    def regexes(self) -> int:
        """The number of regular expressions in the pattern."""

    @property
    def has_fields(self) -> bool:
        """Whether the pattern gives names to parts of a message. A metric filter with dimensions needs such names."""

    def matches(self, message: str) -> bool: ...

    def extract(self, message: str) -> Mapping[str, str]:
        """Return the parts of a matching message to which the pattern gives names: name → text."""


def parse(text: str) -> LogPattern:
    """Parse a pattern. Raise InvalidPattern if it is not valid."""
    if len(text) > PATTERN_MAX_CHARACTERS:
        raise InvalidPattern(f"a pattern can have at most {PATTERN_MAX_CHARACTERS} characters", PATTERN_MAX_CHARACTERS)
    reader = Reader(text)
    first = reader.peek()
    if first == "{":
        return parse_selectors(reader)
    if first == "[":
        return parse_fields(reader)
    return parse_terms(reader)
