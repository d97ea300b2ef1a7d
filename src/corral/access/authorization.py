"""Authorization: decides by the policies of IAM, and by those of resources, whether a caller may perform an operation.

Policies apply to restricted callers (`Caller.is_restricted`): to users, their sessions and their tasks, and to programs in
containers. They do not apply to the root user, to its sessions, or to its tasks that run as processes of this machine: a process
could read the root key anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.access.permissions import RUN_ON_HOST, Permission
from corral.access.principals import CallerPolicies, policies_of_caller, readable
from corral.access.request_context import RequestContext
from corral.access.resources import ResourceFacts, facts_of, may_have_policies
from corral.access.roles import find_role
from corral.access.sessions import HOST_ROLE
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.evaluation import VERDICT_ALLOWED, PolicyVerdict, decide
from corral.decide.policies.policy import (
    NO_RESOURCE,
    UNKNOWN_RESOURCE,
    AccessRequest,
    Policy,
    PolicyDecision,
    evaluate,
    service_principal,
)
from corral.model.principal import ANONYMOUS, OF_USER, iam_user, role_session
from corral.store import Store

ReadFacts = Callable[[], ResourceFacts | None]

NO_FACTS = ResourceFacts()
ASSUME_ROLE = "sts:AssumeRole"
RUN_ON_HOST_ADVICE = (
    ". It would run as a process of the host, or have access to the host. Tasks of users run in containers without such access: "
    "`corral run --image IMAGE`. For processes, and for containers with paths of the host, an administrator gives the user a Unix "
    "account: `corral user unix NAME ACCOUNT`"
)
TRUSTED = frozenset({ASSUME_ROLE, "sts:TagSession", "sts:SetSourceIdentity"})  # the trust policy of the role must allow them
TRUST_REASONS = {
    PolicyVerdict.DENIED_BY_RESOURCE: "with an explicit deny in the role trust policy",
    PolicyVerdict.NOT_BY_RESOURCE: "because no role trust policy allows the {action} action",
}


def refusal(tx: Tx[Store], caller: Caller, policies: CallerPolicies, needed: Sequence[Permission], *, is_open: bool) -> str | None:
    """Return AWS's error text for the first permission that the caller lacks. Return None if the caller has all permissions.

    An operation that is open to containers needs no policy for resources of the caller's owner, but a policy can deny it.
    """
    for each in needed:
        why = _refusal(tx, caller, policies, each, OnceFacts(tx, caller, each), is_open=is_open)
        if why is not None:
            return why
    return None


def sight(
    tx: Tx[Store], caller: Caller, policies: CallerPolicies, needed: Sequence[Permission], *, is_open: bool
) -> Callable[[str], bool]:
    """Return the function that decides whether the caller of a listing may see the elements of an owner.

    It evaluates the permissions of the request as if each resource belonged to this owner. It reads no database.
    """
    if policies.owner is None and all(_is_always_allowed(policies, each) for each in needed):
        return _everything
    known = [(each, _facts(tx, caller, each) or NO_FACTS) for each in needed]

    def sees(owner: str) -> bool:
        of_owner = [(each, replace(facts, owner=owner)) for each, facts in known]
        return all(_refusal(tx, caller, policies, each, lambda: facts, is_open=is_open) is None for each, facts in of_owner)  # noqa: B023  (called at once)

    return sees


def _everything(owner: str) -> bool:
    return True


def _is_always_allowed(policies: CallerPolicies, needed: Permission) -> bool:
    """Whether the policies of the caller allow an action on every resource, and the resource can have no policy that denies it."""
    return policies.layers.always_allow(needed.action) and not may_have_policies(needed.action)


def _refusal(
    tx: Tx[Store], caller: Caller, policies: CallerPolicies, needed: Permission, facts: ReadFacts, *, is_open: bool
) -> str | None:
    if policies.owner is None and _is_always_allowed(policies, needed):
        return None
    text = found.policy if may_have_policies(needed.action) and (found := facts()) is not None else None
    resource = (readable(text) or Policy((), has_variables=False)) if text else None
    verdict = _decide(tx, caller, policies, needed, facts, resource)
    if is_open and verdict is not VERDICT_ALLOWED and not verdict.is_explicit and _is_own(caller, facts()):
        verdict = VERDICT_ALLOWED
    if verdict is not VERDICT_ALLOWED:
        return _text(caller, needed, verdict)
    if policies.owner is not None:
        verdict = _decide(tx, caller, policies.owner, needed, facts, resource)
        if verdict is not VERDICT_ALLOWED:
            return f"{_text(caller, needed, verdict)}. It acts for {policies.owner.arn}, whose policies decided this"
    return None


def _decide(
    tx: Tx[Store], caller: Caller, policies: CallerPolicies, needed: Permission, facts: ReadFacts, resource: Policy | None
) -> PolicyVerdict:
    context = RequestContext(tx, caller, policies, needed, facts)
    request = AccessRequest(policies.principal, needed.action, needed.resource, context)
    return decide(policies.layers, request, policies.names, resource, is_trust=needed.action in TRUSTED and _is_trust(needed))


class OnceFacts:
    """Reads the facts of a resource when a policy first asks for them."""

    __slots__ = ("_facts", "_needed")

    def __init__(self, tx: Tx[Store], caller: Caller, needed: Permission) -> None:
        self._needed: tuple[Tx[Store], Caller, Permission] | None = (tx, caller, needed)
        self._facts: ResourceFacts | None = None

    def __call__(self) -> ResourceFacts | None:
        if self._needed is not None:
            self._facts, self._needed = _facts(*self._needed), None
        return self._facts


def _facts(tx: Tx[Store], caller: Caller, needed: Permission) -> ResourceFacts | None:
    if needed.resource == NO_RESOURCE:  # settings of the whole account can have an owner
        return facts_of(tx, caller, needed) or NO_FACTS
    return facts_of(tx, caller, needed) if needed.resource != UNKNOWN_RESOURCE else None


def _is_own(caller: Caller, facts: ResourceFacts | None) -> bool:
    """Whether a resource belongs to the owner of the caller. If its service does not tell, it does not."""
    return facts is not None and (facts.owner is None or facts.owner == caller.principal.owner)


def may(tx: Tx[Store], caller: Caller, permission: Permission) -> bool:
    """Whether a caller has a permission. A restricted caller has those that policies allow."""
    if not caller.is_restricted:
        return True
    return refusal(tx, caller, policies_of_caller(tx, caller), [permission], is_open=False) is None


def may_run_on_host(tx: Tx[Store], caller: Caller) -> bool:
    """Whether a caller may decide what runs on the host. A restricted caller may if policies allow `corral:RunOnHost`."""
    return may(tx, caller, RUN_ON_HOST)


def role_may(tx: Tx[Store], role: str, permission: Permission) -> bool:
    """Whether a program in a container with this role has a permission. `role` is a name or an ARN.

    If it is empty, it is the role of tasks without a role.
    """
    principal = role_session(tx.settings.account, role.rpartition("/")[2] or HOST_ROLE, "", "")
    return may(tx, Caller(tx.settings.account, "", principal, confined=True), permission)


def owner_may(tx: Tx[Store], owner: str, permission: Permission) -> bool:
    """Whether the owner of a resource has a permission. The root user has all, and a deleted user none."""
    if not owner.startswith(OF_USER):
        return True
    account = tx.settings.account
    return may(tx, Caller(account, "", iam_user(account, owner.removeprefix(OF_USER))), permission)


def role_may_run_on_host(tx: Tx[Store], role: str) -> bool:
    return role_may(tx, role, RUN_ON_HOST)


def trusts_service(tx: Tx[Store], account: str, role_arn: str, service: str) -> bool:
    """Whether a role exists in the account, and trusts a service, for example `ecs.amazonaws.com`."""
    role = find_role(tx, role_arn.rpartition("/")[2])
    if role is None or role["Arn"] != role_arn:
        return False
    context: Context = {"aws:sourceaccount": (account,), "aws:principalisawsservice": ("true",)}
    policy = readable(role["AssumeRolePolicyDocument"])
    if policy is None:
        return False
    named = Policy(tuple(each for each in policy.statements if each.principals is not None), policy.has_variables)
    return evaluate(named, AccessRequest(service_principal(service), ASSUME_ROLE, role_arn, context)) is PolicyDecision.ALLOWED


def _is_trust(needed: Permission) -> bool:
    return needed.action in TRUSTED and ":role/" in needed.resource


def _text(caller: Caller, lacking: Permission, verdict: PolicyVerdict) -> str:
    is_anonymous = caller.principal.kind == ANONYMOUS
    if is_anonymous and verdict is PolicyVerdict.NOT_BY_IDENTITY:
        verdict = PolicyVerdict.NOT_BY_RESOURCE
    on = f" on resource: {lacking.resource}" if lacking.resource else ""
    reason = TRUST_REASONS.get(verdict, verdict.value) if _is_trust(lacking) else verdict.value
    why = reason.format(action=lacking.action)
    name = ANONYMOUS if is_anonymous else caller.principal.arn
    advice = RUN_ON_HOST_ADVICE if lacking.action == RUN_ON_HOST.action else ""
    return f"User: {name} is not authorized to perform: {lacking.action}{on} {why}{advice}"
