"""Resource policies: may this principal do this to that? Allowed, denied, or not a word on it.

A policy's text is read once (`read`), which also finds what AWS would refuse, and then asked (`judge`). An explicit deny
wins over any number of allows; where no statement speaks, nothing is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson

from corral.decide.conditions import Condition, Context, fill, holds, read_condition

VERSIONS = ("2012-10-17", "2008-10-17")
EFFECTS = ("Allow", "Deny")
PRINCIPALS = ("AWS", "Service", "Federated", "CanonicalUser")
ANYONE = "*"
ACCOUNT = re.compile(r"\d{12}")
POLICY_MEMBERS = frozenset({"Version", "Id", "Statement"})
STATEMENT_MEMBERS = frozenset(
    {"Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition"}
)
STATEMENTS_MAX = 1_000


class PolicyError(ValueError):
    """The document is no policy; the text says why."""


class Verdict(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"  # by a statement that says so
    SILENT = "silent"  # no statement speaks of it: not allowed either


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, by every name that a policy may know them by: a role's session is also its role, and its account."""

    kind: str  # of PRINCIPALS
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    principal: Principal
    action: str
    resource: str  # an ARN
    context: Context = field(default_factory=lambda: MappingProxyType({}))  # condition keys in lower case


@dataclass(frozen=True, slots=True)
class Matched:
    """One of the pairs X and NotX of a statement: what it names, and whether it means all others."""

    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    allows: bool
    actions: Matched  # in lower case
    principals: Mapping[str, tuple[str, ...]] | None  # by kind; None: it names nobody, as in a role's own policies
    others: bool  # NotPrincipal: it speaks of all but these
    resources: Matched | None
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    statements: tuple[Statement, ...]
    has_variables: bool  # since 2012-10-17 `${…}` stands for a value of the request


def service(name: str) -> Principal:
    """A service of AWS that acts by itself: `s3.amazonaws.com`."""
    return Principal("Service", (name,))


def judge(policy: Policy, question: Question) -> Verdict:
    verdict = Verdict.SILENT
    for statement in policy.statements:
        if _speaks_of(policy, statement, question):
            if not statement.allows:
                return Verdict.DENIED
            verdict = Verdict.ALLOWED
    return verdict


def is_public(policy: Policy) -> bool:
    """Whether it allows something to everyone, without a condition that would narrow that down."""
    return any(
        statement.allows and not statement.others and not statement.conditions and ANYONE in _named(statement, "AWS")
        for statement in policy.statements
    )


@lru_cache(maxsize=256)
def read(text: str) -> Policy:
    """The policy that a text is."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise PolicyError("Policies must be valid JSON and the first byte must be '{'") from None
    if not isinstance(document, dict):
        raise PolicyError("Policies must be valid JSON and the first byte must be '{'")
    for member in document:
        if member not in POLICY_MEMBERS:
            raise PolicyError(f"Unknown field {member}")
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
    for member in document:
        if member not in STATEMENT_MEMBERS:
            raise PolicyError(f"Unknown field {member}")
    if "Effect" not in document:
        raise PolicyError("Missing required field Effect")
    if document["Effect"] not in EFFECTS:
        raise PolicyError(f"Invalid effect: {document['Effect']}")
    actions = _matched(document, "Action")
    if actions is None:
        raise PolicyError("Missing required field Action")
    if "Principal" in document and "NotPrincipal" in document:
        raise PolicyError("Principal and NotPrincipal cannot both be specified in one statement.")
    others = "NotPrincipal" in document
    named = document.get("NotPrincipal" if others else "Principal")
    conditions = document.get("Condition", {})
    if not isinstance(conditions, dict):
        raise PolicyError("Invalid Condition: it must be an object of operators.")
    return Statement(
        allows=document["Effect"] == "Allow",
        actions=Matched(tuple(value.lower() for value in actions.values), actions.negated),
        principals=None if named is None else _principals(named),
        others=others,
        resources=_matched(document, "Resource"),
        conditions=tuple(_condition(operator, keys) for operator, keys in conditions.items()),
    )


def _condition(operator: str, keys: object) -> Condition:
    try:
        return read_condition(operator, keys)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def _matched(document: Mapping[str, Any], member: str) -> Matched | None:
    if member in document and f"Not{member}" in document:
        raise PolicyError(f"{member} and Not{member} cannot both be specified in one statement.")
    negated = f"Not{member}" in document
    given = document.get(f"Not{member}" if negated else member)
    return None if given is None else Matched(_texts(given, f"Policy has invalid {member.lower()}"), negated)


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
    if not values or not all(isinstance(value, str) and value for value in values):
        raise PolicyError(refusal)
    return tuple(values)


def _speaks_of(policy: Policy, statement: Statement, question: Question) -> bool:
    if not _is_one_of(statement.actions, question.action.lower(), question.context, variables=False):
        return False
    if statement.principals is not None and _is_named(statement, question.principal) == statement.others:
        return False
    context, variables = question.context, policy.has_variables
    if statement.resources is not None and not _is_one_of(statement.resources, question.resource, context, variables=variables):
        return False
    return all(holds(condition, context, variables=variables) for condition in statement.conditions)


def _is_one_of(matched: Matched, value: str, context: Context, *, variables: bool) -> bool:
    patterns = (fill(text, context, variables=variables, pattern=True) for text in matched.values)
    return any(fnmatchcase(value, pattern) for pattern in patterns) != matched.negated


def _is_named(statement: Statement, principal: Principal) -> bool:
    """Services too are among "everyone": policies that let S3 send to a queue are often written so."""
    return ANYONE in _named(statement, "AWS") or any(name in principal.names for name in _named(statement, principal.kind))


def _named(statement: Statement, kind: str) -> Sequence[str]:
    return (statement.principals or {}).get(kind, ())
