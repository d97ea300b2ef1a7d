"""Pages: `maxResults` and an opaque `nextToken` that says where the next one starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.services.ecs.naming import InvalidParameterException
from corral.services.tokens import unwrap, wrap

PAGE_MAX = 100


def page(params: dict[str, Any], names: Callable[[str, int], list[str]], most: int = PAGE_MAX) -> tuple[list[str], dict[str, str]]:
    """One page of `names(after, limit)` and, where there are more, the reply's nextToken."""
    limit = params.get("maxResults", most)
    found = names(unwrap(params.get("nextToken"), InvalidParameterException), limit + 1)
    if len(found) <= limit:
        return found, {}
    return found[:limit], {"nextToken": wrap(found[limit - 1])}
