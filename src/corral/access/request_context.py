"""The condition keys of a request. A value is computed when a policy asks for it, because most policies ask for none or for few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.access.principals import CallerPolicies
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.store import Store

OWNER, CALLER = "corral:owner", "corral:caller"  # condition keys of Corral's own


class RequestContext(Mapping[str, Sequence[str]]):
    """The condition keys, in lower case, and their values. `facts` reads the facts of the resource, and is called at most once."""

    __slots__ = ("_facts", "_permission", "_read", "_tx", "caller", "policies")

    def __init__(
        self,
        tx: Tx[Store],
        caller: Caller,
        policies: CallerPolicies,
        permission: Permission,
        facts: Callable[[], ResourceFacts | None],
    ) -> None:
        self._tx = tx
        self.caller = caller
        self.policies = policies
        self._permission = permission
        self._read = facts

    @property
    def wall_s(self) -> float:
        return self._tx.wall_s

    @property
    def facts(self) -> ResourceFacts | None:
        return self._read()

    def get(self, key: str, default: Any = None) -> Any:
        compute = KEYS.get(key)
        if compute is not None:
            value = compute(self)
            return default if value is None else (value,)
        if key == "aws:calledvia":
            return self.caller.via or default
        found = self._permission.context.get(key)
        if found is not None:
            return found
        name, slash, tag = key.partition("/")
        if slash and name == "aws:principaltag":
            return self.policies.tags.get(key, default)
        if slash and name.endswith((":resourcetag", ":existingobjecttag")):
            facts = self._read()
            value = next((text for each, text in facts.tags.items() if each.lower() == tag), None) if facts is not None else None
            return default if value is None else (value,)
        return default

    def __getitem__(self, key: str) -> Sequence[str]:
        found: Sequence[str] | None = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        keys = {**dict.fromkeys(KEYS), **dict.fromkeys(self._permission.context), **dict.fromkeys(self.policies.tags)}
        return (key for key in keys if self.get(key) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _owner(context: RequestContext) -> str | None:
    """The owner of the resource. If there is no such resource, it is the caller. None: the service does not tell."""
    facts = context.facts
    if facts is None:
        return None
    return facts.owner if facts.owner is not None else context.caller.owner or None


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _account(context: RequestContext) -> str:
    return context.caller.account


def _principal_account(context: RequestContext) -> str | None:
    return context.caller.principal.account or None  # an anonymous caller has none


# Condition key → its value; None: the request does not have the key. No request can set one of these keys.
KEYS: Mapping[str, Callable[[RequestContext], str | None]] = {
    OWNER: _owner,
    CALLER: lambda context: context.caller.principal.owner or None,
    "aws:calledviafirst": lambda context: context.caller.via[0] if context.caller.via else None,
    "aws:calledvialast": lambda context: context.caller.via[-1] if context.caller.via else None,
    "aws:currenttime": lambda context: _time(context.wall_s),
    "aws:epochtime": lambda context: str(int(context.wall_s)),
    "aws:principalaccount": _principal_account,
    "aws:principalarn": lambda context: context.policies.arn or None,
    "aws:principalisawsservice": lambda context: "false",
    "aws:principaltype": lambda context: context.policies.type,
    "aws:requestedregion": lambda context: context.caller.region or None,
    "aws:resourceaccount": _account,
    "aws:securetransport": lambda context: "true" if context.caller.secure else "false",
    "aws:sourceip": lambda context: context.caller.source_ip or None,
    "aws:userid": lambda context: context.policies.id,
    "aws:multifactorauthpresent": lambda context: "false" if context.caller.terms is not None else None,
    "aws:sourceidentity": lambda context: (context.caller.terms.source_identity or None) if context.caller.terms else None,
    "aws:tokenissuetime": lambda context: _time(context.caller.terms.issued_at_s) if context.caller.terms else None,
    "aws:username": lambda context: context.policies.user or None,
    "aws:viaawsservice": lambda context: "true" if context.caller.via else "false",
}
