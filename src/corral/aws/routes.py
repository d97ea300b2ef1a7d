"""Which operation of a REST service a method and path mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from corral.aws.form import pairs_from_text
from corral.aws.http import Request
from corral.aws.models import service_model
from corral.aws.shapes import OperationModel

_LABEL = re.compile(r"\{([^}]+)\}")


@dataclass(frozen=True, slots=True)
class Route:
    """One operation's place; of several that match, the one that asks for most wins."""

    operation: str
    path: re.Pattern[str]
    labels: tuple[str, ...]
    literals: int  # characters of the path that are fixed
    fixed: Mapping[str, str]  # query parameters that the template itself has
    queries: frozenset[str]  # of required members
    headers: frozenset[str]  # of required members, lower-case
    deprecated: bool  # S3 has twins of which one is


@dataclass(frozen=True, slots=True)
class Table:
    """One service's operations: those that a path without a query string decides, and all in the order to try them."""

    plain: Mapping[tuple[str, str], str]
    by_method: Mapping[str, list[Route]]
    without_query: Mapping[str, list[Route]]  # those of them that a request without a query string can mean


@dataclass(frozen=True, slots=True)
class Found:
    """The operation, and the undecoded labels of its path."""

    operation: str
    labels: dict[str, str]


def route(service: str, protocol: str, request: Request) -> Found | None:
    """The operation that the request means, or None when the service has none like it."""
    path = request.path if protocol == "rest-xml" else request.path.rstrip("/")  # a key of S3 may end in a slash
    table = _routes(service, protocol)
    if not request.query:
        plain = table.plain.get((request.method, path))
        if plain is not None:
            return Found(plain, {})
    query = dict(pairs_from_text(request.query))
    for candidate in (table.by_method if query else table.without_query).get(request.method, ()):
        if not _satisfied(candidate, query, request.headers):
            continue
        match = candidate.path.fullmatch(path)
        if match is not None:
            return Found(candidate.operation, dict(zip(candidate.labels, match.groups())))
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
def _routes(service: str, protocol: str) -> Table:
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
        routes.sort(key=_demands, reverse=True)
    without_query = {method: [r for r in routes if not (r.fixed or r.queries)] for method, routes in by_method.items()}
    return Table(plain, by_method, without_query)


def _demands(candidate: Route) -> tuple[int, int, int, int, bool]:
    # A parameter that the template fixes says more than any path: S3's `?tagging` against a plain object.
    others = len(candidate.queries) + len(candidate.headers)
    return len(candidate.fixed), candidate.literals, others, -len(candidate.labels), not candidate.deprecated


def _compile(operation: OperationModel, protocol: str) -> Route:
    template, _, query = operation.http["requestUri"].partition("?")
    pattern, literals = "", 0
    labels = []
    for index, piece in enumerate(_LABEL.split(template.rstrip("/"))):
        if index % 2 == 0:
            pattern += re.escape(piece)
            literals += len(piece)
        else:
            labels.append(piece.rstrip("+"))
            pattern += "(.+)" if piece.endswith("+") else "([^/]+)"
    if protocol == "rest-xml" and not template.endswith("+}"):
        pattern += "/?"
    return Route(
        operation=operation.name,
        path=re.compile(pattern),
        labels=tuple(labels),
        literals=literals,
        fixed=dict(pairs_from_text(query)),
        queries=_required(operation, protocol, "querystring"),
        headers=frozenset(name.lower() for name in _required(operation, protocol, "header")),
        deprecated=operation.deprecated,
    )


def _required(operation: OperationModel, protocol: str, location: str) -> frozenset[str]:
    """Only S3 tells operations apart by these; elsewhere a missing one is for the parser to report."""
    shape = operation.input_shape
    if shape is None or protocol != "rest-xml":
        return frozenset()
    members = ((name, shape.members[name].serialization) for name in shape.required_members)
    return frozenset(where.get("name", name) for name, where in members if where.get("location") == location)
