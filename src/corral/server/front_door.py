"""The entry point of all HTTP requests, for every API: `FrontDoor.respond`. Its steps are:

recognise       find the API and the operation, by `aws/recognition.py` for AWS and by the path for all others
authenticate    identify the caller by the credentials of the request (`authentication.py`)
rate            check that the caller has not made too many requests (`request_rates.py`)
authorise       check that the caller may perform the action (`authorization.py`)
run             run the operation in the lane of its database (`service_calls.py` names the exceptions)
respond         return the result, or the error in the format of the client's protocol
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from msgspec import Struct

import corral
from corral import aws
from corral.access.caller import Caller
from corral.blobs import Blobs
from corral.core.errors import ApiError, api_error, forget_frames, internal_failure
from corral.core.ids import Ids
from corral.fleet.limits import limits_of
from corral.model.histogram import RequestTimes
from corral.model.limits import SubjectLimits
from corral.model.numbers import whole_number
from corral.model.settings import Settings
from corral.server import wait_handles
from corral.server.audit.recording import Audit
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.authorization import Authorizer, RequiredOperation
from corral.server.cors import BucketCors, Preflight
from corral.server.http.connection import HEADERS_MAX_BYTES, ClientGone, HttpConnection, headers_too_large
from corral.server.http.request_body import BodyReceiver, Receive, give_back, whole_body
from corral.server.http.unverified_memory import UnverifiedMemory
from corral.server.lanes import Lane
from corral.server.last_uses import LastUses
from corral.server.registry import is_for_registry
from corral.server.request_rates import RequestRates
from corral.server.s3_requests import S3Request, S3Requests
from corral.server.service_calls import CallRunner, ServiceCall
from corral.server.service_loading import ServiceLoader
from corral.server.tls import AUTHORITY_PATH
from corral.server.upgrade_files import PATH as UPGRADE_PATH

if TYPE_CHECKING:
    from corral.server.pages.metrics_page import MetricsPage
    from corral.server.pages.objects_page import ObjectsPage
    from corral.server.registry.dispatch import Registry
    from corral.server.task_endpoints import TaskEndpoints

PUBLIC_ACTIONS = frozenset(
    {
        "corral:Connect", "corral:Health", "corral:GetAuthority", "corral:GetUpgradeFile", "s3:Preflight",
        "sns:GetSigningCertificate", "lambda:GetFunctionCode",
    }
)  # fmt: skip  # these requests need no signature
UNKNOWN_ACTION = "unknown"
TASK_PATHS = ("/v2/credentials/", "/v3/", "/v4/", "/api/")  # `task_endpoints.py` serves them
SIGNING_CERTIFICATES = "/SimpleNotificationService-"
CONNECT_PATH = "/_corral/connect"
HEALTH_PATH, OBJECTS_PATH, FUNCTIONS_PATH = "/_corral/health", "/_corral/objects", "/_corral/functions/"
WAIT_MAX_S = 60.0
METRICS_PATH = "/metrics"
ID_PREFIX = re.compile("[0-9a-f]{1,32}")
PAGE_BODY_MAX_BYTES = 64 * 1024  # the maximum body of requests to pages, wait condition handles and task endpoints

log = logging.getLogger("corral")
PageNotFound = api_error("NotFound", 404)
AccessDenied = api_error("AccessDenied", 403)


class Exchange(Protocol):
    """A request whose API and operation are known, with the steps that handle it."""

    @property
    def action(self) -> str:
        """The action in the form of IAM policies, for example `ecs:RunTask`."""

    async def authenticate(self, authentication: Authentication) -> aws.Identity: ...

    def required(self, caller: Caller) -> RequiredOperation | None:
        """Return the operation for which a program in a container needs a permission. Return None if no permission is needed."""

    def denied(self, message: str) -> ApiError:
        """Return the error of this API for a caller that may not perform the operation."""

    async def run(self, caller: Caller) -> aws.Response: ...

    def refuse(self, error: ApiError) -> aws.Response:
        """Serialize an error in the format of this API."""


def authorise(caller: Caller, exchange: Exchange) -> None:
    """Raise AccessDenied if an anonymous caller or a user of IAM may not perform the action.

    The root user, its sessions, and tasks that run as processes of this machine may perform all actions. This function is not
    called for restricted callers (`Caller.is_restricted`): `Authorizer` evaluates the policies that apply to them.
    """
    is_for_bucket = isinstance(exchange, S3Request)  # the policy of the bucket decides
    if caller.principal == ANONYMOUS.principal and exchange.action not in PUBLIC_ACTIONS and not is_for_bucket:
        raise AccessDenied(f"Anonymous callers may not perform {exchange.action}: sign the request.")


class FrontDoor:
    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        authentication: Authentication,
        ids: Ids,
        blobs: Blobs,
        intake: BodyReceiver,
        open_task_endpoints: Callable[[], TaskEndpoints],
        last_uses: LastUses,
        memory: UnverifiedMemory,
        times: RequestTimes,
        open_metrics_page: Callable[[], MetricsPage],
        audit: Audit,
    ) -> None:
        self._settings = settings
        self._state = lanes["state"]
        self._authentication = authentication
        self._ids = ids
        self._blobs = blobs
        self._intake = intake
        self._loader = ServiceLoader()
        self._audit = audit
        self._calls = CallRunner(settings, lanes, ids, memory, blobs, audit)
        self._origins = BucketCors(lanes["state"], settings, ids)
        self._s3 = S3Requests(settings, lanes, ids, intake, self._calls, self._origins)
        self._open_task_endpoints = open_task_endpoints
        self._permissions = Authorizer(lanes["state"], settings, ids)
        self._wait_handles = wait_handles.WaitHandles(lanes["state"], settings, ids)
        self._last_uses = last_uses
        self._times = times
        self._open_metrics_page = open_metrics_page

    async def respond(self, request: aws.Request, receive: Receive, connection: HttpConnection) -> aws.Response:
        """Handle a request whose head has arrived completely. Raise ClientGone if the client disconnects."""
        request_id = self._ids.uuid()

        async def recognise() -> Exchange:
            if not self._loader.has_model(request):
                await self._loader.load_model(request)
            return await self._recognise(request, request_id, receive, connection)

        return await self._perform(recognise, request, request_id, connection)

    async def call(
        self,
        service: str,
        operation: str,
        identity: aws.Identity,
        request: aws.Request,
        receive: Receive,
        connection: HttpConnection,
    ) -> aws.Response:
        """Perform a call of the console, whose body has arrived. Raise an ApiError if the operation does not exist."""
        from corral.server.console.calls import ConsoleCall  # imported here, because the console is loaded with its first request

        await self._loader.load_service(service)
        request_id, found = self._ids.uuid(), aws.call_of_console(service, operation, request)

        async def recognise() -> Exchange:
            return ConsoleCall(request, found, identity, request_id, receive, self._calls)

        return await self._perform(recognise, request, request_id, connection)

    async def check_permission(
        self, service: str, operation: str, params: dict[str, Any], identity: aws.Identity, request: aws.Request
    ) -> None:
        """Raise the access denied error of an operation that the console performs in another way, unless policies allow it."""
        await self._loader.load_handlers(f"{service}:{operation}")
        caller = self._caller(identity, request, self._ids.uuid())
        if caller.is_restricted:
            await self._permissions.check(caller, Permitted(service, operation, params))

    async def transfer_object(
        self, identity: aws.Identity, head: aws.Request, receive: Receive, connection: HttpConnection
    ) -> aws.Response:
        """Perform a download or an upload of the console. Its path is `/BUCKET/KEY`. Raise an ApiError if it is not valid."""
        from corral.server.console.calls import ConsoleObject

        await self._loader.load_service("s3")
        request_id, found = self._ids.uuid(), aws.recognise_object(head)

        async def recognise() -> Exchange:
            return ConsoleObject(found, head, request_id, receive, connection, self._s3, identity=identity)

        return await self._perform(recognise, head, request_id, connection)

    async def _perform(
        self, recognise: Callable[[], Awaitable[Exchange]], request: aws.Request, request_id: str, connection: HttpConnection
    ) -> aws.Response:
        began_s = time.perf_counter()
        exchange: Exchange | None = None
        caller: Caller | None = None
        action = ""
        try:
            exchange = await recognise()
            try:
                identity = await exchange.authenticate(self._authentication)
            except ApiError as refusal:
                if delay_s := connection.place.refuse(refusal, asyncio.get_running_loop().time()):
                    await asyncio.sleep(delay_s)
                raise
            if identity is not ANONYMOUS:
                connection.authenticated((identity.task_id or "") if identity.confined else None)
            action = exchange.action
            if not self._loader.has_handlers(action):
                await self._loader.load_handlers(action)
            caller = self._caller(identity, request, request_id)
            authorise(caller, exchange)
            self._last_uses.note(caller, action)
            if self._rates.are_limited and action not in PUBLIC_ACTIONS:
                self._rates.take(caller.principal.owner, action, time.monotonic())
            if caller.is_restricted:
                caller = await self._permissions.check(caller, exchange)
            response = await exchange.run(caller)
        except ClientGone:
            raise
        except Exception as raised:
            error = raised if isinstance(raised, ApiError) else internal_failure()
            if error is not raised:
                log.exception("request %s failed: %s", request_id, exchange.action if exchange is not None else request)
            forget_frames(error)
            if exchange is not None and caller is not None:
                self._record_failure(request, caller, exchange, error)
            response = exchange.refuse(error) if exchange is not None else aws.serialize_refusal(request, error, request_id)
        if not action:
            action = exchange.action if exchange is not None else UNKNOWN_ACTION
        self._times.record(action, time.perf_counter() - began_s, response.status)
        return response

    def _limits_of(self, owner: str) -> list[SubjectLimits]:
        return self._state.read_without_snapshot(lambda tx: limits_of(tx, owner), self._settings, self._ids)

    def _record_failure(self, request: aws.Request, caller: Caller, exchange: Exchange, error: ApiError) -> None:
        try:
            called = exchange.required(caller)
        except ApiError:  # the operation is not served
            return
        if called is not None:
            params = called.params if isinstance(called.params, dict) else {}
            self._audit.failed(request, caller, (called.service, called.operation), params, error)

    async def _recognise(self, request: aws.Request, request_id: str, receive: Receive, connection: HttpConnection) -> Exchange:
        """Find the API of a request from its head, and return its exchange.

        Only pages of Corral, wait condition handles and task endpoints read their body here.
        """
        headers = request.headers
        if sum(map(len, headers)) + sum(map(len, headers.values())) > HEADERS_MAX_BYTES:
            raise headers_too_large()
        if is_for_registry(request):
            return self._registry.exchange(request, receive)
        if request.method == "OPTIONS":
            return Preflight(request, request_id, self._origins)
        if request.path.startswith(SIGNING_CERTIFICATES):  # before S3: no bucket has a name with capital letters
            return CertificateRequest(request, request_id, self._settings)
        call = aws.recognise_head(request)
        if call is not None:
            return S3Request(call, request, request_id, receive, connection, self._s3)
        if request.path != "/" and (page := await self._page(request, request_id, receive, connection)) is not None:
            return page
        call = aws.recognise_unless_form(request)
        if call is not None and call.service == "s3":  # without a signature
            return S3Request(call, request, request_id, receive, connection, self._s3)
        return ServiceCall(request, call, request_id, receive, connection, self._calls)

    async def _page(self, request: aws.Request, request_id: str, receive: Receive, connection: HttpConnection) -> Exchange | None:
        """Return the exchange of a page of Corral, of a URL that a stack waits for (`wait_handles.py`), or of a task endpoint.

        Return None for all other paths.
        """
        page: Exchange | None
        if request.path == OBJECTS_PATH:
            page = self._objects.exchange(request, request_id)
        elif request.path.startswith(FUNCTIONS_PATH):
            page = self._function_code(request, request_id)
        elif request.path.startswith("/_corral/"):
            page = HealthRequest(request, request_id, self._settings)
            if request.path.startswith(UPGRADE_PATH):
                page = UpgradeFileRequest(request, request_id, self._settings)
            elif request.path == AUTHORITY_PATH:
                page = AuthorityRequest(request, request_id, self._settings)
            elif request.path == CONNECT_PATH:
                page = self._connect(request, request_id)
        elif request.path == METRICS_PATH:
            page = self._open_metrics_page().exchange(request, request_id)
        elif request.path.startswith(wait_handles.PREFIXES):
            page = self._wait_handles.exchange(request)
        else:
            page = self._open_task_endpoints().exchange(request) if request.path.startswith(TASK_PATHS) else None
        if page is not None:
            request.body, taken = await whole_body(request.headers, receive, connection, PAGE_BODY_MAX_BYTES)
            give_back(connection, taken)
        return page

    @cached_property
    def _rates(self) -> RequestRates:
        stored = self._state.read_without_snapshot(lambda tx: tx.store.limits, self._settings, self._ids)
        return RequestRates(stored, self._limits_of)

    @cached_property
    def _registry(self) -> Registry:
        from corral.server.registry.dispatch import Registry  # imported here because importing it would slow down every start

        return Registry(self._settings, self._state, self._ids, self._intake, self._audit)

    @cached_property
    def _objects(self) -> ObjectsPage:
        from corral.server.pages.objects_page import ObjectsPage  # imported here because it loads the modules of S3

        return ObjectsPage(self._state, self._settings, self._ids, self._blobs, self._permissions)

    def _connect(self, request: aws.Request, request_id: str) -> Exchange:
        from corral.server.pages.connect_page import ConnectRequest  # imported here because each person connects once

        return ConnectRequest(request, request_id, self._state, self._settings, self._audit)

    def _function_code(self, request: aws.Request, request_id: str) -> Exchange:
        from corral.server.pages.function_code_page import FunctionCodeRequest  # imported here because few clients read code

        return FunctionCodeRequest(request, request_id, self._state, self._settings, self._ids)

    def _caller(self, identity: aws.Identity, request: aws.Request, request_id: str) -> Caller:
        headers = request.headers
        return Caller(
            account=self._settings.account,
            region=identity.region,
            principal=identity.principal,
            wait_s=_wait_s(headers),
            confined=identity.confined,
            terms=identity.terms,
            task_id=identity.task_id,
            access_key_id=identity.access_key_id,
            seen=_seen(headers),
            id_prefix=_id_prefix(headers),
            request_id=request_id,
            source_ip=request.address,
            endpoint_url=f"{request.scheme}://{host}" if (host := headers.get("host")) else "",
            secure=request.is_secure,
        )


def _wait_s(headers: Mapping[str, str]) -> float:
    """Return the seconds in the header X-Corral-Wait: how long the response may wait for a change.

    AWS ignores this header, so a client can send it with every request.
    """
    text = headers.get("x-corral-wait")
    try:
        return max(0.0, min(float(text), WAIT_MAX_S)) if text is not None else 0.0
    except ValueError:
        return 0.0


def _seen(headers: Mapping[str, str]) -> int | None:
    """Return the number in the header X-Corral-Seen: the version of the resource that the client has already read."""
    text = headers.get("x-corral-seen")
    return whole_number(text) if text is not None else None


def _id_prefix(headers: Mapping[str, str]) -> str:
    """Return the beginning of a task id in the header X-Corral-Prefix. Return an empty text if the header has no such value."""
    text = headers.get("x-corral-prefix")
    return text if text is not None and ID_PREFIX.fullmatch(text) else ""


class Permitted(Struct, frozen=True):
    """An operation of which only the permission matters."""

    service: str
    operation: str
    params: dict[str, Any]

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation(self.service, self.operation, self.params)

    def denied(self, message: str) -> ApiError:
        return AccessDenied(message)


class PublicPage(Struct, eq=False):
    """A page that needs no signature."""

    request: aws.Request
    request_id: str
    settings: Settings
    action: str = ""

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS

    def required(self, caller: Caller) -> RequiredOperation | None:
        return None

    def denied(self, message: str) -> ApiError:
        raise AssertionError("this page needs no permission")

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


class HealthRequest(PublicPage):
    """The page with which anybody can ask whether the server responds. Other paths below `/_corral/` are not found."""

    action: str = "corral:Health"

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.path != HEALTH_PATH:
            raise PageNotFound(f"Corral has no page {self.request.path}: its pages are {HEALTH_PATH} and {OBJECTS_PATH}.")
        content = {"status": "ok", "version": corral.__version__}
        return aws.Response(200, [("content-type", "application/json")], orjson.dumps(content))


class AuthorityRequest(PublicPage):
    """The certificate with which clients verify this server. They compare its digest with one that they know."""

    action: str = "corral:GetAuthority"

    async def run(self, caller: Caller) -> aws.Response:
        bundle = self.settings.server.tls_bundle
        if not bundle:
            raise PageNotFound("This server has no certificate of its own authority.")
        return aws.Response(200, [("content-type", "application/x-pem-file")], bundle.encode())


class UpgradeFileRequest(PublicPage):
    """A wheel for the upgrade of a host. It contains no secret, and its path its digest."""

    action: str = "corral:GetUpgradeFile"

    async def run(self, caller: Caller) -> aws.Response:
        content = await asyncio.to_thread(self.settings.server.upgrade_file, self.request.path.removeprefix(UPGRADE_PATH))
        if content is None:
            raise PageNotFound("This wheel is not for an upgrade that has begun since the start of the server.")
        return aws.Response(200, [("content-type", "application/octet-stream")], content)


class CertificateRequest(PublicPage):
    """The page with the certificate of SNS, at the `SigningCertURL` of signed messages."""

    action: str = "sns:GetSigningCertificate"

    async def run(self, caller: Caller) -> aws.Response:
        from corral.services.sns.signatures import certificate, certificate_path  # imported here, so that the server starts faster

        pem = await asyncio.to_thread(certificate, self.settings)
        if self.request.path != certificate_path(pem):
            raise PageNotFound(f"Corral has no certificate {self.request.path}: use the SigningCertURL of a message.")
        return aws.Response(200, [("content-type", "application/x-pem-file")], pem.encode())
