"""The services of AWS that Corral does not serve. Corral names the service and the operation of such a request in its error.

`tools/unserved_services.py` generates the file with these services. It is read when the first such request arrives.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import orjson
from msgspec import Struct

from corral.aws.form_encoding import FORM_TYPE, pairs_from_text
from corral.aws.http import Request
from corral.aws.rest_routes import path_pattern

FILE = Path(__file__).with_name("unserved_services.jsonl.gz")
S3_CONTROL_PATH = "/v20180820/"
GZIP = 31  # zlib: the form of gzip
ROUTED_SERVICES_MAX = 8  # services whose patterns of paths are kept in memory


class RestRoute(NamedTuple):
    operation: str
    method: str
    path: re.Pattern[str]
    literals: int  # the number of characters in the path outside of labels
    fixed: dict[str, str]  # query parameters that must have these values


class UnservedService(Struct, frozen=True):
    name: str  # botocore's name
    signing_name: str
    api_version: str
    protocols: tuple[str, ...]
    target_prefix: str
    operations: bytes  # JSON: [name, method, path] of each operation of a REST service

    @property
    def error_protocol(self) -> str:
        """The protocol whose form errors have. Only the errors of S3 have the form of rest-xml: others have that of query."""
        return "query" if self.protocols[0] == "rest-xml" else self.protocols[0]


def signed_for(signing_name: str) -> list[UnservedService]:
    """Return the services with a signing name. The service whose name is the signing name is the first."""
    found = _services().get(signing_name, [])
    return sorted(found, key=lambda each: each.name != signing_name)


def with_target(prefix: str) -> UnservedService | None:
    """Return the service with this prefix of the X-Amz-Target header, which is also a part of the paths of CBOR requests."""
    return next((each for each in _all() if each.target_prefix == prefix), None) if prefix else None


def with_version(version: str, signing_name: str | None) -> UnservedService | None:
    """Return the service whose forms have this Version. Some services share a version, but no two also share a signing name."""
    candidates = signed_for(signing_name) if signing_name is not None else _all()
    return next((each for each in candidates if each.api_version == version and each.protocols[0] == "query"), None)


def is_s3_control(request: Request) -> bool:
    return request.path.startswith(S3_CONTROL_PATH) and "x-amz-account-id" in request.headers


def of_request(request: Request, signing_name: str) -> tuple[UnservedService | None, str | None]:
    """Return the service of a REST request or of a form with this signing name, and the operation if the path names it."""
    services = signed_for(signing_name)
    for service in services:
        if (operation := rest_operation(service, request)) is not None:
            return service, operation
    is_form = request.headers.get("content-type", "").startswith(FORM_TYPE)
    return next((each for each in services if not is_form or each.protocols[0] == "query"), None), None


def rest_operation(service: UnservedService, request: Request) -> str | None:
    """Return the operation of a REST request. Return None if its method and path belong to no operation of the service."""
    query = dict(pairs_from_text(request.query))
    matching = [
        route
        for route in _routes(service)
        if route.method == request.method and route.fixed.items() <= query.items() and route.path.fullmatch(request.path)
    ]
    return max(matching, key=lambda route: (len(route.fixed), route.literals)).operation if matching else None


@lru_cache(ROUTED_SERVICES_MAX)
def _routes(service: UnservedService) -> list[RestRoute]:
    routes = []
    for name, method, uri in orjson.loads(service.operations):
        template, _, query = uri.partition("?")
        path, _, literals = path_pattern(template)
        routes.append(RestRoute(name, method, path, literals, dict(pairs_from_text(query))))
    return routes


def _all() -> Iterator[UnservedService]:
    return (each for services in _services().values() for each in services)


@cache
def _services() -> dict[str, list[UnservedService]]:
    found: dict[str, list[UnservedService]] = {}
    for line in zlib.decompress(FILE.read_bytes(), GZIP).splitlines():
        head, _, operations = line.partition(b"\t")
        name, signing_name, version, protocols, prefix = orjson.loads(head)
        service = UnservedService(name, signing_name, version, tuple(protocols), prefix, operations)
        found.setdefault(signing_name, []).append(service)
    return found
