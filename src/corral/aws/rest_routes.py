"""Finds the operation of a REST request by its method, path, query string and headers.

A label is a variable part of a path, for example `{Bucket}` in `/{Bucket}/{Key+}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import Request
from corral.aws.models import service_model
from corral.aws.shapes import OperationModel

_LABEL = re.compile(r"\{([^}]+)\}")


class Route(Struct, frozen=True):
    """The path and the parameters of one operation. If several routes match, the most specific one is used."""

    operation: str
    path: re.Pattern[str]
    labels: tuple[str, ...]
    literals: int  # the number of characters in the path outside of labels
    fixed: Mapping[str, str]  # query parameters that must have these values
    queries: frozenset[str]  # the query parameters of required members of the input; only for rest-xml
    headers: frozenset[str]  # the headers of required members of the input, in lower case; only for rest-xml
    deprecated: bool  # in S3, a current and a deprecated operation can have the same method and path


class RouteTable(Struct, frozen=True):
    """The routes of one service. The most specific route is the first."""

    plain: Mapping[tuple[str, str], str]  # (method, path) -> operation, for routes without labels and query parameters
    by_method: Mapping[str, list[Route]]
    without_query: Mapping[str, list[Route]]  # method -> the routes that match requests without a query string


class RouteMatch(Struct, frozen=True):
    """The operation of a request, and the values of its path labels, which are still percent-encoded."""

    operation: str
    labels: dict[str, str]


def route(service: str, protocol: str, request: Request) -> RouteMatch | None:
    path = request.path if protocol == "rest-xml" else request.path.rstrip("/")  # keep a slash at the end of an S3 key
    table = routes_of(service, protocol)
    if not request.query:
        plain = table.plain.get((request.method, path))
        if plain is not None:
            return RouteMatch(plain, {})
    query = dict(pairs_from_text(request.query))
    for candidate in (table.by_method if query else table.without_query).get(request.method, ()):
        if not _satisfied(candidate, query, request.headers):
            continue
        match = candidate.path.fullmatch(path)
        if match is not None:
            return RouteMatch(candidate.operation, dict(zip(candidate.labels, match.groups())))
    return None


def _satisfied(candidate: Route, query: Mapping[str, str], headers: Mapping[str, str]) -> bool:
    if candidate.fixed:
        for name, value in candidate.fixed.items():
            if query.get(name) != value:
                return False
    if candidate.queries and not candidate.queries <= query.keys():
        return False
    return not candidate.headers or candidate.headers <= headers.keys()


@cache
def routes_of(service: str, protocol: str) -> RouteTable:
    """Return the routes of all operations of a service. The first call for a service takes up to 100 ms."""
    model = service_model(service, protocol)
    plain: dict[tuple[str, str], str] = {}
    by_method: dict[str, list[Route]] = {}
    for name in model.operations:
        operation = model.operation_model(name)
        method, template = operation.http["method"], operation.http["requestUri"]
        if protocol == "rest-json" and "{" not in template and "?" not in template:
            plain[method, template.rstrip("/")] = name
        by_method.setdefault(method, []).append(_compile(operation, protocol))
    for routes in by_method.values():
        routes.sort(key=_specificity, reverse=True)
    without_query = {method: [r for r in routes if not (r.fixed or r.queries)] for method, routes in by_method.items()}
    return RouteTable(plain, by_method, without_query)


def _specificity(candidate: Route) -> tuple[int, int, int, int, bool]:
    # A route with a fixed query parameter precedes all others. In S3, `PUT /bucket/key?tagging` is PutObjectTagging, not PutObject.
    others = len(candidate.queries) + len(candidate.headers)
    return len(candidate.fixed), candidate.literals, others, -len(candidate.labels), not candidate.deprecated


def path_pattern(template: str, *, may_end_in_slash: bool = True) -> tuple[re.Pattern[str], list[str], int]:
    """Return the pattern of a path, the names of its labels, and the number of characters outside of them."""
    pattern, literals = "", 0
    labels = []
    for index, piece in enumerate(_LABEL.split(template.rstrip("/"))):
        if index % 2 == 0:
            pattern += re.escape(piece)
            literals += len(piece)
        else:
            labels.append(piece.rstrip("+"))
            pattern += "(.+)" if piece.endswith("+") else "([^/]+)"
    if may_end_in_slash and not template.endswith("+}"):
        pattern += "/?"
    return re.compile(pattern), labels, literals


def _compile(operation: OperationModel, protocol: str) -> Route:
    template, _, query = operation.http["requestUri"].partition("?")
    pattern, labels, literals = path_pattern(template, may_end_in_slash=protocol == "rest-xml")
    return Route(
        operation=operation.name,
        path=pattern,
        labels=tuple(labels),
        literals=literals,
        fixed=dict(pairs_from_text(query)),
        queries=_required(operation, protocol, "querystring"),
        headers=frozenset(name.lower() for name in _required(operation, protocol, "header")),
        deprecated=operation.deprecated,
    )


def _required(operation: OperationModel, protocol: str, location: str) -> frozenset[str]:
    """Return the wire names of the required members at a location. Only S3 needs them to distinguish operations."""
    shape = operation.input_shape
    if shape is None or protocol != "rest-xml":
        return frozenset()
    members = ((name, shape.members[name].serialization) for name in shape.required_members)
    return frozenset(where.get("name", name) for name, where in members if where.get("location") == location)
