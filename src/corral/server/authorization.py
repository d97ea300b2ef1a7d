"""Checks the requests of restricted callers against policies, and those of anonymous callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.principal import FEDERATED_USER, USER
from corral.model.settings import Settings
from corral.operations.services import SERVICES, needed_permissions
from corral.server.lanes import Lane
from corral.store import Store

if TYPE_CHECKING:
    from corral.access.permissions import Permission
    from corral.access.principals import CallerPolicies
    from corral.store.iam_index import IamIndex

# Operations that no policy decides about, as on AWS: who am I, and a session with the caller's own permissions. A session of the
# console is one, too.
NEED_NO_POLICY = frozenset(
    {("sts", "GetCallerIdentity"), ("sts", "GetSessionToken"), ("corral", "CreateConsoleLink"), ("corral", "EndConsoleSessions")}
)
# Kind of a session → the operations of IAM and STS that it may perform
ASSUMABLE = {USER: frozenset({"AssumeRole"}), FEDERATED_USER: frozenset[str]()}
SLICE = 100  # so many permissions are checked at once: about 3 ms of work
CALLERS_MAX = 4_000  # the callers whose policies are kept; ten policies of a user take some 50 KB


class OperationRule(Struct, frozen=True):
    """The properties of an operation that decide how the check proceeds."""

    needs_no_policy: bool
    open_to_containers: bool
    may_have_policies: bool  # resources of its service may have policies
    is_listing: bool
    limits_sessions: bool  # no policy can allow it to some sessions


@cache  # the number of entries is bounded, because the operations are those of the models
def _rule(service: str, operation: str) -> OperationRule:
    from corral.access.resources import WITH_POLICIES
    from corral.operations.listings import listing_of

    found = SERVICES.get(service)
    return OperationRule(
        needs_no_policy=(service, operation) in NEED_NO_POLICY,
        open_to_containers=found is not None and operation in found.open_to_containers,
        may_have_policies=service in WITH_POLICIES,
        is_listing=found is not None and listing_of(service, operation) is not None,
        limits_sessions=service in ("iam", "sts"),
    )


@cache
def _tools() -> tuple[Any, ...]:
    """Return what the check needs. It is imported with the first request of a restricted caller."""
    from corral.access.authorization import refusal, sight
    from corral.access.principals import policies_of_caller

    return refusal, sight, policies_of_caller


class RequiredOperation(Struct, frozen=True):
    """An operation for which the request needs a permission."""

    service: str
    operation: str
    # The parameters that name resources, or a function that parses them.
    params: dict[str, Any] | Callable[[], Awaitable[dict[str, Any]]]


class RestrictedExchange(Protocol):
    """The methods of a request (`Exchange` in `front_door.py`) that the check of permissions calls."""

    def required(self, caller: Caller) -> RequiredOperation | None:
        """Return the operation that needs a permission. Return None if the request needs no permission."""

    def denied(self, message: str) -> ApiError:
        """Return the error of this API for a caller that may not perform the operation."""


class Authorizer:
    """Runs on the event loop. It reads without a snapshot: what it reads may change before the handler runs, anyway."""

    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids
        # The principal and the task of a caller → the policies that decide about it, and the value of `IamIndex.changes` before
        # they were read.
        self._policies: dict[tuple[Any, ...], tuple[int, CallerPolicies]] = {}
        self._iam: IamIndex | None = None

    async def check(self, caller: Caller, exchange: RestrictedExchange) -> Caller:
        """Raise the access denied error of the API, unless policies allow the operation.

        Return the caller, for a listing with the decision which elements it may see.

        An operation that is open to containers needs no policy for resources of the same owner, but a policy can deny it.
        """
        required = exchange.required(caller)
        if required is None:
            return caller
        service, operation, params = required.service, required.operation, required.params
        rule = _rule(service, operation)
        if rule.needs_no_policy and not caller.confined:
            return caller
        if rule.limits_sessions:
            self._check_session(caller, required, exchange)
        is_open = caller.confined and rule.open_to_containers
        policies = self._policies_of(caller)
        if is_open and not rule.may_have_policies and not policies.layers.denies_anything and not self._has_users():
            return caller  # every resource belongs to the root user, as this task does, and has no policy
        given = params if isinstance(params, dict) else await params()

        rest: list[Permission] = []

        def decide(tx: Tx[Store]) -> Caller:
            refusal, sight, _ = _tools()
            needed = first = needed_permissions(tx, caller, service, operation, given)
            if len(needed) > SLICE:
                first, rest[:] = needed[:SLICE], needed[SLICE:]
            why = refusal(tx, caller, policies, first, is_open=is_open)
            if why is not None:
                raise exchange.denied(why)
            return replace(caller, sees=sight(tx, caller, policies, needed, is_open=is_open)) if rule.is_listing else caller

        decided = self._state.read_without_snapshot(decide, self._settings, self._ids)
        for start in range(0, len(rest), SLICE):
            await asyncio.sleep(0)  # other requests are due
            why = self._refusal(caller, policies, rest[start : start + SLICE], is_open=is_open)
            if why is not None:
                raise exchange.denied(why)
        return decided

    def _refusal(self, caller: Caller, policies: CallerPolicies, needed: list[Permission], *, is_open: bool) -> str | None:
        def decide(tx: Tx[Store]) -> str | None:
            found: str | None = _tools()[0](tx, caller, policies, needed, is_open=is_open)
            return found

        return self._state.read_without_snapshot(decide, self._settings, self._ids)

    def _check_session(self, caller: Caller, required: RequiredOperation, exchange: RestrictedExchange) -> None:
        """Refuse what no policy can allow to the sessions of GetSessionToken and GetFederationToken, as on AWS."""
        kind, allowed = caller.principal.kind, ASSUMABLE.get(caller.principal.kind)
        if allowed is None or not caller.principal.session:
            return
        if required.operation not in allowed:
            made = "GetSessionToken" if kind == USER else "GetFederationToken"
            action = f"{required.service}:{required.operation}"
            raise exchange.denied(
                f"User: {caller.principal.arn} is not authorized to perform: {action} because its credentials are those of {made}. "
                "Use the access key of the user, or a role."
            )

    def _has_users(self) -> bool:
        return self._state.read_without_snapshot(lambda tx: bool(tx.store.iam.users), self._settings, self._ids)

    def _policies_of(self, caller: Caller) -> CallerPolicies:
        """Return the policies of the caller. They are read again if something of IAM has changed since the last read."""
        key = caller.principal, caller.task_id is not None, caller.terms
        cached = self._policies.get(key)
        if cached is not None and self._iam is not None and cached[0] == self._iam.changes:
            return cached[1]

        def find(tx: Tx[Store]) -> CallerPolicies:
            self._iam = tx.store.iam  # the writer and all readers have the same index
            changes = tx.store.iam.changes  # from before the read: if a commit changes the policies later, the counts differ
            found: CallerPolicies = _tools()[-1](tx, caller)
            if len(self._policies) >= CALLERS_MAX:
                self._policies.clear()
            self._policies[key] = changes, found
            return found

        return self._state.read_without_snapshot(find, self._settings, self._ids)
