"""ObjectReader reads objects with a plain GET, and with GetObject where a plain GET is not enough."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from corral.worker.object_reader import BucketEndpoint, ObjectReader, endpoint_of
from corral.worker.queue_lookup import read_environment_again

KEYS = ["plain.jpg", "a b+c/ü~%41.txt", "x//y/", "dot/./and/../dots", "q?a=1&b#c", "'quotes\"(1)*!"]
PRESIGNED = "?X-Amz-Algorithm={}&X-Amz-Credential=AKIA%2F20260101%2F{}%2Faws4_request&X-Amz-Signature=x"


@pytest.fixture
def reader(work) -> ObjectReader:
    read_environment_again()
    return ObjectReader(2)


class NoGetObject:
    """A client of S3 without `get_object`, so that only plain GETs can succeed."""

    def __init__(self, s3: Any) -> None:
        self.generate_presigned_url = s3.generate_presigned_url


def test_a_plain_get_reads_keys_of_all_characters(work, reader):
    queue = work()
    bucket = queue.bucket()
    for key in KEYS:
        queue.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    reader._s3 = NoGetObject(reader._s3)
    assert [reader.read(bucket, key) for key in KEYS] == [key.encode() for key in KEYS]


def test_the_error_of_get_object_is_raised_and_later_objects_are_read(work, reader):
    queue = work()
    bucket = queue.bucket()
    queue.s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    with pytest.raises(ClientError, match="NoSuchKey"):
        reader.read(bucket, "missing")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        reader.read("no-such-bucket-here", "a")
    assert reader.read(bucket, "a") == b"1"


def test_without_a_direct_connection_get_object_reads(work, reader, monkeypatch):
    queue = work()
    bucket = queue.bucket()
    queue.s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    monkeypatch.setattr(reader, "_endpoints", {bucket: BucketEndpoint("http://127.0.0.1:1/closed/", "us-east-1")})
    assert reader.read(bucket, "a") == b"1"
    reader._http = None  # type: ignore[assignment]
    assert reader.read(bucket, "a") == b"1"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:4566/images/k", BucketEndpoint("http://127.0.0.1:4566/images/", "eu-west-1")),
        ("https://images.s3.amazonaws.com/k", BucketEndpoint("https://images.s3.amazonaws.com/", "eu-west-1")),
    ],
)
def test_the_endpoint_of_a_bucket(url, found):
    assert endpoint_of(url + PRESIGNED.format("AWS4-HMAC-SHA256", "eu-west-1%2Fs3")) == found


@pytest.mark.parametrize(
    ("algorithm", "scope"), [("AWS4-HMAC-SHA256", "eu-west-1%2Fs3express"), ("AWS4-ECDSA-P256-SHA256", "s3"), ("", "")]
)
def test_buckets_with_other_signatures_need_get_object(algorithm, scope):
    assert endpoint_of("https://images.s3.amazonaws.com/k" + PRESIGNED.format(algorithm, scope)) is None
