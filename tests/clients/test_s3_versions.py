"""Versioning: enabled, suspended, null versions, delete markers."""

from __future__ import annotations

import pytest

from clients.s3_help import new_bucket, refused, wait_for_blobs
from harness import Corral


@pytest.fixture
def s3(client):
    return client("s3")


def test_get_bucket_versioning(s3):
    bucket = new_bucket(s3)
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    for status in ("Enabled", "Suspended"):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
        assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == status
    with refused("MalformedXML", 400):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Off"})


def test_adding_and_removing_versions(s3):
    bucket = new_bucket(s3, versions=True)

    def put(body: bytes) -> str:
        return s3.put_object(Bucket=bucket, Key="x", Body=body)["VersionId"]

    def get(version_id: str | None = None) -> bytes:
        named = {"VersionId": version_id} if version_id else {}
        return s3.get_object(Bucket=bucket, Key="x", **named)["Body"].read()

    first, second = put(b"1"), put(b"2")
    assert (get(), get(first), get(second)) == (b"2", b"1", b"2")
    assert s3.head_object(Bucket=bucket, Key="x")["VersionId"] == second
    marker = s3.delete_object(Bucket=bucket, Key="x")
    assert marker["DeleteMarker"] is True
    with refused("NoSuchKey", 404) as raised:
        get()
    assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
    with refused("MethodNotAllowed", 405):
        get(marker["VersionId"])
    with refused("NoSuchVersion", 404):
        get("0" * 32)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    gone = s3.delete_object(Bucket=bucket, Key="x", VersionId=marker["VersionId"])
    assert (gone["DeleteMarker"], gone["VersionId"]) == (True, marker["VersionId"])
    assert get() == b"2"
    s3.delete_object(Bucket=bucket, Key="x", VersionId=second)
    assert get() == b"1"
    s3.copy_object(
        Bucket=bucket, Key="x", CopySource={"Bucket": bucket, "Key": "x", "VersionId": first}, MetadataDirective="REPLACE"
    )
    assert get() == b"1"
    with refused("BucketNotEmpty", 409):
        s3.delete_bucket(Bucket=bucket)


def test_a_key_has_at_most_one_null_version(s3):
    bucket = new_bucket(s3)
    assert "VersionId" not in s3.put_object(Bucket=bucket, Key="x", Body=b"before")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert s3.head_object(Bucket=bucket, Key="x")["VersionId"] == "null"
    kept = s3.put_object(Bucket=bucket, Key="x", Body=b"kept")["VersionId"]
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=bucket, Key="x", Body=b"after")
    versions = s3.list_object_versions(Bucket=bucket)["Versions"]
    assert [(each["VersionId"], each["IsLatest"]) for each in versions] == [("null", True), (kept, False)]
    assert s3.get_object(Bucket=bucket, Key="x", VersionId="null")["Body"].read() == b"after"
    marker = s3.delete_object(Bucket=bucket, Key="x")
    assert (marker["DeleteMarker"], marker["VersionId"]) == (True, "null")
    listed = s3.list_object_versions(Bucket=bucket)
    assert [each["VersionId"] for each in listed["Versions"]] == [kept]
    assert [each["VersionId"] for each in listed["DeleteMarkers"]] == ["null"]
    s3.delete_object(Bucket=bucket, Key="x", VersionId="null")
    assert s3.get_object(Bucket=bucket, Key="x")["Body"].read() == b"kept"


def test_deleting_many_versions(s3):
    bucket = new_bucket(s3, versions=True)
    first = s3.put_object(Bucket=bucket, Key="x", Body=b"1")["VersionId"]
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "x"}]})["Deleted"]
    assert done[0]["DeleteMarker"] is True and "VersionId" not in done[0]
    marker = done[0]["DeleteMarkerVersionId"]
    done = s3.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": "x", "VersionId": marker}, {"Key": "x", "VersionId": first}]}
    )["Deleted"]
    assert done == [
        {"Key": "x", "VersionId": marker, "DeleteMarker": True, "DeleteMarkerVersionId": marker},
        {"Key": "x", "VersionId": first},
    ]
    s3.delete_bucket(Bucket=bucket)


def test_tags_of_a_version(s3):
    bucket = new_bucket(s3, versions=True)
    first, second = (s3.put_object(Bucket=bucket, Key="x", Body=body)["VersionId"] for body in (b"1", b"2"))
    s3.put_object_tagging(Bucket=bucket, Key="x", VersionId=first, Tagging={"TagSet": [{"Key": "a", "Value": "1"}]})
    assert s3.get_object_tagging(Bucket=bucket, Key="x", VersionId=first)["TagSet"] == [{"Key": "a", "Value": "1"}]
    assert s3.get_object_tagging(Bucket=bucket, Key="x") | {"ResponseMetadata": 0} == {
        "TagSet": [], "VersionId": second, "ResponseMetadata": 0
    }  # fmt: skip


def test_files_follow_the_versions(own_corral):
    """There is one file per content that a version refers to."""
    corral: Corral = own_corral("none").start()
    s3 = corral.client("s3")
    bucket = new_bucket(s3, versions=True)
    ids = [s3.put_object(Bucket=bucket, Key="x", Body=str(at).encode())["VersionId"] for at in range(3)]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/x?versionId={ids[0]}")
    wait_for_blobs(corral, 3)
    for at in ids[:2]:
        s3.delete_object(Bucket=bucket, Key="x", VersionId=at)
    wait_for_blobs(corral, 2)  # one of them is shared with the copy
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for each in page["Versions"]:
            s3.delete_object(Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
    wait_for_blobs(corral, 0)
