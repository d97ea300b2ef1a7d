"""Conditions on one value, such as `= 7`, and their combinations with && and ||. Patterns in brackets and in braces use them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from corral.decide.logs.pattern.reader import Reader
from corral.decide.logs.pattern.regex import Regex, read_regex
from corral.model.message_hint import EVERY_MESSAGE, Contains, Hint, all_of, any_of

OPERATOR = re.compile(r"!=|<=|>=|=|<|>")
UNQUOTED = re.compile(r"[A-Za-z0-9_.*:/#+-]+")
NUMBER = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?")  # for an integer, no group matches
INTEGER_MAX_CHARACTERS = 4300  # int() accepts no longer text
LOOKS_LIKE_A_NUMBER = re.compile(r"[0-9.eE+-]*")
KEPT_BY_JSON = re.compile(r"[^\x00-\x1f\"\\/\x7f-\U0010ffff]+")  # JSON writes these characters as they are, or as \uXXXX
REGEXES_MAX = 2  # per pattern
TOO_MANY_REGEXES = f"a pattern can contain at most {REGEXES_MAX} regular expressions"
NESTED_MAX = 50

Scalar = str | int | float  # includes bool, which is a subclass of int
T = TypeVar("T")


class Literal(Struct, frozen=True):
    """The right side of a comparison: a text with wildcards at its ends, a number, or a regular expression."""

    text: str
    open_start: bool = False  # the pattern began with *: any text may precede `text`
    open_end: bool = False  # the pattern ended with *: any text may follow `text`
    number: int | float | None = None
    regex: Regex | None = None

    def equals(self, value: Scalar) -> bool:
        text = as_text(value)
        if self.regex is not None:
            return self.regex.found_in(text)
        if self.number is not None:
            numeric = as_number(text)
            if numeric is not None:
                return numeric == self.number
        if self.open_start and self.open_end:
            return self.text in text
        if self.open_start:
            return text.endswith(self.text)
        return text.startswith(self.text) if self.open_end else text == self.text


class Comparison(Struct, frozen=True):
    operator: str
    literal: Literal

    def holds(self, value: Scalar) -> bool:
        if self.operator == "=":
            return self.literal.equals(value)
        if self.operator == "!=":
            return not self.literal.equals(value)
        number, bound = as_number(as_text(value)), self.literal.number
        assert bound is not None
        if number is None:
            return False
        match self.operator:
            case "<":
                return number < bound
            case ">":
                return number > bound
            case "<=":
                return number <= bound
            case _:
                return number >= bound

    @property
    def hint(self) -> Hint:
        """A text that every matching message contains: the longest part of the literal that JSON writes without escapes."""
        if self.operator != "=":
            return EVERY_MESSAGE
        if self.literal.regex is not None:
            hint = self.literal.regex.hint
            text = hint.text if isinstance(hint, Contains) else ""
        else:
            text = self.literal.text
        if LOOKS_LIKE_A_NUMBER.fullmatch(text):  # a message may contain the number 500 in the form 5e2
            return EVERY_MESSAGE
        return Contains(max(KEPT_BY_JSON.findall(text), key=len)) if KEPT_BY_JSON.search(text) else EVERY_MESSAGE


class Every(Struct, Generic[T], frozen=True):
    parts: tuple[T | Every[T] | Some[T], ...]


class Some(Struct, Generic[T], frozen=True):
    parts: tuple[T | Every[T] | Some[T], ...]


def holds(tree: T | Every[T] | Some[T], leaf: Callable[[T], bool]) -> bool:
    if isinstance(tree, Every):
        return all(holds(part, leaf) for part in tree.parts)
    if isinstance(tree, Some):
        return any(holds(part, leaf) for part in tree.parts)
    return leaf(tree)


def hint_of(tree: T | Every[T] | Some[T], leaf: Callable[[T], Hint]) -> Hint:
    if isinstance(tree, Every):
        return all_of(hint_of(part, leaf) for part in tree.parts)
    if isinstance(tree, Some):
        return any_of(hint_of(part, leaf) for part in tree.parts)
    return leaf(tree)


def leaves(tree: T | Every[T] | Some[T]) -> list[T]:
    if isinstance(tree, (Every, Some)):
        return [leaf for part in tree.parts for leaf in leaves(part)]
    return [tree]


def read_tree(reader: Reader, leaf: Callable[[Reader], T], depth: int = 0) -> T | Every[T] | Some[T]:
    """Parse conditions that are combined with && and ||. && binds tighter than ||."""
    if depth > NESTED_MAX:
        raise reader.error(f"parentheses are nested more than {NESTED_MAX} deep")
    some = []
    while True:
        every = []
        while True:
            if reader.take("("):
                every.append(read_tree(reader, leaf, depth + 1))
                reader.expect(")", "'(' is not closed by ')'")
            else:
                every.append(leaf(reader))
            if not reader.take("&&"):
                break
        some.append(every[0] if len(every) == 1 else Every(tuple(every)))
        if not reader.take("||"):
            return some[0] if len(some) == 1 else Some(tuple(some))


def read_comparison(reader: Reader) -> Comparison | None:
    """Parse an operator and its right side. Return None if the next token is not an operator."""
    reader.peek()
    operator = reader.match(OPERATOR)
    if not operator:
        return None
    start = reader.at
    literal = _literal(reader)
    if operator not in ("=", "!=") and literal.number is None:
        reader.at = start
        raise reader.error(f"'{operator}' needs a number on its right side")
    return Comparison(operator, literal)


def as_number(text: str) -> int | float | None:
    found = NUMBER.fullmatch(text)
    if found is None:
        return None
    return int(text) if found.lastindex is None and len(text) <= INTEGER_MAX_CHARACTERS else float(text)


def as_text(value: Scalar) -> str:
    return value if isinstance(value, str) else ("true" if value else "false") if isinstance(value, bool) else str(value)


def _literal(reader: Reader) -> Literal:
    first = reader.peek()
    if first == "%":
        return Literal("", regex=read_regex(reader))
    if first == '"':
        return _with_wildcards(reader.quoted(), None)
    text = reader.match(UNQUOTED)
    if not text:
        raise reader.error("a value is missing here; put values with characters other than letters and digits in double quotes")
    return _with_wildcards(text, as_number(text))


def _with_wildcards(text: str, number: int | float | None) -> Literal:
    """An asterisk at the start or at the end matches any text. In any other position it is an ordinary character."""
    if text == "*":
        return Literal("", open_start=True, open_end=True)
    open_start, open_end = text.startswith("*"), text.endswith("*")
    return Literal(text[open_start : len(text) - open_end], open_start, open_end, number)
