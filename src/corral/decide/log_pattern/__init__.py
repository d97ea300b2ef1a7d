"""Filter patterns of CloudWatch Logs: a text becomes something that knows which messages it means.

Three languages share one parameter. A pattern in braces looks into JSON, one in brackets into fields between spaces, and any
other is a list of terms. Each compiles to a `Pattern` with a hint, which a database can judge without us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.decide.log_pattern.fields import parse_fields
from corral.decide.log_pattern.reader import InvalidPattern, Reader
from corral.decide.log_pattern.selectors import parse_selectors
from corral.decide.log_pattern.terms import parse_terms
from corral.model.log_search import Hint

__all__ = ["InvalidPattern", "Pattern", "parse"]

PATTERN_MAX_CHARACTERS = 1024


class Pattern(Protocol):
    @property
    def hint(self) -> Hint:
        """What every matching message fulfils."""

    @property
    def exact(self) -> bool:
        """The hint says it all: a message that fulfils it matches."""

    @property
    def regexes(self) -> int:
        """How many regular expressions there are in it."""

    @property
    def has_fields(self) -> bool:
        """It names parts of a message, as a metric's dimensions need them."""

    def matches(self, message: str) -> bool: ...

    def extract(self, message: str) -> Mapping[str, str]:
        """What the pattern names in a message that matches."""


def parse(text: str) -> Pattern:
    """Raises InvalidPattern, which says what is wrong and where."""
    if len(text) > PATTERN_MAX_CHARACTERS:
        raise InvalidPattern(f"a pattern has at most {PATTERN_MAX_CHARACTERS} characters", PATTERN_MAX_CHARACTERS)
    reader = Reader(text)
    first = reader.peek()
    if first == "{":
        return parse_selectors(reader)
    if first == "[":
        return parse_fields(reader)
    return parse_terms(reader)
