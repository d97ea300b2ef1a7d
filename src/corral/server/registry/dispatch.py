"""Authenticates a request to the registry, and finds the handler for its path and method.

The password of a request contains the caller and the region of the repositories (`services/ecr/registry_passwords.py`), because the
address of the registry contains no region.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.model.principal import SERVICE
from corral.model.settings import Settings
from corral.server.audit.recording import Audit
from corral.server.authentication import Authentication
from corral.server.authorization import RequiredOperation
from corral.server.http.request_body import BodyReceiver, Receive
from corral.server.lanes import Lane
from corral.server.registry.errors import VERSION, Denied, Unauthorized, Unsupported, error_response
from corral.server.registry.layers import Layers
from corral.server.registry.manifests import Manifests
from corral.server.registry.requests import RegistryRequest, plain_name, query_of, route_of
from corral.services.ecr.errors import RepositoryNotFoundException
from corral.services.ecr.registry_passwords import USER
from corral.store import Store

# (kind of path, method) → the ECR operation whose permission the request needs. The method "" stands for all other methods.
OPERATIONS = {
    ("_catalog", ""): "DescribeRepositories",
    ("tags", ""): "ListImages",
    ("referrers", ""): "BatchGetImage",
    ("manifests", "PUT"): "PutImage",
    ("manifests", "DELETE"): "BatchDeleteImage",
    ("manifests", ""): "BatchGetImage",
    ("blobs", "HEAD"): "BatchCheckLayerAvailability",
    ("blobs", "DELETE"): "BatchDeleteImage",
    ("blobs", ""): "GetDownloadUrlForLayer",
    ("blobs/uploads", "POST"): "InitiateLayerUpload",
    ("blobs/uploads", "PUT"): "CompleteLayerUpload",
    ("blobs/uploads", ""): "UploadLayerPart",
}

# The operations that a host may perform with its password (`pull_from_here`)
PULLS = frozenset({"BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"})

RegistryHandler = Callable[[RegistryRequest], Awaitable[aws.Response]]


class Registry:
    def __init__(self, settings: Settings, state: Lane[Store], ids: Ids, intake: BodyReceiver, audit: Audit) -> None:
        self.audit = audit
        layers, manifests = Layers(state, settings, ids, intake), Manifests(state, settings, ids)
        self.handlers: dict[str, dict[str, RegistryHandler]] = {
            "": {"GET": _welcome, "HEAD": _welcome},
            "_catalog": {"GET": manifests.catalog},
            "tags": {"GET": manifests.tags},
            "referrers": {"GET": manifests.referrers},
            "manifests": {
                "HEAD": manifests.show,
                "GET": manifests.read,
                "PUT": manifests.put,
                "DELETE": manifests.delete,
            },
            "blobs": {"HEAD": layers.show, "GET": layers.read, "DELETE": layers.delete},
            "blobs/uploads": {
                "POST": layers.begin,
                "GET": layers.progress,
                "PATCH": layers.send,
                "PUT": layers.finish,
                "DELETE": layers.cancel,
            },
        }

    def exchange(self, head: aws.Request, receive: Receive) -> RegistryExchange:
        return RegistryExchange(head, receive, self)


class RegistryExchange(Struct, eq=False):
    """A request to the registry, in the form that `FrontDoor` needs."""

    head: aws.Request
    receive: Receive
    registry: Registry

    @property
    def action(self) -> str:
        return f"registry:{self.head.method}"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        headers = self.head.headers
        identity = authentication.registry_password(_password(headers.get("authorization", "")))
        if identity is None:
            host = headers.get("host", "localhost")
            login = f"aws ecr get-login-password | docker login --username {USER} --password-stdin {host}"
            error = Unauthorized(f"Log in first: {login}")
            error.headers["WWW-Authenticate"] = f'Basic realm="{self.head.scheme}://{host}/",service="ecr.amazonaws.com"'
            raise error
        return identity

    def required(self, caller: Caller) -> RequiredOperation | None:
        route, query = route_of(self.head.path, caller.region), query_of(self.head.query)
        operation = _operation(route.kind, self.head.method)
        if operation is None:
            return None
        source = [plain_name(query["from"], caller.region)] if "from" in query else []
        return RequiredOperation("ecr", operation, {"repositoryNames": [route.name] if route.name else [], "mountedFrom": source})

    def denied(self, message: str) -> ApiError:
        return Denied(message)

    async def run(self, caller: Caller) -> aws.Response:
        head = self.head
        route = route_of(head.path, caller.region)
        handler = self.registry.handlers[route.kind].get(head.method)
        if handler is None:
            raise Unsupported(f"The registry does not serve {head.method} for {head.path}.")
        operation = _operation(route.kind, head.method)
        if caller.principal.kind == SERVICE and operation is not None and operation not in PULLS:
            raise Denied(f"The password of hosts is not authorized to perform: ecr:{operation}. It only pulls images.")
        try:
            response = await handler(RegistryRequest(head, self.receive, route, caller, query_of(head.query)))
        except RepositoryNotFoundException as error:
            create = f"aws ecr create-repository --repository-name {route.name} --region {caller.region}"
            raise RepositoryNotFoundException(f"{error.message}. Create it with: {create}") from None
        if (route.kind, head.method) in OPERATIONS and operation is not None:
            params = {"repositoryName": route.name, "imageTag": route.reference}
            self.registry.audit.succeeded(head, caller, ("ecr", operation), params, {})
        return response

    def refuse(self, error: ApiError) -> aws.Response:
        return error_response(error)


def _operation(kind: str, method: str) -> str | None:
    """Return the operation of ECR whose permission a request needs. Return None for /v2/, which only tests the password."""
    return OPERATIONS.get((kind, method), OPERATIONS.get((kind, "")))


async def _welcome(_: RegistryRequest) -> aws.Response:
    return aws.Response(200, [VERSION, ("Content-Type", "application/json")], b"{}")


def _password(authorization: str) -> str:
    """Return the password in an Authorization header with the user name AWS. Return an empty text if there is none."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        user, _, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return ""
    return password if scheme.lower() == "basic" and user == USER else ""
