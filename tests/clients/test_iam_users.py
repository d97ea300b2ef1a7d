"""Users, groups and access keys of IAM."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError


@pytest.fixture
def iam(client) -> Any:
    return client("iam")


def client_of(corral: Any, key: dict[str, str], service: str, **options: Any) -> Any:
    """A client that signs its requests with the access key of a user."""
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    return boto3.client(service, endpoint_url=corral.url, region_name="us-east-1", **keys, **options)


def test_a_user_has_two_keys_and_may_do_nothing_without_a_policy(corral, iam):
    made = iam.create_user(UserName="ann", Path="/lab/", Tags=[{"Key": "team", "Value": "ml"}])["User"]
    assert made["Arn"] == "arn:aws:iam::123456789012:user/lab/ann" and made["UserId"].startswith("AIDA")
    assert iam.get_user(UserName="ann")["User"] == made
    assert iam.get_user()["User"]["Arn"] == "arn:aws:iam::123456789012:root"
    with pytest.raises(iam.exceptions.EntityAlreadyExistsException, match="User with name ann already exists"):
        iam.create_user(UserName="ann")
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    assert (key["UserName"], key["Status"], len(key["AccessKeyId"]), len(key["SecretAccessKey"])) == ("ann", "Active", 20, 40)
    iam.create_access_key(UserName="ann")
    with pytest.raises(iam.exceptions.LimitExceededException, match="Cannot exceed quota for AccessKeysPerUser: 2"):
        iam.create_access_key(UserName="ann")
    with pytest.raises(ClientError, match="user/lab/ann is not authorized to perform: s3:ListAllMyBuckets") as refused:
        client_of(corral, key, "s3").list_buckets()
    assert refused.value.response["Error"]["Code"] == "AccessDenied"
    with pytest.raises(ClientError, match=r"to perform: ecs:RunTask on resource: .* because no identity-based policy"):
        client_of(corral, key, "ecs").run_task(taskDefinition="x")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client_of(corral, {**key, "SecretAccessKey": "x" * 40}, "sqs").list_queues()
