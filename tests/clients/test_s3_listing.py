"""Listings: order, prefixes, delimiters and pages."""

from __future__ import annotations

import pytest

from clients.s3_help import new_bucket, refused

KEYS = ["a", "a/1", "a/2", "a/b/1", "ab", "b/1", "b//", "c", "é", "日本"]


@pytest.fixture(scope="module")
def s3(corral):
    return corral.client("s3")


@pytest.fixture(scope="module")
def bucket(s3):
    name = new_bucket(s3)
    for key in KEYS:
        s3.put_object(Bucket=name, Key=key, Body=key.encode())
    return name


def expected(prefix: str, delimiter: str, after: str = "") -> list[str]:
    """The expected keys and common prefixes, sorted by their bytes."""
    found = set()
    for key in KEYS:
        if key.startswith(prefix):
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            found.add(key if at < 0 else key[: at + len(delimiter)])
    return [each for each in sorted(found, key=str.encode) if each.encode() > after.encode()]


def found(page: dict) -> list[str]:
    names = [each["Key"] for each in page.get("Contents", [])] + [each["Prefix"] for each in page.get("CommonPrefixes", [])]
    return sorted(names, key=str.encode)


@pytest.mark.parametrize("delimiter", ["", "/", "b", "/b", "本"])
@pytest.mark.parametrize("prefix", ["", "a", "a/", "b/", "b//", "nothing", "é"])
def test_a_listing(s3, bucket, prefix, delimiter):
    where = {"Bucket": bucket, "Prefix": prefix, **({"Delimiter": delimiter} if delimiter else {})}
    whole = expected(prefix, delimiter)
    page = s3.list_objects_v2(**where)
    assert (found(page), page["KeyCount"], page["IsTruncated"]) == (whole, len(whole), False)
    assert found(s3.list_objects(**where)) == whole
    for size in (1, 2, 3):
        for operation in ("list_objects", "list_objects_v2"):
            pages = list(s3.get_paginator(operation).paginate(**where, PaginationConfig={"PageSize": size}))
            assert [name for page in pages for name in found(page)] == whole
            assert all(len(found(page)) == size for page in pages[:-1])


@pytest.mark.parametrize("after", ["", "a", "a/1", "a/", "a0", "b/1", "zz", "日本"])
def test_starting_after(s3, bucket, after):
    assert found(s3.list_objects_v2(Bucket=bucket, StartAfter=after)) == expected("", "", after)
    assert found(s3.list_objects(Bucket=bucket, Marker=after)) == expected("", "", after)
    assert found(s3.list_objects_v2(Bucket=bucket, StartAfter=after, Delimiter="/")) == expected("", "/", after)


def test_the_members_of_a_listing(s3, bucket):
    page = s3.list_objects_v2(Bucket=bucket, MaxKeys=2, FetchOwner=True)
    assert (page["Name"], page["MaxKeys"], page["IsTruncated"], page["KeyCount"]) == (bucket, 2, True, 2)
    first = page["Contents"][0]
    assert (first["Key"], first["Size"], first["StorageClass"], first["ChecksumAlgorithm"]) == ("a", 1, "STANDARD", ["CRC32"])
    assert len(first["Owner"]["ID"]) == 64
    assert "Owner" not in s3.list_objects_v2(Bucket=bucket)["Contents"][0]
    assert "Owner" in s3.list_objects(Bucket=bucket)["Contents"][0]
    nothing = s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert (nothing["KeyCount"], nothing["IsTruncated"]) == (0, False)
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=5000)["MaxKeys"] == 1000
    with refused("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=bucket, MaxKeys=-1)
    with refused("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=bucket, ContinuationToken="not ours")
    with refused("InvalidArgument", 400):
        s3.list_objects_v2(Bucket=bucket, EncodingType="rot13")


def test_keys_in_plain_xml(corral, bucket):
    """Without encoding-type=url, which boto3 adds automatically."""
    s3 = corral.new_client("s3")
    s3.meta.events.unregister("before-parameter-build.s3.ListObjectsV2", unique_id=None, handler=_url_encoding())
    assert found(s3.list_objects_v2(Bucket=bucket)) == expected("", "")


def _url_encoding():
    from botocore.handlers import set_list_objects_encoding_type_url

    return set_list_objects_encoding_type_url


def test_pages_of_versions_that_are_deleted_in_between(s3):
    bucket = new_bucket(s3, versions=True)
    for round_ in range(3):
        for key in ("a", "b/1", "b/2"):
            s3.put_object(Bucket=bucket, Key=key, Body=str(round_).encode())
    s3.delete_object(Bucket=bucket, Key="a")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=bucket, Key="a", Body=b"null")

    def shown(page):
        rows = page.get("Versions", []) + page.get("DeleteMarkers", [])
        return [(each["Key"], each["VersionId"], each["IsLatest"]) for each in rows]

    whole = s3.list_object_versions(Bucket=bucket)
    versions = [(each["Key"], each["IsLatest"], each["VersionId"] == "null") for each in whole["Versions"]]
    assert versions[:4] == [("a", True, True), ("a", False, False), ("a", False, False), ("a", False, False)]
    assert [each["Key"] for each in whole["DeleteMarkers"]] == ["a"]
    for size in (1, 2, 4):
        pages = list(s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": size}))
        assert sorted(row for page in pages for row in shown(page)) == sorted(shown(whole))
    grouped = s3.list_object_versions(Bucket=bucket, Delimiter="/")
    assert [each["Prefix"] for each in grouped["CommonPrefixes"]] == ["b/"]
    seen = []
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2}):
        seen += shown(page)
        doomed = [{"Key": key, "VersionId": version_id} for key, version_id, _ in shown(page)]
        s3.delete_objects(Bucket=bucket, Delete={"Objects": doomed})
    assert len(seen) == 11
    s3.delete_bucket(Bucket=bucket)
