"""Checks the requests of programs in containers against the policies of their role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.operations.services import SERVICES, needed_permissions
from corral.server.lanes import Lane
from corral.store import Store

if TYPE_CHECKING:
    from corral.access.authorization import RolePolicies

ROLES_CACHED_MAX = 1_000


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


class TaskPermissions:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids
        # Role name → (the value of `Lane.changes` of the state lane before the policies were read, the policies).
        self._roles: dict[str, tuple[int, RolePolicies]] = {}

    async def check(self, caller: Caller, exchange: RestrictedExchange) -> None:
        """Raise the access denied error of the API, unless a policy allows the operation.

        An operation that is open to containers needs no policy, but a policy can deny it.
        """
        from corral.access.authorization import refusal  # imported with the first request of a container

        required = exchange.required(caller)
        if required is None:
            return
        service, operation = SERVICES.get(required.service), required.operation
        is_open = service is not None and operation in service.open_to_containers
        role = self._role(caller)
        if is_open and not role.identity.denies_anything:
            return
        params = await required.params() if callable(required.params) else required.params

        def decide(tx: Tx[Store]) -> str | None:
            needed = needed_permissions(tx, caller, required.service, operation, params)
            return refusal(tx, caller, role, needed, is_open=is_open)

        why = self._state.read_now(decide, self._settings, self._ids)
        if why is not None:
            raise exchange.denied(why)

    def _role(self, caller: Caller) -> RolePolicies:
        """Return the policies of the caller's role. They are read again if the state lane has committed since the last read."""
        from corral.access.authorization import policies_of_role

        name, changes = caller.principal.name, self._state.changes
        cached = self._roles.get(name)
        if cached is not None and cached[0] == changes:
            return cached[1]
        found = self._state.read_now(lambda tx: policies_of_role(tx, caller.account, name), self._settings, self._ids)
        if len(self._roles) >= ROLES_CACHED_MAX:
            self._roles.clear()
        self._roles[name] = (changes, found)
        return found
