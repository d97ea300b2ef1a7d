"""The paths of the console, and who may use them.

GET  /  /static/…           the page and its files, without a session
POST /session               begin a session with the code of a link; GET describes it, DELETE ends it
POST /call/SERVICE/NAME     call an operation: the body is JSON, as boto3 takes the parameters, and so is the response
POST /changes               the stream of changes (`changes.py`)
GET, PUT /object/BUCKET/KEY download and upload of an object
POST /ticket                a path with which the browser downloads an object once: it has the cookie, but not the second secret

Every path but the page needs the cookie, the second secret in the header X-Corral-Console, and the headers that `guard.py` checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import orjson

import corral
from corral import aws
from corral.core.errors import ApiError, api_error, internal_failure
from corral.model.settings import Settings
from corral.server.console.calls import error_response, json_response, shown_identity
from corral.server.console.changes import Changes, log_streams, stream_events
from corral.server.console.guard import HEADERS, Guard, cookie_in
from corral.server.console.objects import Tickets, object_request, with_download_headers
from corral.server.console.sessions import SESSION_S, ConsoleSession, ConsoleSessions, SessionEnded
from corral.server.console.static_files import PageNotFound, StaticFiles
from corral.server.front_door import FrontDoor
from corral.server.http.connection import ClientGone, HttpConnection
from corral.server.http.request_body import Receive, give_back, whole_body

COOKIE, SECRET_HEADER = "corral_console", "x-corral-console"
SMALL_BODY_MAX_BYTES = 64 * 1024

InvalidRequest = api_error("InvalidRequest", 400)
MethodNotAllowed = api_error("MethodNotAllowed", 405)
Handle = Callable[[aws.Request, Receive, HttpConnection, str], Awaitable[aws.Response | None]]

log = logging.getLogger("corral")


class Console:
    def __init__(
        self, front_door: FrontDoor, sessions: ConsoleSessions, guard: Guard, settings: Settings, changes: Changes, port: int
    ) -> None:
        self._front_door = front_door
        self._sessions = sessions
        self._guard = guard
        self._settings = settings
        self._changes = changes
        self._cookie = f"{COOKIE}_{port}"  # browsers send the cookies of a host to all its ports, also to other consoles
        self._files = StaticFiles()
        self._tickets = Tickets()
        self._paths: dict[tuple[str, str], Handle] = {
            ("POST", "session"): self._begin,
            ("GET", "session"): self._describe,
            ("DELETE", "session"): self._end,
            ("POST", "call"): self._call,
            ("POST", "changes"): self._stream,
            ("GET", "object"): self._object,
            ("PUT", "object"): self._object,
            ("POST", "ticket"): self._ticket,
            ("GET", "download"): self._download,
        }

    async def respond(self, request: aws.Request, receive: Receive, connection: HttpConnection) -> aws.Response | None:
        """Handle a request whose head has arrived completely. Return None if the response was sent already."""
        try:
            self._guard.check_host(request)
            response = await self._handle(request, receive, connection)
        except ClientGone:
            raise
        except ApiError as error:
            if isinstance(error, SessionEnded) and (delay_s := connection.place.refuse(error, asyncio.get_running_loop().time())):
                await asyncio.sleep(delay_s)
            response = error_response(error)
        except Exception:
            log.exception("a request of the console failed: %s", request)
            response = error_response(internal_failure())
        if response is None:
            return None
        given = {name.lower() for name, _ in response.headers}
        response.headers.extend((name, value) for name, value in HEADERS if name.lower() not in given)
        return response

    async def _handle(self, request: aws.Request, receive: Receive, connection: HttpConnection) -> aws.Response | None:
        _, first, *rest = request.path.split("/", 2)
        name = rest[0] if rest else ""
        if request.method in ("GET", "HEAD") and request.path == "/":
            return self._files.page(request.headers)
        if request.method in ("GET", "HEAD") and first == "static":
            return self._files.response(name, request.headers)
        handle = self._paths.get((request.method, first))
        if handle is None:
            if any(path == first for _, path in self._paths):
                raise MethodNotAllowed(f"/{first} does not have the method {request.method}.")
            raise PageNotFound("The console has no such path.")
        self._guard.check_origin(request)
        return await handle(request, receive, connection, name)

    # Sessions

    async def _begin(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        code = (await _document(request, receive, connection)).get("code")
        if not isinstance(code, str):
            raise InvalidRequest('Send {"code": CODE} with the code in the link of `corral console`.')
        made = await asyncio.to_thread(self._sessions.redeem, code)
        connection.authenticated()
        kept = f"{self._cookie}={made.cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(SESSION_S)}"
        content = {"secret": made.secret, **self._about(made.session)}
        return json_response(content, ("Set-Cookie", f"{kept}; Secure" if request.is_secure else kept))

    async def _describe(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        session, _ = self._verified(request, connection)
        about = self._settings.server.about
        url = about.get("tlsUrl") if request.is_secure else about.get("url")
        server = {"region": session.identity.region, "endpoint_url": url or "", "version": corral.__version__}
        return json_response({**self._about(session), **server})

    async def _end(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        self._verified(request, connection)
        await asyncio.to_thread(self._sessions.end, cookie_in(request.headers, self._cookie))
        self._changes.check_sessions()
        return json_response({}, ("Set-Cookie", f"{self._cookie}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"))

    def _about(self, session: ConsoleSession) -> dict[str, Any]:
        identity = shown_identity(self._sessions.identity_of(session), self._settings.account)
        return {"identity": identity, "expires_at": int(session.expires_at_s)}

    def _verified(self, request: aws.Request, connection: HttpConnection) -> tuple[ConsoleSession, aws.Identity]:
        """Return the session of a request. Raise SessionEnded if one of its two secrets is not valid."""
        headers = request.headers
        found = self._sessions.find(cookie_in(headers, self._cookie), headers.get(SECRET_HEADER, ""))
        connection.authenticated()
        return found

    # Calls and objects

    async def _call(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        _, identity = self._verified(request, connection)
        service, _, operation = name.partition("/")
        call = self._request(request, "POST", "/")
        call.body, taken = await whole_body(request.headers, receive, connection, aws.BODY_MAX_BYTES)
        give_back(connection, taken)
        return await self._front_door.call(service, operation, identity, call, receive, connection)

    async def _object(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        _, identity = self._verified(request, connection)
        return await self._transfer(identity, object_request(request, name, request.query, self._host), receive, connection)

    async def _ticket(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        self._verified(request, connection)
        wanted = await _document(request, receive, connection)
        ticket = self._tickets.issue(wanted, cookie_in(request.headers, self._cookie), asyncio.get_running_loop().time())
        return json_response({"url": f"/download/{ticket}"})

    async def _download(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> aws.Response:
        cookie = cookie_in(request.headers, self._cookie)
        wanted = self._tickets.take(name, cookie, asyncio.get_running_loop().time())
        identity = self._sessions.identity_with_cookie(cookie)
        connection.authenticated()
        head = object_request(request, wanted.path, wanted.query, self._host)
        return await self._transfer(identity, head, receive, connection)

    async def _transfer(
        self, identity: aws.Identity, head: aws.Request, receive: Receive, connection: HttpConnection
    ) -> aws.Response:
        response = await self._front_door.transfer_object(identity, head, receive, connection)
        return with_download_headers(response, head) if head.method == "GET" else response

    # The stream of changes

    async def _stream(self, request: aws.Request, receive: Receive, connection: HttpConnection, name: str) -> None:
        session, identity = self._verified(request, connection)
        wanted = await _document(request, receive, connection)
        for group, name in log_streams(wanted.get("topics")):
            named = {"logGroupName": group, "logStreamName": name}
            await self._front_door.check_permission("logs", "GetLogEvents", named, identity, request)
        cookie = cookie_in(request.headers, self._cookie)
        stream = await self._changes.open(
            wanted, identity.region, identity.principal.owner, lambda: self._sessions.is_open(cookie, session)
        )
        await stream_events(stream, self._changes, connection)

    @property
    def _host(self) -> str:
        return urlsplit(self._settings.endpoint_url).netloc

    def _request(self, request: aws.Request, method: str, path: str) -> aws.Request:
        """Return the request for an exchange: it has no headers of the browser but its name, for the audit."""
        headers = {"host": self._host, "user-agent": request.headers.get("user-agent", "")}
        return aws.Request(method, path, "", headers, b"", request.address, request.is_secure)


async def _document(request: aws.Request, receive: Receive, connection: HttpConnection) -> dict[str, Any]:
    body, taken = await whole_body(request.headers, receive, connection, SMALL_BODY_MAX_BYTES)
    give_back(connection, taken)
    try:
        content = orjson.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidRequest("The body must be an object in JSON.")
    return content
