"""The policies of IAM's users and roles, and of the callers that act with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from corral.access.caller import Caller
from corral.access.roles import document_of, find_role, find_user
from corral.access.sessions import derived_role_id
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.evaluation import NOTHING, Names, PolicyLayers, PolicySet
from corral.decide.policies.policy import IdentityPolicies, Policy, PolicyError, PolicyPrincipal, read_policy
from corral.model.principal import ANONYMOUS, ASSUMED_ROLE, FEDERATED_USER, OF_USER, ROOT, USER
from corral.model.session import SessionTerms
from corral.store import Store
from corral.store.stored_resources import Document

PRINCIPAL_TYPES = {
    ASSUMED_ROLE: "AssumedRole",
    FEDERATED_USER: "FederatedUser",
    USER: "User",
    ROOT: "Account",
    ANONYMOUS: "Anonymous",
}

EVERYTHING = PolicyLayers(
    PolicySet([read_policy('{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}')])
)


class PrincipalPolicies(Struct, frozen=True):
    """A user or a role, and its policies. One that does not exist in IAM has no policies."""

    arn: str
    id: str
    identity: IdentityPolicies = IdentityPolicies()
    tags: Context = field(default_factory=dict)  # condition key aws:PrincipalTag/KEY → values
    layers: PolicyLayers = PolicyLayers()


class CallerPolicies(Struct, frozen=True):
    """A caller as policies see it: its names, the values of its condition keys, and the policies that decide about its requests."""

    principal: PolicyPrincipal
    names: Names
    arn: str  # aws:PrincipalArn
    id: str  # aws:userid
    type: str  # aws:PrincipalType
    layers: PolicyLayers
    tags: Context
    user: str = ""  # aws:username
    owner: CallerPolicies | None = None  # the user whose task or function the caller is, who limits the caller


def policies_of_role(tx: Tx[Store], account: str, name: str) -> PrincipalPolicies:
    role = find_role(tx, name)
    if role is None:
        return PrincipalPolicies(f"arn:aws:iam::{account}:role/{name}", derived_role_id(account, name))
    return _policies(tx, role, role["RoleId"], [role])


def policies_of_user(tx: Tx[Store], account: str, name: str) -> PrincipalPolicies:
    """Return the policies of a user and of its groups. A deleted user has none."""
    user = find_user(tx, name)
    if user is None:
        return PrincipalPolicies(f"arn:aws:iam::{account}:user/{name}", "")
    groups = (tx.store.stored.get("iam", "group", "", each) for each in user.get("_groups", ()))
    return _policies(tx, user, user["UserId"], [user, *(each for each in groups if each is not None)])


def policies_of_caller(tx: Tx[Store], caller: Caller) -> CallerPolicies:
    """Return the policies that decide about a caller: those of its user or role, of its session, and of the owner of its task."""
    principal, account = caller.principal, caller.account
    if principal.kind == USER:
        return _user(tx, account, principal.name, principal.arn)
    if principal.kind == ASSUMED_ROLE:
        return _role_session(tx, caller)
    if principal.kind == FEDERATED_USER:
        return _federated_user(tx, caller)
    kind = PRINCIPAL_TYPES.get(principal.kind, "")
    return CallerPolicies(PolicyPrincipal("AWS", ()), Names(), "", kind.lower(), kind, PolicyLayers(), {})


def _user(tx: Tx[Store], account: str, name: str, arn: str = "") -> CallerPolicies:
    found = policies_of_user(tx, account, name)
    own = arn or found.arn, found.id
    names = PolicyPrincipal("AWS", (*own, *_account_names(account)))
    return CallerPolicies(names, Names(own), own[0], found.id, PRINCIPAL_TYPES[USER], found.layers, found.tags, name)


def _role_session(tx: Tx[Store], caller: Caller) -> CallerPolicies:
    principal, terms = caller.principal, caller.terms or SessionTerms()
    found = policies_of_role(tx, caller.account, principal.name)
    id_ = f"{found.id}:{principal.session}"
    layers = EVERYTHING if terms.is_root else found.layers
    return CallerPolicies(
        PolicyPrincipal("AWS", (principal.arn, id_, found.arn, found.id, *_account_names(caller.account))),
        Names((principal.arn, id_), (found.arn, found.id)),
        found.arn,
        id_,
        PRINCIPAL_TYPES[ASSUMED_ROLE],
        PolicyLayers(layers.identity, layers.boundary, _session_policies(tx, terms)),
        {**found.tags, **_session_tags(terms)},
        owner=_owner(tx, caller) if caller.task_id is not None or terms.for_owner else None,
    )


def _federated_user(tx: Tx[Store], caller: Caller) -> CallerPolicies:
    """A federated user may do what both the session policies and its creator allow. Without session policies, it may do nothing."""
    principal, terms = caller.principal, caller.terms or SessionTerms()
    layers, creator, tags = EVERYTHING, tuple[str, ...](), dict[str, Any]()
    if principal.owner.startswith(OF_USER):
        found = policies_of_user(tx, caller.account, principal.owner.removeprefix(OF_USER))
        layers, creator, tags = found.layers, (found.arn, found.id), {**found.tags}
    session = _session_policies(tx, terms) or NOTHING
    return CallerPolicies(
        PolicyPrincipal("AWS", (principal.arn, *creator, *_account_names(caller.account))),
        Names((principal.arn,), creator),
        principal.arn,
        f"{caller.account}:{principal.name}",
        PRINCIPAL_TYPES[FEDERATED_USER],
        PolicyLayers(layers.identity, layers.boundary, session),
        {**tags, **_session_tags(terms)},
    )


def _account_names(account: str) -> tuple[str, str]:
    return f"arn:aws:iam::{account}:root", account


def _session_policies(tx: Tx[Store], terms: SessionTerms) -> PolicySet | None:
    """Return the policies that limit a session, or None. A policy that no longer exists allows nothing."""
    if not terms.policies and not terms.policy_arns:
        return None
    texts = [*terms.policies, *(document_of(tx, each) or "" for each in terms.policy_arns)]
    return PolicySet([policy for text in texts if (policy := readable(text)) is not None])


def _session_tags(terms: SessionTerms) -> Context:
    return {f"aws:principaltag/{name.lower()}": (value,) for name, value in terms.tags}


def _owner(tx: Tx[Store], caller: Caller) -> CallerPolicies | None:
    """Return the policies of the user who owns the task or the function of a caller. Return None if the root user owns it."""
    if not caller.principal.owner.startswith(OF_USER):
        return None
    return _user(tx, caller.account, caller.principal.owner.removeprefix(OF_USER))


def _policies(tx: Tx[Store], entity: Document, id_: str, sources: Iterable[Document]) -> PrincipalPolicies:
    texts: list[str | None] = []
    for source in sources:
        texts += source.get("_inline", {}).values()
        texts += (document_of(tx, policy_arn) for policy_arn in source.get("_attached", ()))
    policies = tuple(policy for text in texts if text is not None and (policy := readable(text)) is not None)
    boundary = None
    if "PermissionsBoundary" in entity:
        boundary = readable(document_of(tx, entity["PermissionsBoundary"]) or "") or Policy((), has_variables=False)
    tags = {f"aws:principaltag/{tag['Key'].lower()}": (tag["Value"],) for tag in entity.get("Tags", ())}
    layers = PolicyLayers(PolicySet(policies), PolicySet((boundary,)) if boundary is not None else None)
    return PrincipalPolicies(entity["Arn"], id_, IdentityPolicies(policies, boundary), tags, layers)


def readable(text: str) -> Policy | None:
    """Parse a policy. Return None if it is not valid; such a policy allows nothing.

    IAM refuses new policies that are not valid, but the data folder may have a policy that an older version of Corral accepted.
    """
    try:
        return read_policy(text)
    except PolicyError:
        return None
