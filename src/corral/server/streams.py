"""S3's requests: known and verified from their heads, refused before their bodies where that is possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import md5
from hmac import compare_digest
from typing import Any

from corral import aws
from corral.blobs.checksums import HEADERS, checksum, checksum_text
from corral.clock import Clock
from corral.core import Tx
from corral.errors import ApiError, ServiceUnavailable, api_error, our_fault
from corral.ids import Ids
from corral.model.blob import Arrived
from corral.model.settings import Settings
from corral.server.forms import FormFile, read_form
from corral.server.intake import ClientGone, Intake, Receive
from corral.server.lanes import Lane
from corral.server.sending import Connection
from corral.services import SERVICES, Operation
from corral.services.caller import Caller

BadDigest = api_error("BadDigest")
OF_ANOTHER = frozenset({"CompleteMultipartUpload"})  # the checksum in its headers is not that of its document

log = logging.getLogger("corral")
MakeCaller = Callable[[aws.Identity, aws.Request, str], Caller]


class Streams:
    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        lookup: aws.Lookup,
        clock: Clock,
        ids: Ids,
        intake: Intake,
        caller_of: MakeCaller,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._lookup = lookup
        self._clock = clock
        self._ids = ids
        self._intake = intake
        self._caller_of = caller_of

    async def answer(
        self, call: aws.Call, head: aws.Request, request_id: str, receive: Receive, connection: Connection
    ) -> aws.Response:
        try:
            return await self._answer(call, head, request_id, receive, connection)
        except ApiError as error:
            return call.serialize_error(error, request_id)
        except ClientGone:
            raise
        except Exception:
            log.exception("request %s: %s:%s failed", request_id, call.service, call.operation)
            return call.serialize_error(our_fault(), request_id)

    async def _answer(
        self, call: aws.Call, head: aws.Request, request_id: str, receive: Receive, connection: Connection
    ) -> aws.Response:
        service = SERVICES[call.service]
        operation = service.operations.get(call.operation)
        if operation is None:
            raise aws.not_served(call)
        if call.operation == "PostObject":
            return await self._post(call, head, request_id, receive)
        identity, body = aws.verify_head(head, self._lookup, self._clock.now_s(), signing_name=call.signing_name)
        caller = self._caller_of(identity, head, request_id)
        lane = self._lanes[service.lane]
        if call.operation in service.admit:
            params = call.params()
            params["Trailers"] = [name.strip().lower() for name in call.request.headers.get("x-amz-trailer", "").split(",")]
            return await self._store(call, params, caller, body, request_id, receive, connection)
        if head.headers.get("content-length", "0") != "0" or "transfer-encoding" in head.headers:
            whole, trailers = await self._intake.to_memory(receive, body)
            call = call.with_body(whole)
            if call.operation not in OF_ANOTHER:
                _check_digests(whole, {**head.headers, **trailers})
        else:
            body.finish()
        params = call.params()

        def handler(tx: Tx[Any]) -> dict[str, Any]:
            return operation(tx, params, caller)

        if call.operation in service.quick:
            return call.serialize(lane.look(handler, self._settings, self._ids), request_id)
        if call.operation in service.heavy:
            return await lane.read(lambda tx: call.serialize(handler(tx), request_id), self._settings, self._ids)
        if call.operation in service.pieces:
            return call.serialize(
                await self._in_pieces(lane, operation, service.pieces[call.operation](params), caller), request_id
            )
        return call.serialize(await lane.submit(handler), request_id)

    async def _in_pieces(
        self, lane: Lane[Any], operation: Operation, pieces: list[dict[str, Any]], caller: Caller
    ) -> dict[str, Any]:
        """Each in a command of its own, so that others are served in between; the lists that they answer become one."""
        whole: dict[str, list[Any]] = {}
        for piece in pieces:
            answer = await lane.submit(lambda tx, piece=piece: operation(tx, piece, caller))  # type: ignore[misc]
            for name, found in answer.items():
                whole.setdefault(name, []).extend(found)
        return whole

    async def _post(self, call: aws.Call, head: aws.Request, request_id: str, receive: Receive) -> aws.Response:
        """A form: who signed it is among its fields, and so is everything else that is known before the file."""
        file = await read_form(head.headers.get("content-type", ""), receive)
        policy = aws.verify_post_policy(file.fields, self._lookup, self._clock.now_s())
        caller = self._caller_of(policy.identity, head, request_id)
        bucket = call.params()["Bucket"]
        params = {"Bucket": bucket, "Fields": file.fields, "FileName": file.filename, "Conditions": policy.conditions}
        return await self._store(call, params, caller, file, request_id, file.receiving(receive))

    async def _store(
        self,
        call: aws.Call,
        params: dict[str, Any],
        caller: Caller,
        body: aws.Body,
        request_id: str,
        receive: Receive,
        connection: Connection | None = None,
    ) -> aws.Response:
        """A request whose bytes become a blob: looked at by its head, taken in, then committed."""
        service = SERVICES[call.service]
        admit, operation, lane = service.admit[call.operation], service.operations[call.operation], self._lanes[service.lane]
        look = lane.look if "CopySource" in params else lane.glance  # what is copied must be as it was at one moment
        admission = look(lambda tx: admit(tx, params, caller), self._settings, self._ids)
        if admission is None:
            return call.serialize(await lane.submit(lambda tx: operation(tx, params, caller)), request_id)
        params |= admission.params
        if isinstance(body, FormFile):
            body.allow(admission.least_bytes, admission.most_bytes)

        def owner(trailers: Mapping[str, str], arrived: Arrived, tx: Tx[Any]) -> Any:
            stated = {f"Checksum{HEADERS[name]}": value for name, value in trailers.items() if name in HEADERS}
            return operation(tx, {**params, **stated, "Body": arrived}, caller)

        try:
            if admission.source is not None:
                copied = await self._intake.copy(admission.source, admission.algorithms)
                answer = await self._intake.give(copied, lane, partial(owner, {}))
            else:
                answer = await self._intake.store(receive, body, admission.algorithms, connection, lane, owner)
        except OSError as error:
            log.exception("request %s: %s:%s could not be written", request_id, call.service, call.operation)
            raise ServiceUnavailable(f"Nothing was stored: the bytes could not be written ({error.strerror or error}).") from None
        return call.serialize(answer, request_id)


def _check_digests(document: bytes, headers: Mapping[str, str]) -> None:
    """What a document's own headers and trailers say of it."""
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
