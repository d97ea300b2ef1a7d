"""Patterns in braces, which test the members of JSON messages: { $.user.id = 7 && $.tries[0].code != 2* }."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from corral.decide.logs.pattern.conditions import (
    REGEXES_MAX,
    TOO_MANY_REGEXES,
    Comparison,
    Every,
    Some,
    as_text,
    hint_of,
    holds,
    leaves,
    read_comparison,
    read_tree,
)
from corral.decide.logs.pattern.reader import Reader
from corral.model.json_documents import parse_json
from corral.model.message_hint import EVERY_MESSAGE, Contains, Hint, all_of, any_of

STEP = re.compile(r"\.(?P<name>[A-Za-z0-9_-]+|\*)|\.?\[(?P<index>\d{1,9}|\*)\]")
KEYWORDS = re.compile(r"(IS\s+NULL|IS\s+TRUE|IS\s+FALSE|NOT\s+EXISTS)\b", re.IGNORECASE)
ANY_MEMBER, ANY_ELEMENT = "*", "[*]"  # a member name in a pattern cannot contain * or [
WILDCARDS = (ANY_MEMBER, ANY_ELEMENT)
STATES = {"IS NULL": None, "IS TRUE": True, "IS FALSE": False}
ESCAPED = Contains("\\u")  # JSON can write any character as \uXXXX, so a hint cannot exclude a message that contains \u


class Selector(Struct, frozen=True):
    source: str
    path: tuple[str | int, ...]

    def found_in(self, document: Any) -> list[Any]:
        """Return every value at the path. Only a path with a wildcard can have more than one value."""
        found = [document]
        for step in self.path:
            found = [inner for value in found for inner in _inside(value, step)]
        return found


class SelectorCondition(Struct, frozen=True):
    selector: Selector
    test: Comparison | str  # a comparison, or one of the keywords

    def holds(self, document: Any) -> bool:
        values = self.selector.found_in(document)
        if isinstance(self.test, Comparison):
            test = self.test
            return any(isinstance(value, (str, int, float)) and _compares(test, value) for value in values)
        if self.test == "NOT EXISTS":
            return not values
        return any(value is STATES[self.test] for value in values)

    @property
    def hint(self) -> Hint:
        if self.test == "NOT EXISTS":
            return EVERY_MESSAGE
        names = tuple(Contains(step) for step in self.selector.path if isinstance(step, str) and step not in WILDCARDS)
        of_value = self.test.hint if isinstance(self.test, Comparison) else Contains(self.test.split()[1].lower())
        return all_of([*names, of_value])


SelectorTree = SelectorCondition | Every[SelectorCondition] | Some[SelectorCondition]


class Selectors(Struct, frozen=True):
    condition: SelectorTree
    exact = False
    has_fields = True

    @property
    def hint(self) -> Hint:
        return any_of([hint_of(self.condition, lambda condition: condition.hint), ESCAPED])

    @property
    def regexes(self) -> int:
        tests = [condition.test for condition in leaves(self.condition)]
        return sum(isinstance(test, Comparison) and test.literal.regex is not None for test in tests)

    def matches(self, message: str) -> bool:
        document = _parsed(message)
        return isinstance(document, (dict, list)) and holds(self.condition, lambda condition: condition.holds(document))

    def extract(self, message: str) -> Mapping[str, str]:
        document = _parsed(message)
        found = {}
        for condition in leaves(self.condition):
            for value in condition.selector.found_in(document)[:1]:
                if isinstance(value, (str, int, float)):
                    found[condition.selector.source] = as_text(value)
        return found


def parse_selectors(reader: Reader) -> Selectors:
    reader.take("{")
    pattern = Selectors(read_tree(reader, _condition))
    reader.end("}")
    if pattern.regexes > REGEXES_MAX:
        raise reader.error(TOO_MANY_REGEXES)
    return pattern


def _condition(reader: Reader) -> SelectorCondition:
    selector = _selector(reader)
    reader.peek()
    if keywords := reader.match(KEYWORDS):
        return SelectorCondition(selector, " ".join(keywords.upper().split()))
    comparison = read_comparison(reader)
    if comparison is None:
        raise reader.error("an operator is missing here: =, !=, <, >, <=, >=, IS NULL, IS TRUE, IS FALSE or NOT EXISTS")
    return SelectorCondition(selector, comparison)


def _selector(reader: Reader) -> Selector:
    if not reader.take("$"):
        raise reader.error("a selector such as $.name is missing here")
    start = reader.at - 1
    path: list[str | int] = []
    while step := STEP.match(reader.text, reader.at):
        reader.at = step.end()
        name, index = step["name"], step["index"]
        path.append(name or (ANY_ELEMENT if index == "*" else int(index)))
    if not path:
        raise reader.error("a selector must continue with .name or [number]")
    if sum(step in WILDCARDS for step in path) > 1:
        raise reader.error("a selector can contain at most one wildcard")
    return Selector(reader.text[start : reader.at], tuple(path))


def _inside(value: Any, step: str | int) -> Iterable[Any]:
    if isinstance(value, dict):
        if step == ANY_MEMBER:
            return value.values()
        return (value[step],) if step in value else ()
    if isinstance(value, list):
        if step == ANY_ELEMENT:
            return value
        return (value[step],) if isinstance(step, int) and step < len(value) else ()
    return ()


def _compares(test: Comparison, value: str | int | float) -> bool:
    """Compare a value. <, >, <= and >= are true only for JSON numbers, not for a string such as "9"."""
    return (test.operator in ("=", "!=") or not isinstance(value, str)) and test.holds(value)


def _parsed(message: str) -> Any:
    try:
        return parse_json(message)
    except ValueError:
        return None
