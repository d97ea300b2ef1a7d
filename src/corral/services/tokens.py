"""Opaque tokens of pages: where the next one starts."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode

from corral.errors import ApiError


def wrap(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()


def unwrap(token: str | None, invalid: type[ApiError]) -> str:
    """The name after which the page starts; empty for the first."""
    if token is None:
        return ""
    try:
        return b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise invalid("The specified nextToken is invalid: give the one of the page before, as it came.") from None
