"""Requests of browsers: form uploads (PostObject) and CORS."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
import urllib3
from botocore.exceptions import ClientError

from harness import Corral
from people.attempts import Actor

NUMBERS = count()
HTTP = urllib3.PoolManager()


@pytest.fixture(scope="module")
def s3(corral: Corral) -> Any:
    return corral.client("s3")


@pytest.fixture
def bucket(s3: Any) -> Iterator[str]:
    name = f"forms-{next(NUMBERS)}"
    s3.create_bucket(Bucket=name)
    yield name


def send(form: dict[str, Any], content: bytes = b"hello", name: str = "a.txt", **more: str) -> urllib3.BaseHTTPResponse:
    return HTTP.request("POST", form["url"], fields={**form["fields"], **more, "file": (name, content)}, redirect=False)


def code_of(answer: urllib3.BaseHTTPResponse) -> str:
    return ElementTree.fromstring(answer.data).findtext("Code") or ""


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_presigned_form(corral: Corral, s3: Any, bucket: str, version: str) -> None:
    form = corral.client("s3", signature_version=version).generate_presigned_post(bucket, "made/${filename}")
    answer = send(form, b"hello", "my file.txt")
    assert answer.status == 204
    assert answer.data == b""
    assert answer.headers["etag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    found = s3.get_object(Bucket=bucket, Key="made/my file.txt")
    assert found["Body"].read() == b"hello"
    assert found["ContentType"] == "binary/octet-stream"


def test_fields_work_like_the_headers_of_a_put(s3: Any, bucket: str) -> None:
    fields = {
        "Content-Type": "text/plain",
        "Cache-Control": "no-cache",
        "Expires": "Wed, 21 Oct 2065 07:28:00 GMT",
        "x-amz-meta-colour": "blue",
        "acl": "public-read",
    }
    form = s3.generate_presigned_post(
        bucket, "a", Fields=dict(fields), Conditions=[{name: value} for name, value in fields.items()]
    )
    assert send(form).status == 204
    found = s3.head_object(Bucket=bucket, Key="a")
    assert (found["ContentType"], found["CacheControl"], found["Metadata"]) == ("text/plain", "no-cache", {"colour": "blue"})
    assert found["Expires"].year == 2065
    assert len(s3.get_object_acl(Bucket=bucket, Key="a")["Grants"]) == 2


def test_policies_test_the_fields_of_a_form(corral: Corral, client: Callable[..., Any]) -> None:
    iam = client("iam")
    iam.create_user(UserName="former")
    cold = {
        "Effect": "Deny",
        "Action": "s3:*",
        "Resource": "*",
        "Condition": {"StringEquals": {"s3:x-amz-storage-class": "GLACIER"}},
    }
    all_but = {"Effect": "Allow", "NotAction": "s3:PutObjectAcl", "Resource": "*"}
    iam.put_user_policy(
        UserName="former", PolicyName="p", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [all_but, cold]})
    )
    key = iam.create_access_key(UserName="former")["AccessKey"]
    mine = Actor("former", corral.url, key["AccessKeyId"], key["SecretAccessKey"]).client("s3")
    mine.create_bucket(Bucket="of-former")
    for fields, status in [
        ({"acl": "public-read"}, 403),
        ({"x-amz-storage-class": "GLACIER"}, 403),
        ({"x-amz-storage-class": "STANDARD"}, 204),
    ]:
        answer = send(mine.generate_presigned_post("of-former", "a", Fields=dict(fields), Conditions=[fields]))
        assert answer.status == status, (fields, answer.data)
    assert send(mine.generate_presigned_post("of-former", "a")).status == 204


def test_success_status_and_redirect(s3: Any, bucket: str) -> None:
    def form(**fields: str) -> dict[str, Any]:
        return s3.generate_presigned_post(bucket, "a b", Fields=dict(fields), Conditions=[{name: fields[name]} for name in fields])

    assert send(form(success_action_status="200")).status == 200
    assert send(form(success_action_status="418")).status == 204
    made = send(form(success_action_status="201"))
    said = {child.tag.rpartition("}")[2]: child.text for child in ElementTree.fromstring(made.data)}
    etag = made.headers["etag"]
    assert (made.status, said["Bucket"], said["Key"], said["ETag"]) == (201, bucket, "a b", etag)
    assert said["Location"] == made.headers["location"]
    sent = send(form(success_action_redirect="http://example.com/done?x=1"))
    assert sent.status == 303
    assert parse_qs(urlsplit(sent.headers["location"]).query) == {"x": ["1"], "bucket": [bucket], "key": ["a b"], "etag": [etag]}


def test_an_upload_that_needs_several_reads(s3: Any, bucket: str) -> None:
    content = bytes(range(256)) * 20_000
    assert send(s3.generate_presigned_post(bucket, "large"), content).status == 204
    assert s3.get_object(Bucket=bucket, Key="large")["Body"].read() == content


def test_the_size_is_bounded_by_the_policy(s3: Any, bucket: str) -> None:
    form = s3.generate_presigned_post(bucket, "a", Conditions=[["content-length-range", 3, 1000]])
    small, large = send(form, b"x"), send(form, bytes(1001))
    assert (small.status, code_of(small)) == (400, "EntityTooSmall")
    assert (large.status, code_of(large)) == (400, "EntityTooLarge")
    assert code_of(send(form, bytes(3_000_000))) == "EntityTooLarge"
    with pytest.raises(ClientError, match="404"):
        s3.head_object(Bucket=bucket, Key="a")
    assert send(form, b"xyz").status == 204


def test_violations_of_the_policy_are_refused(s3: Any, bucket: str) -> None:
    form = s3.generate_presigned_post(bucket, "mine/${filename}")
    assert send(form, name="../b").status == 204  # the folders of a file name are dropped
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["mine/b"]
    for answer, code in (
        (send({**form, "fields": {**form["fields"], "key": "other/a"}}), "AccessDenied"),
        (send(form, acl="public-read"), "AccessDenied"),
        (send({**form, "fields": {**form["fields"], "signature": "AAAA"}}), "SignatureDoesNotMatch"),
        (send({**form, "fields": {**form["fields"], "AWSAccessKeyId": "AKIAUNKNOWN"}}), "InvalidAccessKeyId"),
        (send({**form, "url": form["url"].replace(bucket, "none-such-bucket")}), "NoSuchBucket"),
        (send({**form, "fields": {}}), "AccessDenied"),
        (send(s3.generate_presigned_post(bucket, "a", ExpiresIn=-10)), "AccessDenied"),
    ):
        assert (answer.status >= 400, code_of(answer)) == (True, code)
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["mine/b"]


def test_a_form_without_a_file(s3: Any, bucket: str) -> None:
    form = s3.generate_presigned_post(bucket, "a")
    answer = HTTP.request("POST", form["url"], fields=form["fields"])
    assert (answer.status, code_of(answer)) == (400, "IncorrectNumberOfFilesInPostRequest")


def test_a_wrong_checksum_is_refused(s3: Any, bucket: str) -> None:
    fields = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    form = s3.generate_presigned_post(bucket, "a", Fields=dict(fields), Conditions=[fields])
    assert code_of(send(form)) == "BadDigest"


# CORS

PAGE = "http://page.example.com"
CORS = {"CORSRules": [
    {"AllowedOrigins": ["http://*.example.com"], "AllowedMethods": ["PUT", "GET"], "AllowedHeaders": ["content-*"],
     "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60},
]}  # fmt: skip


def ask(url: str, origin: str = PAGE, method: str = "PUT", headers: str = "") -> urllib3.BaseHTTPResponse:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    return HTTP.request("OPTIONS", url, headers=asked | ({"Access-Control-Request-Headers": headers} if headers else {}))


def test_preflight_requests(s3: Any, bucket: str, corral: Corral) -> None:
    url = f"{corral.url}/{bucket}/a"
    assert (ask(url).status, code_of(ask(url))) == (403, "AccessForbidden")
    assert ask(f"{corral.url}/none-such-bucket/a").status == 403
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration=CORS)
    answer = ask(url, headers="Content-Type, content-md5")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-methods"] == "PUT, GET"
    assert answer.headers["access-control-allow-headers"] == "content-type, content-md5"
    assert answer.headers["access-control-max-age"] == "60"
    assert answer.headers["access-control-expose-headers"] == "ETag"
    assert "Origin" in answer.headers["vary"]
    assert ask(url, origin="http://elsewhere.org").status == 403
    assert ask(url, method="DELETE").status == 403
    assert ask(url, headers="authorization").status == 403
    assert HTTP.request("OPTIONS", url).status == 400


def test_cors_headers_of_responses(s3: Any, bucket: str) -> None:
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration=CORS)
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a"})
    answer = HTTP.request("GET", url, headers={"Origin": PAGE})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    gone = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "none"})
    answer = HTTP.request("GET", gone, headers={"Origin": PAGE})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, PAGE)
    for headers in ({"Origin": "http://elsewhere.org"}, {}):
        answer = HTTP.request("GET", url, headers=headers)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (200, None)


def test_a_page_posts_a_form(s3: Any, bucket: str, client: Callable[..., Any]) -> None:
    rules = [{"AllowedOrigins": ["*"], "AllowedMethods": ["POST"]}]
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": rules})
    form = s3.generate_presigned_post(bucket, "a")
    answer = HTTP.request("POST", form["url"], fields={**form["fields"], "file": ("a", b"1")}, headers={"Origin": PAGE})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*")
