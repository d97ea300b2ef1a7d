"""Regular expressions that cannot hang: a plain subset of Java's, matched in time that grows with text times pattern.

Python's own `re` tries one way after another, and a few characters of pattern can keep it busy for years. Here all ways
are followed at once (Thompson's construction), so there is nothing to come back to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

LENGTH_MAX = 256
STATES_MAX = 500
STEPS_MAX = 5_000  # a part that is empty makes no state, and may be repeated too
REPEAT_MAX = 100
DEPTH_MAX = 20
ANSWERS_MAX = 1_000
DIGITS = frozenset("0123456789")
WORD = DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
SPACE = frozenset(" \t\n\r\f\v")
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

Test = Callable[[str], bool]
Node = tuple[str, tuple["Node", ...], Test | None]  # what it is, its parts, and for "one" which characters it takes


class PatternError(ValueError):
    """The pattern cannot be read; `at` is where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    return Pattern(text)


class Pattern:
    """A compiled pattern. Each state leads on by a character, or to others without one."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError(f"a pattern may have {LENGTH_MAX} characters", LENGTH_MAX)
        self._tests: list[Test | None] = []
        self._next: list[tuple[int, ...]] = []
        self._steps = 0
        self._answers: dict[str, bool] = {}  # many instances have the same values
        self._end = self._state(None, ())
        self._start = self._closure((self._build(_Reader(text).whole(), self._end),))

    def matches(self, text: str) -> bool:
        """Whether the whole text is such a thing, as Java's `matches` has it."""
        found = self._answers.get(text)
        if found is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            found = self._answers[text] = self._match(text)
        return found

    def _match(self, text: str) -> bool:
        now = self._start
        for character in text:
            reached = tuple(self._next[state][0] for state in now if (test := self._tests[state]) is not None and test(character))
            if not reached:
                return False
            now = self._closure(reached)
        return self._end in now

    def _closure(self, states: tuple[int, ...]) -> frozenset[int]:
        """All states that these lead to without a character, themselves too."""
        found: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state not in found:
                found.add(state)
                if self._tests[state] is None:
                    todo += self._next[state]
        return frozenset(found)

    def _state(self, test: Test | None, following: tuple[int, ...]) -> int:
        if len(self._tests) >= STATES_MAX:
            raise PatternError("the pattern is too large", 0)
        self._tests.append(test)
        self._next.append(following)
        return len(self._tests) - 1

    def _build(self, node: Node, after: int) -> int:
        """The state where the node begins, if `after` is where it ends."""
        kind, parts, test = node
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise PatternError("the pattern is too large", 0)
        if kind == "one":
            return self._state(test, (after,))
        if kind == "chain":
            for part in reversed(parts):
                after = self._build(part, after)
            return after
        if kind == "either":
            return self._state(None, tuple(self._build(part, after) for part in parts))
        if kind == "maybe":
            return self._state(None, (self._build(parts[0], after), after))
        again = self._state(None, ())  # "many": any number of times, also none
        self._next[again] = (self._build(parts[0], again), after)
        return again


class _Reader:
    """Pattern text → nodes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        found = self._either()
        if self._at < len(self._text):
            raise PatternError("a ) that nothing opened", self._at)
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        taken = self._peek()
        if not taken:
            raise PatternError("the pattern ends too early", self._at)
        self._at += 1
        return taken

    def _either(self) -> Node:
        ways = [self._chain()]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._chain())
        return ways[0] if len(ways) == 1 else ("either", tuple(ways), None)

    def _chain(self) -> Node:
        parts: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            if character in "^$":  # the whole text is matched anyway: an anchor at either end says nothing new
                if self._at != (0 if character == "^" else len(self._text) - 1):
                    raise PatternError(f"{character} may stand only at the {'start' if character == '^' else 'end'}", self._at)
                self._at += 1
                continue
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else ("chain", tuple(parts), None)

    def _repeated(self, node: Node) -> Node:
        character = self._peek()
        if character == "*":
            node = _repeat(node, 0, None)
        elif character == "+":
            node = _repeat(node, 1, None)
        elif character == "?":
            node = _repeat(node, 0, 1)
        elif character == "{":
            return self._lazy(self._times(node))
        else:
            return node
        self._at += 1
        return self._lazy(node)

    def _lazy(self, node: Node) -> Node:
        """`*?` matches the same whole texts as `*`."""
        if self._peek() == "?":
            self._at += 1
        elif self._peek() and self._peek() in "*+{":
            raise PatternError("a repetition of a repetition", self._at)
        return node

    def _times(self, node: Node) -> Node:
        began = self._at
        end = self._text.find("}", began)
        low, comma, high = self._text[began + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or not (high.isdecimal() or not high):
            raise PatternError("a repetition is written {2}, {2,} or {2,5}", began)
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise PatternError(f"a repetition goes from small to large, up to {REPEAT_MAX}", began)
        self._at = end + 1
        return _repeat(node, least, most)

    def _atom(self) -> Node:
        began, character = self._at, self._take()
        if character == "(":
            return self._group(began)
        if character == "[":
            return _one(self._set(began))
        if character == ".":
            return _one(lambda other: other != "\n")
        if character == "\\":
            return _one(_among(self._escaped(began)))
        if character in "*+?{":
            raise PatternError(f"nothing before {character} to repeat", began)
        return _one(_among(frozenset(character)))

    def _group(self, began: int) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError("too many parentheses inside each other", began)
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise PatternError("of the groups that begin with (? only (?: is served", began)
            self._at += 2
        found = self._either()
        if self._peek() != ")":
            raise PatternError("a ( that is not closed", began)
        self._at += 1
        self._depth -= 1
        return found

    def _escaped(self, began: int) -> frozenset[str]:
        character = self._take()
        if character in CLASSES:
            return CLASSES[character]
        if character in CONTROLS:
            return frozenset(CONTROLS[character])
        if character.isalnum():
            raise PatternError(f"\\{character} is not served", began)
        return frozenset(character)

    def _set(self, began: int) -> Test:
        inverted = self._peek() == "^"
        if inverted:
            self._at += 1
        tests = list(self._members(began))
        return lambda character: any(test(character) for test in tests) != inverted

    def _members(self, began: int) -> Iterator[Test]:
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise PatternError("a [ that is not closed", began)
            first = False
            at, low = self._at, self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or min(low) > min(high):
                    raise PatternError("a range goes from one character to a later one", at)
                yield _between(min(low), min(high))
            else:
                yield _among(low)
        self._at += 1

    def _member(self) -> frozenset[str]:
        began, character = self._at, self._take()
        if character == "[" or self._text.startswith("&&", began):
            raise PatternError("a set inside a set is not served", began)
        return self._escaped(began) if character == "\\" else frozenset(character)


def _one(test: Test) -> Node:
    return "one", (), test


def _among(characters: frozenset[str]) -> Test:
    return characters.__contains__


def _between(low: str, high: str) -> Test:
    return lambda character: low <= character <= high


def _repeat(node: Node, least: int, most: int | None) -> Node:
    needed: list[Node] = [node] * least
    if most is None:
        return "chain", (*needed, ("many", (node,), None)), None
    return "chain", (*needed, *([("maybe", (node,), None)] * (most - least))), None
