"""S3 on the wire, where the model is silent: addresses, keys, streams, forms and the roots of responses."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from corral.aws import Request, Response, WrongResult, recognise, recognise_head, verify_head
from corral.aws.s3 import bucket_of_host
from corral.core.errors import ApiError, api_error
from wire.generate import KEYS_OF_S3
from wire.oracle import client, lookup, sent_by_botocore

SCOPE = {"authorization": "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host"}


def asked(method: str, path: str, query: str = "", headers: dict[str, str] | None = None, body: bytes = b"") -> Any:
    return recognise(Request(method, path, query, SCOPE | (headers or {}), body))


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host, bucket",
    [
        ("127.0.0.1:4566", None),
        ("[::1]:4566", None),
        ("localhost:4566", None),
        ("localhost", None),
        ("s3.localhost:4566", None),
        ("s3.amazonaws.com", None),
        ("s3.eu-west-1.amazonaws.com", None),
        ("s3-eu-west-1.amazonaws.com", None),
        ("", None),
        ("bucket.localhost:4566", "bucket"),
        ("my.dotted.bucket.localhost:4566", "my.dotted.bucket"),
        ("bucket.s3.localhost:4566", "bucket"),
        ("bucket.s3.amazonaws.com", "bucket"),
        ("bucket.s3.eu-west-1.amazonaws.com:443", "bucket"),
        ("bucket.s3-eu-west-1.amazonaws.com", "bucket"),
        ("my.dotted.bucket.s3.dualstack.eu-west-1.amazonaws.com", "my.dotted.bucket"),
        ("bucket.s3.localhost.localstack.cloud:4566", "bucket"),
    ],
)
def test_the_bucket_in_a_host_name(host: str, bucket: str | None) -> None:
    assert bucket_of_host(host) == bucket


@pytest.mark.parametrize(
    "method, path, query, operation, params",
    [
        ("GET", "/", "", "ListObjects", {}),
        ("GET", "/", "list-type=2", "ListObjectsV2", {}),
        ("GET", "/", "location", "GetBucketLocation", {}),
        ("PUT", "/", "", "CreateBucket", {}),
        ("GET", "/a/b", "", "GetObject", {"Key": "a/b"}),
        ("GET", "//a", "", "GetObject", {"Key": "/a"}),
        ("DELETE", "/bucket/a", "", "DeleteObject", {"Key": "bucket/a"}),
    ],
)
def test_virtual_host_style(method: str, path: str, query: str, operation: str, params: dict[str, str]) -> None:
    call = asked(method, path, query, {"host": "my-bucket.localhost:4566"})
    assert (call.operation, call.params()) == (operation, {"Bucket": "my-bucket", **params})


@pytest.mark.parametrize("key", KEYS_OF_S3)
@pytest.mark.parametrize("operation", ["GetObject", "PutObject", "DeleteObject", "HeadObject"])
def test_odd_keys(operation: str, key: str) -> None:
    request = sent_by_botocore("s3", "rest-xml", operation, {"Bucket": "b", "Key": key})
    call = recognise(request)
    assert (call.operation, call.params()["Key"]) == (operation, key)
    verify_head(request, lookup, time.time())


@pytest.mark.parametrize(
    "method, path, query, headers, operation",
    [
        ("GET", "/", "x-id=ListBuckets", {}, "ListBuckets"),
        ("GET", "/b", "", {}, "ListObjects"),
        ("GET", "/b/", "", {}, "ListObjects"),
        ("GET", "/b/", "list-type=2&x-id=ListObjectsV2", {}, "ListObjectsV2"),
        ("GET", "/b/k", "x-id=GetObject", {}, "GetObject"),
        ("GET", "/b/k/", "", {}, "GetObject"),
        ("GET", "/b", "uploads=", {}, "ListMultipartUploads"),
        ("GET", "/b", "versions&prefix=a", {}, "ListObjectVersions"),
        ("GET", "/b/k", "uploadId=x", {}, "ListParts"),
        ("GET", "/b", "acl", {}, "GetBucketAcl"),
        ("GET", "/b/k", "acl", {}, "GetObjectAcl"),
        ("GET", "/b", "notification", {}, "GetBucketNotificationConfiguration"),
        ("GET", "/b", "lifecycle", {}, "GetBucketLifecycleConfiguration"),
        ("GET", "/b", "inventory", {}, "ListBucketInventoryConfigurations"),
        ("GET", "/b", "inventory&id=x", {}, "GetBucketInventoryConfiguration"),
        ("PUT", "/b/k", "partNumber=1&uploadId=x&x-id=UploadPart", {}, "UploadPart"),
        ("PUT", "/b/k", "partNumber=1&uploadId=x", {"x-amz-copy-source": "b/k"}, "UploadPartCopy"),
        ("PUT", "/b/k", "x-amz-copy-source=b%2Fk", {}, "CopyObject"),  # a presigned URL can carry headers
        ("POST", "/b/k", "uploadId=x", {}, "CompleteMultipartUpload"),
        ("POST", "/b/", "delete", {"content-type": "application/xml"}, "DeleteObjects"),
        ("DELETE", "/b/k", "uploadId=x", {}, "AbortMultipartUpload"),
        ("DELETE", "/b", "", {}, "DeleteBucket"),
        ("HEAD", "/b/", "", {}, "HeadBucket"),
        ("HEAD", "/b/k", "versionId=null", {}, "HeadObject"),
        ("POST", "/b", "", {"content-type": "multipart/form-data; boundary=x"}, "PostObject"),
    ],
)
def test_recognition_of_operations(method: str, path: str, query: str, headers: dict[str, str], operation: str) -> None:
    request = Request(method, path, query, SCOPE | headers, b"")
    found = recognise_head(request)
    assert found is not None
    assert (found.operation, recognise(request).operation) == (operation, operation)


@pytest.mark.parametrize("method, path", [("PATCH", "/b/k"), ("POST", "/"), ("POST", "/b/k"), ("DELETE", "/"), ("HEAD", "/")])
def test_unknown_operations(method: str, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(method, path)
    assert (caught.value.code, caught.value.status) == ("MethodNotAllowed", 405)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_streaming_is_known_from_the_head() -> None:
    put = recognise_head(Request("PUT", "/b/k", "", SCOPE | {"content-length": "5000000000"}, b""))
    assert put is not None
    assert (put.streams_in, put.streams_out) == ("Body", None)
    assert put.params() == {"Bucket": "b", "Key": "k", "ContentLength": 5_000_000_000}
    get = recognise_head(Request("GET", "/b/k", "", SCOPE, b""))
    assert get is not None
    assert (get.streams_in, get.streams_out) == (None, "Body")
    delete = recognise_head(Request("POST", "/b", "delete", SCOPE, b""))
    assert delete is not None
    assert delete.streams_in is None
    body = b"<Delete><Object><Key>a</Key></Object></Delete>"
    assert delete.with_body(body).params() == {"Bucket": "b", "Delete": {"Objects": [{"Key": "a"}]}}


@pytest.mark.parametrize(
    "headers, body",
    [
        ({"x-amz-target": "AmazonSQS.ListQueues"}, b"{}"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"Action=ListRoles&Version=2010-05-08"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/batch/aws4_request"}, b"{}"),
        ({}, b""),
    ],
)
def test_other_services_are_recognised_with_their_bodies(headers: dict[str, str], body: bytes) -> None:
    assert recognise_head(Request("POST", "/", "", headers, b"")) is None


def test_headers_of_an_aws_chunked_body_are_restored() -> None:
    headers = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": "5", "content-length": "90"}
    assert asked("PUT", "/b/k", headers=headers).params() == {"Bucket": "b", "Key": "k", "ContentLength": 5}
    headers["content-encoding"] = "gzip, aws-chunked"
    assert asked("PUT", "/b/k", headers=headers).params()["ContentEncoding"] == "gzip"


def test_a_streamed_body_is_passed_through() -> None:
    call = asked("GET", "/b/k")
    stream = object()
    result = {"Body": stream, "ContentLength": 7, "ContentType": "text/plain", "ETag": '"x"', "Metadata": {"a": "b"}}
    response = call.serialize(result, "r")
    assert response.stream is stream
    assert response.body == b""
    assert {("Content-Length", "7"), ("Content-Type", "text/plain"), ("ETag", '"x"'), ("x-amz-meta-a", "b")} <= set(
        response.headers
    )
    assert call.serialize({"Body": b"bytes"}, "r") == Response(200, [("x-amz-request-id", "r"), ("x-amz-id-2", "r")], b"bytes")
    with pytest.raises(WrongResult):
        call.serialize({"Body": b"", "Bodies": stream}, "r")
    with pytest.raises(WrongResult):  # a body that is not streamed must have the type of the model
        asked("GET", "/b", "policy").serialize({"Policies": stream}, "r")


def test_a_form_upload_is_recognised_without_a_signature() -> None:
    request = Request("POST", "/", "", {"host": "b.localhost", "content-type": "multipart/form-data; boundary=x"}, b"")
    call = recognise_head(request)
    assert call is not None
    assert (call.operation, call.streams_in) == ("PostObject", "Form")
    assert call.params() == {"Bucket": "b", "ContentType": "multipart/form-data; boundary=x"}
    made = {"StatusCode": 201, "Location": "http://x/b/k", "Bucket": "b", "Key": "k", "ETag": '"e"', "ETagHeader": '"e"'}
    response = call.serialize(made, "r")
    assert response.status == 201
    assert b"<PostResponse xmlns=" in response.body
    assert ("ETag", '"e"') in response.headers
    assert call.serialize({"StatusCode": 204, "ETagHeader": '"e"'}, "r").body == b""


# --- responses --------------------------------------------------------------------------------------------------------


def s3(answer: Any) -> Any:
    return client("s3", lambda request: answer(recognise(request)))


@pytest.mark.parametrize("region", ["eu-west-1", None])
def test_the_location_of_a_bucket(region: str | None) -> None:
    made = s3(lambda call: call.serialize({"LocationConstraint": region}, "r"))
    assert made.get_bucket_location(Bucket="b")["LocationConstraint"] == region
    with pytest.raises(WrongResult):
        asked("GET", "/b", "location").serialize({"Location": "x"}, "r")


@pytest.mark.parametrize(
    "method, path, query, headers, result, root",
    [
        ("GET", "/", "", {}, {"Buckets": []}, "ListAllMyBucketsResult"),
        ("GET", "/b", "list-type=2", {}, {"Name": "b"}, "ListBucketResult"),
        ("GET", "/b", "versions", {}, {"Name": "b"}, "ListVersionsResult"),
        ("POST", "/b/k", "uploads", {}, {"UploadId": "u"}, "InitiateMultipartUploadResult"),
        ("POST", "/b/k", "uploadId=u", {}, {"ETag": "e"}, "CompleteMultipartUploadResult"),
        ("PUT", "/b/k", "", {"x-amz-copy-source": "b/k"}, {"CopyObjectResult": {"ETag": "e"}}, "CopyObjectResult"),
        ("GET", "/b", "versioning", {}, {}, "VersioningConfiguration"),
        ("GET", "/b", "uploads", {}, {"Bucket": "b"}, "ListMultipartUploadsResult"),
        ("GET", "/b/k", "uploadId=u", {}, {"Bucket": "b"}, "ListPartsResult"),
        ("POST", "/b", "delete", {}, {"Deleted": [{"Key": "k"}]}, "DeleteResult"),
        ("GET", "/b", "tagging", {}, {"TagSet": []}, "Tagging"),
    ],
)
def test_the_root_element_of_a_response(
    method: str, path: str, query: str, headers: dict[str, str], result: dict[str, Any], root: str
) -> None:
    response = asked(method, path, query, headers).serialize(result, "r")
    assert f'\n<{root} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'.encode() in response.body
    assert ("Content-Type", "application/xml") in response.headers


def test_grantees_have_their_type_as_an_attribute() -> None:
    owner = {"ID": "o"}
    grant = {"Grantee": {"ID": "o", "Type": "CanonicalUser"}, "Permission": "FULL_CONTROL"}
    body = asked("GET", "/b", "acl").serialize({"Owner": owner, "Grants": [grant]}, "r").body
    assert b'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"><ID>o</ID>' in body


def test_operations_without_a_response_body() -> None:
    assert asked("DELETE", "/b/k").serialize({"VersionId": "v"}, "r") == Response(
        204, [("x-amz-request-id", "r"), ("x-amz-id-2", "r"), ("x-amz-version-id", "v")], b""
    )
    assert asked("PUT", "/b", "versioning").serialize({}, "r").body == b""
    with pytest.raises(WrongResult):
        asked("PUT", "/b", "versioning").serialize({"Status": "Enabled"}, "r")


def test_errors_have_s3s_form() -> None:
    error = api_error("NoSuchKey", 404)("The specified key does not exist.", Key="a<b", BucketName=None)
    response = asked("GET", "/b/k").serialize_error(error, "request-1")
    assert response.status == 404
    assert (
        b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>a&lt;b</Key>"
        b"<RequestId>request-1</RequestId><HostId>request-1</HostId></Error>"
    ) in response.body
    made = s3(lambda call: call.serialize_error(error, "request-1"))
    with pytest.raises(made.exceptions.NoSuchKey) as caught:
        made.get_object(Bucket="b", Key="k")
    assert caught.value.response["Error"]["Key"] == "a<b"
    assert caught.value.response["ResponseMetadata"]["HostId"] == "request-1"


def test_an_error_of_head_has_no_body() -> None:
    error = api_error("NoSuchKey", 404)("no")
    assert asked("HEAD", "/b/k").serialize_error(error, "r").body == b""
    made = s3(lambda call: call.serialize_error(error, "r"))
    with pytest.raises(ClientError) as caught:
        made.head_object(Bucket="b", Key="k")
    assert caught.value.response["Error"]["Code"] == "404"
    unchanged = asked("GET", "/b/k").serialize_error(api_error("NotModified", 304)("Not Modified"), "r")
    assert (unchanged.status, unchanged.body) == (304, b"")


# --- bodies -----------------------------------------------------------------------------------------------------------


def tagging(body: bytes) -> Any:
    return asked("PUT", "/b", "tagging", body=body).params()["Tagging"]


def test_xml_as_clients_write_it() -> None:
    wanted = {"TagSet": [{"Key": "a", "Value": " b "}, {"Key": "c", "Value": ""}]}
    inner = b"<TagSet><Tag><Key>a</Key><Value> b </Value></Tag><Tag><Value/><Key>c</Key></Tag></TagSet>"
    assert tagging(b"<Tagging>" + inner + b"</Tagging>") == wanted
    assert tagging(b'<Tagging xmlns="http://s3.amazonaws.com/doc/2006-03-01/">' + inner + b"</Tagging>") == wanted
    prefixed = inner.replace(b"</", b"</s3:").replace(b"<", b"<s3:").replace(b"<s3:/s3:", b"</s3:")
    assert tagging(b'<s3:Tagging xmlns:s3="urn:x">' + prefixed + b"</s3:Tagging>") == wanted
    pretty = (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<!-- c -->\n<Tagging>\n  ' + inner.replace(b"><", b">\n<") + b"\n</Tagging>\n"
    )
    assert tagging(pretty) == wanted
    assert tagging(b"<Tagging><Later><Deep/></Later>" + inner + b"</Tagging>") == wanted
    entities = b"<TagSet><Tag><Key>&lt;&amp;&#x41;<![CDATA[<x>]]></Key><Value>\xc3\xa9</Value></Tag></TagSet>"
    assert tagging(b"<Tagging>" + entities + b"</Tagging>") == {"TagSet": [{"Key": "<&A<x>", "Value": "é"}]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"<Tagging>",
        b"<Tagging/>",  # TagSet is required
        b"<Other><TagSet/></Other>",
        b"<Tagging><TagSet><Tag><Key>a</Key></Tag></TagSet></Tagging>",
        b"<Tagging><TagSet><Tag><Key><a/></Key><Value/></Tag></TagSet></Tagging>",
        b"<Tagging><TagSet/></Tagging><Tagging/>",
        b"<Tagging><TagSet>&other;</TagSet></Tagging>",
        b"<Tagging><TagSet>\xff</TagSet></Tagging>",
        b"<Tagging><TagSet>\x00</TagSet></Tagging>",
        b"<a:Tagging><TagSet/></a:Tagging>",
    ],
)
def test_invalid_xml(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        tagging(body)
    assert (caught.value.code, caught.value.status) == ("MalformedXML", 400)


@pytest.mark.parametrize(
    "query, headers, code",
    [
        ("max-keys=ten", {}, "InvalidArgument"),
        ("max-keys=" + "9" * 30, {}, "InvalidArgument"),
        ("list-type=2&fetch-owner=perhaps", {}, "InvalidArgument"),
        ("prefix=%ff", {}, "InvalidArgument"),
    ],
)
def test_invalid_arguments(query: str, headers: dict[str, str], code: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked("GET", "/b", query, headers).params()
    assert caught.value.code == code


def test_an_invalid_date_is_ignored_as_http_requires() -> None:
    headers = {"if-modified-since": "yesterday", "if-unmodified-since": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert asked("GET", "/b/k", headers=headers).params() == {"Bucket": "b", "Key": "k", "IfUnmodifiedSince": 1445412480.0}
    with pytest.raises(ApiError):
        asked("PUT", "/b/k", headers={"x-amz-object-lock-retain-until-date": "tomorrow"}).params()


def test_headers_in_a_presigned_url() -> None:
    query = "X-Amz-Algorithm=x&X-Amz-Signature=y&X-Amz-Checksum-Mode=ENABLED&x-amz-expected-bucket-owner=1&X-Amz-Security-Token=t"
    assert asked("GET", "/b/k", query).params() == {
        "Bucket": "b",
        "Key": "k",
        "ChecksumMode": "ENABLED",
        "ExpectedBucketOwner": "1",
    }
    call = asked("GET", "/b/k", query, {"x-amz-checksum-mode": "other"})
    assert call.params()["ChecksumMode"] == "other"  # a real header wins
    query = "X-Amz-Signature=y&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-amz-storage-class=STANDARD"
    assert asked("PUT", "/b/k", query).params() == {"Bucket": "b", "Key": "k", "StorageClass": "STANDARD"}
