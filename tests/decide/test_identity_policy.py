"""Policies of roles: several of them together, resources that are not known, and permissions boundaries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.policies.policy import (
    NO_RESOURCE,
    UNKNOWN_RESOURCE,
    AccessRequest,
    IdentityPolicies,
    PolicyDecision,
    PolicyError,
    PolicyPrincipal,
    check_identity_policy,
    evaluate_identity,
    read_policy,
)

ROLE = PolicyPrincipal("AWS", ("arn:aws:iam::123456789012:role/train",))
OBJECT = "arn:aws:s3:::photos/a/b"
ALLOWED, DENIED, NO_MATCH = PolicyDecision.ALLOWED, PolicyDecision.DENIED, PolicyDecision.NO_MATCH
OUTSIDE = PolicyDecision.OUTSIDE_BOUNDARY

ACTIONS = ("s3:GetObject", "s3:PutObject", "sqs:SendMessage", "ecs:RunTask")
RESOURCES = (OBJECT, "arn:aws:s3:::photos/c", "arn:aws:sqs:us-east-1:123456789012:jobs", NO_RESOURCE, UNKNOWN_RESOURCE)


def statement(effect: str = "Allow", action: Any = "*", resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": effect, "Action": action, "Resource": resource, **more}


def policy(*statements: dict[str, Any]) -> Any:
    return read_policy(json.dumps({"Version": "2012-10-17", "Statement": list(statements)}))


def decide(policies: list[Any], action: str = "s3:GetObject", resource: str = OBJECT, boundary: Any = None) -> PolicyDecision:
    request = AccessRequest(ROLE, action, resource, {"aws:username": ("a",)})
    return evaluate_identity(IdentityPolicies(tuple(policies), boundary), request)


@pytest.mark.parametrize(
    ("policies", "decision"),
    [
        ([], NO_MATCH),
        ([policy(statement())], ALLOWED),
        ([policy(statement(action="sqs:*")), policy(statement(action="s3:Get*"))], ALLOWED),
        ([policy(statement(action="sqs:*")), policy(statement(action="s3:Put*"))], NO_MATCH),
        ([policy(statement()), policy(statement("Deny", "s3:*", "arn:aws:s3:::photos/*"))], DENIED),
        ([policy(statement("Deny")), policy(statement())], DENIED),
        ([policy(statement()), policy(statement("Deny", "s3:*", "arn:aws:s3:::other/*"))], ALLOWED),
        ([policy(statement(resource="arn:aws:s3:::photos/${aws:username}/*"))], ALLOWED),
        ([policy(statement(resource="arn:aws:s3:::photos/${aws:userid}/*"))], NO_MATCH),
        ([policy({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})], ALLOWED),
        ([policy({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"})], NO_MATCH),
        ([policy({"Effect": "Deny", "Action": "*", "NotResource": "arn:aws:s3:::photos/*"}), policy(statement())], ALLOWED),
        ([policy({"Effect": "Deny", "Action": "*", "NotResource": "arn:aws:s3:::other/*"}), policy(statement())], DENIED),
        ([policy(statement(Condition={"StringEquals": {"aws:username": "b"}}))], NO_MATCH),
    ],
)
def test_policies_are_joined_and_a_deny_wins(policies: list[Any], decision: PolicyDecision) -> None:
    assert decide(policies) is decision


@pytest.mark.parametrize(
    ("allows", "decision"),
    [("*", ALLOWED), ("arn:aws:s3:::*", NO_MATCH), ("arn:aws:s3:::photos/*", NO_MATCH), (["arn:aws:s3:::x", "*"], ALLOWED)],
)
@pytest.mark.parametrize("resource", [NO_RESOURCE, UNKNOWN_RESOURCE])
def test_an_operation_without_a_resource_needs_the_resource_star(allows: Any, decision: PolicyDecision, resource: str) -> None:
    assert decide([policy(statement(resource=allows))], resource=resource) is decision


def test_a_deny_of_some_resource_covers_a_resource_that_is_not_known() -> None:
    denied = [policy(statement()), policy(statement("Deny", resource="arn:aws:s3:::secret/*"))]
    assert decide(denied, resource=NO_RESOURCE) is ALLOWED
    assert decide(denied, resource=UNKNOWN_RESOURCE) is DENIED
    all_but_one = policy({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::secret/*"})
    assert decide([all_but_one], resource=UNKNOWN_RESOURCE) is NO_MATCH


@pytest.mark.parametrize(
    ("boundary", "decision"),
    [
        (policy(statement()), ALLOWED),
        (policy(statement(action="s3:GetObject")), ALLOWED),
        (policy(statement(action="sqs:*")), OUTSIDE),
        (policy(statement(), statement("Deny", "s3:Get*")), DENIED),
    ],
)
def test_a_boundary_limits_and_allows_nothing_by_itself(boundary: Any, decision: PolicyDecision) -> None:
    assert decide([policy(statement(action="s3:*"))], boundary=boundary) is decision
    assert decide([], boundary=boundary) in (NO_MATCH, DENIED)


@pytest.mark.parametrize(
    "document",
    [
        {"Statement": [{"Effect": "Allow", "Action": "*"}]},
        {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*", "Principal": "*"}]},
    ],
)
def test_the_policy_of_a_role_has_resources_and_no_principal(document: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        check_identity_policy(read_policy(json.dumps(document)))


patterns = st.sampled_from(["*", "s3:*", "s3:GetObject", "S3:getobject", "sqs:Send*", "ecs:RunTask", "iam:*"])
resources = st.sampled_from(["*", "arn:aws:s3:::*", OBJECT, "arn:aws:sqs:*:*:jobs", "arn:aws:s3:::photos/?"])
statements = st.builds(statement, st.sampled_from(["Allow", "Deny"]), patterns, resources)
policies = st.lists(st.lists(statements, min_size=1, max_size=3).map(lambda each: policy(*each)), max_size=3)
requests = (st.sampled_from(ACTIONS), st.sampled_from(RESOURCES))


@given(policies, *requests)
def test_a_matching_deny_always_wins(policies: list[Any], action: str, resource: str) -> None:
    for at in range(len(policies) + 1):
        for denial in (statement("Deny"), statement("Deny", action), statement("Deny", action.partition(":")[0] + ":*")):
            assert decide([*policies[:at], policy(denial), *policies[at:]], action, resource) is DENIED


@given(policies, *requests, st.randoms())
def test_the_order_of_policies_does_not_matter_and_nothing_is_allowed_without_an_allow(
    policies: list[Any], action: str, resource: str, random: Any
) -> None:
    decision = decide(policies, action, resource)
    shuffled = list(policies)
    random.shuffle(shuffled)
    assert decide(shuffled, action, resource) is decision
    without = [each for each in policies if not any(statement.allows for statement in each.statements)]
    assert decide(without, action, resource) is not ALLOWED
