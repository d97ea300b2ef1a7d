"""Patterns of terms. A term is a word, a phrase or a regular expression.

A message must contain each term without a sign, and no term with the sign `-`. If all terms have the sign `?`, the message must
contain at least one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from corral.decide.logs.pattern.reader import Reader
from corral.decide.logs.pattern.regex import Regex, read_regex
from corral.model.message_hint import Contains, Hint, Lacks, all_of, any_of

UNQUOTED = re.compile(r"[A-Za-z0-9_]+(?=\s|$)")
UP_TO_SPACE = re.compile(r"\S+")


class Phrase(Struct, frozen=True):
    text: str

    def found_in(self, message: str) -> bool:
        return self.text in message

    @property
    def hint(self) -> Hint:
        return Contains(self.text)


Term = Phrase | Regex


class Terms(Struct, frozen=True):
    needed: tuple[Term, ...] = ()
    unwanted: tuple[Term, ...] = ()
    any_of: tuple[Term, ...] = ()  # at least one must match
    has_fields = False

    @property
    def hint(self) -> Hint:
        lacks = [Lacks(term.text) for term in self.unwanted if isinstance(term, Phrase)]
        some = [any_of(term.hint for term in self.any_of)] if self.any_of else []
        return all_of([*(term.hint for term in self.needed), *some, *lacks])

    @property
    def exact(self) -> bool:
        return self.regexes == 0

    @property
    def regexes(self) -> int:
        return sum(isinstance(term, Regex) for term in (*self.needed, *self.unwanted, *self.any_of))

    def matches(self, message: str) -> bool:
        return (
            all(term.found_in(message) for term in self.needed)
            and not any(term.found_in(message) for term in self.unwanted)
            and (not self.any_of or any(term.found_in(message) for term in self.any_of))
        )

    def extract(self, _: str) -> Mapping[str, str]:
        return {}


def parse_terms(reader: Reader) -> Terms:
    """Parse a list of terms. Like CloudWatch Logs, ignore terms with `?` if the pattern also has other terms."""
    found: dict[str, list[Term]] = {"": [], "-": [], "?": []}
    while sign := reader.peek():
        if sign in "-?":
            reader.at += 1
            reader.peek()
        term = _term(reader)
        if isinstance(term, Regex) or term.text.strip():  # ignore a term of spaces only, because it matches every message
            found[sign if sign in "-?" else ""].append(term)
    mixed = found[""] or found["-"]
    return Terms(tuple(found[""]), tuple(found["-"]), () if mixed else tuple(found["?"]))


def _term(reader: Reader) -> Term:
    first = reader.peek()
    if first == '"':
        return Phrase(reader.quoted())
    if first == "%":
        return read_regex(reader)
    if word := reader.match(UNQUOTED):
        return Phrase(word)
    start = reader.at
    invalid = reader.match(UP_TO_SPACE)
    reader.at = start
    raise reader.error(f"Invalid character(s) in term '{invalid}': put characters other than letters, digits and _ in quotes")
