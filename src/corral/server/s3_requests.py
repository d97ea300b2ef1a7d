"""S3 requests: authenticated from their heads, so that a request is refused before its body is read wherever possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import md5
from hmac import compare_digest
from typing import Any

from corral import aws
from corral.blobs.checksums import HEADERS, checksum, checksum_text
from corral.core import Tx
from corral.errors import ApiError, ServiceUnavailable, api_error
from corral.ids import Ids
from corral.model.blob import Arrived
from corral.model.settings import Settings
from corral.server.authentication import Authentication
from corral.server.forms import FormFile, read_form
from corral.server.http_connection import HttpConnection
from corral.server.intake import Intake, Receive
from corral.server.lanes import Lane
from corral.server.origins import Origins
from corral.server.service_calls import CallRunner, served
from corral.services.caller import Caller

BadDigest = api_error("BadDigest")
FORM = "PostObject"  # a browser's form: its fields say who signed it, and everything else that is known before its file
# Operations whose checksum headers are those of an object, not of the document in the request.
CHECKSUM_OF_OBJECT = frozenset({"CompleteMultipartUpload"})

log = logging.getLogger("corral")


class S3Requests:
    """What all S3 requests need."""

    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        ids: Ids,
        intake: Intake,
        calls: CallRunner,
        origins: Origins,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ids = ids
        self.intake = intake
        self.calls = calls
        self.origins = origins

    async def store(
        self,
        call: aws.ApiCall,
        params: dict[str, Any],
        caller: Caller,
        body: aws.RequestBody,
        receive: Receive,
        connection: HttpConnection | None = None,
    ) -> aws.Response:
        """Run an operation whose bytes become a blob: admit it by its head, receive or copy the bytes, then commit the row."""
        service, operation = served(call)
        admit, lane = service.admit[call.operation], self._lanes[service.lane]
        look = lane.read_now if "CopySource" in params else lane.read_without_snapshot  # a copy reads its source in one snapshot
        admission = look(lambda tx: admit(tx, params, caller), self._settings, self._ids)
        if admission is None:  # there are no bytes
            return call.serialize(await lane.submit(lambda tx: operation(tx, params, caller)), caller.request_id)
        params |= admission.params
        if isinstance(body, FormFile):
            body.allow(admission.least_bytes, admission.most_bytes)

        def owner(trailers: Mapping[str, str], arrived: Arrived, tx: Tx[Any]) -> Any:
            stated = {f"Checksum{HEADERS[name]}": value for name, value in trailers.items() if name in HEADERS}
            return operation(tx, {**params, **stated, "Body": arrived}, caller)

        try:
            if admission.source is not None:
                copied = await self.intake.copy(admission.source, admission.algorithms)
                answer = await self.intake.give(copied, lane, partial(owner, {}))
            else:
                answer = await self.intake.store(receive, body, admission.algorithms, connection, lane, owner)
        except OSError as error:
            log.exception("request %s: %s:%s could not be written", caller.request_id, call.service, call.operation)
            raise ServiceUnavailable(f"Nothing was stored: the bytes could not be written ({error.strerror or error}).") from None
        return call.serialize(answer, caller.request_id)


@dataclass(slots=True, eq=False)
class S3Request:
    """An exchange with S3."""

    call: aws.ApiCall
    head: aws.Request
    request_id: str
    receive: Receive
    connection: HttpConnection
    s3: S3Requests
    _body: aws.RequestBody | None = field(default=None, init=False)
    _policy: aws.PostPolicy | None = field(default=None, init=False)  # of a form

    @property
    def action(self) -> str:
        return f"s3:{self.call.operation}"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        if self.call.operation == FORM:
            form = await read_form(self.head.headers.get("content-type", ""), self.receive)
            self._body, self._policy = form, authentication.form_policy(form.fields)
            return self._policy.identity
        identity, self._body = authentication.head_signature(self.head, self.call.signing_name)
        return identity

    async def run(self, caller: Caller) -> aws.Response:
        return self._for_browsers(await self._run(caller))

    def refuse(self, error: ApiError) -> aws.Response:
        return self._for_browsers(self.call.serialize_error(error, self.request_id))

    async def _run(self, caller: Caller) -> aws.Response:
        call, body, headers = self.call, self._body, self.head.headers
        assert body is not None, "authenticate comes first"
        service, _ = served(call)
        if isinstance(body, FormFile) and self._policy is not None:
            bucket, conditions = call.params()["Bucket"], self._policy.conditions
            params = {"Bucket": bucket, "Fields": body.fields, "FileName": body.filename, "Conditions": conditions}
            return await self.s3.store(call, params, caller, body, body.receiving(self.receive))
        if call.operation in service.admit:
            params = call.params()
            params["Trailers"] = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")]
            return await self.s3.store(call, params, caller, body, self.receive, self.connection)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            whole, trailers = await self.s3.intake.to_memory(self.receive, body)
            call = call.with_body(whole)
            if call.operation not in CHECKSUM_OF_OBJECT:
                _check_digests(whole, {**headers, **trailers})
        else:
            body.finish()
        return await self.s3.calls.run(call, caller, self.receive)

    def _for_browsers(self, response: aws.Response) -> aws.Response:
        """The response with the headers without which a browser hides it from a page of another origin."""
        if "origin" in self.head.headers:
            response.headers.extend(self.s3.origins.headers(self.head))
        return response


def _check_digests(document: bytes, headers: Mapping[str, str]) -> None:
    """Compare a document with the digests in its headers and trailers."""
    stated = headers.get("content-md5")
    if stated is not None and not _same(stated, checksum_text(md5(document, usedforsecurity=False).digest())):
        raise BadDigest("The Content-MD5 you specified did not match what we received.")
    for header, algorithm in HEADERS.items():
        if header in headers:
            running = checksum(algorithm)
            running.update(document)
            if not _same(headers[header], checksum_text(running.digest())):
                raise BadDigest(f"The {algorithm} you specified did not match the calculated checksum.")


def _same(stated: str, computed: str) -> bool:
    return compare_digest(stated.encode("latin-1", "replace"), computed.encode())
