"""Pages: `maxResults` and an opaque `nextToken` that says where the next one starts."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

from corral.services.ecs.naming import InvalidParameterException

PAGE_MAX = 100


def page(params: dict[str, Any], names: Callable[[str, int], list[str]]) -> tuple[list[str], dict[str, str]]:
    """One page of `names(after, limit)` and, where there are more, the reply's nextToken."""
    limit = params.get("maxResults", PAGE_MAX)
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidParameterException(f"maxResults must be between 1 and {PAGE_MAX}.")
    found = names(_after(params.get("nextToken")), limit + 1)
    if len(found) <= limit:
        return found, {}
    return found[:limit], {"nextToken": urlsafe_b64encode(found[limit - 1].encode()).decode()}


def _after(token: str | None) -> str:
    if token is None:
        return ""
    try:
        return urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise InvalidParameterException("Invalid token: give the nextToken of the page before, as it came.") from None
