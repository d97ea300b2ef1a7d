"""Form bodies and query strings: text to pairs, pairs to the tree that dotted names mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from corral.aws.faults import Misfit

PARAMETERS_MAX = 20_000
NESTING_MAX = 64  # structures, lists and maps inside each other
SEGMENTS_MAX = 3 * NESTING_MAX  # of one dotted name: a list costs its name, "member" and an index
INDEX_MAX_DIGITS = 9

Tree = dict[str, Any]  # name -> text or Tree


def pairs_from_text(text: str) -> list[tuple[str, str]]:
    """The decoded pairs of `a=1&b=2`, in order."""
    if not text:
        return []
    if text.count("&") >= PARAMETERS_MAX:
        raise Misfit.form(f"more than {PARAMETERS_MAX} parameters")
    pairs = []
    for item in text.split("&"):
        if item:
            name, _, value = item.partition("=")
            pairs.append((decoded(name, plus=True), decoded(value, plus=True)))
    return pairs


def pairs_from_body(body: bytes) -> list[tuple[str, str]]:
    """The same for a form body."""
    try:
        return pairs_from_text(body.decode())
    except UnicodeDecodeError:
        raise Misfit.form("the form is not valid UTF-8") from None


def decoded(text: str, *, plus: bool = False) -> str:
    """Percent-decoded; `plus` where a plus sign means a space (forms and query strings, not paths)."""
    if plus and "+" in text:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Misfit.form("percent-encoded text is not valid UTF-8") from None


def tree_of(pairs: Iterable[tuple[str, str]]) -> Tree:
    """Nested by the dots of the names; indices stay names, so `member.999999999` costs one entry."""
    root: Tree = {}
    for name, value in pairs:
        if "." not in name:
            if root.get(name).__class__ is not dict:
                root[name] = value
            continue
        *outer, last = name.split(".")
        if len(outer) >= SEGMENTS_MAX:
            raise Misfit.form(f"a parameter name is nested more than {SEGMENTS_MAX} deep")
        node = root
        for part in outer:
            child = node.get(part)
            if child.__class__ is not dict:  # an empty list is sent as `Name=`; real elements win over it
                child = node[part] = {}
            node = child
        if node.get(last).__class__ is not dict:
            node[last] = value
    return root


def in_order(node: Tree) -> list[Any]:
    """The elements of a list or map by their indices; gaps close, as on AWS."""
    indices = [key for key in node if len(key) <= INDEX_MAX_DIGITS and key.isascii() and key.isdigit()]
    if len(indices) != len(node):
        raise Misfit.type("a list is indexed by numbers from 1")
    return [node[key] for key in sorted(indices, key=int)]
