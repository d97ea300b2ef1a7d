"""Parses JSON documents that callers send: policies, dashboards, tokens.

Deeply nested documents cause failures: Python's `json` raises RecursionError, and orjson can parse some documents that it cannot
write again. So this module limits the depth of nesting. While orjson runs, it stops all other threads, so this module also limits
the number of values. orjson reads the largest permitted document in about 20 ms.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

NESTING_MAX = 64  # maximum depth of lists and objects inside each other
FAULT = "_jsonFault"  # the parameter with the result of `json_fault` that a parser process adds to a request
UNCOUNTED_MAX_CHARACTERS = 64 * 1024  # a document of this size has few enough values, whatever it contains
# The maximum number of lists, of names in objects, and of values. They are counted by characters that a text may contain as well.
MARKS_MAX = (("[", 30_000), (":", 40_000), (",", 150_000))


def read_json(text: str | bytes) -> Any:
    """Parse a document. Raises ValueError if the text is not JSON, is nested too deeply or has too many values."""
    document = parse_json(text)
    if len(text) <= UNCOUNTED_MAX_CHARACTERS and _opened(text) <= NESTING_MAX:
        return document
    level, depth = [document] if isinstance(document, dict | list) else [], 0
    while level:
        depth += 1
        if depth > NESTING_MAX:
            raise ValueError(f"nested more than {NESTING_MAX} levels deep")
        level = [inner for value in level for inner in _inside(value) if inner.__class__ is dict or inner.__class__ is list]
    return document


def _opened(text: str | bytes) -> int:
    """Return the number of brackets that open a list or an object. A document cannot be nested more deeply."""
    return text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")


def parse_json(text: str | bytes) -> Any:
    """Parse a document without a check of its depth. Raises ValueError if the text is not JSON or has too many values."""
    if has_many_values(text):
        raise ValueError("it has too many values")
    return orjson.loads(text)


def has_many_values(text: str | bytes) -> bool:
    """Return True if a document may have more values than MARKS_MAX permits."""
    if len(text) <= UNCOUNTED_MAX_CHARACTERS:
        return False
    if isinstance(text, bytes):
        return any(text.count(mark.encode()) > most for mark, most in MARKS_MAX)
    return any(text.count(mark) > most for mark, most in MARKS_MAX)


def json_fault(document: bytes) -> str:
    """Return why a document is not JSON, or an empty text. The document may have any number of values."""
    try:
        _check_json(document)
    except ValueError as error:
        return str(error)
    return ""


def _check_json(document: bytes) -> None:
    """Raise ValueError if a document is not JSON. If it has many values, none is built. This takes up to 60 ms for 6 MB."""
    if not has_many_values(document):
        read_json(document)
        return
    try:
        msgspec.json.decode(document, type=msgspec.Raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    document.decode()


def _inside(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
