"""ObjectReader reads several small objects at once, others with a plain GET, and with GetObject where this is not enough."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session

from corral.server.pages.objects_page import CONTENT_MAX_BYTES, OBJECT_MAX_BYTES
from corral.worker.object_reader import OBJECTS_PATH, BucketEndpoint, ObjectReader, contents_of, endpoint_of
from corral.worker.queue_lookup import read_environment_again
from eventually import eventually

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


def test_several_objects_are_read_with_one_request(work, reader):
    queue = work()
    bucket = queue.bucket()
    contents = {key: key.encode() * 3 for key in KEYS} | {"empty": b"", "small": bytes(OBJECT_MAX_BYTES)}
    for key, content in {**contents, "large": bytes(OBJECT_MAX_BYTES + 1)}.items():
        queue.s3.put_object(Bucket=bucket, Key=key, Body=content)
    reader._s3 = None
    names = [(bucket, key) for key in (*contents, "large", "missing")] + [("no-such-bucket-here", "a")]
    # On a busy machine, the page may leave out objects (READ_MAX_S).
    eventually(lambda: reader.read_several(names) == [*contents.values(), None, None, None], "all small objects are read")
    assert reader.read_several([]) == []


def test_a_response_has_a_limited_size(work, reader):
    queue = work()
    bucket = queue.bucket()
    queue.s3.put_object(Bucket=bucket, Key="small", Body=bytes(OBJECT_MAX_BYTES))
    found = reader.read_several([(bucket, "small")] * 20)
    assert sum(len(content or b"") for content in found) <= CONTENT_MAX_BYTES and None in found
    assert reader.read_several([(bucket, "small")] * 101) == [None] * 101
    assert reader.read_several([(bucket, "k" * 70_000)]) == [None]
    assert reader.can_read_several


def test_a_server_that_is_not_corral_is_asked_once(work, reader, monkeypatch):
    monkeypatch.setattr("corral.worker.object_reader.OBJECTS_PATH", "/some-bucket/some-key")
    assert reader.can_read_several
    assert reader.read_several([("a", "b")]) == [None]
    assert not reader.can_read_several


def test_an_outage_does_not_end_the_reads_of_several_objects(work, reader):
    address, reader._corral._address = reader._corral._address, ("127.0.0.1", 1)
    assert reader.read_several([("a", "b")]) == [None]
    reader._corral._address = address
    assert reader.read_several([("a", "b")]) == [None] and reader.can_read_several


@pytest.mark.parametrize("body", [b"", b"[1]", b"[1]\n", b"[1, 1]\naa", b"[1]\naa", b'{"a": 1}\n', b"x\na", b"[-1]\n", b'["1"]\na'])
def test_a_response_of_another_form_is_refused(body):
    assert contents_of(body, 1) is None


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


def test_a_refused_request_does_not_end_the_reads_of_several_objects(work, reader):
    assert reader.read_several([("a", "b")]) == [None]
    credentials, reader._credentials = reader._credentials, Credentials("AKIAEXPIRED000000000", "expired")
    assert reader.read_several([("a", "b")]) == [None]
    reader._credentials = credentials
    assert reader.can_read_several


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"objects": [["a"]]}', b'{"objects": [["a", "\xff"]]}', b'{"objects": [["a", "\\ud800"]]}']
)
def test_a_request_that_is_not_valid_is_refused(work, reader, corral, body):
    signed = AWSRequest("POST", f"{corral.url}{OBJECTS_PATH}", data=body)
    SigV4Auth(reader._credentials, "corral", "us-east-1").add_auth(signed)
    response = URLLib3Session().send(signed.prepare())
    assert (response.status_code, b"InvalidRequest" in response.content) == (400, True)
