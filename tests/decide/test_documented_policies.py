"""Example policies of AWS's documentation, each with requests that it allows, denies or does not concern."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from corral.decide.policies.conditions import Context
from corral.decide.policies.evaluation import Names, PolicyLayers, PolicySet, PolicyVerdict, decide, evaluate_resource
from corral.decide.policies.policy import AccessRequest, PolicyDecision, PolicyPrincipal, read_policy

ACCOUNT = "123456789012"
ANN = f"arn:aws:iam::{ACCOUNT}:user/ann"
USER = PolicyPrincipal("AWS", (ANN, "AIDAANN", f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT))
NAMES = Names((ANN, "AIDAANN"))
EC2, IAM = f"arn:aws:ec2:us-east-1:{ACCOUNT}", f"arn:aws:iam::{ACCOUNT}"
ALLOWED, DENIED, NO_MATCH = PolicyDecision.ALLOWED, PolicyDecision.DENIED, PolicyDecision.NO_MATCH
YES, NO, REFUSED = ALLOWED, NO_MATCH, DENIED

# Identity-based policies: statements as (effect, actions, resources, condition). "!" before an element: NotAction, NotResource
Statement = tuple[Any, ...]
Case = tuple[str, str, Mapping[str, Any], PolicyDecision]
IDENTITY: Mapping[str, tuple[Sequence[Statement], Sequence[Case]]] = {
    "access within dates": (
        [("Allow", "service:action", "*", {"DateGreaterThan": {"aws:CurrentTime": "2020-04-01T00:00:00Z"},
                                           "DateLessThan": {"aws:CurrentTime": "2020-06-30T23:59:59Z"}})],
        [("service:action", "*", {"aws:CurrentTime": "2020-05-01T12:00:00Z"}, YES),
         ("service:action", "*", {"aws:CurrentTime": "2020-04-01T00:00:00Z"}, NO),
         ("service:action", "*", {"aws:CurrentTime": "2020-06-30T23:59:58Z"}, YES),
         ("service:action", "*", {"aws:CurrentTime": "2020-07-01T00:00:00Z"}, NO),
         ("service:action", "*", {"aws:CurrentTime": "2020-05-01T02:00:00+02:00"}, YES),
         ("service:action", "*", {}, NO)],
    ),
    "regions": (
        [("Deny", "!cloudfront:* iam:* organizations:* route53:* support:*", "*",
          {"StringNotEquals": {"aws:RequestedRegion": ["eu-central-1", "eu-west-1"]}}), ("Allow", "*", "*")],
        [("ec2:RunInstances", f"{EC2}:instance/i-1", {"aws:RequestedRegion": "eu-west-1"}, YES),
         ("ec2:RunInstances", f"{EC2}:instance/i-1", {"aws:RequestedRegion": "us-east-1"}, REFUSED),
         ("iam:CreateUser", ANN, {"aws:RequestedRegion": "us-east-1"}, YES),
         ("s3:GetObject", "arn:aws:s3:::b/k", {}, REFUSED)],
    ),
    "source address": (
        [("Deny", "*", "*", {"NotIpAddress": {"aws:SourceIp": ["192.0.2.0/24", "203.0.113.0/24"]},
                             "Bool": {"aws:ViaAWSService": "false"}}), ("Allow", "s3:*", "*")],
        [("s3:GetObject", "*", {"aws:SourceIp": "192.0.2.17", "aws:ViaAWSService": "false"}, YES),
         ("s3:GetObject", "*", {"aws:SourceIp": "198.51.100.1", "aws:ViaAWSService": "false"}, REFUSED),
         ("s3:GetObject", "*", {"aws:SourceIp": "198.51.100.1", "aws:ViaAWSService": "true"}, YES),
         ("s3:GetObject", "*", {"aws:ViaAWSService": "false"}, REFUSED),
         ("s3:GetObject", "*", {"aws:SourceIp": "2001:db8::1", "aws:ViaAWSService": "false"}, REFUSED)],
    ),
    "home folder": (
        [("Allow", "s3:ListBucket", "arn:aws:s3:::company", {"StringLike": {"s3:prefix": ["", "home/", "home/${aws:username}/*"]}}),
         ("Allow", "s3:*", "arn:aws:s3:::company/home/${aws:username} arn:aws:s3:::company/home/${aws:username}/*")],
        [("s3:ListBucket", "arn:aws:s3:::company", {"s3:prefix": "", "aws:username": "ann"}, YES),
         ("s3:ListBucket", "arn:aws:s3:::company", {"s3:prefix": "home/ann/x", "aws:username": "ann"}, YES),
         ("s3:ListBucket", "arn:aws:s3:::company", {"s3:prefix": "home/bob/", "aws:username": "ann"}, NO),
         ("s3:ListBucket", "arn:aws:s3:::company", {"aws:username": "ann"}, NO),
         ("s3:GetObject", "arn:aws:s3:::company/home/ann/a", {"aws:username": "ann"}, YES),
         ("s3:PutObject", "arn:aws:s3:::company/home/bob/a", {"aws:username": "ann"}, NO),
         ("s3:GetObject", "arn:aws:s3:::company/home/ann", {}, NO),
         ("s3:GetObject", "arn:aws:s3:::company/home/x/a", {"aws:username": "*"}, NO)],
    ),
    "only one bucket": (
        [("Allow", "s3:ListBucket", "arn:aws:s3:::bucket"), ("Allow", "s3:GetObject s3:PutObject", "arn:aws:s3:::bucket/*")],
        [("s3:ListBucket", "arn:aws:s3:::bucket", {}, YES), ("s3:ListBucket", "arn:aws:s3:::bucket2", {}, NO),
         ("s3:PutObject", "arn:aws:s3:::bucket/a/b/c", {}, YES), ("s3:PutObject", "arn:aws:s3:::bucket", {}, NO),
         ("s3:DeleteObject", "arn:aws:s3:::bucket/a", {}, NO), ("S3:getobject", "arn:aws:s3:::bucket/a", {}, YES),
         ("s3:GetObject", "arn:aws:s3:::Bucket/a", {}, NO)],
    ),
    "deny outside a bucket": (
        [("Allow", "s3:*", "arn:aws:s3:::bucket arn:aws:s3:::bucket/*"),
         ("Deny", "!s3:*", "!arn:aws:s3:::bucket arn:aws:s3:::bucket/*")],
        [("s3:GetObject", "arn:aws:s3:::bucket/a", {}, YES), ("s3:GetObject", "arn:aws:s3:::other/a", {}, NO),
         ("ec2:RunInstances", f"{EC2}:instance/i", {}, REFUSED), ("sqs:ListQueues", "*", {}, REFUSED)],
    ),
    "multi-factor authentication": (
        [("Allow", "iam:*", "*"), ("Deny", "!iam:ListMFADevices iam:EnableMFADevice sts:GetSessionToken", "*",
                                   {"BoolIfExists": {"aws:MultiFactorAuthPresent": "false"}})],
        [("iam:CreateUser", ANN, {"aws:MultiFactorAuthPresent": "true"}, YES),
         ("iam:CreateUser", ANN, {"aws:MultiFactorAuthPresent": "false"}, REFUSED),
         ("iam:CreateUser", ANN, {}, REFUSED), ("iam:EnableMFADevice", ANN, {}, YES)],
    ),
    "age of the authentication": (
        [("Allow", "ec2:*", "*", {"NumericLessThan": {"aws:MultiFactorAuthAge": "3600"}})],
        [("ec2:StopInstances", "*", {"aws:MultiFactorAuthAge": "100"}, YES),
         ("ec2:StopInstances", "*", {"aws:MultiFactorAuthAge": "3600"}, NO),
         ("ec2:StopInstances", "*", {"aws:MultiFactorAuthAge": "many"}, NO), ("ec2:StopInstances", "*", {}, NO)],
    ),
    "instances by tag": (
        [("Allow", "ec2:StartInstances ec2:StopInstances", "arn:aws:ec2:*:*:instance/*",
          {"StringEquals": {"aws:ResourceTag/Owner": "${aws:username}"}}), ("Allow", "ec2:DescribeInstances", "*")],
        [("ec2:StartInstances", f"{EC2}:instance/i-1", {"aws:ResourceTag/Owner": "ann", "aws:username": "ann"}, YES),
         ("ec2:StartInstances", f"{EC2}:instance/i-1", {"aws:ResourceTag/Owner": "bob", "aws:username": "ann"}, NO),
         ("ec2:StartInstances", f"{EC2}:instance/i-1", {"aws:username": "ann"}, NO),
         ("ec2:DescribeInstances", "*", {}, YES), ("ec2:TerminateInstances", f"{EC2}:instance/i-1", {}, NO)],
    ),
    "matching tags of principal and resource": (
        [("Allow", "ec2:StopInstances", "*", {"StringEquals": {"aws:ResourceTag/CostCenter": "${aws:PrincipalTag/CostCenter}"}})],
        [("ec2:StopInstances", "*", {"aws:ResourceTag/CostCenter": "7", "aws:PrincipalTag/CostCenter": "7"}, YES),
         ("ec2:StopInstances", "*", {"aws:ResourceTag/CostCenter": "7", "aws:PrincipalTag/CostCenter": "8"}, NO),
         ("ec2:StopInstances", "*", {"aws:ResourceTag/CostCenter": "7"}, NO),
         ("ec2:StopInstances", "*", {"aws:ResourceTag/CostCenter": "${aws:PrincipalTag/CostCenter}"}, YES)],
    ),
    "tags on creation": (
        [("Allow", "secretsmanager:CreateSecret", "*", {"StringEquals": {"aws:RequestTag/Project": "${aws:PrincipalTag/Project}"},
                                                        "ForAllValues:StringEquals": {"aws:TagKeys": ["Project", "Stage"]}})],
        [("secretsmanager:CreateSecret", "*", {"aws:RequestTag/Project": "x", "aws:PrincipalTag/Project": "x",
                                               "aws:TagKeys": ["Project"]}, YES),
         ("secretsmanager:CreateSecret", "*", {"aws:RequestTag/Project": "x", "aws:PrincipalTag/Project": "x",
                                               "aws:TagKeys": ["Project", "Stage"]}, YES),
         ("secretsmanager:CreateSecret", "*", {"aws:RequestTag/Project": "x", "aws:PrincipalTag/Project": "x",
                                               "aws:TagKeys": ["Project", "Other"]}, NO),
         ("secretsmanager:CreateSecret", "*", {"aws:PrincipalTag/Project": "x"}, NO)],
    ),
    "all tag keys in a list, if there are any": (
        [("Allow", "ec2:CreateTags", "*", {"ForAllValues:StringEquals": {"aws:TagKeys": ["environment", "cost"]}})],
        [("ec2:CreateTags", "*", {"aws:TagKeys": ["environment"]}, YES), ("ec2:CreateTags", "*", {}, YES),
         ("ec2:CreateTags", "*", {"aws:TagKeys": ["Environment"]}, NO),
         ("ec2:CreateTags", "*", {"aws:TagKeys": ["cost", "x"]}, NO)],
    ),
    "at least one tag key of a list": (
        [("Allow", "ec2:CreateTags", "*", {"ForAnyValue:StringEquals": {"aws:TagKeys": ["environment", "cost"]}})],
        [("ec2:CreateTags", "*", {"aws:TagKeys": ["x", "cost"]}, YES), ("ec2:CreateTags", "*", {"aws:TagKeys": ["x"]}, NO),
         ("ec2:CreateTags", "*", {}, NO)],
    ),
    "requested attributes of a table": (
        [("Allow", "dynamodb:GetItem", "*", {"ForAllValues:StringLike": {"dynamodb:Attributes": ["ID", "Post*"]}}),
         ("Deny", "dynamodb:GetItem", "*", {"ForAnyValue:StringEquals": {"dynamodb:Attributes": ["PostSecret"]}})],
        [("dynamodb:GetItem", "*", {"dynamodb:Attributes": ["ID", "PostDate"]}, YES),
         ("dynamodb:GetItem", "*", {"dynamodb:Attributes": ["ID", "Other"]}, NO),
         ("dynamodb:GetItem", "*", {"dynamodb:Attributes": ["ID", "PostSecret"]}, REFUSED)],
    ),
    "pass some roles to one service": (
        [("Allow", "iam:PassRole", f"{IAM}:role/train-*", {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}})],
        [("iam:PassRole", f"{IAM}:role/train-1", {"iam:PassedToService": "ecs-tasks.amazonaws.com"}, YES),
         ("iam:PassRole", f"{IAM}:role/train-1", {"iam:PassedToService": "lambda.amazonaws.com"}, NO),
         ("iam:PassRole", f"{IAM}:role/admin", {"iam:PassedToService": "ecs-tasks.amazonaws.com"}, NO)],
    ),
    "own access keys": (
        [("Allow", "iam:*AccessKey*", f"{IAM}:user/${{aws:username}}")],
        [("iam:CreateAccessKey", f"{IAM}:user/ann", {"aws:username": "ann"}, YES),
         ("iam:ListAccessKeys", f"{IAM}:user/ann", {"aws:username": "ann"}, YES),
         ("iam:CreateAccessKey", f"{IAM}:user/bob", {"aws:username": "ann"}, NO),
         ("iam:CreateUser", f"{IAM}:user/ann", {"aws:username": "ann"}, NO)],
    ),
    "users under a path": (
        [("Allow", "iam:*User", f"{IAM}:user/lab/*")],
        [("iam:CreateUser", f"{IAM}:user/lab/ann", {}, YES), ("iam:DeleteUser", f"{IAM}:user/lab/x/ann", {}, YES),
         ("iam:CreateUser", f"{IAM}:user/ann", {}, NO), ("iam:ListUsers", f"{IAM}:user/lab/ann", {}, NO)],
    ),
    "boundary must be attached": (
        [("Allow", "iam:CreateRole", "*", {"ArnEquals": {"iam:PermissionsBoundary": f"{IAM}:policy/limit"}})],
        [("iam:CreateRole", "*", {"iam:PermissionsBoundary": f"{IAM}:policy/limit"}, YES),
         ("iam:CreateRole", "*", {"iam:PermissionsBoundary": f"{IAM}:policy/other"}, NO), ("iam:CreateRole", "*", {}, NO)],
    ),
    "key exists": (
        [("Allow", "ec2:*", "*", {"Null": {"aws:TokenIssueTime": "true"}}),
         ("Deny", "ec2:Terminate*", "*", {"Null": {"x:y": "false"}})],
        [("ec2:RunInstances", "*", {}, YES), ("ec2:RunInstances", "*", {"aws:TokenIssueTime": "2020-01-01T00:00:00Z"}, NO),
         ("ec2:TerminateInstances", "*", {"x:y": "z"}, REFUSED), ("ec2:TerminateInstances", "*", {}, YES)],
    ),
    "if the key exists": (
        [("Allow", "ec2:RunInstances", "*", {"StringLikeIfExists": {"ec2:InstanceType": ["t3.*", "p5.*"]}})],
        [("ec2:RunInstances", f"{EC2}:instance/*", {"ec2:InstanceType": "t3.large"}, YES),
         ("ec2:RunInstances", f"{EC2}:instance/*", {"ec2:InstanceType": "m5.large"}, NO),
         ("ec2:RunInstances", f"{EC2}:image/x", {}, YES)],
    ),
    "negated operators": (
        [("Allow", "a:*", "*", {"StringNotLike": {"k:name": ["dev-*", "test-*"]}, "NumericNotEquals": {"k:count": "3"}})],
        [("a:b", "*", {"k:name": "prod-1", "k:count": "4"}, YES), ("a:b", "*", {"k:name": "test-1", "k:count": "4"}, NO),
         ("a:b", "*", {"k:name": "prod-1", "k:count": "3.0"}, NO), ("a:b", "*", {}, YES)],
    ),
    "operators for numbers": (
        [("Allow", "s3:ListBucket", "*", {"NumericLessThanEquals": {"s3:max-keys": "10"},
            "NumericGreaterThanEquals": {"s3:max-keys": 2}})],
        [("s3:ListBucket", "*", {"s3:max-keys": "10"}, YES), ("s3:ListBucket", "*", {"s3:max-keys": "11"}, NO),
         ("s3:ListBucket", "*", {"s3:max-keys": "2"}, YES), ("s3:ListBucket", "*", {"s3:max-keys": "1"}, NO)],
    ),
    "texts without their case": (
        [("Allow", "a:*", "*", {"StringEqualsIgnoreCase": {"k:dept": "Finance"},
            "StringNotEqualsIgnoreCase": {"k:job": "INTERN"}})],
        [("a:b", "*", {"k:dept": "FINANCE", "k:job": "lead"}, YES), ("a:b", "*", {"k:dept": "finance", "k:job": "Intern"}, NO),
         ("a:b", "*", {"k:dept": "ops"}, NO)],
    ),
    "ARNs part by part": (
        [("Allow", "sns:Publish", "*", {"ArnLike": {"aws:SourceArn": "arn:aws:s3:*:*:photos-?"}})],
        [("sns:Publish", "*", {"aws:SourceArn": "arn:aws:s3:::photos-1"}, YES),
         ("sns:Publish", "*", {"aws:SourceArn": "arn:aws:s3:::x"}, NO),
         ("sns:Publish", "*", {"aws:SourceArn": "photos-1"}, NO)],
    ),
    "binary values": (
        [("Allow", "a:b", "*", {"BinaryEquals": {"k:v": "QmluYXJ5VmFsdWVJbkJhc2U2NA=="}})],
        [("a:b", "*", {"k:v": "QmluYXJ5VmFsdWVJbkJhc2U2NA=="}, YES), ("a:b", "*", {"k:v": "QmluYXJ5"}, NO)],
    ),
    "seconds since 1970": (
        [("Allow", "a:b", "*", {"DateLessThanEquals": {"aws:EpochTime": "1600000000"}})],
        [("a:b", "*", {"aws:EpochTime": "1600000000"}, YES), ("a:b", "*", {"aws:EpochTime": "1600000001"}, NO),
         ("a:b", "*", {"aws:EpochTime": "2020-09-13T12:26:40Z"}, YES)],
    ),
    "characters that are no variables": (
        [("Allow", "s3:GetObject", "arn:aws:s3:::b/${*}/${?}/${$}")],
        [("s3:GetObject", "arn:aws:s3:::b/*/?/$", {}, YES), ("s3:GetObject", "arn:aws:s3:::b/a/b/$", {}, NO)],
    ),
    "default of a variable": (
        [("Allow", "s3:GetObject", "arn:aws:s3:::b/${aws:PrincipalTag/team, 'company-wide'}/*")],
        [("s3:GetObject", "arn:aws:s3:::b/blue/x", {"aws:PrincipalTag/team": "blue"}, YES),
         ("s3:GetObject", "arn:aws:s3:::b/company-wide/x", {}, YES), ("s3:GetObject", "arn:aws:s3:::b/blue/x", {}, NO)],
    ),
    "wildcards in actions": (
        [("Allow", "iam:List* iam:Get*Policy sqs:*Message?", "*")],
        [("iam:ListUsers", "*", {}, YES), ("iam:GetRolePolicy", "*", {}, YES), ("iam:GetRole", "*", {}, NO),
         ("sqs:SendMessages", "*", {}, YES), ("sqs:SendMessage", "*", {}, NO)],
    ),
    "everything except": (
        [("Allow", "!iam:*", "*")],
        [("s3:GetObject", "arn:aws:s3:::b/k", {}, YES), ("iam:GetUser", ANN, {}, NO), ("IAM:GetUser", ANN, {}, NO)],
    ),
    "several keys and operators": (
        [("Allow", "a:*", "*", {"StringEquals": {"k:a": ["1", "2"], "k:b": "3"}, "Bool": {"k:c": "true"}})],
        [("a:b", "*", {"k:a": "2", "k:b": "3", "k:c": "true"}, YES), ("a:b", "*", {"k:a": "2", "k:b": "4", "k:c": "true"}, NO),
         ("a:b", "*", {"k:a": "9", "k:b": "3", "k:c": "true"}, NO), ("a:b", "*", {"k:a": "1", "k:b": "3", "k:c": "false"}, NO),
         ("a:b", "*", {"k:a": "1", "k:b": "3"}, NO)],
    ),
    "none of the values": (
        [("Allow", "a:*", "*", {"ForAllValues:StringNotEquals": {"k:tags": ["secret", "private"]}})],
        [("a:b", "*", {"k:tags": ["x", "y"]}, YES), ("a:b", "*", {"k:tags": ["x", "secret"]}, NO), ("a:b", "*", {}, YES)],
    ),
    "a tunnel is required": (
        [("Allow", "s3:*", "*"), ("Deny", "s3:*", "*", {"Bool": {"aws:SecureTransport": "false"}})],
        [("s3:GetObject", "*", {"aws:SecureTransport": "true"}, YES),
         ("s3:GetObject", "*", {"aws:SecureTransport": "false"}, REFUSED)],
    ),
    "called via a service": (
        [("Allow", "dynamodb:*", "*", {"ForAnyValue:StringEquals": {"aws:CalledVia": ["cloudformation.amazonaws.com"]}})],
        [("dynamodb:PutItem", "*", {"aws:CalledVia": ["athena.amazonaws.com", "cloudformation.amazonaws.com"]}, YES),
         ("dynamodb:PutItem", "*", {"aws:CalledVia": ["athena.amazonaws.com"]}, NO), ("dynamodb:PutItem", "*", {}, NO)],
    ),
}  # fmt: skip

# Policies of resources: (effect, principal, condition), and the callers with the decision
PUBLIC: Mapping[str, Any] = {"AWS": "*"}
RESOURCE: Mapping[str, tuple[Sequence[Statement], Sequence[tuple[PolicyPrincipal, Mapping[str, Any], PolicyDecision]]]] = {
    "everybody may read": (
        [("Allow", "*", None)],
        [(USER, {}, YES), (PolicyPrincipal("AWS", ()), {}, YES), (PolicyPrincipal("Service", ("s3.amazonaws.com",)), {}, YES)],
    ),
    "only from an address": (
        [("Allow", PUBLIC, {"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}, "NotIpAddress": {"aws:SourceIp": "192.0.2.188/32"}})],
        [(PolicyPrincipal("AWS", ()), {"aws:SourceIp": "192.0.2.1"}, YES),
         (PolicyPrincipal("AWS", ()), {"aws:SourceIp": "192.0.2.188"}, NO), (USER, {"aws:SourceIp": "10.0.0.1"}, NO)],
    ),
    "one user": (
        [("Allow", {"AWS": ANN}, None)],
        [(USER, {}, YES), (PolicyPrincipal("AWS", (f"{IAM}:user/bob",)), {}, NO), (PolicyPrincipal("AWS", ()), {}, NO)],
    ),
    "the account": ([("Allow", {"AWS": ACCOUNT}, None)], [(USER, {}, YES), (PolicyPrincipal("AWS", ("x",)), {}, NO)]),
    "all but one": (
        [("Allow", "*", None), ("Deny!", {"AWS": [ANN, f"{IAM}:root"]}, None)],
        [(USER, {}, YES), (PolicyPrincipal("AWS", (f"{IAM}:user/bob",)), {}, REFUSED)],
    ),
    "a service for a bucket": (
        [("Allow", {"Service": "s3.amazonaws.com"}, {"ArnLike": {"aws:SourceArn": "arn:aws:s3:::photos"},
                                                     "StringEquals": {"aws:SourceAccount": ACCOUNT}})],
        [(PolicyPrincipal("Service", ("s3.amazonaws.com",)), {"aws:SourceArn": "arn:aws:s3:::photos",
            "aws:SourceAccount": ACCOUNT}, YES),
         (PolicyPrincipal("Service", ("s3.amazonaws.com",)), {"aws:SourceArn": "arn:aws:s3:::x", "aws:SourceAccount": ACCOUNT}, NO),
         (PolicyPrincipal("Service", ("sns.amazonaws.com",)), {"aws:SourceArn": "arn:aws:s3:::photos",
             "aws:SourceAccount": ACCOUNT}, NO),
         (USER, {"aws:SourceArn": "arn:aws:s3:::photos", "aws:SourceAccount": ACCOUNT}, NO)],
    ),
    "no plain connections": (
        [("Allow", "*", None), ("Deny", "*", {"Bool": {"aws:SecureTransport": "false"}})],
        [(USER, {"aws:SecureTransport": "true"}, YES), (USER, {"aws:SecureTransport": "false"}, REFUSED)],
    ),
    "encryption is required": (
        [("Allow", "*", None), ("Deny", "*", {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}}),
         ("Deny", "*", {"Null": {"s3:x-amz-server-side-encryption": "true"}})],
        [(USER, {"s3:x-amz-server-side-encryption": "aws:kms"}, YES),
         (USER, {"s3:x-amz-server-side-encryption": "AES256"}, REFUSED),
         (USER, {}, REFUSED)],
    ),
}  # fmt: skip


def context_of(given: Mapping[str, Any]) -> Context:
    return {key.lower(): (value,) if isinstance(value, str) else tuple(value) for key, value in given.items()}


def element(name: str, text: str) -> dict[str, Any]:
    return {f"{'Not' if text.startswith('!') else ''}{name}": text.removeprefix("!").replace(", '", ",'").split()}


def identity_policy(statements: Sequence[Statement]) -> PolicySet:
    found = []
    for effect, actions, resources, *condition in statements:
        resource = {"Resource": resources} if "${" in resources and ", '" in resources else element("Resource", resources)
        found.append(
            {"Effect": effect, **element("Action", actions), **resource, **({"Condition": condition[0]} if condition else {})}
        )
    return PolicySet([read_policy(json.dumps({"Version": "2012-10-17", "Statement": found}))])


@pytest.mark.parametrize(
    ("name", "action", "resource", "context", "expected"),
    [(name, *case) for name, (_, cases) in IDENTITY.items() for case in cases],
)
def test_identity_policies(name: str, action: str, resource: str, context: Mapping[str, Any], expected: PolicyDecision) -> None:
    policies, request = identity_policy(IDENTITY[name][0]), AccessRequest(USER, action, resource, context_of(context))
    assert policies.decide(request) is expected
    verdict = decide(PolicyLayers(policies), request, NAMES, None)
    assert (verdict is PolicyVerdict.ALLOWED) is (expected is ALLOWED) and verdict.is_explicit is (expected is DENIED)


@pytest.mark.parametrize(
    ("name", "principal", "context", "expected"), [(name, *case) for name, (_, cases) in RESOURCE.items() for case in cases]
)
def test_resource_policies(name: str, principal: PolicyPrincipal, context: Mapping[str, Any], expected: PolicyDecision) -> None:
    statements = []
    for effect, named, condition in RESOURCE[name][0]:
        member = "NotPrincipal" if effect.endswith("!") else "Principal"
        statement = {"Effect": effect.removesuffix("!"), member: named, "Action": "s3:*", "Resource": "arn:aws:s3:::photos/*"}
        statements.append({**statement, **({"Condition": condition} if condition else {})})
    policy = read_policy(json.dumps({"Version": "2012-10-17", "Statement": statements}))
    request = AccessRequest(principal, "s3:PutObject", "arn:aws:s3:::photos/a", context_of(context))
    assert evaluate_resource(policy, request, NAMES)[0] is expected


def test_there_are_enough_examples() -> None:
    assert sum(len(cases) for _, cases in (*IDENTITY.values(), *RESOURCE.values())) >= 150
