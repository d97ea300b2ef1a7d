"""Policies: tables from AWS's documentation of the policy language."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.decide.policies.policy import (
    AccessRequest,
    PolicyDecision,
    PolicyError,
    PolicyPrincipal,
    evaluate,
    is_public,
    read_policy,
    service_principal,
)

QUEUE = "arn:aws:sqs:us-east-1:123456789012:images"
BUCKET = "arn:aws:s3:::photos"
S3 = service_principal("s3.amazonaws.com")
ALICE = PolicyPrincipal("AWS", ("arn:aws:iam::123456789012:user/alice", "arn:aws:iam::123456789012:root"))
CONTEXT = {
    "aws:sourcearn": (BUCKET,),
    "aws:sourceaccount": ("123456789012",),
    "aws:sourceip": ("203.0.113.7",),
    "aws:username": ("alice",),
    "aws:securetransport": ("false",),
    "aws:currenttime": ("2024-06-01T12:00:00Z",),
    "aws:multifactorauthage": ("100",),
    "aws:tagkeys": ("team", "cost"),
    "aws:star": ("a*",),
}


def statement(**members: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": QUEUE, **members}


def policy(*statements: dict[str, Any], version: str = "2012-10-17") -> str:
    return json.dumps({"Version": version, "Statement": list(statements)})


def decide(text: str, principal: PolicyPrincipal = S3, action: str = "sqs:SendMessage", resource: str = QUEUE) -> PolicyDecision:
    return evaluate(read_policy(text), AccessRequest(principal, action, resource, CONTEXT))


ALLOWED, DENIED, NO_MATCH = PolicyDecision.ALLOWED, PolicyDecision.DENIED, PolicyDecision.NO_MATCH


@pytest.mark.parametrize(
    ("members", "decision"),
    [
        ({}, ALLOWED),
        ({"Effect": "Deny"}, DENIED),
        ({"Action": "SQS:SendMessage"}, ALLOWED),
        ({"Action": "sqs:*"}, ALLOWED),
        ({"Action": "*"}, ALLOWED),
        ({"Action": "sqs:Send?essage"}, ALLOWED),
        ({"Action": ["sqs:ReceiveMessage", "sqs:Send*"]}, ALLOWED),
        ({"Action": "sqs:ReceiveMessage"}, NO_MATCH),
        ({"Resource": "*"}, ALLOWED),
        ({"Resource": "arn:aws:sqs:*:123456789012:im*"}, ALLOWED),
        ({"Resource": "arn:aws:sqs:us-east-1:123456789012:image"}, NO_MATCH),
        ({"Resource": "arn:aws:sqs:us-east-1:123456789012:image[s]"}, NO_MATCH),
        ({"Resource": "arn:aws:sqs:us-east-1:123456789012:${aws:username}"}, NO_MATCH),
        ({"Principal": {"AWS": "*"}}, ALLOWED),
        ({"Principal": {"Service": "s3.amazonaws.com"}}, ALLOWED),
        ({"Principal": {"Service": ["sns.amazonaws.com", "s3.amazonaws.com"]}}, ALLOWED),
        ({"Principal": {"Service": "sns.amazonaws.com"}}, NO_MATCH),
        ({"Principal": {"AWS": "123456789012"}}, NO_MATCH),
        ({"Principal": {"AWS": "123456789012", "Service": "s3.amazonaws.com"}}, ALLOWED),
    ],
)
def test_statements_that_match_and_that_do_not(members: dict[str, Any], decision: PolicyDecision) -> None:
    assert decide(policy(statement(**members))) is decision


@pytest.mark.parametrize(
    ("named", "decision"),
    [
        ({"AWS": "123456789012"}, ALLOWED),
        ({"AWS": "arn:aws:iam::123456789012:root"}, ALLOWED),
        ({"AWS": ["arn:aws:iam::123456789012:user/bob", "arn:aws:iam::123456789012:user/alice"]}, ALLOWED),
        ({"AWS": "arn:aws:iam::123456789012:user/bob"}, NO_MATCH),
        ({"AWS": "arn:aws:iam::123456789012:user/*"}, NO_MATCH),  # no patterns in principals
        ({"AWS": "999999999999"}, NO_MATCH),
        ({"Service": "s3.amazonaws.com"}, NO_MATCH),
        ({"CanonicalUser": "arn:aws:iam::123456789012:user/alice"}, NO_MATCH),
    ],
)
def test_principals_of_an_account(named: dict[str, Any], decision: PolicyDecision) -> None:
    assert decide(policy(statement(Principal=named)), ALICE) is decision


def without(members: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {member: value for member, value in members.items() if member not in left_out}


def test_not_action_not_resource_and_not_principal() -> None:
    others = without(statement(NotPrincipal={"AWS": "123456789012"}, Effect="Deny"), "Principal")
    assert decide(policy(statement(), others), ALICE) is ALLOWED
    assert decide(policy(statement(), others), S3) is DENIED
    no_receive = without(statement(NotAction="sqs:Receive*"), "Action")
    assert decide(policy(no_receive)) is ALLOWED
    assert decide(policy(no_receive), action="sqs:ReceiveMessage") is NO_MATCH
    elsewhere = without(statement(NotResource="arn:aws:sqs:*:*:secret*"), "Resource")
    assert decide(policy(elsewhere)) is ALLOWED
    assert decide(policy(elsewhere), resource="arn:aws:sqs:us-east-1:123456789012:secrets") is NO_MATCH


def test_an_explicit_deny_wins_wherever_it_stands() -> None:
    allow, deny = statement(), statement(Effect="Deny", Principal={"Service": "s3.amazonaws.com"})
    assert decide(policy(allow, deny)) is DENIED
    assert decide(policy(deny, allow)) is DENIED
    assert decide(policy(deny, allow), ALICE) is ALLOWED


@pytest.mark.parametrize(
    ("operator", "key", "values", "holds"),
    [
        # The example in S3's documentation of notifications
        ("ArnLike", "aws:SourceArn", "arn:aws:s3:*:*:photos", True),
        ("ArnLike", "aws:SourceArn", "arn:aws:s3:::*", True),
        ("ArnLike", "aws:SourceArn", "arn:aws:s3:::other", False),
        ("ArnLike", "aws:SourceArn", "arn:aws:*", False),  # an ARN has six parts, compared one by one
        ("ArnEquals", "aws:SourceArn", "arn:aws:s3:::pho*", True),
        ("ArnNotEquals", "aws:SourceArn", BUCKET, False),
        ("ArnNotLike", "aws:SourceArn", "arn:aws:s3:::other", True),
        ("StringEquals", "aws:SourceAccount", "123456789012", True),
        ("StringEquals", "AWS:sourceACCOUNT", ["999999999999", "123456789012"], True),
        ("StringEquals", "aws:SourceAccount", "999999999999", False),
        ("StringEquals", "aws:username", "Alice", False),
        ("StringEquals", "aws:username", "al*", False),
        ("StringEqualsIgnoreCase", "aws:username", "Alice", True),
        ("StringNotEqualsIgnoreCase", "aws:username", "Alice", False),
        ("StringNotEquals", "aws:username", ["alice", "bob"], False),
        ("StringNotEquals", "aws:username", ["bob", "carol"], True),
        ("StringLike", "aws:username", "al?c*", True),
        ("StringLike", "aws:username", "a[l]ice", False),
        ("StringNotLike", "aws:username", "a*", False),
        # A key that the request does not have
        ("StringEquals", "aws:missing", "x", False),
        ("StringNotEquals", "aws:missing", "x", True),
        ("ArnNotLike", "aws:missing", "arn:aws:s3:::x", True),
        ("StringEqualsIfExists", "aws:missing", "x", True),
        ("StringEqualsIfExists", "aws:username", "x", False),
        ("Null", "aws:missing", "true", True),
        ("Null", "aws:missing", True, True),
        ("Null", "aws:username", "true", False),
        ("Null", "aws:username", "false", True),
        ("Bool", "aws:SecureTransport", "false", True),
        ("Bool", "aws:SecureTransport", False, True),
        ("Bool", "aws:SecureTransport", "true", False),
        ("NumericEquals", "aws:MultiFactorAuthAge", "100.0", True),
        ("NumericNotEquals", "aws:MultiFactorAuthAge", "100", False),
        ("NumericLessThan", "aws:MultiFactorAuthAge", 101, True),
        ("NumericLessThan", "aws:MultiFactorAuthAge", 100, False),
        ("NumericLessThanEquals", "aws:MultiFactorAuthAge", "100", True),
        ("NumericGreaterThan", "aws:MultiFactorAuthAge", "9", True),
        ("NumericGreaterThanEquals", "aws:MultiFactorAuthAge", "101", False),
        ("NumericEquals", "aws:username", "100", False),
        ("DateGreaterThan", "aws:CurrentTime", "2024-06-01T11:59:59Z", True),
        ("DateGreaterThan", "aws:CurrentTime", "2024-06-01", True),
        ("DateLessThan", "aws:CurrentTime", "2024-06-01T13:30:00+01:00", True),
        ("DateLessThan", "aws:CurrentTime", "2024-06-01T13:00:00+01:00", False),
        ("DateEquals", "aws:CurrentTime", "1717243200", True),
        ("DateNotEquals", "aws:CurrentTime", "2024-13-01T12:00:00Z", True),  # no such month: equal to nothing
        ("DateLessThanEquals", "aws:CurrentTime", "2024-06-01T12:00:00Z", True),
        ("DateGreaterThanEquals", "aws:CurrentTime", "2024-06-02", False),
        ("IpAddress", "aws:SourceIp", "203.0.113.0/24", True),
        ("IpAddress", "aws:SourceIp", "203.0.113.7", True),
        ("IpAddress", "aws:SourceIp", "2001:db8::/32", False),
        ("NotIpAddress", "aws:SourceIp", ["198.51.100.0/24", "203.0.113.0/24"], False),
        ("NotIpAddress", "aws:SourceIp", "198.51.100.0/24", True),
        ("IpAddress", "aws:username", "0.0.0.0/0", False),
        ("BinaryEquals", "aws:username", "alice", True),
        # Several values in the request
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team", "cost", "stage"], True),
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team"], False),
        ("ForAllValues:StringEquals", "aws:missing", ["team"], True),
        ("ForAllValues:StringNotEquals", "aws:TagKeys", ["stage"], True),
        ("ForAllValues:StringNotEquals", "aws:TagKeys", ["stage", "team"], False),
        ("ForAnyValue:StringEquals", "aws:TagKeys", ["team", "stage"], True),
        ("ForAnyValue:StringEquals", "aws:TagKeys", ["stage"], False),
        ("ForAnyValue:StringEquals", "aws:missing", ["stage"], False),
        ("ForAnyValue:StringNotEquals", "aws:TagKeys", ["team"], True),
        ("ForAnyValue:StringNotEquals", "aws:missing", ["team"], False),
        ("ForAnyValue:StringEqualsIfExists", "aws:missing", ["team"], True),
        ("ForAnyValue:StringLike", "aws:TagKeys", "te*", True),
        # Variables
        ("StringEquals", "aws:username", "${aws:username}", True),
        ("StringLike", "aws:username", "${aws:username}", True),
        ("StringLike", "aws:username", "${aws:missing, 'alice'}", True),
        ("StringLike", "aws:username", "${aws:missing}", False),
        ("StringNotLike", "aws:username", "${aws:missing}", True),
        ("StringLike", "aws:star", "a${*}", True),
        ("StringLike", "aws:username", "a${*}", False),
        ("StringLike", "aws:username", "${aws:star}", False),  # a * in a value of the request is no wildcard
        ("StringLike", "aws:username", "a*${aws:missing,'e'}", True),
        ("StringEquals", "aws:username", "${ aws:username }", True),
        ("StringEquals", "aws:username", "${ aws:missing , 'alice' }", True),
        # Texts that are no variables
        ("StringEquals", "aws:username", "${" + " " * 5_000, False),
        ("StringEquals", "aws:username", "${a," + " " * 5_000, False),
        ("StringEquals", "aws:username", "${" * 2_500, False),
    ],
)
def test_conditions(operator: str, key: str, values: Any, holds: bool) -> None:
    text = policy(statement(Condition={operator: {key: values}}))
    assert decide(text) is (ALLOWED if holds else NO_MATCH)


def test_all_operators_and_all_keys_must_hold() -> None:
    good, bad = {"aws:SourceAccount": "123456789012"}, {"aws:SourceAccount": "999999999999"}
    like = {"aws:SourceArn": "arn:aws:s3:*:*:photos"}
    assert decide(policy(statement(Condition={"StringEquals": good, "ArnLike": like}))) is ALLOWED
    assert decide(policy(statement(Condition={"StringEquals": bad, "ArnLike": like}))) is NO_MATCH
    assert decide(policy(statement(Condition={"StringEquals": {**good, "aws:username": "bob"}}))) is NO_MATCH


def test_only_the_newer_version_has_variables() -> None:
    said = statement(Condition={"StringEquals": {"aws:username": "${aws:username}"}})
    assert decide(policy(said)) is ALLOWED
    assert decide(policy(said, version="2008-10-17")) is NO_MATCH


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "valid JSON"),
        ("[]", "valid JSON"),
        ({}, "Statement"),
        ({"Statement": []}, "Statement"),
        ({"Statement": "x"}, "syntax"),
        ({"Statement": ["x"]}, "syntax"),
        ({"Version": "2020-01-01", "Statement": [statement()]}, "version"),
        ({"Statement": [statement()], "Other": 1}, "Unknown field Other"),
        ({"Statement": [statement(Other=1)]}, "Unknown field Other"),
        ({"Statement": [without(statement(), "Effect")]}, "Missing required field Effect"),
        ({"Statement": [statement(Effect="allow")]}, "Invalid effect: allow"),
        ({"Statement": [without(statement(), "Action")]}, "Missing required field Action"),
        ({"Statement": [statement(NotAction="x")]}, "Action and NotAction"),
        ({"Statement": [statement(NotPrincipal="*")]}, "Principal and NotPrincipal"),
        ({"Statement": [statement(Action=[])]}, "invalid action"),
        ({"Statement": [statement(Resource=[1])]}, "invalid resource"),
        ({"Statement": [statement(Principal="alice")]}, "Invalid principal"),
        ({"Statement": [statement(Principal={"User": "alice"})]}, "Invalid principal"),
        ({"Statement": [statement(Condition=[])]}, "Condition"),
        ({"Statement": [statement(Condition={"StringIs": {"a": "b"}})]}, "Invalid Condition type : StringIs"),
        ({"Statement": [statement(Condition={"StringEquals": "b"})]}, "StringEquals"),
        ({"Statement": [statement(Condition={"StringEquals": {"a": [{}]}})]}, "StringEquals"),
        ({"Statement": [statement(Condition={"StringEquals": {"a": []}})]}, "StringEquals"),
    ],
)
def test_an_invalid_policy_is_refused(document: Any, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        read_policy(document if isinstance(document, str) else json.dumps(document))


def test_a_single_statement_needs_no_list() -> None:
    assert decide(json.dumps({"Statement": statement()})) is ALLOWED


def test_a_policy_for_everyone_is_public() -> None:
    assert is_public(read_policy(policy(statement())))
    assert is_public(read_policy(policy(statement(Effect="Deny"), statement(Principal={"AWS": ["123456789012", "*"]}))))
    assert not is_public(read_policy(policy(statement(Effect="Deny"))))
    assert not is_public(read_policy(policy(statement(Principal={"Service": "s3.amazonaws.com"}))))
    assert not is_public(read_policy(policy(statement(Condition={"StringEquals": {"aws:SourceAccount": "123456789012"}}))))
