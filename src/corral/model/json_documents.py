"""JSON documents in texts of callers: policies, dashboards, tokens.

Python's `json` fails on deep nesting with a RecursionError, and orjson cannot write what it could read. So documents that callers
send are read here, with a bound on their depth.
"""

from __future__ import annotations

from typing import Any

import orjson

NESTING_MAX = 64  # lists and objects inside each other


def read_json(text: str | bytes) -> Any:
    """Parse a document. Raises ValueError if it is not JSON or is nested too deep."""
    document = orjson.loads(text)
    level, depth = [document], 0
    while level := [inner for value in level if isinstance(value, dict | list) for inner in _inside(value)]:
        depth += 1
        if depth > NESTING_MAX:
            raise ValueError(f"nested more than {NESTING_MAX} levels deep")
    return document


def _inside(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value
