"""Pagination: how a service splits a list into pages. Each service declares this once.

A `Pagination` has the names of the request and response members for the limit and the token. It also has the smallest and largest
limit. `page` reads one page from `candidates`. A handler that reads its rows itself uses `limit_of`, `after` and `more`.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from corral.core.errors import ApiError

T = TypeVar("T")
Candidates = Callable[[str, int], list[tuple[str, T]]]
"""A function of (after, limit). It returns (key, item) pairs with keys after `after`, sorted by key. Limit -1 means all pairs."""


class Pagination(Struct, frozen=True):
    invalid_token: type[ApiError]
    limit: str | None = "maxResults"  # request member; None if the caller cannot choose the size of a page
    token: str = "nextToken"  # request member
    next_token: str = "nextToken"  # response member
    truncated: str | None = None  # response member that says whether more items follow
    default: int | None = 100  # items per page if the request has no limit; None means all items
    smallest: int = 1
    largest: int = 1000
    invalid_limit: Callable[[str, int, int, int], ApiError] | None = None  # (member, limit, smallest, largest) → error
    token_text: str | None = None  # the error text for a token that is not valid; None means the usual text
    only_with_limit: bool = False  # True: a response has a token only if the request has a limit, as in SQS

    def limit_of(self, params: Mapping[str, Any]) -> int | None:
        """The size of a page; None if it is unlimited."""
        given = params.get(self.limit) if self.limit is not None else None
        if given is None:
            return self.default
        if not self.smallest <= given <= self.largest:
            assert self.limit is not None
            if self.invalid_limit is not None:
                raise self.invalid_limit(self.limit, given, self.smallest, self.largest)
            raise self.invalid_token(f"{self.limit} must be between {self.smallest} and {self.largest}.")
        return int(given)

    def after(self, params: Mapping[str, Any]) -> str:
        """The last key of the previous page; empty for the first page."""
        given = params.get(self.token)
        if given is None:
            return ""
        try:
            return b64decode(given.encode(), altchars=b"-_", validate=True).decode()
        except ValueError:
            raise self.wrong_token() from None

    def wrong_token(self) -> ApiError:
        if self.token_text is not None:
            return self.invalid_token(self.token_text)
        return self.invalid_token(f"{self.token} is not valid: pass the {self.next_token} of the previous response unchanged.")

    def position(self, params: Mapping[str, Any], read: Callable[[str], T]) -> T:
        """The position that the token contains, parsed by `read`. `read` raises ValueError if the text is not a position."""
        try:
            return read(self.after(params))
        except ValueError:
            raise self.wrong_token() from None

    def more(self, last: str | None) -> dict[str, Any]:
        """The response members that say whether more items follow. `last` is the last key of this page; None: no items follow."""
        members: dict[str, Any] = {} if self.truncated is None else {self.truncated: last is not None}
        if last is not None:
            members[self.next_token] = token_of(last)
        return members

    def page(self, params: Mapping[str, Any], candidates: Candidates[T]) -> tuple[list[T], dict[str, Any]]:
        """The items of one page, and the response members that say whether more items follow."""
        limit = self.limit_of(params)
        found = candidates(self.after(params), -1 if limit is None else limit + 1)
        if limit is None or len(found) <= limit:
            return [item for _, item in found], self.more(None)
        unpaged = self.only_with_limit and (self.limit is None or params.get(self.limit) is None)
        return [item for _, item in found[:limit]], self.more(None if unpaged else found[limit - 1][0])


def token_of(key: str) -> str:
    """An opaque token that contains the key of an item."""
    return urlsafe_b64encode(key.encode()).decode()


def among(items: Mapping[str, T]) -> Candidates[T]:
    """Candidates from a dict of key to item."""

    def candidates(after: str, limit: int) -> list[tuple[str, T]]:
        keys = [key for key in sorted(items) if key > after]
        return [(key, items[key]) for key in (keys if limit < 0 else keys[:limit])]

    return candidates


def names(listing: Callable[[str, int], list[str]]) -> Candidates[str]:
    """Candidates from a function that lists names. Each name is both key and item."""
    return lambda after, limit: [(name, name) for name in listing(after, limit)]
