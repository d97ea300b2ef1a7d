"""IAM policies: decide whether a principal may perform an action on a resource.

`read_policy` parses and checks the text of a policy. `evaluate` decides by the policy of the resource, and `evaluate_identity` by
the policies of a role. An explicit deny overrides every allow. A request that no statement matches is not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from corral.decide.policies.conditions import Context, PolicyCondition, all_hold, fill, read_condition
from corral.model.json_documents import read_json

VERSIONS = ("2012-10-17", "2008-10-17")
EFFECTS = ("Allow", "Deny")
PRINCIPALS = ("AWS", "Service", "Federated", "CanonicalUser")
ANYONE = ANYTHING = "*"
NO_RESOURCE = "*"  # used for an operation without a resource; as on AWS, only a pattern such as "*" matches it
UNKNOWN_RESOURCE = ""  # Corral cannot derive the resource: every Deny matches it, but an Allow only with the resource "*"
ACCOUNT = re.compile(r"\d{12}")
POLICY_MEMBERS = frozenset({"Version", "Id", "Statement"})
STATEMENT_MEMBERS = frozenset(
    {"Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition"}
)
STATEMENTS_MAX = 1_000
NO_CONTEXT: Context = MappingProxyType({})


class PolicyError(ValueError):
    """The document is not a valid policy. The message says why."""


class PolicyDecision(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"  # a statement with the effect Deny matches
    OUTSIDE_BOUNDARY = "outside the boundary"  # a policy of the role allows the request, but its permissions boundary does not
    NO_MATCH = "no match"  # no statement matches, so the request is not allowed (AWS: implicit deny)


class PolicyPrincipal(Struct, frozen=True):
    """The caller, with every name that a policy may use for it. A session of a role also has the names of its role and account."""

    kind: str  # one of PRINCIPALS
    names: tuple[str, ...]


class AccessRequest(Struct, frozen=True):
    principal: PolicyPrincipal
    action: str
    resource: str  # an ARN, NO_RESOURCE or UNKNOWN_RESOURCE
    context: Context = NO_CONTEXT  # condition keys in lower case


class Patterns(Struct, frozen=True):
    """The values of an element such as Action. `negated` is true for NotAction, which matches everything except these values."""

    values: tuple[str, ...]
    negated: bool = False


class Statement(Struct, frozen=True):
    allows: bool
    actions: Patterns  # in lower case
    # Kind → names. None means that the statement has no Principal element, as in the policies of a role.
    principals: Mapping[str, tuple[str, ...]] | None
    not_principal: bool  # the element is NotPrincipal: the statement matches every principal except these
    resources: Patterns | None
    conditions: tuple[PolicyCondition, ...]
    any_resource: bool  # the statement matches every resource, also one that Corral cannot derive

    @property
    def is_unconditional(self) -> bool:
        """Whether the statement matches every request for its actions. Principals are not compared."""
        return self.any_resource and not self.conditions


class Policy(Struct, frozen=True):
    statements: tuple[Statement, ...]
    has_variables: bool  # the version is 2012-10-17, in which `${…}` is replaced by a value of the request


class IdentityPolicies(Struct, frozen=True):
    policies: tuple[Policy, ...] = ()
    boundary: Policy | None = None  # the permissions boundary, which limits what the policies allow

    @property
    def denies_anything(self) -> bool:
        """Whether a statement has the effect Deny."""
        limits = (*self.policies, self.boundary) if self.boundary is not None else self.policies
        return any(not statement.allows for policy in limits for statement in policy.statements)


def service_principal(name: str) -> PolicyPrincipal:
    """Return the principal of an AWS service that acts on its own behalf, such as `s3.amazonaws.com`."""
    return PolicyPrincipal("Service", (name,))


def evaluate(policy: Policy, request: AccessRequest) -> PolicyDecision:
    decision = PolicyDecision.NO_MATCH
    for statement in policy.statements:
        if _matches(policy, statement, request):
            if not statement.allows:
                return PolicyDecision.DENIED
            decision = PolicyDecision.ALLOWED
    return decision


def applies(policy: Policy, statement: Statement, request: AccessRequest) -> bool:
    """Whether a statement that names the action of a request matches its resource and its context. Principals are not compared."""
    variables = policy.has_variables
    if not statement.any_resource and not _names_resource(statement, request, variables=variables):
        return False
    return not statement.conditions or all_hold(statement.conditions, request.context, variables=variables)


def names_action(statement: Statement, action: str) -> bool:
    return _contains(statement.actions, action.lower(), NO_CONTEXT, variables=False)


def matching_statements(policy: Policy, request: AccessRequest) -> Iterator[tuple[int, Statement]]:
    """Return the statements that match a request, each with its place in the policy."""
    return ((at, each) for at, each in enumerate(policy.statements) if _matches(policy, each, request))


def evaluate_identity(identity: IdentityPolicies, request: AccessRequest) -> PolicyDecision:
    decisions = {evaluate(policy, request) for policy in identity.policies}
    limit = evaluate(identity.boundary, request) if identity.boundary is not None else PolicyDecision.ALLOWED
    if PolicyDecision.DENIED in decisions or limit is PolicyDecision.DENIED:
        return PolicyDecision.DENIED
    if PolicyDecision.ALLOWED not in decisions:
        return PolicyDecision.NO_MATCH
    return PolicyDecision.ALLOWED if limit is PolicyDecision.ALLOWED else PolicyDecision.OUTSIDE_BOUNDARY


def check_identity_policy(policy: Policy) -> None:
    """Raise PolicyError if a policy cannot be the policy of a role: it has a Principal, or a statement has no Resource."""
    for statement in policy.statements:
        if statement.principals is not None:
            raise PolicyError("Policy document should not specify a principal.")
        if statement.resources is None:
            raise PolicyError("Policy statement must contain resources.")


def is_public(policy: Policy) -> bool:
    """Whether the policy allows an action to all principals without a condition."""
    return any(
        statement.allows and not statement.not_principal and not statement.conditions and ANYONE in names_of(statement, "AWS")
        for statement in policy.statements
    )


@lru_cache(maxsize=16_384)  # a thousand users may have ten policies each; they take some 40 MB
def read_policy(text: str) -> Policy:
    """Parse a policy. Raise PolicyError if AWS would reject it."""
    try:
        document = read_json(text)
    except ValueError:
        raise PolicyError("Policies must be valid JSON and the first byte must be '{'") from None
    if not isinstance(document, dict):
        raise PolicyError("Policies must be valid JSON and the first byte must be '{'")
    _check_members(document, POLICY_MEMBERS)
    version = document.get("Version", VERSIONS[1])
    if version not in VERSIONS:
        raise PolicyError("The policy must contain a valid version string")
    statements = document.get("Statement")
    if not statements:
        raise PolicyError("Missing required field Statement")
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list) or len(statements) > STATEMENTS_MAX:
        raise PolicyError("Invalid policy syntax.")
    return Policy(tuple(_statement(each) for each in statements), version == VERSIONS[0])


def _statement(document: object) -> Statement:
    if not isinstance(document, dict):
        raise PolicyError("Invalid policy syntax.")
    _check_members(document, STATEMENT_MEMBERS)
    if "Effect" not in document:
        raise PolicyError("Missing required field Effect")
    if document["Effect"] not in EFFECTS:
        raise PolicyError(f"Invalid effect: {document['Effect']}")
    actions = _patterns(document, "Action", "NotAction")
    if actions is None:
        raise PolicyError("Missing required field Action")
    if "Principal" in document and "NotPrincipal" in document:
        raise PolicyError("Principal and NotPrincipal cannot both be specified in one statement.")
    not_principal = "NotPrincipal" in document
    named = document.get("NotPrincipal" if not_principal else "Principal")
    resources = _patterns(document, "Resource", "NotResource")
    conditions = document.get("Condition", {})
    if not isinstance(conditions, dict):
        raise PolicyError("Invalid Condition: it must be an object whose members are operators.")
    return Statement(
        allows=document["Effect"] == "Allow",
        actions=Patterns(tuple([value.lower() for value in actions.values]), actions.negated),
        principals=None if named is None else _principals(named),
        not_principal=not_principal,
        resources=resources,
        conditions=tuple([_condition(operator, keys) for operator, keys in conditions.items() if keys != {}]),
        any_resource=resources is None or (ANYTHING in resources.values and not resources.negated),
    )


def _check_members(document: Mapping[str, Any], members: frozenset[str]) -> None:
    if not document.keys() <= members:
        raise PolicyError(f"Unknown field {next(each for each in document if each not in members)}")


def _condition(operator: str, keys: object) -> PolicyCondition:
    try:
        return read_condition(operator, keys)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def _patterns(document: Mapping[str, Any], member: str, not_member: str) -> Patterns | None:
    negated = not_member in document
    if negated and member in document:
        raise PolicyError(f"{member} and {not_member} cannot both be specified in one statement.")
    given = document.get(not_member if negated else member)
    return None if given is None else Patterns(_texts(given, f"Policy has invalid {member.lower()}"), negated)


def _principals(named: object) -> Mapping[str, tuple[str, ...]]:
    if named == ANYONE:
        return {"AWS": (ANYONE,)}
    if not isinstance(named, dict) or not named or any(kind not in PRINCIPALS for kind in named):
        raise PolicyError("Invalid principal in policy")
    texts = {kind: _texts(given, "Invalid principal in policy") for kind, given in named.items()}
    return {kind: tuple(_full_name(kind, name) for name in names) for kind, names in texts.items()}


def _full_name(kind: str, name: str) -> str:
    return f"arn:aws:iam::{name}:root" if kind == "AWS" and ACCOUNT.fullmatch(name) else name


def _texts(given: object, refusal: str) -> tuple[str, ...]:
    values = given if isinstance(given, list) else [given]
    if not values:
        raise PolicyError(refusal)
    for value in values:
        if not isinstance(value, str) or not value:
            raise PolicyError(refusal)
    return tuple(values)


def _matches(policy: Policy, statement: Statement, request: AccessRequest) -> bool:
    if not names_action(statement, request.action):
        return False
    if statement.principals is not None and is_named(statement, request.principal) == statement.not_principal:
        return False
    return applies(policy, statement, request)


def _names_resource(statement: Statement, request: AccessRequest, *, variables: bool) -> bool:
    if request.resource == UNKNOWN_RESOURCE or statement.resources is None:
        return not statement.allows
    return _contains(statement.resources, request.resource, request.context, variables=variables)


def _contains(patterns: Patterns, value: str, context: Context, *, variables: bool) -> bool:
    if ANYTHING in patterns.values:
        return not patterns.negated
    compiled = _compiled(patterns.values, variables)
    if compiled is not None:
        return (compiled.match(value) is not None) != patterns.negated
    filled = (fill(text, context, variables=variables, pattern=True) for text in patterns.values)
    return any(fnmatchcase(value, pattern) for pattern in filled) != patterns.negated


@lru_cache(maxsize=1024)  # the policies that AWS manages have statements with hundreds of actions
def _compiled(values: tuple[str, ...], variables: bool) -> re.Pattern[str] | None:
    """Compile all patterns of a statement to one regular expression.

    Return None if a pattern contains a variable, because its value differs between requests.
    """
    if variables and any("${" in text for text in values):
        return None
    return re.compile("|".join(translate(fill(text, {}, variables=False, pattern=True)) for text in values))


def is_named(statement: Statement, principal: PolicyPrincipal) -> bool:
    """Whether the statement names the principal. "*" includes AWS services: many policies use it to let S3 send to a queue."""
    return ANYONE in names_of(statement, "AWS") or any(name in principal.names for name in names_of(statement, principal.kind))


def names_of(statement: Statement, kind: str) -> Sequence[str]:
    return (statement.principals or {}).get(kind, ())
