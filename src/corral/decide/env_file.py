"""Environment files: from their text to variables, as ECS's own agent reads them."""

from __future__ import annotations

from collections.abc import Iterable


def variables(texts: Iterable[str]) -> dict[str, str]:
    """Of several files the first that has a variable says what it is."""
    found: dict[str, str] = {}
    for text in texts:
        for name, value in _of_file(text).items():
            found.setdefault(name, value)
    return found


def _of_file(text: str) -> dict[str, str]:
    """A variable a line, and the last line counts. Quotes and blanks are part of a value; what lacks name or value is nothing."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, _, value = line.removesuffix("\r").partition("=")
        if name and value and not name.startswith("#"):
            found[name] = value
    return found
