"""Hints: simple conditions on the text of a log message. Every message that matches a filter pattern meets the hint of the pattern.

SQLite checks the hint first, so that Python has to compare fewer messages with the whole pattern.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Contains(Struct, frozen=True):
    text: str


class Lacks(Struct, frozen=True):
    text: str


class AllHints(Struct, frozen=True):
    parts: tuple[Hint, ...]


class AnyHint(Struct, frozen=True):
    parts: tuple[Hint, ...]


Hint = Contains | Lacks | AllHints | AnyHint
EVERY_MESSAGE = AllHints(())


def all_of(hints: Iterable[Hint]) -> Hint:
    parts = tuple(hint for hint in hints if hint != EVERY_MESSAGE)
    return parts[0] if len(parts) == 1 else AllHints(parts)


def any_of(hints: Iterable[Hint]) -> Hint:
    parts = tuple(hints)
    return EVERY_MESSAGE if EVERY_MESSAGE in parts else AnyHint(parts)


def fits(hint: Hint, message: str) -> bool:
    match hint:
        case Contains(text):
            return text in message
        case Lacks(text):
            return text not in message
        case AllHints(parts):
            return all(fits(part, message) for part in parts)
        case AnyHint(parts):
            return any(fits(part, message) for part in parts)
