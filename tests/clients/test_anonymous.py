"""Requests without a signature: they may do what the policy of a bucket allows to everybody."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

STATEMENT = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::open/*"}


@pytest.fixture
def anonymous(corral: Any) -> Any:
    return boto3.client("s3", region_name="us-east-1", endpoint_url=corral.url, config=Config(signature_version=UNSIGNED))


def refused(call: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return error["Code"], error.get("Message", "")


def test_a_bucket_without_a_policy_is_closed(corral: Any, client: Any, anonymous: Any) -> None:
    client("s3").create_bucket(Bucket="closed")
    client("s3").put_object(Bucket="closed", Key="k", Body=b"secret")
    for call, params in (
        (anonymous.get_object, {"Bucket": "closed", "Key": "k"}),
        (anonymous.list_objects_v2, {"Bucket": "closed"}),
        (anonymous.put_object, {"Bucket": "closed", "Key": "k", "Body": b"x" * 2_000_000}),
        (anonymous.delete_object, {"Bucket": "closed", "Key": "k"}),
        (anonymous.get_object, {"Bucket": "missing", "Key": "k"}),
        (anonymous.delete_bucket, {"Bucket": "closed"}),
        (anonymous.create_multipart_upload, {"Bucket": "closed", "Key": "k"}),
        (anonymous.create_bucket, {"Bucket": "other"}),
    ):
        code, message = refused(call, **params)
        assert code == "AccessDenied", params
        assert "User: anonymous is not authorized to perform: s3:" in message or "Anonymous callers may not" in message
    assert refused(anonymous.head_object, Bucket="closed", Key="k")[0] == "403"
    assert client("s3").get_object(Bucket="closed", Key="k")["Body"].read() == b"secret"


@pytest.mark.parametrize("call", ["sqs.list_queues", "ecs.list_tasks", "lambda.list_functions", "sts.get_caller_identity"])
def test_other_services_need_a_signature(corral: Any, call: str) -> None:
    service, name = call.split(".")
    config = Config(signature_version=UNSIGNED)
    without = boto3.client(service, region_name="us-east-1", endpoint_url=corral.url, config=config)
    code = refused(getattr(without, name))[0]
    assert "MissingAuthenticationToken" in code or code == "AccessDenied"


def test_a_public_policy_opens_objects_when_public_access_is_not_blocked(corral: Any, client: Any, anonymous: Any) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="open")
    for key in ("a", "b"):
        s3.put_object(Bucket="open", Key=key, Body=key.encode())
    deletes = {"Effect": "Allow", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::open/a"}
    s3.put_bucket_policy(Bucket="open", Policy=json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT, deletes]}))
    assert refused(anonymous.get_object, Bucket="open", Key="a")[0] == "AccessDenied"  # RestrictPublicBuckets is the default
    s3.delete_public_access_block(Bucket="open")
    assert anonymous.get_object(Bucket="open", Key="a")["Body"].read() == b"a"
    for call, params in (
        (anonymous.put_object, {"Bucket": "open", "Key": "a", "Body": b"x"}),
        (anonymous.list_objects_v2, {"Bucket": "open"}),
        (anonymous.get_object_tagging, {"Bucket": "open", "Key": "a"}),
        (anonymous.copy_object, {"Bucket": "open", "Key": "c", "CopySource": "open/a"}),
    ):
        assert refused(call, **params)[0] == "AccessDenied", params
    assert refused(anonymous.delete_objects, Bucket="open", Delete={"Objects": [{"Key": "b"}]})[0] == "AccessDenied"
    assert refused(anonymous.delete_object, Bucket="open", Key="b")[0] == "AccessDenied"
    anonymous.delete_object(Bucket="open", Key="a")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket="open")["Contents"]] == ["b"]
