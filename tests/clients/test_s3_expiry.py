"""Lifecycle rules on a real server. They use past dates, so that the tests need not wait for midnight."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from clients.s3_help import files, new_bucket, wait_for_blobs
from eventually import eventually
from harness import Corral

YESTERDAY = datetime(2024, 1, 1, tzinfo=UTC)


def rule(prefix: str, **actions: Any) -> dict[str, Any]:
    return {"ID": prefix, "Status": "Enabled", "Filter": {"Prefix": prefix}, **actions}


def keys(s3: Any, bucket: str) -> list[str]:
    return [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_objects_expire_with_their_files(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral().start()
    s3 = corral.client("s3")
    bucket = new_bucket(s3)
    for number in range(50):
        s3.put_object(Bucket=bucket, Key=f"old/{number}", Body=b"x")
    s3.put_object(Bucket=bucket, Key="kept", Body=b"x")
    assert len(files(corral)) == 51
    rules = {"Rules": [rule("old/", Expiration={"Date": YESTERDAY})]}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    eventually(lambda: keys(s3, bucket) == ["kept"], "only what is kept is left")
    wait_for_blobs(corral, 1)
    assert s3.get_object(Bucket=bucket, Key="kept")["Body"].read() == b"x"


def test_expired_versions_get_a_delete_marker(corral: Corral) -> None:
    s3 = corral.client("s3")
    bucket = new_bucket(s3, versions=True)
    made = s3.put_object(Bucket=bucket, Key="a", Body=b"x")["VersionId"]
    rules = {"Rules": [rule("", Expiration={"Date": YESTERDAY})]}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    eventually(lambda: not keys(s3, bucket), "the object is hidden")
    assert s3.get_object(Bucket=bucket, Key="a", VersionId=made)["Body"].read() == b"x"
    assert len(s3.list_object_versions(Bucket=bucket)["DeleteMarkers"]) == 1


def test_responses_show_the_expiry_date(corral: Corral) -> None:
    s3 = corral.client("s3")
    bucket = new_bucket(s3)
    rules = {"Rules": [rule("a", Expiration={"Days": 2}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 3})]}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    said = s3.put_object(Bucket=bucket, Key="a", Body=b"x")["Expiration"]
    assert said.startswith('expiry-date="') and said.endswith('00:00:00 GMT", rule-id="a"')
    assert s3.head_object(Bucket=bucket, Key="a")["Expiration"] == said
    assert s3.get_object(Bucket=bucket, Key="a")["Expiration"] == said
    assert "Expiration" not in s3.put_object(Bucket=bucket, Key="b", Body=b"x")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="a")
    assert (upload["AbortDate"].hour, upload["AbortRuleId"]) == (0, "a")
    s3.abort_multipart_upload(Bucket=bucket, Key="a", UploadId=upload["UploadId"])


def test_from_the_aws_command(corral: Corral) -> None:
    bucket = new_bucket(corral.client("s3"))
    rules = {"Rules": [{"Status": "Enabled", "Filter": {"And": {"Prefix": "tmp/", "Tags": [{"Key": "a", "Value": "b"}]}},
                        "Expiration": {"Days": 7}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}]}  # fmt: skip
    corral.aws("s3api", "put-bucket-lifecycle-configuration", "--bucket", bucket, "--lifecycle-configuration", json.dumps(rules))
    shown = corral.aws("s3api", "get-bucket-lifecycle-configuration", "--bucket", bucket)["Rules"]
    assert shown[0].pop("ID")
    assert shown == rules["Rules"]
