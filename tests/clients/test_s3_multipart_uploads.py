"""Multipart uploads: part by part, by boto3's transfer manager, and their errors."""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from base64 import b64encode

import pytest
from boto3.s3.transfer import TransferConfig

from clients.s3_help import MIB, new_bucket, refused, wait_for_blobs
from corral.blobs.checksums import checksum, checksum_text

PART = os.urandom(5 * MIB)
LAST = b"the end"


@pytest.fixture
def s3(client):
    return client("s3")


@pytest.fixture
def bucket(s3):
    return new_bucket(s3)


class Upload:
    def __init__(self, s3, bucket, key="whole", **options):
        self.s3, self.where = s3, {"Bucket": bucket, "Key": key}
        self.id = s3.create_multipart_upload(**self.where, **options)["UploadId"]
        self.where["UploadId"] = self.id

    def part(self, number, body, **options):
        return self.s3.upload_part(**self.where, PartNumber=number, Body=body, **options)["ETag"]

    def complete(self, *parts, **options):
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        return self.s3.complete_multipart_upload(**self.where, MultipartUpload={"Parts": listed}, **options)


def etag_of(*parts: bytes) -> str:
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f'"{hashlib.md5(digests).hexdigest()}-{len(parts)}"'


def test_an_upload(s3, bucket):
    upload = Upload(s3, bucket, Metadata={"a": "1"}, ContentType="text/plain", Tagging="t=1")
    upload.part(1, b"thrown away")
    parts = [(7, upload.part(7, LAST)), (1, upload.part(1, PART)), (3, upload.part(3, PART))]
    upload.part(5, b"not wanted")
    listed = s3.list_parts(**upload.where)
    assert [(each["PartNumber"], each["Size"]) for each in listed["Parts"]] == [(1, 5 * MIB), (3, 5 * MIB), (5, 10), (7, 7)]
    assert [each["UploadId"] for each in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload.id]
    with refused("404"):
        s3.head_object(Bucket=bucket, Key="whole")
    done = upload.complete(*sorted(parts))
    assert done["ETag"] == etag_of(PART, PART, LAST)
    assert done["Location"].endswith(f"/{bucket}/whole")
    whole = PART + PART + LAST
    got = s3.get_object(Bucket=bucket, Key="whole")
    assert (got["Body"].read() == whole, got["Metadata"], got["ContentType"], got["TagCount"]) == (
        True,
        {"a": "1"},
        "text/plain",
        1,
    )
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    again = upload.complete(*sorted(parts))  # a retry gets the same response
    assert again["ETag"] == done["ETag"]
    with refused("NoSuchUpload", 404, UploadId=upload.id):
        upload.part(1, b"too late")


def test_ranges_across_parts(s3, bucket):
    upload = Upload(s3, bucket)
    upload.complete((1, upload.part(1, PART)), (2, upload.part(2, PART)), (3, upload.part(3, LAST)))
    where, whole, size = {"Bucket": bucket, "Key": "whole"}, PART + PART + LAST, 5 * MIB
    for first, last in (
        (0, 0),
        (size - 1, size),
        (size, size),
        (10, 2 * size + 3),
        (2 * size - 1, 2 * size),
        (2 * size + 6, 2 * size + 6),
    ):
        got = s3.get_object(**where, Range=f"bytes={first}-{last}")
        assert got["Body"].read() == whole[first : last + 1]
    for number, body in ((1, PART), (2, PART), (3, LAST)):
        got = s3.get_object(**where, PartNumber=number)
        assert (got["Body"].read() == body, got["PartsCount"]) == (True, 3)
        assert s3.head_object(**where, PartNumber=number)["ContentLength"] == len(body)
    with refused("InvalidPartNumber", 416):
        s3.get_object(**where, PartNumber=4)
    said = s3.get_object_attributes(**where, ObjectAttributes=["ObjectParts", "ETag"], MaxParts=2)["ObjectParts"]
    assert (said["TotalPartsCount"], said["IsTruncated"], [each["Size"] for each in said["Parts"]]) == (3, True, [size, size])
    s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/whole")
    s3.delete_object(**where)
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == whole


def test_upload_part_copy(s3, bucket):
    s3.put_object(Bucket=bucket, Key="from", Body=PART + LAST)
    upload = Upload(s3, bucket)

    def copied(number, header=None, **options):
        options |= {"CopySourceRange": header} if header else {}
        return s3.upload_part_copy(**upload.where, PartNumber=number, CopySource=f"{bucket}/from", **options)

    first = copied(1)["CopyPartResult"]["ETag"]
    second = copied(2, f"bytes={5 * MIB}-{5 * MIB + 2}")["CopyPartResult"]["ETag"]
    assert (first, second) == (f'"{hashlib.md5(PART + LAST).hexdigest()}"', f'"{hashlib.md5(b"the").hexdigest()}"')
    for wrong in ("bytes=0-", "bytes=3-2", f"bytes=0-{6 * MIB}"):
        with refused("InvalidArgument", 400):
            copied(3, wrong)
    with refused("PreconditionFailed", 412):
        copied(3, CopySourceIfMatch='"other"')
    upload.complete((1, first), (2, second))
    assert s3.get_object(Bucket=bucket, Key="whole")["Body"].read() == PART + LAST + b"the"


def test_refused_completions(s3, bucket):
    upload = Upload(s3, bucket)
    small, large, last = (1, upload.part(1, b"small")), (2, upload.part(2, PART)), (3, upload.part(3, LAST))
    with refused("EntityTooSmall", 400, PartNumber="1", ProposedSize="5"):
        upload.complete(small, large)
    with refused("InvalidPartOrder", 400):
        upload.complete(last, large)
    with refused("InvalidPart", 400, PartNumber="4"):
        upload.complete(large, (4, last[1]))
    with refused("InvalidPart", 400, PartNumber="3"):
        upload.complete(large, (3, large[1]))
    with refused("MalformedXML", 400):
        upload.complete()
    with refused("InvalidRequest", 400):
        upload.complete(large, last, MpuObjectSize=5)
    with refused("InvalidArgument", 400):
        upload.part(10_001, b"x")
    s3.put_object(Bucket=bucket, Key="whole", Body=b"there already")
    with refused("PreconditionFailed", 412):
        upload.complete(large, last, IfNoneMatch="*")
    assert s3.get_object(Bucket=bucket, Key="whole")["Body"].read() == b"there already"
    upload.complete(large, last)
    for wrong in ({"UploadId": "nothing"}, {"UploadId": upload.id, "Key": "another"}):
        with refused("NoSuchUpload", 404):
            s3.abort_multipart_upload(**{"Bucket": bucket, "Key": "whole"} | wrong)


def test_uploads_are_listed_in_pages(s3, bucket):
    ids = {}
    for key in ("b", "a/1", "a/2", "a/1"):
        ids.setdefault(key, []).append(Upload(s3, bucket, key).id)
    whole = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [(each["Key"], each["UploadId"]) for each in whole] == [(key, each) for key in sorted(ids) for each in ids[key]]
    for size in (1, 2, 3):
        pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, PaginationConfig={"PageSize": size})
        assert [each["UploadId"] for page in pages for each in page["Uploads"]] == [each["UploadId"] for each in whole]
    grouped = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [each["Prefix"] for each in grouped["CommonPrefixes"]] == ["a/"] and [each["Key"] for each in grouped["Uploads"]] == [
        "b"
    ]
    s3.delete_bucket(Bucket=bucket)  # unfinished uploads do not prevent it


def checksum_of(algorithm: str, data: bytes) -> str:
    """Computed here, because botocore needs another library for some algorithms."""
    running = checksum(algorithm)
    running.update(data)
    return checksum_text(running.digest())


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256", None])
def test_checksums_of_the_completed_object(s3, bucket, algorithm):
    name, upload = f"Checksum{algorithm}", Upload(s3, bucket, **({"ChecksumAlgorithm": algorithm} if algorithm else {}))
    listed = []
    for number, body in ((1, PART), (2, LAST)):
        stated = {name: checksum_of(algorithm, body)} if algorithm else {}
        part = s3.upload_part(**upload.where, PartNumber=number, Body=body, **stated)
        assert {name: part[name] for name in stated} == stated
        listed.append({"PartNumber": number, "ETag": part["ETag"], **stated})
    done = s3.complete_multipart_upload(**upload.where, MultipartUpload={"Parts": listed})
    if algorithm in ("CRC64NVME", None):
        name = "ChecksumCRC64NVME"
        assert (done["ChecksumType"], done[name]) == ("FULL_OBJECT", checksum_of("CRC64NVME", PART + LAST))
    else:
        assert (done["ChecksumType"], done[name][-2:]) == ("COMPOSITE", "-2")
    assert s3.head_object(Bucket=bucket, Key="whole", ChecksumMode="ENABLED")[name] == done[name]


def test_a_full_object_checksum_is_compared(s3, bucket):
    upload = Upload(s3, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    parts = [(number, upload.part(number, body, ChecksumAlgorithm="CRC32")) for number, body in ((1, PART), (2, LAST))]
    with refused("BadDigest", 400):
        upload.complete(*parts, ChecksumCRC32="AAAAAA==", ChecksumType="FULL_OBJECT")
    right = b64encode(zlib.crc32(PART + LAST).to_bytes(4, "big")).decode()
    assert upload.complete(*parts, ChecksumCRC32=right, ChecksumType="FULL_OBJECT")["ChecksumCRC32"] == right
    with refused("InvalidRequest", 400):
        Upload(s3, bucket, ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT")
    with refused("InvalidRequest", 400):
        Upload(s3, bucket, ChecksumAlgorithm="CRC32").part(1, b"x", ChecksumAlgorithm="SHA1")


def test_80_mib_in_parallel_parts(own_corral):
    corral = own_corral("none").start()
    s3 = corral.client("s3")
    bucket, piece = new_bucket(s3), os.urandom(MIB)
    whole = b"".join(piece[at % MIB :] + piece[: at % MIB] for at in range(0, 80 * 4099, 4099))
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=8)
    s3.upload_fileobj(io.BytesIO(whole), bucket, "whole", Config=config)
    assert s3.head_object(Bucket=bucket, Key="whole")["ETag"].endswith('-16"')
    wait_for_blobs(corral, 16)
    got = io.BytesIO()
    s3.download_fileobj(bucket, "whole", got, Config=config)
    assert hashlib.sha256(got.getbuffer()).digest() == hashlib.sha256(whole).digest()
    s3.delete_object(Bucket=bucket, Key="whole")
    upload = Upload(s3, bucket)
    upload.part(1, b"x")
    wait_for_blobs(corral, 1)
    s3.abort_multipart_upload(**upload.where)
    wait_for_blobs(corral, 0)
