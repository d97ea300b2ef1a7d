"""Requests of STS."""

from __future__ import annotations

from answers.calls import ACCOUNT, OTHER, Calls

ROLE = f"arn:aws:iam::{ACCOUNT}:role/answers"


def requests(calls: Calls) -> None:
    calls("GetCallerIdentity")
    calls("GetAccessKeyInfo", AccessKeyId=calls.corral.keys["access_key"])
    calls.twice("AssumeRole", OTHER, RoleArn=ROLE, RoleSessionName="me", SourceIdentity="me")
    calls.twice("GetSessionToken", OTHER)
    calls.twice("GetFederationToken", OTHER, Name="me")
    tags = [{"Key": f"{number:0100}", "Value": "a" * 200} for number in range(10)]
    calls.refused("GetFederationToken", "PackedPolicyTooLargeException", Name="me", Tags=tags)
    documents = {"MalformedPolicyDocumentException": "{"}
    for code, policy in documents.items():
        calls.refused("AssumeRole", code, RoleArn=ROLE, RoleSessionName="me", Policy=policy)
        calls.refused("GetFederationToken", code, Name="me", Policy=policy)
