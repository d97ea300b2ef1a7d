"""Decodes form bodies and query strings into (name, value) pairs. Converts pairs with dotted names into a tree."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from corral.aws.wire_errors import NESTING_MAX, ParseError

FORM_TYPE = "application/x-www-form-urlencoded"
PARAMETERS_MAX = 20_000
SEGMENTS_MAX = 3 * NESTING_MAX  # a list takes three segments of a dotted name: its own name, "member" and an index
INDEX_MAX_DIGITS = 9
CACHED_MAX = 1024
CACHED_MAX_CHARS = 256
DECODED_AT_ONCE_CHARS = 64 * 1024  # longer texts are decoded in pieces, to limit the memory and the time without other threads

FormTree = dict[str, Any]  # name -> text or FormTree


def pairs_from_text(text: str) -> list[tuple[str, str]]:
    """Decode a text such as `a=1&b=2` and return its pairs in order."""
    if not text:
        return []
    if text.count("&") >= PARAMETERS_MAX:
        raise ParseError.syntax(f"more than {PARAMETERS_MAX} parameters")
    pairs = []
    for item in text.split("&"):
        if item:
            name, _, value = item.partition("=")
            pairs.append((percent_decoded(name, plus=True), percent_decoded(value, plus=True)))
    return pairs


def pairs_from_body(body: bytes) -> list[tuple[str, str]]:
    """Decode a form body and return its pairs in order."""
    try:
        return pairs_from_text(body.decode())
    except UnicodeDecodeError:
        raise ParseError.syntax("the form is not valid UTF-8") from None


def percent_decoded(text: str, *, plus: bool = False) -> str:
    """Percent-decode a text.

    If `plus` is True, also replace each plus sign by a space: forms and query strings need this, paths do not.
    """
    if plus and "+" in text:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    try:
        return _unquoted(text) if len(text) <= CACHED_MAX_CHARS else decoded_in_pieces(text, DECODED_AT_ONCE_CHARS)
    except UnicodeDecodeError:
        raise ParseError.syntax("percent-encoded text is not valid UTF-8") from None


@lru_cache(maxsize=CACHED_MAX)
def _unquoted(text: str) -> str:
    """Decode a short text. It is cached, because all presigned URLs of a client contain the same encoded credential."""
    return unquote(text, errors="strict")


def decoded_in_pieces(text: str, piece_chars: int) -> str:
    """Percent-decode a long text piece by piece. Raises UnicodeDecodeError."""
    pieces, start = [], 0
    while start < len(text):
        end = start + piece_chars
        cut = text.rfind("%", end - 2, end)  # do not split an escape, which has three characters (%41)
        end = cut if cut > start else end
        pieces.append(_unquoted_bytes(text[start:end]))
        start = end
    return b"".join(pieces).decode()


def _unquoted_bytes(text: str) -> bytes:
    """Return the same as `unquote_to_bytes`, in a tenth of the time, because the codec of escapes in Python texts is C code."""
    try:
        escaped = text.encode().replace(b"\\", b"\\\\").replace(b"%", b"\\x")
        return escaped.decode("unicode_escape").encode("latin-1")
    except UnicodeDecodeError:  # two hexadecimal digits do not follow each percent sign
        return unquote_to_bytes(text)


def form_tree(pairs: Iterable[tuple[str, str]]) -> FormTree:
    """Convert pairs with dotted names into nested dictionaries.

    An index becomes a dictionary key, so `member.999999999` needs only one entry.
    """
    root: FormTree = {}
    for name, value in pairs:
        if "." not in name:
            if root.get(name).__class__ is not dict:
                root[name] = value
            continue
        if name.count(".") >= SEGMENTS_MAX:
            raise ParseError.syntax(f"a parameter name has more than {SEGMENTS_MAX} parts between dots")
        *outer, last = name.split(".")
        node = root
        for part in outer:
            child = node.get(part)
            if child.__class__ is not dict:  # clients send `Name=` for an empty list; elements replace it
                child = node[part] = {}
            node = child
        if node.get(last).__class__ is not dict:
            node[last] = value
    return root


def indexed_elements(node: FormTree) -> list[Any]:
    """Return the elements of a list or map, ordered by index. Indices may have gaps, because AWS accepts gaps, too."""
    indices = [key for key in node if len(key) <= INDEX_MAX_DIGITS and key.isascii() and key.isdigit()]
    if len(indices) != len(node):
        raise ParseError.wrong_type("the elements of a list must be numbered from 1")
    return [node[key] for key in sorted(indices, key=int)]
