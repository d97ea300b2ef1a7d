"""Authorization of programs in containers: the policies of their role decide which operations they may perform.

Credentials are `confined` if they belong to a task that runs in containers, or to a session that such a task created. Policies
apply only to confined credentials. They do not apply to the root user, to sessions of the root user, or to tasks that run as
processes of this machine: a process could read the root key anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.access.permissions import RUN_ON_HOST, Permission, assume_role_context
from corral.access.roles import document_of, find_role
from corral.access.sessions import HOST_ROLE, derived_role_id
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import (
    AccessRequest,
    IdentityPolicies,
    Policy,
    PolicyDecision,
    PolicyError,
    PolicyPrincipal,
    evaluate,
    evaluate_identity,
    read_policy,
    service_principal,
)
from corral.model.principal import role_session
from corral.store import Store

WHY = {
    PolicyDecision.NO_MATCH: "because no identity-based policy allows the {action} action",
    PolicyDecision.DENIED: "with an explicit deny in an identity-based policy",
    PolicyDecision.OUTSIDE_BOUNDARY: "because no permissions boundary allows the {action} action",
}


class RolePolicies(Struct, frozen=True):
    """A role and its policies. A role that does not exist in IAM has no policies."""

    arn: str
    role_id: str
    identity: IdentityPolicies = IdentityPolicies()
    tags: Context = field(default_factory=dict)  # condition key aws:PrincipalTag/KEY → values


def policies_of_role(tx: Tx[Store], account: str, name: str) -> RolePolicies:
    role = find_role(tx, name)
    if role is None:
        return RolePolicies(f"arn:aws:iam::{account}:role/{name}", derived_role_id(account, name))
    texts = [*role["_inline"].values(), *(document_of(tx, policy_arn) for policy_arn in role["_attached"])]
    policies = [policy for text in texts if text is not None and (policy := _read(text)) is not None]
    boundary = None
    if "PermissionsBoundary" in role:
        boundary = _read(document_of(tx, role["PermissionsBoundary"]) or "") or Policy((), has_variables=False)
    tags = {f"aws:principaltag/{tag['Key'].lower()}": (tag["Value"],) for tag in role.get("Tags", ())}
    return RolePolicies(role["Arn"], role["RoleId"], IdentityPolicies(tuple(policies), boundary), tags)


def _read(text: str) -> Policy | None:
    """Parse a policy. Return None if it is not valid; such a policy allows nothing.

    IAM refuses new policies that are not valid, but the data folder may have a policy that an older version of Corral accepted.
    """
    try:
        return read_policy(text)
    except PolicyError:
        return None


def refusal(tx: Tx[Store], caller: Caller, role: RolePolicies, needed: Sequence[Permission], *, is_open: bool) -> str | None:
    """Return AWS's error text for the first permission that the caller lacks. Return None if the caller has all permissions.

    An operation that is open to containers needs no policy, but a policy can deny it.
    """
    context = _context(tx, caller, role)
    principal = PolicyPrincipal("AWS", (role.arn, caller.principal.arn))
    for each in needed:
        request = AccessRequest(principal, each.action, each.resource, {**context, **each.context})
        decision = evaluate_identity(role.identity, request)
        if decision is PolicyDecision.DENIED or not (is_open or decision is PolicyDecision.ALLOWED):
            return _text(caller, each, decision)
    return None


def may(tx: Tx[Store], caller: Caller, permission: Permission) -> bool:
    """Whether a caller has a permission. A program in a container has those that its role allows."""
    if not caller.confined:
        return True
    role = policies_of_role(tx, caller.account, caller.principal.name)
    return refusal(tx, caller, role, [permission], is_open=False) is None


def may_run_on_host(tx: Tx[Store], caller: Caller) -> bool:
    """Whether a caller may decide what runs on the host. A program in a container may if its role allows `corral:RunOnHost`."""
    return may(tx, caller, RUN_ON_HOST)


def role_may(tx: Tx[Store], role: str, permission: Permission) -> bool:
    """Whether a program in a container with this role has a permission. `role` is a name or an ARN.

    If it is empty, it is the role of tasks without a role.
    """
    principal = role_session(tx.settings.account, role.rpartition("/")[2] or HOST_ROLE, "", "")
    return may(tx, Caller(tx.settings.account, "", principal, confined=True), permission)


def role_may_run_on_host(tx: Tx[Store], role: str) -> bool:
    return role_may(tx, role, RUN_ON_HOST)


def trust_refusal(tx: Tx[Store], caller: Caller, role_arn: str, trust: str, params: dict[str, str]) -> str | None:
    """Return AWS's error text if the trust policy of a role does not allow the caller to assume the role. Otherwise return None."""
    role = policies_of_role(tx, caller.account, caller.principal.name)
    principal = PolicyPrincipal("AWS", (role.arn, caller.principal.arn, f"arn:aws:iam::{caller.account}:root", caller.account))
    context = {**_context(tx, caller, role), **assume_role_context(params)}
    if _trusts(trust, AccessRequest(principal, "sts:AssumeRole", role_arn, context)):
        return None
    return f"User: {caller.principal.arn} is not authorized to perform: sts:AssumeRole on resource: {role_arn}"


def trusts_service(tx: Tx[Store], account: str, role_arn: str, service: str) -> bool:
    """Whether a role exists in the account, and trusts a service, for example `ecs.amazonaws.com`."""
    role = find_role(tx, role_arn.rpartition("/")[2])
    if role is None or role["Arn"] != role_arn:
        return False
    context: Context = {"aws:sourceaccount": (account,), "aws:principalisawsservice": ("true",)}
    asked = AccessRequest(service_principal(service), "sts:AssumeRole", role_arn, context)
    return _trusts(role["AssumeRolePolicyDocument"], asked)


def _trusts(trust: str, request: AccessRequest) -> bool:
    policy = _read(trust)
    if policy is None:
        return False
    named = Policy(tuple(each for each in policy.statements if each.principals is not None), policy.has_variables)
    return evaluate(named, request) is PolicyDecision.ALLOWED


def _context(tx: Tx[Store], caller: Caller, role: RolePolicies) -> Context:
    """Return the condition keys that every request has."""
    return {
        "aws:currenttime": (datetime.fromtimestamp(tx.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),),
        "aws:epochtime": (str(int(tx.wall_s)),),
        "aws:principalaccount": (caller.account,),
        "aws:principalarn": (role.arn,),
        "aws:principaltype": ("AssumedRole",),
        "aws:requestedregion": (caller.region,),
        "aws:resourceaccount": (caller.account,),
        "aws:securetransport": ("true" if caller.secure else "false",),
        "aws:sourceip": (caller.source_ip,),
        "aws:userid": (f"{role.role_id}:{caller.principal.session}",),
        "aws:viaawsservice": ("false",),
        **role.tags,
    }


def _text(caller: Caller, lacking: Permission, decision: PolicyDecision) -> str:
    on = f" on resource: {lacking.resource}" if lacking.resource else ""
    why = WHY[decision].format(action=lacking.action)
    return f"User: {caller.principal.arn} is not authorized to perform: {lacking.action}{on} {why}"
