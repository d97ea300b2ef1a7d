"""Regular expressions between percent signs: the small language that CloudWatch Logs documents, without groups.

They come from callers and meet messages of any length, so time is bounded: where Python's own matcher could go astray it is
replaced by one that takes each character once.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field

from corral.decide.log_pattern.reader import InvalidPattern, Reader
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
STATES_KEPT_MAX = 10_000
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
    _sure: Automaton = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        if self._tries(len(text)) <= TRIES_MAX:
            return self._fast.search(text) is not None
        return self._sure.search(text)

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
        fast = re.compile("|".join(_as_python(branch) for branch in branches))
        automaton = Automaton(tuple(branches))
        if automaton.size > STEPS_MAX:
            raise self._wrong("the repetitions of the regular expression are too large")
        return Regex(self._source, tuple(branches), fast, automaton)

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


def _as_python(branch: Branch) -> str:
    parts = [r"\A"] if branch.from_start else []
    for item in branch.items:
        characters = "".join(re.escape(character) for character in sorted(item.kind.characters))
        times = "" if item.low == item.high == 1 else f"{{{item.low},{'' if item.high is None else item.high}}}"
        parts.append(f"[{'^' * item.kind.others}{characters}]{times}")
    return "".join([*parts, r"\Z"] if branch.to_end else parts)


@dataclass(frozen=True, slots=True)
class Step:
    kind: Kind
    skippable: bool
    again: bool


class Automaton:
    """All ways through the branches at once: a set of places, as the bits of a number, moved on by each character."""

    def __init__(self, branches: tuple[Branch, ...]) -> None:
        self._steps: list[Step | None] = []  # None is the end of a branch
        self._from_start = self._anywhere = self._done = self._done_at_end = 0
        for branch in branches:
            place = 1 << len(self._steps)
            if branch.from_start:
                self._from_start |= place
            else:
                self._anywhere |= place
            for item in branch.items:
                self._steps += [Step(item.kind, skippable=False, again=False)] * item.low
                if item.high is None:
                    self._steps.append(Step(item.kind, skippable=True, again=True))
                else:
                    self._steps += [Step(item.kind, skippable=True, again=False)] * (item.high - item.low)
            if branch.to_end:
                self._done_at_end |= 1 << len(self._steps)
            else:
                self._done |= 1 << len(self._steps)
            self._steps.append(None)
        self.size = len(self._steps)
        self._moves: dict[tuple[int, str], int] = {}

    def search(self, text: str) -> bool:
        moves = self._moves
        places = self._spread(self._from_start | self._anywhere)
        for character in text:
            if places & self._done:
                return True
            key = (places, character)
            moved = moves.get(key)
            if moved is None:
                if len(moves) >= STATES_KEPT_MAX:
                    moves.clear()
                moved = moves[key] = self._move(places, character)
            places = moved
        return bool(places & (self._done | self._done_at_end))

    def _move(self, places: int, character: str) -> int:
        moved = self._anywhere
        for at in _bits(places):
            step = self._steps[at]
            if step is not None and character in step.kind:
                moved |= 1 << (at if step.again else at + 1)
        return self._spread(moved)

    def _spread(self, places: int) -> int:
        """With all that can be skipped."""
        for at in range(self.size):
            if places >> at & 1:
                step = self._steps[at]
                if step is not None and step.skippable:
                    places |= 1 << (at + 1)
        return places


def _bits(number: int) -> list[int]:
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found
