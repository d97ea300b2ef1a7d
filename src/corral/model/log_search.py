"""What a log message must contain to be worth a closer look: plain enough for a database to judge by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Contains:
    text: str


@dataclass(frozen=True, slots=True)
class Lacks:
    text: str


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Hint, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Hint, ...]


Hint = Contains | Lacks | AllOf | AnyOf
EVERY_MESSAGE = AllOf(())


def all_of(hints: Iterable[Hint]) -> Hint:
    parts = tuple(hint for hint in hints if hint != EVERY_MESSAGE)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def any_of(hints: Iterable[Hint]) -> Hint:
    parts = tuple(hints)
    return EVERY_MESSAGE if EVERY_MESSAGE in parts else AnyOf(parts)


def fits(hint: Hint, message: str) -> bool:
    match hint:
        case Contains(text):
            return text in message
        case Lacks(text):
            return text not in message
        case AllOf(parts):
            return all(fits(part, message) for part in parts)
        case AnyOf(parts):
            return any(fits(part, message) for part in parts)
