"""Resources that Corral stores as documents. Most of them are stored only: Corral stores and describes them, and nothing more.

A `ServiceStyle` has the conventions of a service: errors, pages and tags. A `ResourceType` declares one type of resource: its id,
its members, and its operations. `handlers(type)` returns these operations. Operations that a declaration cannot express are
ordinary functions that call `create`, `find`, `put` and `every`. CloudFormation uses the same types
(`stored_type` in `template_types/resource_types.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.operations.pagination import Pagination, among
from corral.operations.services import Handler
from corral.operations.tags import TagRules, Tags
from corral.store import Store
from corral.store.stored_resources import Document as Document

Params = dict[str, Any]
Selects = Callable[[Document], bool]  # whether a list response contains this resource; the argument is a result of `view`

ROWS_PER_READ = 100
TOKEN, REQUEST = "_token", "_request"  # document members for the idempotency token and the request that contained it


class ServiceStyle(Struct, frozen=True):
    """The conventions of one service for errors, pages and tags. All resource types of the service share them."""

    service: str
    exists: Callable[[str, str], ApiError]  # (type, id) → the error if the id already exists
    missing: Callable[[str, str], ApiError]  # (type, id) → the error if the id does not exist
    pages: Pagination
    tags: TagRules
    tags_member: str = "Tags"  # the member for tags in documents and in requests that tag a resource
    # Returns the tags in a create request.
    given_tags: Callable[[str, Params], list[dict[str, str]]] = lambda type_, params: params.get("Tags", [])
    token_reused: Callable[[], ApiError] | None = None  # the error if a different request has already used the token
    regional: bool = True


class Update(Struct, frozen=True):
    members: Mapping[str, str]  # request member → document member
    returns_resource: bool = False


def _all(tx: Tx[Store], caller: Caller, params: Params) -> Selects:
    return lambda document: True


class ResourceType(Struct, frozen=True):
    style: ServiceStyle
    name: str  # such as "role": the name of the type in the store and in messages
    id: str  # such as "RoleName": the member that identifies a resource, in requests and documents
    one: str  # such as "Role": the response member for one resource
    many: str  # such as "Roles": the response member for a list of resources
    # Returns members that are not in the request, such as ids. A type that no operation creates needs no function.
    new: Callable[[Tx[Store], Params, Caller], Document] = lambda tx, params, caller: {}
    members: tuple[str, ...] = ()  # request members that are stored unchanged
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    unlisted: tuple[str, ...] = ()  # members that the list operation omits
    by_arn: tuple[str, str] | None = None  # if requests name the ARN: its member in requests, and in documents
    ids: str | None = None  # the member of a list request that has the ids of the requested resources
    check: Callable[[Params], None] = lambda params: None  # raises an error if a create or update request is not valid
    token: str | None = None  # the request member that makes a create request idempotent
    # `created` creates the resources that belong to a new resource, and `deleted` deletes them.
    created: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None
    create_response: Callable[[Document], dict[str, Any]] | None = None  # if None, the response is the resource
    check_delete: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None  # raises an error if in use
    deleted: Callable[[Tx[Store], Caller, Document], None] = lambda tx, caller, document: None
    delete_response: Callable[[Document], dict[str, Any]] = lambda document: {}
    selects: Callable[[Tx[Store], Caller, Params], Selects] = _all  # returns the filter for a list request
    view: Callable[[Tx[Store], Caller, Document], Document] = lambda tx, caller, document: document
    # Names of the operations. None means that the service does not have the operation.
    create: str | None = None
    get: str | None = None
    list: str | None = None
    delete: str | None = None
    update: Mapping[str, Update] = field(default_factory=lambda: MappingProxyType({}))
    tag: str | None = None
    untag: str | None = None
    list_tags: str | None = None


def handlers(type_: ResourceType) -> dict[str, Handler]:
    """The handlers of the operations that a declaration names."""

    def create_one(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = create(tx, caller, type_, params)
        if type_.create_response is not None:
            return type_.create_response(document)
        token = {type_.token: params[type_.token]} if type_.token is not None and type_.token in params else {}
        return {type_.one: response_view(tx, caller, type_, document), **token}

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
    """Store a new resource. Raises the service's error if the id already exists.

    A repeated request with the same token returns the resource that the first request created.
    """
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
    if not tx.store.stored.add(*_place(type_, caller), name, document, tx.now_s, caller.owner):
        raise style.exists(type_.name, name)
    type_.created(tx, caller, document)
    return document


def find(tx: Tx[Store], caller: Caller, type_: ResourceType, params: Params) -> Document:
    """The resource that a request names. Raises the service's error if it does not exist."""
    given, own = type_.by_arn or (type_.id, type_.id)
    name = params[given].rpartition("/")[2] if type_.by_arn else params[given]
    document = tx.store.stored.get(*_place(type_, caller), name)
    if document is None or document[own] != params[given]:
        raise type_.style.missing(type_.name, params[given])
    return document


def put(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> None:
    tx.store.stored.change(*_place(type_, caller), document[type_.id], document)


def delete(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> None:
    """Delete a resource. Raises an error if the resource is in use."""
    type_.check_delete(tx, caller, document)
    tx.store.stored.drop(*_place(type_, caller), document[type_.id])
    type_.deleted(tx, caller, document)


def get(tx: Tx[Store], caller: Caller, type_: ResourceType, name: str) -> Document | None:
    return tx.store.stored.get(*_place(type_, caller), name)


def every(tx: Tx[Store], caller: Caller, type_: ResourceType) -> Iterator[Document]:
    """All resources of a type, sorted by id."""
    return (document for _, document in tx.store.stored.listed(*_place(type_, caller)))


def list_resources(tx: Tx[Store], params: Params, caller: Caller, type_: ResourceType) -> dict[str, Any]:
    """The response of a list operation: one page of the resources that the request names or selects."""
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
    """The resource for a response, without the members that begin with "_"."""
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
    """The service, type and region under which the store has the resource."""
    return type_.style.service, type_.name, caller.region if type_.style.regional else ""
