"""Makes a text that matches a regular expression of AWS's models, as short as possible but with at least a given length.

botocore's models get new shapes with every release, so tests cannot have a list of matching texts.
"""

from __future__ import annotations

import re
import re._constants as op
import re._parser as parser
import string
from collections.abc import Iterator, Sequence
from typing import Any

REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
# Letters come first, because most names must begin with one.
CANDIDATES = string.ascii_lowercase + string.ascii_uppercase + string.digits + "-_./:@ " + string.punctuation
CATEGORIES = {
    op.CATEGORY_DIGIT: re.compile(r"\d"),
    op.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    op.CATEGORY_SPACE: re.compile(r"\s"),
    op.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    op.CATEGORY_WORD: re.compile(r"\w"),
    op.CATEGORY_NOT_WORD: re.compile(r"\W"),
}


def texts_of(pattern: str, least: int) -> Iterator[str]:
    """Yield the shortest text of the pattern, and then texts of at least `least` characters, in which one repetition is longer.

    Assertions such as `(?!xn--)` are ignored, so the caller checks the texts. A pattern in a syntax that Python does not have
    yields nothing.
    """
    try:
        tree = parser.parse(pattern)
    except re.error:
        return
    shortest = _text(tree, {})
    yield shortest
    for repeat in _repeats(tree):
        lowest, highest, _ = repeat[1]
        for more in range(1, least - len(shortest) + 2):
            if lowest + more > highest:
                break
            longer = _text(tree, {id(repeat): lowest + more})
            if len(longer) >= least:
                yield longer
                break


def _text(tree: Any, counts: dict[int, int]) -> str:
    return "".join(_part(part, counts) for part in tree)


def _part(part: tuple[Any, Any], counts: dict[int, int]) -> str:
    code, value = part
    if code is op.LITERAL:
        return chr(value)
    if code in (op.ANY, op.NOT_LITERAL):
        return next(each for each in CANDIDATES if ord(each) != value)
    if code is op.IN:
        return next((each for each in CANDIDATES if _is_in(value, each)), "")
    if code is op.BRANCH:
        return min((_text(branch, counts) for branch in value[1]), key=len)
    if code in (op.SUBPATTERN, op.ATOMIC_GROUP):
        return _text(value[-1] if code is op.SUBPATTERN else value, counts)
    if code in REPEATS:
        return _text(value[2], counts) * counts.get(id(part), value[0])
    return ""  # the beginning, the end or an assertion


def _is_in(members: Sequence[tuple[Any, Any]], text: str) -> bool:
    found = any(_matches(code, value, text) for code, value in members if code is not op.NEGATE)
    return found != (members[0][0] is op.NEGATE)


def _matches(code: Any, value: Any, text: str) -> bool:
    if code is op.LITERAL:
        return ord(text) == value
    if code is op.RANGE:
        return bool(value[0] <= ord(text) <= value[1])
    return CATEGORIES[value].match(text) is not None


def _repeats(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all repetitions of the tree, the outermost first."""
    for part in tree:
        code, value = part
        if code in REPEATS:
            yield part
            yield from _repeats(value[2])
        elif code is op.SUBPATTERN:
            yield from _repeats(value[-1])
        elif code is op.BRANCH:
            for branch in value[1]:
                yield from _repeats(branch)
