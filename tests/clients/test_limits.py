"""Limits of a user as the user meets them: bytes in buckets and in the registry, requests per second, and who sees which limits."""

from __future__ import annotations

import json
import sqlite3
import time
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from corral.store.stored_bytes import SUMS
from harness import SESSION
from raw_registry import Registry, digest_of, new_repository

ANN, MIB = "user/ann", 2**20
ALLOWED = {"Effect": "Allow", "Action": ["s3:*", "ecs:*", "sqs:*"], "Resource": "*"}
OWN_LIMITS = {
    "Effect": "Allow", "Action": "corral:DescribeLimits", "Resource": "*",
    "Condition": {"StringEquals": {"corral:Owner": "${corral:Caller}"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def ann(corral) -> Any:
    """Makes clients of the user ann, who is a member of the group lab."""
    iam = corral.client("iam")
    iam.create_group(GroupName="lab")
    for name in ("ann", "bob"):
        iam.create_user(UserName=name)
        iam.add_user_to_group(UserName=name, GroupName="lab")
    iam.put_user_policy(
        UserName="ann", PolicyName="p", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [ALLOWED, OWN_LIMITS]})
    )
    key = iam.create_access_key(UserName="ann")["AccessKey"]

    def client(service: str) -> Any:
        once = Config(retries={"max_attempts": 0})
        names = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
        return SESSION.client(service, endpoint_url=corral.url, region_name="us-east-1", config=once, **names)

    return client


def refused(call: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**params)
    found = error.value.response["Error"]
    return found["Code"], found["Message"]


def sums(corral: Any, stored: bool) -> dict[str, int]:
    """The bytes of each owner, as they are counted, or computed from the rows."""
    with sqlite3.connect(f"file:{corral.data}/state.db?mode=ro", uri=True) as state:
        return {owner: size for owner, size in state.execute("SELECT * FROM stored_bytes" if stored else SUMS) if size}


def test_stored_bytes_are_counted_and_limited(corral, ann):
    own, s3 = corral.client("corral"), ann("s3")
    s3.create_bucket(Bucket="of-ann")
    own.set_limits(subject=ANN, limits={"storedBytes": 12 * MIB})
    s3.put_object(Bucket="of-ann", Key="a", Body=bytes(4 * MIB))
    s3.copy_object(Bucket="of-ann", Key="b", CopySource={"Bucket": "of-ann", "Key": "a"})
    code, message = refused(s3.put_object, Bucket="of-ann", Key="c", Body=bytes(5 * MIB))
    assert code == "QuotaExceeded" and f"user:ann stores {8 * MIB} bytes, and may store {12 * MIB}" in message
    s3.delete_object(Bucket="of-ann", Key="b")
    upload = {"Bucket": "of-ann", "Key": "d", "UploadId": s3.create_multipart_upload(Bucket="of-ann", Key="d")["UploadId"]}
    for size in (5, 3):
        s3.upload_part(**upload, PartNumber=1, Body=bytes(size * MIB))
    assert sums(corral, stored=True) == sums(corral, stored=False) == {ANN: 7 * MIB}
    assert refused(s3.upload_part, **upload, PartNumber=2, Body=bytes(6 * MIB))[0] == "QuotaExceeded"
    own.set_limits(subject="group/lab", limits={"storedBytes": 9 * MIB})
    copied = {"CopySource": "of-ann/a", "CopySourceRange": f"bytes=0-{4 * MIB - 1}"}
    assert refused(s3.upload_part_copy, **upload, PartNumber=2, **copied)[0] == "QuotaExceeded"
    last = s3.upload_part(**upload, PartNumber=1, Body=bytes(2 * MIB))
    parts = {"Parts": [{"PartNumber": 1, "ETag": last["ETag"]}]}
    s3.complete_multipart_upload(**upload, MultipartUpload=parts)
    own.set_limits(subject=ANN, remove=["storedBytes"])
    assert "group:lab stores" in refused(s3.put_object, Bucket="of-ann", Key="e", Body=bytes(5 * MIB))[1]
    assert refused(s3.copy_object, Bucket="of-ann", Key="e", CopySource="of-ann/a")[0] == "QuotaExceeded"
    own.set_limits(subject="group/lab", remove=["storedBytes"])
    s3.put_object(Bucket="of-ann", Key="e", Body=bytes(5 * MIB))
    assert sums(corral, stored=True) == sums(corral, stored=False) == {ANN: 11 * MIB}


def test_layers_count_for_the_owner_of_their_repository(corral):
    own, images, repository = corral.client("corral"), Registry(corral), new_repository(corral)
    before = sums(corral, stored=True).get("root", 0)
    images.push(repository, bytes(1_000))
    own.set_limits(subject="root", limits={"storedBytes": before + 1_500})
    images.push(repository, bytes(1_000))  # the repository has this layer already
    sent = images("PATCH", images.begin(repository), bytes(1_001))
    denied = images("PUT", f"{sent.headers['location']}?digest={digest_of(bytes(1_001))}")
    assert denied.code == "DENIED" and "may store" in denied.message
    assert images("PATCH", images.begin(repository), iter([bytes(MIB)] * 3)).code == "DENIED", "before the layer is complete"
    first, second = images.begin(repository), images.begin(repository)
    own.set_limits(subject="root", limits={"storedBytes": before + 5 * MIB})
    assert images("PATCH", first, bytes(3 * MIB)).status == 202
    assert images("PATCH", second, bytes(3 * MIB)).code == "DENIED", "unfinished uploads count together"
    assert images("DELETE", first).status == 204
    own.set_limits(subject="root", remove=["storedBytes"])
    assert sums(corral, stored=True) == sums(corral, stored=False)
    assert sums(corral, stored=True)["root"] == before + 1_000


def test_the_buckets_of_runs_are_no_way_around_a_limit(corral, ann):
    own, s3 = corral.client("corral"), ann("s3")
    for bucket, most in (("corral-run-environments", MIB), ("corral-shipped-folders", 64 * MIB)):
        s3.create_bucket(Bucket=bucket)
        digest = sha256(large := bytes(most + 1)).digest()
        put = {"Bucket": bucket, "ChecksumSHA256": b64encode(digest).decode()}
        assert refused(s3.put_object, **put, Key=digest.hex(), Body=large)[0] == "EntityTooLarge"
        own.set_limits(subject=ANN, limits={"storedBytes": 10})
        put["ChecksumSHA256"] = b64encode(digest := sha256(bytes(11)).digest()).decode()
        assert refused(s3.put_object, **put, Key=digest.hex(), Body=bytes(11))[0] == "QuotaExceeded"
        own.set_limits(subject=ANN, remove=["storedBytes"])
        s3.put_object(**put, Key=digest.hex(), Body=bytes(11))


def test_requests_per_second_and_who_sees_limits(corral, ann):
    own, ecs, s3 = corral.client("corral"), ann("ecs"), ann("s3")
    own.set_limits(subject="user/bob", limits={"gpus": 1})
    own.set_limits(subject="group/lab", limits={"gpus": 2})
    own.set_limits(subject="everyone", limits={"requestsPerSecond": 2.0})
    assert [each["subject"] for each in ann("corral").describe_limits()["limits"]] == ["everyone", "group/lab"]
    assert len(own.describe_limits()["limits"]) == 3
    began_s = time.monotonic()
    found = [code_of(ecs.list_tasks) for _ in range(20)] + [code_of(s3.list_buckets) for _ in range(20)]
    passed = found.count("")
    assert passed <= 3 + 2 * (time.monotonic() - began_s), "the burst, and two requests per second"
    assert {*found} == {"", "ThrottlingException", "SlowDown"}
    assert corral.client("ecs").list_tasks() and refused(ann("corral").set_limits, subject=ANN)[0] != ""
    own.set_limits(subject="everyone", remove=["requestsPerSecond"])
    assert {code_of(ecs.list_tasks) for _ in range(20)} == {""}


def code_of(call: Any) -> str:
    try:
        call()
    except ClientError as refusal:
        return str(refusal.response["Error"]["Code"])
    return ""
