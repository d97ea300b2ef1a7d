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

# Each request compares these several times, and Python 3.11 looks up a member of an enumeration slowly.
ALLOWED, DENIED, NO_MATCH = PolicyDecision.ALLOWED, PolicyDecision.DENIED, PolicyDecision.NO_MATCH
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


VERDICT_ALLOWED, NO_GRANT = PolicyVerdict.ALLOWED, Grant.NONE


class Names(Struct, frozen=True):
    """The names of a caller in the policy of a resource, by how far an allow for the name reaches."""

    own: tuple[str, ...] = ()  # the ARN and the id of a user, or of a session
    role: tuple[str, ...] = ()  # the ARN of the role of a session, or of the user of a federated session


class ActionStatements(Struct, frozen=True):
    """The statements of a set of policies that name an action, each with its policy."""

    denies: list[tuple[Policy, Statement]]
    allows: list[tuple[Policy, Statement]]
    always: PolicyDecision | None  # the decision, if it is the same for all resources and contexts


class PolicySet:
    """Policies that apply together. One of them must allow a request, and none may deny it.

    The statements that name an action are found once for each action, because callers repeat the same few actions.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        self._by_action: dict[str, ActionStatements] = {}

    @property
    def denies_anything(self) -> bool:
        return any(not statement.allows for policy in self.policies for statement in policy.statements)

    def decide(self, request: AccessRequest) -> PolicyDecision:
        found = self._by_action.get(request.action) or self._find(request.action)
        if found.always is not None:
            return found.always
        for policy, statement in found.denies:
            if applies(policy, statement, request):
                return DENIED
        for policy, statement in found.allows:
            if applies(policy, statement, request):
                return ALLOWED
        return NO_MATCH

    def always(self, action: str) -> PolicyDecision | None:
        """Return the decision about an action if it is the same for all resources and contexts. Otherwise return None."""
        return (self._by_action.get(action) or self._find(action)).always

    def statements(self, action: str) -> list[tuple[Policy, Statement]]:
        """Return the statements that name an action, each with its policy."""
        found = self._by_action.get(action) or self._find(action)
        return found.denies + found.allows

    def _find(self, action: str) -> ActionStatements:
        named = [(policy, each) for policy in self.policies for each in policy.statements if names_action(each, action)]
        denies, allows = [each for each in named if not each[1].allows], [each for each in named if each[1].allows]
        found = ActionStatements(denies, allows, _always(denies, allows))
        if len(self._by_action) >= ACTIONS_MAX:
            self._by_action.clear()
        self._by_action[action] = found
        return found


def _always(denies: list[tuple[Policy, Statement]], allows: list[tuple[Policy, Statement]]) -> PolicyDecision | None:
    if any(statement.is_unconditional for _, statement in denies):
        return DENIED
    if denies:
        return None
    if any(statement.is_unconditional for _, statement in allows):
        return ALLOWED
    return None if allows else NO_MATCH


NOTHING = PolicySet(())


class PolicyLayers(Struct, frozen=True):
    """The policies of a caller, by the layer in which they decide."""

    identity: PolicySet = NOTHING
    boundary: PolicySet | None = None  # None: there is no permissions boundary
    session: PolicySet | None = None  # None: there are no session policies

    @property
    def denies_anything(self) -> bool:
        return any(each is not None and each.denies_anything for each in (self.identity, self.boundary, self.session))

    def always_allow(self, action: str) -> bool:
        """Whether the policies allow an action on all resources and in all contexts. The policy of a resource may still deny it."""
        return (
            self.identity.always(action) is ALLOWED
            and (self.boundary is None or self.boundary.always(action) is ALLOWED)
            and (self.session is None or self.session.always(action) is ALLOWED)
        )

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
    grant = NO_GRANT
    if resource is not None:
        decision, grant = evaluate_resource(resource, request, names)
        if decision is DENIED:
            return PolicyVerdict.DENIED_BY_RESOURCE
    identity = layers.identity.decide(request)
    if identity is DENIED:
        return PolicyVerdict.DENIED_BY_IDENTITY
    boundary = layers.boundary.decide(request) if layers.boundary is not None else ALLOWED
    if boundary is DENIED:
        return PolicyVerdict.DENIED_BY_BOUNDARY
    session = layers.session.decide(request) if layers.session is not None else ALLOWED
    if session is DENIED:
        return PolicyVerdict.DENIED_BY_SESSION
    if is_trust and grant is NO_GRANT:
        return PolicyVerdict.NOT_BY_RESOURCE
    if grant and grant is Grant.TO_CALLER:
        return PolicyVerdict.ALLOWED
    if identity is not ALLOWED and grant is not Grant.TO_ROLE:
        return PolicyVerdict.NOT_BY_IDENTITY
    if boundary is not ALLOWED:
        return PolicyVerdict.NOT_BY_BOUNDARY
    return VERDICT_ALLOWED if session is ALLOWED else PolicyVerdict.NOT_BY_SESSION


def evaluate_resource(policy: Policy, request: AccessRequest, names: Names) -> tuple[PolicyDecision, Grant]:
    """Evaluate the policy of a resource, and return how far an allow reaches. Statements without a principal have no effect."""
    grant = Grant.NONE
    for statement in policy.statements:
        if statement.principals is None or not names_action(statement, request.action):
            continue
        if is_named(statement, request.principal) == statement.not_principal or not applies(policy, statement, request):
            continue
        if not statement.allows:
            return DENIED, Grant.NONE
        grant = max(grant, _grant(statement, request, names))
    return (ALLOWED if grant else NO_MATCH), grant


def _grant(statement: Statement, request: AccessRequest, names: Names) -> Grant:
    if request.principal.kind != "AWS" or statement.not_principal:
        return Grant.TO_CALLER
    named = names_of(statement, "AWS")
    if ANYONE in named or any(each in names.own for each in named):
        return Grant.TO_CALLER
    return Grant.TO_ROLE if any(each in names.role for each in named) else Grant.TO_ACCOUNT
