"""Records calls in the audit: those that change something, those about data if corral.toml asks for them, and denied calls.

A record is written when the result of a call is known, before the client gets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import Any

from msgspec.structs import replace

from corral import aws
from corral.access.caller import Caller
from corral.audit.record import AuditRecord
from corral.audit.trail import AuditTrail
from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.server.audit.rules import DATA_OF, CallKind, kind_of, names_in, rules_of

log = logging.getLogger("corral.audit")

CallName = tuple[str, str]  # service and operation
DenialKey = tuple[str, str, str, CallName, str]
Params = Mapping[str, Any]
AGENT_MAX = 256
MESSAGE_MAX = 1024  # characters of an error message that are recorded
DENIALS_S = 60.0  # for so long, equal denials of a principal are counted in one record
DENIALS_MAX = 1_000  # the number of such records at a time; further denials are recorded one by one
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"})


class Audit:
    def __init__(self, trail: AuditTrail, data_services: Collection[str], ids: Ids, clock: Clock) -> None:
        self._trail = trail
        self._concerns = cache(partial(_is_recorded, frozenset(data_services)))  # the number of calls is limited
        self._ids = ids
        self._clock = clock
        # Principal, access key, address, call and error code → the record of the denials that are counted at present
        self._denials: dict[DenialKey, AuditRecord] = {}

    def succeeded(self, request: aws.Request, caller: Caller, call: CallName, params: Params, result: Params) -> None:
        if not self._concerns(call):
            return
        try:
            self._trail.append(self._record(request, caller, call, params, found=rules_of(call).identifiers(result)))
        except Exception:
            self._note_loss(call)

    def failed(self, request: aws.Request, caller: Caller, call: CallName, params: Params, error: ApiError) -> None:
        try:
            if error.code in DENIED:
                self._denied(request, caller, call, params, error)
            elif self._concerns(call):
                self._trail.append(self._failure(request, caller, call, params, error))
        except Exception:
            self._note_loss(call)

    def of_service(self, caller: Caller, call: CallName, params: Params, outcome: Params | Exception) -> None:
        """Record what a service, such as CloudFormation, has called for a caller. Any thread may call this.

        Of the parameters, only names and ids are recorded, because a template can put a secret into any of them.
        """
        if not self._concerns(call) and not isinstance(outcome, ApiError):
            return
        try:
            more: dict[str, Any] = {"source": caller.via[-1] if caller.via else "", "agent": caller.via[-1] if caller.via else ""}
            if isinstance(outcome, ApiError):
                more |= {"error": outcome.code, "message": outcome.message[:MESSAGE_MAX]}
            elif not isinstance(outcome, Exception):
                more |= {"found": rules_of(call).identifiers(outcome)}
            self._trail.append(self._record(None, caller, call, names_in(params), **more))
        except Exception:
            self._note_loss(call)

    def _note_loss(self, call: CallName) -> None:
        """The call cannot be recorded. Its caller gets the response, and `corral status` shows the loss."""
        log.exception("%s:%s could not be recorded", *call)
        self._trail.note_loss("see server.log")

    def close(self) -> None:
        for key in list(self._denials):
            self._end_count(key)
        self._trail.close()

    def _denied(self, request: aws.Request, caller: Caller, call: CallName, params: Params, error: ApiError) -> None:
        """Record the first denial at once. Equal ones within a minute are counted, and recorded when the minute is over."""
        key = caller.principal.arn, caller.access_key_id, caller.source_ip, call, error.code
        known = self._denials.get(key)
        if known is not None:
            self._denials[key] = replace(known, repeats=known.repeats + 1)
            return
        record = self._failure(request, caller, call, params, error)
        self._trail.append(record)
        if len(self._denials) < DENIALS_MAX:
            self._denials[key] = replace(record, params={})
            asyncio.get_running_loop().call_later(DENIALS_S, self._end_count, key)

    def _end_count(self, key: DenialKey) -> None:
        counted = self._denials.pop(key, None)
        if counted is not None and counted.repeats:
            self._trail.append(replace(counted, id=self._ids.uuid(), at_s=self._clock.wall_s()))

    def _failure(self, request: aws.Request, caller: Caller, call: CallName, params: Params, error: ApiError) -> AuditRecord:
        return self._record(request, caller, call, params, error=error.code, message=error.message[:MESSAGE_MAX])

    def _record(self, request: aws.Request | None, caller: Caller, call: CallName, params: Params, **more: Any) -> AuditRecord:
        principal, rules = caller.principal, rules_of(call)
        agent = request.headers.get("user-agent", "")[:AGENT_MAX] if request is not None else ""
        about = {"source": caller.source_ip, "agent": agent} | more
        return AuditRecord(
            id=self._ids.uuid(), at_s=self._clock.wall_s(), service=call[0], operation=call[1], region=caller.region,
            kind=principal.kind, arn=principal.arn, owner=principal.owner, name=principal.name, session=principal.session,
            access_key_id=caller.access_key_id, request_id=caller.request_id, params=rules.without_secrets(params),
            is_data=rules.kind is CallKind.DATA, reads=rules.kind is CallKind.READ, **about,
        )  # fmt: skip


def _is_recorded(data_services: frozenset[str], call: CallName) -> bool:
    """Whether a call is recorded even if it is not denied."""
    kind = kind_of(*call)
    return kind is CallKind.MANAGEMENT or (kind is CallKind.DATA and DATA_OF.get(call, call[0]) in data_services)
