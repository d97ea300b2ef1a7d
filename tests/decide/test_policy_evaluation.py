"""AWS's order of evaluation: identity-based policies, boundaries, session policies and the policies of resources together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.decide.policies.evaluation import Names, PolicyLayers, PolicySet, PolicyVerdict, decide
from corral.decide.policies.policy import AccessRequest, PolicyPrincipal, read_policy

ACCOUNT = "123456789012"
ROOT = f"arn:aws:iam::{ACCOUNT}:root"
USER = f"arn:aws:iam::{ACCOUNT}:user/ann"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"
SESSION = f"arn:aws:sts::{ACCOUNT}:assumed-role/train/me"
OBJECT = "arn:aws:s3:::photos/a"
AS_USER = PolicyPrincipal("AWS", (USER, "AIDAANN", ROOT, ACCOUNT)), Names((USER, "AIDAANN"))
AS_SESSION = PolicyPrincipal("AWS", (SESSION, ROLE, ROOT, ACCOUNT)), Names((SESSION,), (ROLE,))
ALLOW, DENY, OTHER = "Allow", "Deny", None  # of a policy: its only statement, or a statement about something else


def layer(effect: str | None) -> PolicySet:
    found = {"Effect": effect or ALLOW, "Action": "s3:*" if effect else "sqs:*", "Resource": "*"}
    return PolicySet([read_policy(json.dumps({"Version": "2012-10-17", "Statement": found}))])


def resource_policy(effect: str, principal: Any) -> Any:
    found = {"Effect": effect, "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*", "Principal": principal}
    return read_policy(json.dumps({"Version": "2012-10-17", "Statement": found}))


def verdict(
    who: tuple[PolicyPrincipal, Names],
    identity: str | None,
    boundary: Any = "none",
    session: Any = "none",
    resource: Any = None,
    *,
    is_trust: bool = False,
) -> PolicyVerdict:
    layers = PolicyLayers(
        layer(identity), None if boundary == "none" else layer(boundary), None if session == "none" else layer(session)
    )
    return decide(layers, AccessRequest(who[0], "s3:GetObject", OBJECT, {}), who[1], resource, is_trust=is_trust)


@pytest.mark.parametrize("who", [AS_USER, AS_SESSION])
@pytest.mark.parametrize(
    ("identity", "boundary", "session", "expected"),
    [
        (ALLOW, "none", "none", PolicyVerdict.ALLOWED),
        (OTHER, "none", "none", PolicyVerdict.NOT_BY_IDENTITY),
        (DENY, "none", "none", PolicyVerdict.DENIED_BY_IDENTITY),
        (ALLOW, ALLOW, "none", PolicyVerdict.ALLOWED),
        (ALLOW, OTHER, "none", PolicyVerdict.NOT_BY_BOUNDARY),
        (ALLOW, DENY, "none", PolicyVerdict.DENIED_BY_BOUNDARY),
        (OTHER, ALLOW, "none", PolicyVerdict.NOT_BY_IDENTITY),
        (OTHER, DENY, "none", PolicyVerdict.DENIED_BY_BOUNDARY),
        (ALLOW, "none", ALLOW, PolicyVerdict.ALLOWED),
        (ALLOW, "none", OTHER, PolicyVerdict.NOT_BY_SESSION),
        (ALLOW, "none", DENY, PolicyVerdict.DENIED_BY_SESSION),
        (OTHER, "none", ALLOW, PolicyVerdict.NOT_BY_IDENTITY),
        (ALLOW, ALLOW, ALLOW, PolicyVerdict.ALLOWED),
        (ALLOW, OTHER, OTHER, PolicyVerdict.NOT_BY_BOUNDARY),
        (ALLOW, ALLOW, OTHER, PolicyVerdict.NOT_BY_SESSION),
        (ALLOW, OTHER, DENY, PolicyVerdict.DENIED_BY_SESSION),
        (DENY, DENY, DENY, PolicyVerdict.DENIED_BY_IDENTITY),
    ],
)
def test_a_boundary_and_session_policies_limit_what_identity_policies_allow(
    who: tuple[PolicyPrincipal, Names], identity: str | None, boundary: str | None, session: str | None, expected: PolicyVerdict
) -> None:
    assert verdict(who, identity, boundary, session) is expected


@pytest.mark.parametrize(
    ("who", "principal", "limits", "expected"),
    [
        # AWS's table: an allow for the user or for the session itself is not limited by an implicit deny
        (AS_USER, {"AWS": USER}, OTHER, PolicyVerdict.ALLOWED),
        (AS_USER, {"AWS": "AIDAANN"}, OTHER, PolicyVerdict.ALLOWED),
        (AS_USER, "*", OTHER, PolicyVerdict.ALLOWED),
        (AS_USER, {"AWS": "*"}, OTHER, PolicyVerdict.ALLOWED),
        (AS_SESSION, {"AWS": SESSION}, OTHER, PolicyVerdict.ALLOWED),
        (AS_SESSION, "*", OTHER, PolicyVerdict.ALLOWED),
        # an allow for the role is limited by the boundary and by session policies, but needs no identity-based policy
        (AS_SESSION, {"AWS": ROLE}, "none", PolicyVerdict.ALLOWED),
        (AS_SESSION, {"AWS": ROLE}, ALLOW, PolicyVerdict.ALLOWED),
        (AS_SESSION, {"AWS": ROLE}, OTHER, PolicyVerdict.NOT_BY_BOUNDARY),
        # an allow for the account lets the account decide by its own policies
        (AS_USER, {"AWS": ROOT}, "none", PolicyVerdict.NOT_BY_IDENTITY),
        (AS_USER, {"AWS": ACCOUNT}, "none", PolicyVerdict.NOT_BY_IDENTITY),
        (AS_SESSION, {"AWS": [ROOT, ROLE]}, "none", PolicyVerdict.ALLOWED),
        # others, and services, are not this caller
        (AS_USER, {"AWS": ROLE}, "none", PolicyVerdict.NOT_BY_IDENTITY),
        (AS_USER, {"Service": "s3.amazonaws.com"}, "none", PolicyVerdict.NOT_BY_IDENTITY),
    ],
)
def test_the_name_in_a_resource_policy_decides_how_far_its_allow_reaches(
    who: tuple[PolicyPrincipal, Names], principal: Any, limits: str | None, expected: PolicyVerdict
) -> None:
    assert verdict(who, OTHER, limits, limits, resource_policy(ALLOW, principal)) is expected


@pytest.mark.parametrize("principal", ["*", {"AWS": ROOT}, {"AWS": ACCOUNT}, {"AWS": USER}])
def test_a_deny_of_a_resource_policy_wins(principal: Any) -> None:
    assert verdict(AS_USER, ALLOW, resource=resource_policy(DENY, principal)) is PolicyVerdict.DENIED_BY_RESOURCE
    assert verdict(AS_USER, ALLOW, resource=resource_policy(DENY, {"AWS": ROLE})) is PolicyVerdict.ALLOWED


@pytest.mark.parametrize("layers", [(DENY, "none", "none"), (ALLOW, DENY, "none"), (ALLOW, "none", DENY)])
def test_a_deny_wins_over_the_allow_of_a_resource_policy(layers: tuple[Any, Any, Any]) -> None:
    assert verdict(AS_USER, *layers, resource=resource_policy(ALLOW, {"AWS": USER})).is_explicit


def test_a_trust_policy_must_allow_the_caller() -> None:
    assert verdict(AS_USER, ALLOW, is_trust=True) is PolicyVerdict.NOT_BY_RESOURCE
    assert verdict(AS_USER, ALLOW, resource=resource_policy(ALLOW, {"AWS": ROLE}), is_trust=True) is PolicyVerdict.NOT_BY_RESOURCE
    assert verdict(AS_USER, OTHER, resource=resource_policy(ALLOW, {"AWS": ROOT}), is_trust=True) is PolicyVerdict.NOT_BY_IDENTITY
    assert verdict(AS_USER, ALLOW, resource=resource_policy(ALLOW, {"AWS": ROOT}), is_trust=True) is PolicyVerdict.ALLOWED
    assert verdict(AS_USER, OTHER, resource=resource_policy(ALLOW, {"AWS": USER}), is_trust=True) is PolicyVerdict.ALLOWED


def test_a_resource_policy_without_a_principal_has_no_effect() -> None:
    without = read_policy(json.dumps({"Version": "2012-10-17", "Statement": {"Effect": ALLOW, "Action": "*", "Resource": "*"}}))
    assert verdict(AS_USER, OTHER, resource=without) is PolicyVerdict.NOT_BY_IDENTITY
