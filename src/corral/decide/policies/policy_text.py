"""Positions in the text of an IAM policy, which the policy simulator shows, and the condition keys that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, NamedTuple

from corral.decide.policies.conditions import LITERALS, VARIABLE

_DECODER = JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
STATEMENT = "Statement"


class TextPosition(NamedTuple):
    line: int  # counted from 1
    column: int


class TextSpan(NamedTuple):
    start: TextPosition
    end: TextPosition


def statement_spans(text: str) -> list[TextSpan]:
    """Return the position of each statement. `text` is a valid policy.

    As on AWS, a statement starts where the previous token ends, for example after the bracket of the list.
    """
    spans: list[tuple[int, int]] = []
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at) + 1  # after the colon
        found, end = _DECODER.raw_decode(text, _skip(text, at))
        if key == STATEMENT:
            spans = list(_elements(text, at)) if isinstance(found, list) else [(at, end)]
        at = _after_comma(text, end)
    return [TextSpan(_position(text, start), _position(text, end)) for start, end in spans]


def condition_keys(document: Any) -> Iterator[str]:
    """Return the condition keys of all statements of a policy that was parsed as JSON."""
    statements = document[STATEMENT]
    for statement in statements if isinstance(statements, list) else [statements]:
        for keys in statement.get("Condition", {}).values():
            yield from keys


def variables(text: str) -> list[str]:
    """Return the variables in the text of a policy, such as `aws:username` of `${aws:username}`, without default values."""
    return [name for name, _ in VARIABLE.findall(text) if name not in LITERALS]


def _elements(text: str, at: int) -> Iterator[tuple[int, int]]:
    start = _skip(text, at) + 1  # after the bracket
    at = _skip(text, start)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield start, end
        start, at = end, _after_comma(text, end)


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _position(text: str, at: int) -> TextPosition:
    return TextPosition(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
