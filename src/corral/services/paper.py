"""On paper: resources that have no work to do on a machine of one's own are kept, shown, changed and removed, and do nothing.

One mechanism for all of them. A `Manner` says how a service speaks (its errors, its pages); a `Kind` declares a resource: how it
is named, what it keeps, and which operations make, show, list, change and remove it. `handlers(kind)` are those operations.
What a kind has beyond that is a plain handler that uses `find`, `put` and `page`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from corral.core import Tx
from corral.errors import ApiError
from corral.services.caller import Caller
from corral.services.tokens import unwrap, wrap
from corral.store import Store

T = TypeVar("T")
Params = dict[str, Any]
Document = dict[str, Any]  # a resource in the service's own shape; members that begin with "_" are never shown
Handler = Callable[[Tx[Store], Params, Caller], dict[str, Any]]
Candidates = Callable[[str, int], list[tuple[str, T]]]  # (after, limit) → names and what they name, in the order of names

ROWS_PER_READ = 100


@dataclass(frozen=True, slots=True)
class Manner:
    """How one service speaks of its resources, whatever their kind."""

    service: str
    exists: Callable[[str, str], ApiError]  # a kind's word and a name → the refusal
    missing: Callable[[str, str], ApiError]
    invalid: type[ApiError]
    check_tags: Callable[[list[dict[str, str]]], None]
    regional: bool = True
    limit: str = "MaxItems"  # a page's members in requests and replies
    token: str = "Marker"
    next_token: str = "Marker"
    truncated: str | None = "IsTruncated"
    page_default: int = 100
    page_max: int = 1000
    tags: str = "Tags"
    tag_key: str = "Key"


@dataclass(frozen=True, slots=True)
class Change:
    """An operation that changes members of a resource."""

    members: Mapping[str, str]  # of the request → of the resource
    replies: bool = False  # with the resource


@dataclass(frozen=True, slots=True)
class Kind:
    manner: Manner
    word: str  # "role": in the table, and in messages
    name: str  # "RoleName": the member that names one
    one: str  # "Role": a reply's member that holds one
    many: str  # "Roles"
    identity: Callable[[Tx[Store], Params, Caller], Document]  # what a new one has beside what was said: its id, its ARN
    keeps: tuple[str, ...] = ()  # members of the request that makes one
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unlisted: tuple[str, ...] = ()  # members that only `show` shows
    by_arn: tuple[str, str] | None = None  # where requests name one by its ARN: their member, and the resource's own
    check: Callable[[Params], None] = lambda params: None  # refuses what may not be made or changed so
    removable: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None  # refuses, or not
    selects: Callable[[Params, Document], bool] = lambda params, document: True  # what a listing is narrowed to
    view: Callable[[Tx[Store], Caller, Document], Document] = lambda tx, caller, document: document
    # The names of its operations
    make: str | None = None
    show: str | None = None
    list: str | None = None
    remove: str | None = None
    change: Mapping[str, Change] = field(default_factory=lambda: MappingProxyType({}))
    tag: str | None = None
    untag: str | None = None
    list_tags: str | None = None


def handlers(kind: Kind) -> dict[str, Handler]:
    """The operations that a declaration names."""

    def make(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        return {kind.one: shown(tx, caller, kind, add(tx, caller, kind, params))}

    def show(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        return {kind.one: shown(tx, caller, kind, find(tx, caller, kind, params))}

    def listing(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        found, token = page(kind.manner, params, lambda after, limit: _selected(tx, caller, kind, params, after, limit))
        return {kind.many: [_listed(tx, caller, kind, document) for document in found], **token}

    def remove(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, kind, params)
        kind.removable(tx, caller, document)
        tx.store.stored.drop(*_place(kind, caller), document[kind.name])
        return {}

    def tag(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document, key = find(tx, caller, kind, params), kind.manner.tag_key
        tags = {each[key]: each for each in (*_tags(kind, document), *params[kind.manner.tags])}
        kind.manner.check_tags(params[kind.manner.tags])
        kind.manner.check_tags([*tags.values()])
        put(tx, caller, kind, {**document, kind.manner.tags: [*tags.values()]})
        return {}

    def untag(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document, key = find(tx, caller, kind, params), kind.manner.tag_key
        left = [each for each in _tags(kind, document) if each[key] not in params["TagKeys"]]
        put(tx, caller, kind, {**document, kind.manner.tags: left})
        return {}

    def list_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        tags = _tags(kind, find(tx, caller, kind, params))
        found, token = page(kind.manner, params, among({each[kind.manner.tag_key]: each for each in tags}))
        return {kind.manner.tags: found, **token}

    named = {
        kind.make: make, kind.show: show, kind.list: listing, kind.remove: remove, kind.tag: tag, kind.untag: untag,
        kind.list_tags: list_tags,
    }  # fmt: skip
    changes = {operation: _changer(kind, change) for operation, change in kind.change.items()}
    return {operation: handler for operation, handler in named.items() if operation is not None} | changes


def add(tx: Tx[Store], caller: Caller, kind: Kind, params: Params) -> Document:
    """A new one, or the service's word for one that is there already."""
    kind.check(params)
    kind.manner.check_tags(params.get(kind.manner.tags, []))
    kept = {member: params[member] for member in (kind.name, *kind.keeps, kind.manner.tags) if member in params}
    document = {**kind.defaults, **kept, **kind.identity(tx, params, caller)}
    name = document[kind.name]
    if not tx.store.stored.add(*_place(kind, caller), name, document, tx.now_s):
        raise kind.manner.exists(kind.word, name)
    return document


def find(tx: Tx[Store], caller: Caller, kind: Kind, params: Params) -> Document:
    """The one that a request means, or the service's word for one that is not there."""
    given, own = kind.by_arn or (kind.name, kind.name)
    document = tx.store.stored.get(*_place(kind, caller), params[given].rpartition("/")[2] if kind.by_arn else params[given])
    if document is None or document[own] != params[given]:
        raise kind.manner.missing(kind.word, params[given])
    return document


def put(tx: Tx[Store], caller: Caller, kind: Kind, document: Document) -> None:
    """One that is there, as it is from now on."""
    tx.store.stored.change(*_place(kind, caller), document[kind.name], document)


def every(tx: Tx[Store], caller: Caller, kind: Kind) -> Iterator[Document]:
    """All of a kind, by name."""
    return (document for _, document in tx.store.stored.listed(*_place(kind, caller)))


def shown(tx: Tx[Store], caller: Caller, kind: Kind, document: Document) -> Document:
    return {member: value for member, value in kind.view(tx, caller, document).items() if not member.startswith("_")}


def page(manner: Manner, params: Params, candidates: Candidates[T]) -> tuple[list[T], dict[str, Any]]:
    """One page, and the reply's members that say whether there are more."""
    limit = params.get(manner.limit, manner.page_default)
    if not 1 <= limit <= manner.page_max:
        raise manner.invalid(f"{manner.limit} must be between 1 and {manner.page_max}.")
    found = candidates(unwrap(params.get(manner.token), manner.invalid), limit + 1)
    more = len(found) > limit
    reply: dict[str, Any] = {manner.truncated: more} if manner.truncated else {}
    if more:
        reply[manner.next_token] = wrap(found[limit - 1][0])
    return [item for _, item in found[:limit]], reply


def among(named: Mapping[str, T]) -> Candidates[T]:
    """Candidates for a page that are at hand already."""
    return lambda after, limit: [(name, named[name]) for name in sorted(named) if name > after][:limit]


def _changer(kind: Kind, change: Change) -> Handler:
    def handler(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, kind, params)
        kind.check(params)
        document = {**document, **{to: params[given] for given, to in change.members.items() if given in params}}
        put(tx, caller, kind, document)
        return {kind.one: shown(tx, caller, kind, document)} if change.replies else {}

    return handler


def _selected(tx: Tx[Store], caller: Caller, kind: Kind, params: Params, after: str, limit: int) -> list[tuple[str, Document]]:
    found: list[tuple[str, Document]] = []
    while len(found) < limit:
        rows = tx.store.stored.listed(*_place(kind, caller), after, ROWS_PER_READ)
        found += [(name, document) for name, document in rows if kind.selects(params, document)]
        if len(rows) < ROWS_PER_READ:
            break
        after = rows[-1][0]
    return found[:limit]


def _listed(tx: Tx[Store], caller: Caller, kind: Kind, document: Document) -> Document:
    return {member: value for member, value in shown(tx, caller, kind, document).items() if member not in kind.unlisted}


def _tags(kind: Kind, document: Document) -> list[dict[str, str]]:
    tags: list[dict[str, str]] = document.get(kind.manner.tags, [])
    return tags


def _place(kind: Kind, caller: Caller) -> tuple[str, str, str]:
    """Where it stands in the store: service, kind and region."""
    return kind.manner.service, kind.word, caller.region if kind.manner.regional else ""
