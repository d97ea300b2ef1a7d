"""Stored-only resources: they are stored, described, updated and deleted, and do nothing else.

A `ServiceStyle` says how a service names its errors, pages and tags. A `ResourceType` declares one type of resource: its id, the
members it stores, and the operations that create, get, list, update, delete and tag it; `handlers(type)` returns those operations.
An operation that a declaration cannot express is an ordinary function, built from `create`, `find`, `put` and `every`.
`cloudformation_types.py` makes the same types available to CloudFormation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from corral.core import Tx
from corral.errors import ApiError
from corral.services import Handler
from corral.services.caller import Caller
from corral.services.pagination import Pagination, among
from corral.services.tags import TagRules, Tags
from corral.store import Store
from corral.store.stored_resources import Document as Document

Params = dict[str, Any]
Selects = Callable[[Document], bool]  # of a resource as its type's `view` returns it

ROWS_PER_READ = 100
TOKEN, REQUEST = "_token", "_request"  # of a resource that was created with an idempotency token


class ServiceStyle(Struct, frozen=True):
    """How one service names its errors, pages and tags, for all its resource types."""

    service: str
    exists: Callable[[str, str], ApiError]  # (type, id) → the error for an id that is taken
    missing: Callable[[str, str], ApiError]  # (type, id) → the error for an id that does not exist
    pages: Pagination
    tags: TagRules
    tags_member: str = "Tags"  # of documents, and of requests that tag
    given_tags: Callable[[str, Params], list[dict[str, str]]] = lambda type_, params: params.get("Tags", [])  # of a create request
    token_reused: Callable[[], ApiError] | None = None  # the error for the token of another request
    regional: bool = True


class Update(Struct, frozen=True):
    """An operation that sets members of a resource."""

    members: Mapping[str, str]  # request member → document member
    returns_resource: bool = False


def _all(tx: Tx[Store], caller: Caller, params: Params) -> Selects:
    return lambda document: True


class ResourceType(Struct, frozen=True):
    style: ServiceStyle
    name: str  # "role": in the store and in messages
    id: str  # "RoleName": the member of requests and documents that identifies a resource
    one: str  # "Role": the response member that holds one
    many: str  # "Roles": the response member that holds a list
    new: Callable[[Tx[Store], Params, Caller], Document]  # the members of a new resource that its request does not give
    members: tuple[str, ...] = ()  # request members that are stored as given
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unlisted: tuple[str, ...] = ()  # members that the list operation leaves out
    by_arn: tuple[str, str] | None = None  # for requests that give an ARN: their member, and the document's member
    ids: str | None = None  # the member of a list request that names the resources it wants
    check: Callable[[Params], None] = lambda params: None  # refuses a create or update request
    token: str | None = None  # the request member that makes a create request idempotent
    created: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None  # creates what belongs to it
    create_response: Callable[[Document], dict[str, Any]] | None = None  # None: the resource
    check_delete: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None  # refuses while in use
    deleted: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None  # deletes what belongs to it
    delete_response: Callable[[Document], dict[str, Any]] = lambda document: {}
    selects: Callable[[Tx[Store], Caller, Params], Selects] = _all  # which resources a list request wants
    view: Callable[[Tx[Store], Caller, Document], Document] = lambda tx, caller, document: document
    # Operations; None: the service has none
    create: str | None = None
    get: str | None = None
    list: str | None = None
    delete: str | None = None
    update: Mapping[str, Update] = field(default_factory=lambda: MappingProxyType({}))
    tag: str | None = None
    untag: str | None = None
    list_tags: str | None = None


def handlers(type_: ResourceType) -> dict[str, Handler]:
    """The operations that a declaration names."""

    def create_one(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = create(tx, caller, type_, params)
        if type_.create_response is not None:
            return type_.create_response(document)
        return {type_.one: response_view(tx, caller, type_, document)}

    def get_one(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        return {type_.one: response_view(tx, caller, type_, find(tx, caller, type_, params))}

    def list_many(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        return list_resources(tx, params, caller, type_)

    def delete_one(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, type_, params)
        delete(tx, caller, type_, document)
        return type_.delete_response(document)

    def tag(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        add_tags(tx, caller, type_, find(tx, caller, type_, params), params[type_.style.tags_member])
        return {}

    def untag(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, type_, params)
        set_tags(tx, caller, type_, document, type_.style.tags.remove(tags_of(type_, document), params["TagKeys"]))
        return {}

    def list_tags(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        tags = tags_of(type_, find(tx, caller, type_, params))
        found, more = type_.style.pages.page(params, among({key: (key, value) for key, value in tags.items()}))
        return {type_.style.tags_member: type_.style.tags.to_list(dict(found)), **more}

    named = {
        type_.create: create_one, type_.get: get_one, type_.list: list_many, type_.delete: delete_one, type_.tag: tag,
        type_.untag: untag, type_.list_tags: list_tags,
    }  # fmt: skip
    updates = {operation: _updater(type_, update) for operation, update in type_.update.items()}
    return {operation: handler for operation, handler in named.items() if operation is not None} | updates


def create(tx: Tx[Store], caller: Caller, type_: ResourceType, params: Params) -> Document:
    """Store a new resource; raise the service's error if its id is taken. A repeated token returns the resource it created."""
    style, token = type_.style, params.get(type_.token) if type_.token is not None else None
    if token is not None:
        for document in every(tx, caller, type_):
            if document.get(TOKEN) == token:
                if style.token_reused is not None and document[REQUEST] != params:
                    raise style.token_reused()
                return document
    type_.check(params)
    tags = style.tags.read(style.given_tags(type_.name, params))
    given = {member: params[member] for member in (type_.id, *type_.members) if member in params}
    document = {**type_.defaults, **given, **type_.new(tx, params, caller)}
    if tags:
        document[style.tags_member] = style.tags.to_list(tags)
    if token is not None:
        document |= {TOKEN: token, REQUEST: params}
    name = document[type_.id]
    if not tx.store.stored.add(*_place(type_, caller), name, document, tx.now_s):
        raise style.exists(type_.name, name)
    type_.created(tx, caller, document)
    return document


def find(tx: Tx[Store], caller: Caller, type_: ResourceType, params: Params) -> Document:
    """The resource that a request names; raise the service's error if it does not exist."""
    given, own = type_.by_arn or (type_.id, type_.id)
    name = params[given].rpartition("/")[2] if type_.by_arn else params[given]
    document = tx.store.stored.get(*_place(type_, caller), name)
    if document is None or document[own] != params[given]:
        raise type_.style.missing(type_.name, params[given])
    return document


def put(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> None:
    """Replace the document of a resource that exists."""
    tx.store.stored.change(*_place(type_, caller), document[type_.id], document)


def delete(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> None:
    """Delete a resource that nothing uses."""
    type_.check_delete(tx, caller, document)
    tx.store.stored.drop(*_place(type_, caller), document[type_.id])
    type_.deleted(tx, caller, document)


def get(tx: Tx[Store], caller: Caller, type_: ResourceType, name: str) -> Document | None:
    return tx.store.stored.get(*_place(type_, caller), name)


def every(tx: Tx[Store], caller: Caller, type_: ResourceType) -> Iterator[Document]:
    """All resources of a type, in the order of their ids."""
    return (document for _, document in tx.store.stored.listed(*_place(type_, caller)))


def list_resources(tx: Tx[Store], params: Params, caller: Caller, type_: ResourceType) -> dict[str, Any]:
    """The response of a list operation: the resources that the request names or selects, one page of them."""
    chosen = type_.selects(tx, caller, params)
    if type_.ids is not None and params.get(type_.ids):
        named = {each: type_.view(tx, caller, find(tx, caller, type_, {type_.id: each})) for each in params[type_.ids]}
        candidates = among({each: view for each, view in named.items() if chosen(view)})
    else:

        def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
            return _selected(tx, caller, type_, chosen, after, limit)

    found, more = type_.style.pages.page(params, candidates)
    return {type_.many: [_visible(view, type_.unlisted) for view in found], **more}


def response_view(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> Document:
    """A resource as responses show it: without the members that begin with "_"."""
    return _visible(type_.view(tx, caller, document))


def tags_of(type_: ResourceType, document: Document) -> Tags:
    rules = type_.style.tags
    return {tag[rules.key]: tag[rules.value] for tag in document.get(type_.style.tags_member, ())}


def add_tags(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document, tags: list[dict[str, str]]) -> None:
    rules = type_.style.tags
    set_tags(tx, caller, type_, document, rules.merge(tags_of(type_, document), rules.read(tags)))


def set_tags(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document, tags: Tags) -> None:
    put(tx, caller, type_, {**document, type_.style.tags_member: type_.style.tags.to_list(tags)})


def _updater(type_: ResourceType, update: Update) -> Handler:
    def handler(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, type_, params)
        type_.check(params)
        document = {**document, **{to: params[given] for given, to in update.members.items() if given in params}}
        put(tx, caller, type_, document)
        return {type_.one: response_view(tx, caller, type_, document)} if update.returns_resource else {}

    return handler


def _selected(
    tx: Tx[Store], caller: Caller, type_: ResourceType, chosen: Selects, after: str, limit: int
) -> list[tuple[str, Document]]:
    found: list[tuple[str, Document]] = []
    while limit < 0 or len(found) < limit:
        rows = tx.store.stored.listed(*_place(type_, caller), after, ROWS_PER_READ)
        views = ((name, type_.view(tx, caller, document)) for name, document in rows)
        found += [(name, view) for name, view in views if chosen(view)]
        if len(rows) < ROWS_PER_READ:
            break
        after = rows[-1][0]
    return found if limit < 0 else found[:limit]


def _visible(view: Document, hidden: tuple[str, ...] = ()) -> Document:
    return {member: value for member, value in view.items() if member[0] != "_" and member not in hidden}


def _place(type_: ResourceType, caller: Caller) -> tuple[str, str, str]:
    """Where the store holds it: service, type and region."""
    return type_.style.service, type_.name, caller.region if type_.style.regional else ""
