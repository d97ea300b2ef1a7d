"""The page `/_corral/objects`: the content of several small objects in one response. `corral.worker` reads objects with it.

The request is a POST of `{"objects": [[BUCKET, KEY], ...]}`. The first line of the response is a JSON list with the size of each
object. The contents follow, in the same order. The size is null if the object is not in the response: it is too large for the page,
does not exist, may not be read by the caller, or the page has already taken READ_MAX_S. Then the client calls GetObject, which
returns the object or the right error.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.blobs import Blobs
from corral.core.errors import ApiError, api_error
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.server.authentication import Authentication
from corral.server.authorization import Authorizer, RequiredOperation
from corral.server.lanes import Lane
from corral.services.s3.objects import get_object
from corral.store import Store

OBJECTS_MAX = 100  # the most objects in one request
OBJECT_MAX_BYTES = 128 * 1024
CONTENT_MAX_BYTES = 1024 * 1024  # the most bytes of all objects in one response
READ_MAX_S = 0.01  # the event loop reads the objects; after this time, for example on a slow disk, it leaves out the other objects

ObjectsDenied = api_error("AccessDenied", 403)
InvalidObjectsRequest = api_error("InvalidRequest", 400)


class WantedObjects(Struct, frozen=True, forbid_unknown_fields=True):
    objects: list[tuple[str, str]]  # bucket and key


class ObjectsPage:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids, blobs: Blobs, permissions: Authorizer) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids
        self._blobs = blobs
        self._permissions = permissions

    def exchange(self, request: aws.Request, request_id: str) -> ObjectsRequest:
        return ObjectsRequest(request, request_id, self)

    async def content(self, wanted: list[tuple[str, str]], caller: Caller) -> list[bytes | None]:
        params = [{"Bucket": bucket, "Key": key} for bucket, key in wanted]
        may_read = [not caller.is_restricted or await self._may_read(each, caller) for each in params]
        until_s, left = time.perf_counter() + READ_MAX_S, CONTENT_MAX_BYTES
        found: list[bytes | None] = []
        for each, allowed in zip(params, may_read):
            content = self._read(each, caller, left) if allowed and time.perf_counter() < until_s else None
            left -= len(content or b"")
            found.append(content)
        return found

    async def _may_read(self, params: dict[str, Any], caller: Caller) -> bool:
        try:
            await self._permissions.check(caller, ObjectRead(params))
        except ApiError:
            return False
        return True

    def _read(self, params: dict[str, Any], caller: Caller, most: int) -> bytes | None:
        def read(tx: Tx[Store]) -> dict[str, Any]:
            return get_object(tx, params, caller)

        try:
            found = self._state.read_without_snapshot(read, self._settings, self._ids)
        except ApiError:
            return None
        if found["ContentLength"] > min(OBJECT_MAX_BYTES, most):
            return None
        return self._blobs.read(found["Body"]) if found["ContentLength"] else b""


class ObjectRead(Struct, frozen=True):
    """The read of one object, for the check of its permission."""

    params: dict[str, Any]

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("s3", "GetObject", self.params)

    def denied(self, message: str) -> ApiError:
        return ObjectsDenied(message)


class ObjectsRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    page: ObjectsPage
    action: str = "corral:Objects"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> None:
        """Return None, because the page checks the permission of each object."""

    def denied(self, message: str) -> ApiError:
        return ObjectsDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        try:
            wanted = msgspec.json.decode(self.request.body, type=WantedObjects).objects
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidObjectsRequest(f'POST {{"objects": [[BUCKET, KEY], ...]}} ({error}).') from None
        if len(wanted) > OBJECTS_MAX:
            raise InvalidObjectsRequest(f"{len(wanted)} objects were requested: request at most {OBJECTS_MAX}.")
        found = await self.page.content(wanted, caller)
        sizes = msgspec.json.encode([None if content is None else len(content) for content in found])
        body = b"".join([sizes, b"\n", *filter(None, found)])
        return aws.Response(200, [("content-type", "application/octet-stream")], body)

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)
