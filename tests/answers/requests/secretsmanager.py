"""Requests of Secrets Manager."""

from __future__ import annotations

import json

from answers.calls import OTHER, SAME, Calls

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "secretsmanager:DeleteSecret", "Resource": "*"}],
    }
)
ONE = {"SecretId": "answers"}


def requests(calls: Calls) -> None:
    given = {"Name": "answers", "SecretString": "a", "Description": "d", "Tags": [{"Key": "a", "Value": "b"}]}
    calls.twice("CreateSecret", "ResourceExistsException", **given)
    calls("DescribeSecret", **ONE)
    calls("ListSecrets")
    many = [{"Key": f"k{number}", "Value": ""} for number in range(51)]
    calls.refused("CreateSecret", "LimitExceededException", Name="many", SecretString="a", Tags=many)
    calls("CreateSecret", Name="partner", Type="a", SecretString="a")
    calls("DescribeSecret", SecretId="partner")
    version = calls("GetSecretValue", **ONE)["VersionId"]
    calls("CreateSecret", Name="binary", SecretBinary=b"a", KmsKeyId="alias/a")
    calls("BatchGetSecretValue", SecretIdList=["answers", "none", "binary"])
    calls.twice("UpdateSecret", SAME, **ONE, Description="e")
    new = calls.twice("PutSecretValue", OTHER, **ONE, SecretString="b")["VersionId"]
    calls("PutSecretValue", **ONE, SecretBinary=b"b")
    calls("GetSecretValue", **ONE)
    calls("ListSecretVersionIds", **ONE, IncludeDeprecated=True)
    staged = {"VersionStage": "mine", "MoveToVersionId": new}
    calls.twice("UpdateSecretVersionStage", SAME, **ONE, **staged)
    for number in range(17):
        calls("UpdateSecretVersionStage", **ONE, VersionStage=f"mine{number}", MoveToVersionId=new)
    more = {"VersionStage": "more", "MoveToVersionId": new}
    calls.refused("UpdateSecretVersionStage", "LimitExceededException", **ONE, **more)
    for number in range(17):
        calls("UpdateSecretVersionStage", **ONE, VersionStage=f"mine{number}", RemoveFromVersionId=new)
    calls.twice("TagResource", SAME, **ONE, Tags=[{"Key": "c", "Value": "d"}])
    calls.twice("UntagResource", SAME, **ONE, TagKeys=["c"])
    calls.twice("PutResourcePolicy", SAME, **ONE, ResourcePolicy=POLICY)
    calls("GetResourcePolicy", **ONE)
    calls("ValidateResourcePolicy", ResourcePolicy=POLICY)
    calls.twice("DeleteResourcePolicy", SAME, **ONE)
    function = calls.arn("function:a", service="lambda")
    rotation = {"RotationLambdaARN": function, "RotationRules": {"AutomaticallyAfterDays": 30}, "RotateImmediately": False}
    calls.twice("RotateSecret", SAME, **ONE, **rotation)
    calls("DescribeSecret", **ONE)
    calls("ListSecrets")
    scheduled = {"ScheduleExpression": "rate(10 days)", "Duration": "3h"}
    calls("RotateSecret", SecretId="binary", RotationLambdaARN=function, RotationRules=scheduled)
    calls("DescribeSecret", SecretId="binary")
    calls.twice("CancelRotateSecret", SAME, **ONE)
    calls.refused("RotateSecret", "ResourceNotFoundException", SecretId="none", **rotation)
    calls("ListResourcePolicies", **ONE)
    calls.twice("GetRandomPassword", OTHER)
    refusals(calls, version)
    calls.twice("DeleteSecret", "InvalidRequestException", **ONE)
    calls.twice("RestoreSecret", SAME, **ONE)


def refusals(calls: Calls, version: str) -> None:
    none = {"SecretId": "none", "SecretString": "a", "VersionStage": "a", "ResourcePolicy": POLICY}
    calls.all_refused("ResourceNotFoundException", "*", "ValidateResourcePolicy RotateSecret BatchGet* CreateSecret", **none)
    calls.refused("GetSecretValue", "ResourceNotFoundException", **ONE, VersionId="0" * 32)
    again = {"ClientRequestToken": version, "SecretString": "c"}
    calls.refused("PutSecretValue", "ResourceExistsException", **ONE, **again)
    calls.all_refused("InvalidNextTokenException", "*", "BatchGet*", **ONE, NextToken="none")
