"""AWS's order of evaluation in one account: which of all policies that concern a request decide about it.

An explicit deny in any policy refuses the request. Otherwise an identity-based policy must allow it, and so must the permissions
boundary and the session policies, if there are any. Instead of an identity-based policy, the policy of the resource can allow the
request. How far this allow reaches depends on the name by which it names the caller (`Grant`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum

from msgspec import Struct

from corral.decide.policies.policy import (
    ANYONE,
    AccessRequest,
    Policy,
    PolicyDecision,
    Statement,
    applies,
    is_named,
    names_action,
    names_of,
)

ACTIONS_MAX = 2_000  # the number of actions whose statements a set of policies remembers


class PolicyVerdict(Enum):
    """The decision about a request. The value is the end of AWS's error text."""

    ALLOWED = ""
    DENIED_BY_IDENTITY = "with an explicit deny in an identity-based policy"
    DENIED_BY_RESOURCE = "with an explicit deny in a resource-based policy"
    DENIED_BY_BOUNDARY = "with an explicit deny in a permissions boundary"
    DENIED_BY_SESSION = "with an explicit deny in a session policy"
    NOT_BY_IDENTITY = "because no identity-based policy allows the {action} action"
    NOT_BY_RESOURCE = "because no resource-based policy allows the {action} action"
    NOT_BY_BOUNDARY = "because no permissions boundary allows the {action} action"
    NOT_BY_SESSION = "because no session policy allows the {action} action"

    @property
    def is_explicit(self) -> bool:
        """Whether a statement with the effect Deny has decided."""
        return self.value.startswith("with")


class Grant(IntEnum):
    """How far the allow of a resource's policy reaches. It depends on the principal in the statement."""

    NONE = 0
    TO_ACCOUNT = 1  # it names the account, which decides by its identity-based policies
    TO_ROLE = 2  # it names the role of a session, or the user of a federated session; boundary and session policies still limit it
    TO_CALLER = 3  # it names everybody, the user or the session itself; only an explicit deny limits it


class Names(Struct, frozen=True):
    """The names of a caller in the policy of a resource, by how far an allow for the name reaches."""

    own: tuple[str, ...] = ()  # the ARN and the id of a user, or of a session
    role: tuple[str, ...] = ()  # the ARN of the role of a session, or of the user of a federated session


class PolicySet:
    """Policies that apply together. One of them must allow a request, and none may deny it.

    The statements that name an action are found once for each action, because callers repeat the same few actions.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        self._by_action: dict[str, tuple[list[tuple[Policy, Statement]], list[tuple[Policy, Statement]]]] = {}

    @property
    def denies_anything(self) -> bool:
        return any(not statement.allows for policy in self.policies for statement in policy.statements)

    def decide(self, request: AccessRequest) -> PolicyDecision:
        found = self._by_action.get(request.action)
        denies, allows = found if found is not None else self._find(request.action)
        for policy, statement in denies:
            if applies(policy, statement, request):
                return PolicyDecision.DENIED
        for policy, statement in allows:
            if applies(policy, statement, request):
                return PolicyDecision.ALLOWED
        return PolicyDecision.NO_MATCH

    def statements(self, action: str) -> list[tuple[Policy, Statement]]:
        """Return the statements that name an action, each with its policy."""
        found = self._by_action.get(action)
        denies, allows = found if found is not None else self._find(action)
        return denies + allows

    def _find(self, action: str) -> tuple[list[tuple[Policy, Statement]], list[tuple[Policy, Statement]]]:
        named = [(policy, each) for policy in self.policies for each in policy.statements if names_action(each, action)]
        found = [each for each in named if not each[1].allows], [each for each in named if each[1].allows]
        if len(self._by_action) >= ACTIONS_MAX:
            self._by_action.clear()
        self._by_action[action] = found
        return found


NOTHING = PolicySet(())


class PolicyLayers(Struct, frozen=True):
    """The policies of a caller, by the layer in which they decide."""

    identity: PolicySet = NOTHING
    boundary: PolicySet | None = None  # None: there is no permissions boundary
    session: PolicySet | None = None  # None: there are no session policies

    @property
    def denies_anything(self) -> bool:
        return any(each is not None and each.denies_anything for each in (self.identity, self.boundary, self.session))

    def statements(self, action: str) -> list[tuple[Policy, Statement]]:
        return [
            found for each in (self.identity, self.boundary, self.session) if each is not None for found in each.statements(action)
        ]


def decide(
    layers: PolicyLayers, request: AccessRequest, names: Names, resource: Policy | None, *, is_trust: bool = False
) -> PolicyVerdict:
    """Decide about a request. `resource` is the policy of the resource, if it has one.

    If it is the trust policy of a role (`is_trust`), it must allow the request itself: without it, nothing is allowed.
    """
    grant = Grant.NONE
    if resource is not None:
        decision, grant = evaluate_resource(resource, request, names)
        if decision is PolicyDecision.DENIED:
            return PolicyVerdict.DENIED_BY_RESOURCE
    identity = layers.identity.decide(request)
    if identity is PolicyDecision.DENIED:
        return PolicyVerdict.DENIED_BY_IDENTITY
    boundary = layers.boundary.decide(request) if layers.boundary is not None else PolicyDecision.ALLOWED
    if boundary is PolicyDecision.DENIED:
        return PolicyVerdict.DENIED_BY_BOUNDARY
    session = layers.session.decide(request) if layers.session is not None else PolicyDecision.ALLOWED
    if session is PolicyDecision.DENIED:
        return PolicyVerdict.DENIED_BY_SESSION
    if is_trust and grant is Grant.NONE:
        return PolicyVerdict.NOT_BY_RESOURCE
    if grant is Grant.TO_CALLER:
        return PolicyVerdict.ALLOWED
    if identity is not PolicyDecision.ALLOWED and grant is not Grant.TO_ROLE:
        return PolicyVerdict.NOT_BY_IDENTITY
    if boundary is not PolicyDecision.ALLOWED:
        return PolicyVerdict.NOT_BY_BOUNDARY
    return PolicyVerdict.ALLOWED if session is PolicyDecision.ALLOWED else PolicyVerdict.NOT_BY_SESSION


def evaluate_resource(policy: Policy, request: AccessRequest, names: Names) -> tuple[PolicyDecision, Grant]:
    """Evaluate the policy of a resource, and return how far an allow reaches. Statements without a principal have no effect."""
    grant = Grant.NONE
    for statement in policy.statements:
        if statement.principals is None or not names_action(statement, request.action):
            continue
        if is_named(statement, request.principal) == statement.not_principal or not applies(policy, statement, request):
            continue
        if not statement.allows:
            return PolicyDecision.DENIED, Grant.NONE
        grant = max(grant, _grant(statement, request, names))
    return (PolicyDecision.ALLOWED if grant else PolicyDecision.NO_MATCH), grant


def _grant(statement: Statement, request: AccessRequest, names: Names) -> Grant:
    if request.principal.kind != "AWS" or statement.not_principal:
        return Grant.TO_CALLER
    named = names_of(statement, "AWS")
    if ANYONE in named or any(each in names.own for each in named):
        return Grant.TO_CALLER
    return Grant.TO_ROLE if any(each in names.role for each in named) else Grant.TO_ACCOUNT
