"""Regular expressions in filter patterns, written between percent signs. CloudWatch Logs supports a subset without groups.

Callers write these expressions, and messages can be long, so the matching time must be bounded. Python's `re` is faster for most
expressions, but it can backtrack for a very long time. RE2 is used if the expression and the length of the message could make `re`
too slow.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from corral.decide.logs.pattern.reader import InvalidPattern, Reader
from corral.decide.pattern import Pattern
from corral.model.message_hint import EVERY_MESSAGE, Contains, Hint

PLAIN = frozenset(string.ascii_letters + string.digits + " :_#=@/;,-")
ESCAPABLE = frozenset("^$?[]{}|\\*+.% :_#=@/;,-")
CLASSES = {
    "d": frozenset(string.digits),
    "s": frozenset(string.whitespace),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
}
REPEATS_MAX = 255
STEPS_MAX = 1_000  # the sum of all repetitions in an expression; a repetition without an upper limit counts its minimum
TRIES_MAX = 1_000_000  # attempts of Python's `re` per message: they take a few milliseconds, in which no other thread can run
HEX = re.compile(r"[0-9A-Fa-f]{2}")
BOUNDS = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")


class CharacterSet(Struct, frozen=True):
    """A set of characters. If `others` is true, the set has all characters except `members`."""

    members: frozenset[str]
    others: bool = False

    def __contains__(self, character: object) -> bool:
        return (character in self.members) is not self.others


ANY = CharacterSet(frozenset("\n"), others=True)


class RegexItem(Struct, frozen=True):
    """A sequence of `low` to `high` characters of one set. If `high` is None, the length has no upper limit."""

    characters: CharacterSet
    low: int = 1
    high: int | None = 1


class RegexBranch(Struct, frozen=True):
    """One alternative of the expression."""

    items: tuple[RegexItem, ...]
    from_start: bool
    to_end: bool


@dataclass(frozen=True, slots=True)
class Regex:
    source: str
    branches: tuple[RegexBranch, ...]
    _backtracking: re.Pattern[str] = field(repr=False, compare=False)
    _linear: Pattern = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        if self._tries(len(text)) <= TRIES_MAX:
            return self._backtracking.search(text) is not None
        return self._linear.found_in(text)

    @property
    def hint(self) -> Hint:
        """The longest text that every match contains."""
        if len(self.branches) != 1:
            return EVERY_MESSAGE
        runs, run = [""], ""
        for item in self.branches[0].items:
            fixed = len(item.characters.members) == 1 and not item.characters.others and item.low == item.high
            run = run + next(iter(item.characters.members)) * item.low if fixed else ""
            runs.append(run)
        longest = max(runs, key=len)
        return Contains(longest) if longest else EVERY_MESSAGE

    def _tries(self, length: int) -> int:
        """An upper bound of the attempts that `re` makes when it backtracks on a text of this length."""
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
    """Parse the expression from one percent sign to the next."""
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
        self._offset = offset  # position of the expression in the pattern, for error messages
        self._at = 0

    def parse(self) -> Regex:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        if self._at < len(self._source):
            raise self._error(f"'{self._source[self._at]}' has no opening bracket or nothing to repeat")
        if sum(max(item.low, item.high or 0) for branch in branches for item in branch.items) > STEPS_MAX:
            raise self._error("the repetitions of the regular expression are too large")
        backtracking = re.compile("|".join(_written(branch, re.escape, r"\Z") for branch in branches))
        linear = Pattern("|".join(_written(branch, lambda character: rf"\x{{{ord(character):x}}}", r"\z") for branch in branches))
        return Regex(self._source, tuple(branches), backtracking, linear)

    def _branch(self) -> RegexBranch:
        from_start, to_end = self._take("^"), False
        items: list[RegexItem] = []
        while self._at < len(self._source) and self._source[self._at] not in "|*+?{]}":
            if self._take("$"):
                to_end = True
                break
            items.append(self._repeated(self._character_set()))
        return RegexBranch(tuple(items), from_start, to_end)

    def _character_set(self) -> CharacterSet:
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
            raise self._error(f"'{character}' is not allowed here in a regular expression; write it as \\x{ord(character):02x}")
        return CharacterSet(frozenset(character))

    def _escaped(self) -> CharacterSet:
        character = self._source[self._at : self._at + 1]
        self._at += 1
        if character == "x":
            digits = HEX.match(self._source, self._at)
            if digits is None:
                raise self._error("\\x must be followed by two hexadecimal digits")
            self._at += 2
            return CharacterSet(frozenset(chr(int(digits.group(), 16))))
        if character.lower() in CLASSES:
            return CharacterSet(CLASSES[character.lower()], others=character.isupper())
        if character in ESCAPABLE:
            return CharacterSet(frozenset(character))
        self._at -= 1
        raise self._error(f"'\\{character}' is not supported in a regular expression")

    def _class(self) -> CharacterSet:
        opened, others = self._at - 1, self._take("^")
        characters: set[str] = set()
        while not self._take("]"):
            if self._at >= len(self._source):
                self._at = opened
                raise self._error("'[' is not closed by ']'")
            first = self._member()
            if (
                len(first.members) == 1
                and not first.others
                and self._source[self._at : self._at + 1] == "-"
                and (self._source[self._at + 1 : self._at + 2] not in ("]", ""))
            ):
                self._at += 1
                characters |= self._range(first, self._member())
            elif first.others:
                raise self._error("a negated class cannot be used inside '[]'")
            else:
                characters |= first.members
        if not characters:
            self._at = opened
            raise self._error("'[]' is empty")
        return CharacterSet(frozenset(characters), others)

    def _range(self, first: CharacterSet, last: CharacterSet) -> set[str]:
        low, high = ord(next(iter(first.members))), ord(next(iter(last.members)))
        if len(last.members) != 1 or last.others or high < low:
            raise self._error("a range must go from a lower to a higher character")
        return {chr(code) for code in range(low, high + 1)}

    def _member(self) -> CharacterSet:
        character = self._source[self._at]
        if character in "$?.*+{}|^":  # these have no special meaning inside []
            self._at += 1
            return CharacterSet(frozenset(character))
        if character == "[":
            raise self._error("'[' cannot be used inside '[]'")
        return self._character_set()

    def _repeated(self, characters: CharacterSet) -> RegexItem:
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
                raise self._error("write repetitions as {m}, {m,} or {m,n}")
            low = int(bounds.group(1))
            high = low if bounds.group(2) is None else int(bounds.group(3)) if bounds.group(3) else None
            if max(low, high or 0) > REPEATS_MAX or (high is not None and high < low):
                raise self._error(f"repetitions must go from the lower to the higher number, up to {REPEATS_MAX}")
            self._at = bounds.end()
        return RegexItem(characters, low, high)

    def _take(self, character: str) -> bool:
        found = self._source.startswith(character, self._at)
        self._at += found
        return found

    def _error(self, fault: str) -> InvalidPattern:
        return InvalidPattern(fault, self._offset + self._at)


def _written(branch: RegexBranch, escape: Callable[[str], str], end: str) -> str:
    """Write the branch in the syntax of `re` or RE2. `escape` and `end` contain the differences between the two."""
    parts = [r"\A"] if branch.from_start else []
    for item in branch.items:
        characters = "".join(map(escape, sorted(item.characters.members)))
        times = "" if item.low == item.high == 1 else f"{{{item.low},{'' if item.high is None else item.high}}}"
        parts.append(f"[{'^' * item.characters.others}{characters}]{times}")
    return "".join([*parts, end] if branch.to_end else parts)
