"""Presigned URLs of both versions and policies of forms, made by boto3. Every later change must be refused."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import pytest
from botocore.auth import HmacV1Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from msgspec.structs import replace

from corral.aws import Identity, Request, Secret, recognise, recognise_head, verify_head, verify_post_policy
from corral.core.errors import ApiError
from corral.model.principal import role_session, root_user
from wire.oracle import as_received

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzE+token/with=odd&characters=="
ROOT, WORKER = root_user("123456789012"), role_session("123456789012", "worker", "s", "root")
KEYS = {
    "AKPLAIN": Secret(SECRET, None, None, ROOT),
    "ASTOKEN": Secret(SECRET, TOKEN, None, WORKER),
    "ASEXPIRED": Secret(SECRET, TOKEN, 1.0, WORKER),
}
BY_IP, BY_NAME = "http://127.0.0.1:4566", "http://localhost:4566"  # boto3 puts the bucket before a name


def lookup(access_key_id: str, token: str | None) -> Secret | None:
    return KEYS.get(access_key_id)


@cache
def s3(version: str, key: str = "AKPLAIN", token: str | None = None, endpoint: str = BY_IP) -> Any:
    return botocore.session.Session().create_client(
        "s3", region_name="eu-west-1", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=SECRET,
        aws_session_token=token, config=Config(signature_version=version),
    )  # fmt: skip


def as_fetched(method: str, url: str, headers: dict[str, str] | None = None) -> Request:
    parts = urlsplit(url)
    return Request(method, parts.path, parts.query, {"host": parts.netloc, **(headers or {})}, b"")


def check(request: Request, now_s: float | None = None) -> Identity:
    identity, body = verify_head(request, lookup, time.time() if now_s is None else now_s)
    assert body.feed(b"x") == b"x"
    assert body.finish() == {}
    return identity


def refusal(request: Request, now_s: float | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(request, now_s)
    assert 400 <= caught.value.status < 500
    return caught.value


CALLS: list[tuple[str, str, str, dict[str, Any], dict[str, str]]] = [
    ("get_object", "GET", "GetObject", {"Key": "a"}, {}),
    ("get_object", "GET", "GetObject", {"Key": "a b+c/ü&=?#%.txt/"}, {}),
    ("get_object", "GET", "GetObject", {"Key": "a", "VersionId": "v/1+2 ="}, {}),
    ("get_object", "GET", "GetObject", {"Key": "a", "ResponseContentType": "text/plain; a=b", "ResponseExpires": 5}, {}),
    ("put_object", "PUT", "PutObject", {"Key": "a"}, {}),
    ("put_object", "PUT", "PutObject", {"Key": "a", "ContentType": "text/plain"}, {"content-type": "text/plain"}),
    ("put_object", "PUT", "PutObject", {"Key": "a", "Metadata": {"k": "v"}}, {"x-amz-meta-k": "v"}),
    ("upload_part", "PUT", "UploadPart", {"Key": "a", "PartNumber": 2, "UploadId": "u/1"}, {}),
    ("delete_object", "DELETE", "DeleteObject", {"Key": "a"}, {}),
    ("head_object", "HEAD", "HeadObject", {"Key": "a"}, {}),
    ("list_objects_v2", "GET", "ListObjectsV2", {"Prefix": "a/", "Delimiter": "/"}, {}),
    ("get_bucket_acl", "GET", "GetBucketAcl", {}, {}),
    ("create_multipart_upload", "POST", "CreateMultipartUpload", {"Key": "a"}, {}),
    ("get_object_tagging", "GET", "GetObjectTagging", {"Key": "a"}, {}),
]  # fmt: skip


@pytest.mark.parametrize("endpoint", [BY_IP, BY_NAME])
@pytest.mark.parametrize("key, token", [("AKPLAIN", None), ("ASTOKEN", TOKEN)])
@pytest.mark.parametrize("version", ["s3", "s3v4"])
@pytest.mark.parametrize("call, method, operation, params, headers", CALLS)
def test_presigned_urls_of_boto3_are_accepted(
    call: str, method: str, operation: str, params: dict[str, Any], headers: dict[str, str],
    version: str, key: str, token: str | None, endpoint: str,
) -> None:  # fmt: skip
    url = s3(version, key, token, endpoint).generate_presigned_url(call, {"Bucket": "bucket", **params})
    assert ("AWSAccessKeyId=" in url) == (version == "s3")
    request = as_fetched(method, url, headers)
    identity = check(request)
    assert (identity.access_key_id, identity.principal) == (key, KEYS[key].principal)
    assert identity.region == ("" if version == "s3" else "eu-west-1")
    found = recognise_head(request)
    assert found is not None
    assert (found.operation, recognise(request).operation) == (operation, operation)
    read = found.params()
    expected = {"Bucket": "bucket", **params}
    expected = {name: float(value) if name == "ResponseExpires" else value for name, value in expected.items()}
    assert {name: read[name] for name in expected} == expected


def test_headers_in_the_query_of_a_version_2_url() -> None:
    url = s3("s3").generate_presigned_url("put_object", {"Bucket": "b", "Key": "k", "ACL": "private", "Metadata": {"a": "b"}})
    request = as_fetched("PUT", url)
    check(request)
    call = recognise_head(request)
    assert call is not None
    assert (call.params()["ACL"], call.params()["Metadata"]) == ("private", {"a": "b"})


def in_query(old: str, new: str) -> Callable[[Request], Request]:
    def change(request: Request) -> Request:
        assert old in request.query
        return replace(request, query=request.query.replace(old, new))

    return change


TAMPERED: dict[str, Callable[[Request], Request]] = {
    "method": lambda request: replace(request, method="PUT"),
    "key": lambda request: replace(request, path="/bucket/b"),
    "bucket": lambda request: replace(request, path="/bucket2/a"),
    "sub-resource": lambda request: replace(request, query=request.query + "&acl"),
    "version": in_query("versionId=1", "versionId=2"),
    "version gone": in_query("versionId=1&", ""),
    "signature": lambda request: replace(request, query=request.query.replace("Signature=", "Signature=A")),
    "signature gone": in_query("Signature=", "x="),
    "type": lambda request: replace(request, headers={**request.headers, "content-type": "text/plain"}),
    "header that counts": lambda request: replace(request, headers={**request.headers, "x-amz-acl": "public-read"}),
    "header in the query": lambda request: replace(request, query=request.query + "&x-amz-acl=public-read"),
    "line break": lambda request: replace(request, query=request.query + "&content-type=%0A"),
    "token": in_query("FwoGZX", "FwoGZY"),
    "token gone": in_query("ecurity-token", "x"),
    "unknown key": in_query("ASTOKEN", "AKNOBODY"),
    "key without its token": in_query("ASTOKEN", "AKPLAIN"),
    "key that has ended": in_query("ASTOKEN", "ASEXPIRED"),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_every_change_of_a_version_2_url_is_refused(change: Callable[[Request], Request]) -> None:
    params = {"Bucket": "bucket", "Key": "a", "VersionId": "1"}
    request = as_fetched("GET", s3("s3", "ASTOKEN", TOKEN).generate_presigned_url("get_object", params))
    check(request)
    refusal(change(request))


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_url_expires(version: str) -> None:
    url = s3(version).generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"}, ExpiresIn=600)
    request, now_s = as_fetched("GET", url), time.time()
    check(request, now_s + 590)
    error = refusal(request, now_s + 610)
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.message.startswith("Request has expired")
    for odd in ("", "x", "1e9", "%C2%B2", "-1"):
        refusal(replace(request, query=request.query.replace("xpires=", f"xpires={odd}&a=")))


def test_the_error_codes_of_s3() -> None:
    url = s3("s3").generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"})
    request = as_fetched("GET", url)
    assert refusal(in_query("AKPLAIN", "AKNOBODY")(request)).code == "InvalidAccessKeyId"
    assert refusal(replace(request, path="/b/l")).code == "SignatureDoesNotMatch"
    assert refusal(replace(request, query="")).code == "AccessDenied"


def test_a_version_2_signature_in_a_header_is_refused() -> None:
    request = AWSRequest("GET", BY_IP + "/b/k")
    HmacV1Auth(Credentials("AKPLAIN", SECRET)).add_auth(request)
    error = refusal(as_received(request.prepare()))
    assert (error.code, "AWS4-HMAC-SHA256" in error.message) == ("InvalidRequest", True)


# --- forms ------------------------------------------------------------------------------------------------------------


def form(version: str, key: str = "AKPLAIN", token: str | None = None) -> dict[str, str]:
    made = s3(version, key, token).generate_presigned_post("bucket", "k/${filename}", Conditions=[["content-length-range", 0, 9]])
    return {name.lower(): value for name, value in made["fields"].items()}


@pytest.mark.parametrize("key, token", [("AKPLAIN", None), ("ASTOKEN", TOKEN)])
@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_policies_of_boto3_are_accepted(version: str, key: str, token: str | None) -> None:
    policy = verify_post_policy(form(version, key, token), lookup, time.time())
    assert (policy.identity.access_key_id, policy.identity.service) == (key, "s3")
    assert ["content-length-range", 0, 9] in policy.conditions


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_policy_that_was_changed_is_refused(version: str) -> None:
    fields = form(version, "ASTOKEN", TOKEN)
    document = json.loads(base64.b64decode(fields["policy"]))
    document["conditions"] = []
    wider = base64.b64encode(json.dumps(document).encode()).decode()
    signature = "signature" if version == "s3" else "x-amz-signature"
    changes: list[tuple[dict[str, str], str]] = [
        ({"policy": wider}, "SignatureDoesNotMatch"),
        ({"policy": "", signature: "x"}, "AccessDenied"),
        ({signature: "0" * 64}, "SignatureDoesNotMatch"),
        ({signature: "é"}, "SignatureDoesNotMatch"),
        ({"x-amz-security-token": "x"}, "InvalidAccessKeyId"),
    ]
    if version == "s3v4":
        changes += [
            ({"x-amz-credential": "x"}, "AuthorizationHeaderMalformed"),
            ({"x-amz-credential": fields["x-amz-credential"].replace("/s3/", "/sqs/")}, "SignatureDoesNotMatch"),
            ({"x-amz-algorithm": "x"}, "AuthorizationHeaderMalformed"),
            ({"x-amz-date": "20200101T000000Z"}, "SignatureDoesNotMatch"),
        ]
    else:
        changes += [({"awsaccesskeyid": "AKNOBODY"}, "InvalidAccessKeyId")]
    for change, code in changes:
        with pytest.raises(ApiError) as caught:
            verify_post_policy({**fields, **change}, lookup, time.time())
        assert caught.value.code == code, change


def test_expired_and_malformed_policies() -> None:
    with pytest.raises(ApiError, match="Policy expired"):
        verify_post_policy(form("s3v4"), lookup, time.time() + 3700)
    for text in (
        b"{",
        b"[]",
        b"{}",
        b'{"expiration": 5, "conditions": []}',
        b'{"expiration": "2999-01-01T00:00:00Z"}',
        b"\xff",
    ):
        policy = base64.b64encode(text).decode()
        signer = HmacV1Auth(Credentials("AKPLAIN", SECRET))
        fields = {"policy": policy, "awsaccesskeyid": "AKPLAIN", "signature": signer.sign_string(policy)}
        with pytest.raises(ApiError) as caught:
            verify_post_policy(fields, lookup, time.time())
        assert caught.value.code == "InvalidPolicyDocument"
