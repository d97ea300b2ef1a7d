"""Regular expressions between percent signs: the small language that CloudWatch Logs documents, without groups.

They come from callers and meet messages of any length, so time is bounded: where Python's own matcher, which is faster with most,
could go astray, RE2 takes its place.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from corral.decide.log_pattern.reader import InvalidPattern, Reader
from corral.decide.pattern import Pattern
from corral.model.log_search import EVERY_MESSAGE, Contains, Hint

PLAIN = frozenset(string.ascii_letters + string.digits + " :_#=@/;,-")
ESCAPABLE = frozenset("^$?[]{}|\\*+.% :_#=@/;,-")
CLASSES = {
    "d": frozenset(string.digits),
    "s": frozenset(string.whitespace),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
}
REPEATS_MAX = 255
STEPS_MAX = 1_000
TRIES_MAX = 1_000_000  # of Python's matcher at one message: some milliseconds, in which no other thread runs
HEX = re.compile(r"[0-9A-Fa-f]{2}")
BOUNDS = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A set of characters, or all others."""

    characters: frozenset[str]
    others: bool = False

    def __contains__(self, character: object) -> bool:
        return (character in self.characters) is not self.others


ANY = Kind(frozenset("\n"), others=True)


@dataclass(frozen=True, slots=True)
class Item:
    """A character of a kind, so many times; `high` None is any number."""

    kind: Kind
    low: int = 1
    high: int | None = 1


@dataclass(frozen=True, slots=True)
class Branch:
    """One of the alternatives."""

    items: tuple[Item, ...]
    from_start: bool
    to_end: bool


@dataclass(frozen=True, slots=True)
class Regex:
    source: str
    branches: tuple[Branch, ...]
    _fast: re.Pattern[str] = field(repr=False, compare=False)
    _sure: Pattern = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        if self._tries(len(text)) <= TRIES_MAX:
            return self._fast.search(text) is not None
        return self._sure.found_in(text)

    @property
    def hint(self) -> Hint:
        """The longest text that must be there."""
        if len(self.branches) != 1:
            return EVERY_MESSAGE
        runs, run = [""], ""
        for item in self.branches[0].items:
            fixed = len(item.kind.characters) == 1 and not item.kind.others and item.low == item.high
            run = run + next(iter(item.kind.characters)) * item.low if fixed else ""
            runs.append(run)
        longest = max(runs, key=len)
        return Contains(longest) if longest else EVERY_MESSAGE

    def _tries(self, length: int) -> int:
        """How many ways there are at most to lay the expression over a text."""
        worst = 0
        for branch in self.branches:
            ways = 1 if branch.from_start else length + 1
            for item in branch.items:
                if item.high != item.low:
                    ways *= 1 + (length if item.high is None else min(length, item.high - item.low))
                if ways > TRIES_MAX:
                    return ways
            worst += ways
        return worst


def read_regex(reader: Reader) -> Regex:
    """From one percent sign to the next."""
    start = reader.at
    end = start + 1
    while end < len(reader.text) and reader.text[end] != "%":
        end += 2 if reader.text[end] == "\\" else 1
    if end >= len(reader.text):
        raise InvalidPattern("a regular expression is not closed by '%'", start)
    source = reader.text[start + 1 : end]
    if not source:
        raise InvalidPattern("a regular expression is empty", start)
    regex = _Parser(source, start + 1).parse()
    reader.at = end + 1
    return regex


class _Parser:
    def __init__(self, source: str, offset: int) -> None:
        self._source = source
        self._offset = offset  # of the expression in the pattern, for messages
        self._at = 0

    def parse(self) -> Regex:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        if self._at < len(self._source):
            raise self._wrong(f"'{self._source[self._at]}' has nothing to close or repeat")
        if sum(max(item.low, item.high or 0) for branch in branches for item in branch.items) > STEPS_MAX:
            raise self._wrong("the repetitions of the regular expression are too large")
        fast = re.compile("|".join(_written(branch, re.escape, r"\Z") for branch in branches))
        sure = Pattern("|".join(_written(branch, lambda character: rf"\x{{{ord(character):x}}}", r"\z") for branch in branches))
        return Regex(self._source, tuple(branches), fast, sure)

    def _branch(self) -> Branch:
        from_start, to_end = self._take("^"), False
        items: list[Item] = []
        while self._at < len(self._source) and self._source[self._at] not in "|*+?{]}":
            if self._take("$"):
                to_end = True
                break
            items.append(self._repeated(self._kind()))
        return Branch(tuple(items), from_start, to_end)

    def _kind(self) -> Kind:
        character = self._source[self._at]
        self._at += 1
        if character == ".":
            return ANY
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escaped()
        if character not in PLAIN:
            self._at -= 1
            raise self._wrong(f"'{character}' is not allowed here in a regular expression; write it as \\x{ord(character):02x}")
        return Kind(frozenset(character))

    def _escaped(self) -> Kind:
        character = self._source[self._at : self._at + 1]
        self._at += 1
        if character == "x":
            digits = HEX.match(self._source, self._at)
            if digits is None:
                raise self._wrong("\\x is followed by two hexadecimal digits")
            self._at += 2
            return Kind(frozenset(chr(int(digits.group(), 16))))
        if character.lower() in CLASSES:
            return Kind(CLASSES[character.lower()], others=character.isupper())
        if character in ESCAPABLE:
            return Kind(frozenset(character))
        self._at -= 1
        raise self._wrong(f"'\\{character}' is not supported in a regular expression")

    def _class(self) -> Kind:
        opened, others = self._at - 1, self._take("^")
        characters: set[str] = set()
        while not self._take("]"):
            if self._at >= len(self._source):
                self._at = opened
                raise self._wrong("'[' is not closed by ']'")
            first = self._member()
            if (
                len(first.characters) == 1
                and not first.others
                and self._source[self._at : self._at + 1] == "-"
                and (self._source[self._at + 1 : self._at + 2] not in ("]", ""))
            ):
                self._at += 1
                characters |= self._range(first, self._member())
            elif first.others:
                raise self._wrong("a negated class cannot stand inside '[]'")
            else:
                characters |= first.characters
        if not characters:
            self._at = opened
            raise self._wrong("'[]' holds nothing")
        return Kind(frozenset(characters), others)

    def _range(self, first: Kind, last: Kind) -> set[str]:
        low, high = ord(next(iter(first.characters))), ord(next(iter(last.characters)))
        if len(last.characters) != 1 or last.others or high < low:
            raise self._wrong("a range goes from a lower to a higher character")
        return {chr(code) for code in range(low, high + 1)}

    def _member(self) -> Kind:
        character = self._source[self._at]
        if character in "$?.*+{}|^":  # plain characters in here
            self._at += 1
            return Kind(frozenset(character))
        if character == "[":
            raise self._wrong("'[' cannot stand inside '[]'")
        return self._kind()

    def _repeated(self, kind: Kind) -> Item:
        low: int = 1
        high: int | None = 1
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif self._source[self._at : self._at + 1] == "{":
            bounds = BOUNDS.match(self._source, self._at)
            if bounds is None:
                raise self._wrong("repetitions are written {m}, {m,} or {m,n}")
            low = int(bounds.group(1))
            high = low if bounds.group(2) is None else int(bounds.group(3)) if bounds.group(3) else None
            if max(low, high or 0) > REPEATS_MAX or (high is not None and high < low):
                raise self._wrong(f"repetitions go from the lower to the higher number, up to {REPEATS_MAX}")
            self._at = bounds.end()
        return Item(kind, low, high)

    def _take(self, character: str) -> bool:
        found = self._source.startswith(character, self._at)
        self._at += found
        return found

    def _wrong(self, what: str) -> InvalidPattern:
        return InvalidPattern(what, self._offset + self._at)


def _written(branch: Branch, escape: Callable[[str], str], end: str) -> str:
    """As a matcher reads it."""
    parts = [r"\A"] if branch.from_start else []
    for item in branch.items:
        characters = "".join(map(escape, sorted(item.kind.characters)))
        times = "" if item.low == item.high == 1 else f"{{{item.low},{'' if item.high is None else item.high}}}"
        parts.append(f"[{'^' * item.kind.others}{characters}]{times}")
    return "".join([*parts, end] if branch.to_end else parts)
