"""S3 requests. The server authenticates them from their head, so it can refuse a request before it reads the body.

Only a browser form is different: its credentials are fields in the body, before the file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from hashlib import md5
from hmac import compare_digest
from typing import Any

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.aws.form_encoding import pairs_from_text, percent_decoded
from corral.aws.wire_errors import ParseError, to_api_error
from corral.blobs.checksums import CHECKSUM_HEADERS, checksum, checksum_text
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.blob import StoredBlob
from corral.model.settings import Settings
from corral.model.task import TaskState
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.authorization import RequiredOperation
from corral.server.cors import BucketCors
from corral.server.http.connection import HttpConnection
from corral.server.http.form_file import FormFile, read_form
from corral.server.http.request_body import BodyReceiver, Receive, not_written
from corral.server.lanes import Lane
from corral.server.service_calls import CallRunner, served
from corral.services.s3.errors import bad_checksum, bad_content_md5

FILE_NAME = "${filename}"  # in the object key of a form, this text is replaced with the name of the uploaded file
# The upload of a file by a browser form. The signature and all parameters are form fields before the file.
FORM = "PostObject"
QUERY_PARAMS = {"VersionId": "versionId", "Prefix": "prefix", "Delimiter": "delimiter", "MaxKeys": "max-keys"}
# The checksum headers of these operations belong to an object, not to the document in the request.
CHECKSUM_OF_OBJECT = frozenset({"CompleteMultipartUpload"})

# What anonymous callers may perform, if the policy of the bucket allows it.
ANONYMOUS_OPERATIONS = frozenset(
    {"DeleteObject", "GetBucketLocation", "GetObject", "GetObjectAttributes", "GetObjectTagging", "HeadBucket", "HeadObject",
     "ListObjectVersions", "ListObjects", "ListObjectsV2", "PutObject"}
)  # fmt: skip

log = logging.getLogger("corral")


class S3Requests:
    """The parts of the server that all S3 requests share."""

    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        ids: Ids,
        bodies: BodyReceiver,
        calls: CallRunner,
        cors: BucketCors,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ids = ids
        self.bodies = bodies
        self.calls = calls
        self.cors = cors

    async def store(
        self,
        call: aws.ApiCall,
        params: dict[str, Any],
        caller: Caller,
        body: aws.RequestBody,
        receive: Receive,
        connection: HttpConnection | None = None,
    ) -> aws.Response:
        """Run an operation that stores bytes as a blob.

        The steps are: check the request from its head, receive or copy the bytes, then commit the row.
        """
        service, operation = served(call)
        admit, lane = service.admit[call.operation], self._lanes[service.lane]
        # A copy must read its source in one snapshot of the database.
        read = lane.read_now if "CopySource" in params else lane.read_without_snapshot
        admission = read(lambda tx: admit(tx, params, caller), self._settings, self._ids)
        if admission is None:  # this copy shares the bytes of its source, so there is nothing to receive
            result = await lane.submit(lambda tx: operation(tx, params, caller), owner=caller.owner)
            self.calls.audit.succeeded(call.request, caller, call.name, call.located, result)
            return call.serialize(result, caller.request_id)
        params |= admission.params
        if isinstance(body, FormFile):
            body.set_bounds(admission.min_bytes, admission.max_bytes)

        def commit(trailers: Mapping[str, str], blob: StoredBlob, tx: Tx[Any]) -> Any:
            task = tx.store.tasks.get(caller.task_id) if caller.task_id is not None else None
            if caller.task_id is not None and (task is None or task.state is TaskState.STOPPED):
                raise aws.expired_token()  # the task has stopped while its upload was received
            stated = {f"Checksum{CHECKSUM_HEADERS[name]}": value for name, value in trailers.items() if name in CHECKSUM_HEADERS}
            return operation(tx, {**params, **stated, "Body": blob}, caller)

        try:
            if admission.source is not None:
                copied = await self.bodies.copy(admission.source, admission.algorithms)
                result = await self.bodies.commit(copied, lane, partial(commit, {}))
            else:
                result = await self.bodies.store(receive, body, admission.algorithms, connection, lane, commit)
        except OSError as error:
            log.exception("request %s: %s:%s could not be written", caller.request_id, call.service, call.operation)
            raise not_written(error) from None
        self.calls.audit.succeeded(call.request, caller, call.name, call.located, result)
        return call.serialize(result, caller.request_id)


class S3Request(Struct, eq=False):
    call: aws.ApiCall
    head: aws.Request
    request_id: str
    receive: Receive
    connection: HttpConnection
    s3: S3Requests
    _body: aws.RequestBody | None = None
    _policy: aws.PostPolicy | None = None  # only for a form upload
    _named: dict[str, Any] | None = None  # the parameters that name resources, as soon as they are known

    @property
    def action(self) -> str:
        return f"s3:{self.call.operation}"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        if self.call.operation == FORM:
            form = await read_form(self.head.headers.get("content-type", ""), self.receive)
            self._body, self._policy = form, authentication.form_policy(form.fields)
            return self._policy.identity
        if aws.is_unsigned(self.head):
            self._body = aws.unsigned_body(self.head)
            return ANONYMOUS
        identity, self._body = authentication.head_signature(self.head, self.call.signing_name)
        return identity

    def required(self, caller: Caller) -> RequiredOperation:
        served(self.call)  # raise an error if the operation is not served
        if caller.principal == ANONYMOUS.principal and self.call.operation not in ANONYMOUS_OPERATIONS:
            raise self.denied(f"Anonymous callers may not perform s3:{self.call.operation}: sign the request.")
        return RequiredOperation(*self.call.name, self._named if self._named is not None else self._head_params)

    def denied(self, message: str) -> ApiError:
        return self.call.denied(message)

    async def run(self, caller: Caller) -> aws.Response:
        return self._with_cors_headers(await self._run(caller))

    def refuse(self, error: ApiError) -> aws.Response:
        return self._with_cors_headers(self.call.serialize_error(error, self.request_id))

    async def _run(self, caller: Caller) -> aws.Response:
        call, body, headers = self.call, self._body, self.head.headers
        assert body is not None, "authenticate must be called before run"
        service, _ = served(call)
        if isinstance(body, FormFile) and self._policy is not None:
            bucket, conditions = call.params()["Bucket"], self._policy.conditions
            params = {"Bucket": bucket, "Fields": body.fields, "FileName": body.filename, "Conditions": conditions}
            return await self.s3.store(call, params, caller, body, body.remaining(self.receive))
        if call.operation in service.admit:
            params = call.params()
            params["Trailers"] = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")]
            return await self.s3.store(call, params, caller, body, self.receive, self.connection)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            whole, trailers = await self.s3.bodies.to_memory(self.receive, body)
            call = call.with_body(whole)
            if call.operation not in CHECKSUM_OF_OBJECT:
                _check_digests(whole, {**headers, **trailers})
        else:
            body.finish()
        return await self.s3.calls.run(call, caller, self.receive)

    async def _head_params(self) -> dict[str, Any]:
        """Return the parameters that name resources. They come from the head of the request, or from the fields of a form."""
        headers = self.head.headers
        try:
            # If a parameter is repeated in the query, the first value is used.
            query = dict(reversed(pairs_from_text(self.call.request.query)))
            params: dict[str, Any] = {name: percent_decoded(value) for name, value in self.call.located.items()}
        except ParseError as error:
            error.kind = "argument"
            raise to_api_error(error, self.call.service, self.call.protocol) from None
        params |= {name: query[wire] for name, wire in QUERY_PARAMS.items() if wire in query}
        if "x-amz-copy-source" in headers:
            params["CopySource"] = headers["x-amz-copy-source"]
        params["_headers"] = headers  # with the values of condition keys
        if isinstance(self._body, FormFile):
            fields = self._body.fields
            params["Key"] = fields.get("key", "").replace(FILE_NAME, self._body.filename)
            params["_headers"] = {**fields, **({"x-amz-acl": fields["acl"]} if fields.get("acl") else {})}
        self._named = params
        return params

    def _with_cors_headers(self, response: aws.Response) -> aws.Response:
        """Add the CORS headers. Without them, a browser hides the response from a page of another origin."""
        if "origin" in self.head.headers:
            response.headers.extend(self.s3.cors.headers(self.head))
        return response


def _check_digests(document: bytes, headers: Mapping[str, str]) -> None:
    """Raise an error if a document does not match the digests in its headers and trailers."""
    stated = headers.get("content-md5")
    if stated is not None and not _same(stated, checksum_text(md5(document, usedforsecurity=False).digest())):
        raise bad_content_md5()
    for header, algorithm in CHECKSUM_HEADERS.items():
        if header in headers:
            running = checksum(algorithm)
            running.update(document)
            if not _same(headers[header], checksum_text(running.digest())):
                raise bad_checksum(algorithm)


def _same(stated: str, computed: str) -> bool:
    return compare_digest(stated.encode("latin-1", "replace"), computed.encode())
