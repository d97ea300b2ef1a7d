"""Parses JSON documents that callers send: policies, dashboards, tokens.

Deeply nested documents cause failures: Python's `json` raises RecursionError, and orjson can parse some documents that it cannot
write again. So this module limits the depth of nesting.
"""

from __future__ import annotations

from typing import Any

import orjson

NESTING_MAX = 64  # maximum depth of lists and objects inside each other


def read_json(text: str | bytes) -> Any:
    """Parse a document. Raises ValueError if the text is not JSON or is nested too deeply."""
    document = orjson.loads(text)
    level, depth = [document], 0
    while level := [inner for value in level if isinstance(value, dict | list) for inner in _inside(value)]:
        depth += 1
        if depth > NESTING_MAX:
            raise ValueError(f"nested more than {NESTING_MAX} levels deep")
    return document


def _inside(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
