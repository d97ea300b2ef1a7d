"""Answers of S3 that programs depend on: error codes and their members, optional response members, and what a second call does."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from clients.s3_help import MIB, new_bucket, refused
from each import check_each
from harness import Corral

TEXT = b"The quick brown fox jumps over the lazy dog"
FOREIGN_ID = "HPniJFCxqTsMuIH9KX8K8wEjNUgmABCD"  # has the form of an AWS version id, but no server has created it
MALFORMED_XML = "The XML you provided was not well-formed or did not validate against our published schema"


@pytest.fixture
def s3(client):
    return client("s3")


@pytest.fixture
def bucket(s3):
    return new_bucket(s3)


def in_parts(s3: Any, bucket: str, key: str, *bodies: bytes, **checksum: str) -> tuple[str, dict[str, Any]]:
    """Upload the parts of an object. Return the id of the upload and the parameter for its completion."""
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **checksum)["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        put = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body, **checksum)
        parts.append({"PartNumber": number, **{name: put[name] for name in ("ETag", "ChecksumSHA256") if name in put}})
    return upload_id, {"Parts": parts}


def presigned(corral: Corral, method: str, path: str, parameters: dict[str, str]) -> str:
    """Sign a URL whose query has parameters that boto3 does not put there."""
    request = AWSRequest(method, corral.url + path, params=parameters)
    keys = Credentials(corral.keys["access_key"], corral.keys["secret_key"])
    S3SigV4QueryAuth(keys, "s3", "us-east-1", expires=600).add_auth(request)
    return str(request.prepare().url)


# Conditions


def test_conditions_in_presigned_urls(corral, s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="x", Body=TEXT)["ETag"]

    def put(name: str, value: str) -> int:
        url = presigned(corral, "PUT", f"/{bucket}/x", {name: value})
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"new", method="PUT")) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                assert b"<Condition>" in error.read()
            return error.code

    assert put("If-None-Match", "*") == 412 and put("if-match", '"other"') == 412
    assert s3.get_object(Bucket=bucket, Key="x")["Body"].read() == TEXT
    assert put("If-Match", etag) == 200
    assert s3.get_object(Bucket=bucket, Key="x")["Body"].read() == b"new"


def test_conditions_of_writes(s3, bucket):
    where = {"Bucket": bucket, "Key": "x"}
    with refused("NoSuchKey", 404, Key="x"):
        s3.put_object(**where, Body=TEXT, IfMatch='"e"')
    s3.put_object(**where, Body=TEXT)
    text = "A header you provided implies functionality that is not implemented"
    for members, header, why in (
        ({"IfMatch": "*"}, "If-Match", "We don't accept the provided value of If-Match header for this API"),
        ({"IfNoneMatch": "e"}, "If-None-Match", "We don't accept the provided value of If-None-Match header for this API"),
        (
            {"IfMatch": "e", "IfNoneMatch": "*"},
            "If-Match,If-None-Match",
            "Multiple conditional request headers present in the request",
        ),
    ):
        with refused("NotImplemented", 501, Message=text, Header=header, additionalMessage=why):
            s3.put_object(**where, Body=TEXT, **members)
    with refused("PreconditionFailed", 412, Condition="If-None-Match"):
        s3.put_object(**where, Body=TEXT, IfNoneMatch="*")
    with refused("PreconditionFailed", 412, Condition="If-Match"):
        s3.put_object(**where, Body=TEXT, IfMatch="e")


def test_an_upload_whose_key_has_changed_meanwhile(s3, bucket):
    where = {"Bucket": bucket, "Key": "x"}

    def complete(begun: tuple[str, dict[str, Any]], **members: Any) -> Any:
        return s3.complete_multipart_upload(**where, UploadId=begun[0], MultipartUpload=begun[1], **members)

    etag = s3.put_object(**where, Body=TEXT)["ETag"]
    begun = in_parts(s3, bucket, "x", b"part")
    s3.put_object(**where, Body=TEXT)  # the same bytes are a change, too
    with refused("PreconditionFailed", 412, Condition="If-Match"):
        complete(begun, IfMatch='"other"')
    with refused("ConditionalRequestConflict", 409, Condition="If-Match", Key="x"):
        complete(begun, IfMatch=etag)
    with refused("PreconditionFailed", 412, Condition="If-None-Match"):
        complete(begun, IfNoneMatch="*")
    s3.delete_object(**where)
    with refused("ConditionalRequestConflict", 409, Condition="If-None-Match", Key="x"):
        complete(begun, IfNoneMatch="*")
    with refused("NoSuchKey", 404, Key="x"):
        complete(begun, IfMatch=etag)
    first = complete(in_parts(s3, bucket, "x", b"part"), IfNoneMatch="*")
    assert complete(in_parts(s3, bucket, "x", b"next"), IfMatch=first["ETag"])["ServerSideEncryption"] == "AES256"
    complete(begun)  # without a condition, nothing prevents the completion


def test_conditions_of_reads_and_copies(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    assert s3.get_object(Bucket=bucket, Key="x", IfModifiedSince=now + hour)["Body"].read() == TEXT
    assert s3.head_object(Bucket=bucket, Key="x", IfModifiedSince=now + hour)["ContentLength"] == len(TEXT)
    copy = {"Bucket": bucket, "Key": "copy", "CopySource": f"{bucket}/x"}
    s3.copy_object(**copy, CopySourceIfModifiedSince=now + hour)
    modified = s3.head_object(Bucket=bucket, Key="x")["LastModified"]
    for name, value, condition in (
        ("IfMatch", "e", "If-Match"),
        ("IfNoneMatch", hashlib.md5(TEXT).hexdigest(), "If-None-Match"),
        ("IfModifiedSince", modified, "If-Modified-Since"),
        ("IfUnmodifiedSince", now - hour, "If-Unmodified-Since"),
    ):
        with refused("PreconditionFailed", 412, Condition=f"x-amz-copy-source-{condition}"):
            s3.copy_object(**copy, **{f"CopySource{name}": value})


# Copies


def test_a_copy_of_a_multipart_object(s3, bucket):
    upload_id, parts = in_parts(s3, bucket, "from", b"a" * 5 * MIB, b"b", ChecksumAlgorithm="SHA256")
    s3.complete_multipart_upload(Bucket=bucket, Key="from", UploadId=upload_id, MultipartUpload=parts)
    body = b"a" * 5 * MIB + b"b"
    done = s3.copy_object(Bucket=bucket, Key="to", CopySource=f"{bucket}/from")["CopyObjectResult"]
    assert done["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="to", ChecksumMode="ENABLED")
    assert (got["ETag"], got["ChecksumType"], "-" in got["ChecksumSHA256"]) == (done["ETag"], "FULL_OBJECT", False)
    assert got["Body"].read() == body
    assert "PartsCount" not in s3.head_object(Bucket=bucket, Key="to", PartNumber=1)


def test_a_plus_in_a_copy_source_is_a_space(corral, s3, bucket):
    s3.put_object(Bucket=bucket, Key="a b", Body=TEXT)
    url = presigned(corral, "PUT", f"/{bucket}/to", {"x-amz-copy-source": f"{bucket}/a+b"})
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    assert s3.get_object(Bucket=bucket, Key="to")["Body"].read() == TEXT
    s3.put_object(Bucket=bucket, Key="c+d", Body=b"plus")
    s3.copy_object(Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "c+d"})
    assert s3.get_object(Bucket=bucket, Key="to")["Body"].read() == b"plus"


def test_copying_an_object_onto_itself(s3):
    bucket = new_bucket(s3, versions=True)
    version = s3.put_object(Bucket=bucket, Key="x", Body=TEXT)["VersionId"]
    onto_itself = {"Bucket": bucket, "Key": "x", "CopySource": f"{bucket}/x"}
    with refused("InvalidRequest", 400):
        s3.copy_object(**onto_itself)
    copied = s3.copy_object(**onto_itself | {"CopySource": f"{bucket}/x?versionId={version}"})
    assert copied["CopySourceVersionId"] == version != copied["VersionId"]
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.copy_object(**onto_itself)


def test_ranges_of_part_copies(s3, bucket):
    s3.put_object(Bucket=bucket, Key="from", Body=TEXT)
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="to")["UploadId"]
    part = {"Bucket": bucket, "Key": "to", "UploadId": upload_id, "PartNumber": 1, "CopySource": f"{bucket}/from"}
    copied = s3.upload_part_copy(**part, CopySourceRange="bytes=0-8")
    assert set(copied["CopyPartResult"]) == {"ETag", "LastModified"} and copied["ServerSideEncryption"] == "AES256"
    form = (
        "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of "
        "the first and last bytes to copy"
    )
    argument = {"ArgumentName": "x-amz-copy-source-range"}

    def check(case: tuple[str, str, dict[str, str]]) -> None:
        text, message, members = case
        with refused("InvalidArgument" if members else "InvalidRequest", 400, Message=message, **members):
            s3.upload_part_copy(**part, CopySourceRange=text)

    check_each(
        [
            *(
                (text, form, argument | {"ArgumentValue": text})
                for text in ("0-8", "bytes=1-0", "bytes=-1", "bytes=1-", "bytes=0-1,3-4")
            ),
            (
                "bytes=0-100",
                "Range specified is not valid for source object of size: 43",
                argument | {"ArgumentValue": "bytes=0-100"},
            ),
            ("bytes=100-200", "The specified copy range is invalid for the source object size", {}),
        ],
        check,
    )


# Reads


def test_every_answer_about_an_object_shows_its_encryption(s3, bucket):
    where = {"Bucket": bucket, "Key": "x"}
    upload_id = s3.create_multipart_upload(**where)["UploadId"]
    part = s3.upload_part(**where, UploadId=upload_id, PartNumber=1, Body=TEXT)
    answers = [
        s3.put_object(**where, Body=TEXT),
        s3.get_object(**where),
        s3.head_object(**where),
        s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/x"),
        s3.create_multipart_upload(**where),
        part,
        s3.complete_multipart_upload(
            **where, UploadId=upload_id, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        ),
    ]
    assert [answer["ServerSideEncryption"] for answer in answers] == ["AES256"] * len(answers)


def test_the_checksum_of_a_range(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    for text, has_checksum in (("bytes=0-100", True), ("bytes=-100", True), ("bytes=0-8", False)):
        got = s3.get_object(Bucket=bucket, Key="x", Range=text, ChecksumMode="ENABLED")
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert ("ChecksumCRC32" in got, "ChecksumType" in got) == (has_checksum, has_checksum)


def test_delete_markers(s3):
    bucket = new_bucket(s3, versions=True)
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    marker = s3.delete_object(Bucket=bucket, Key="x")["VersionId"]
    by_latest, by_id = {"Bucket": bucket, "Key": "x"}, {"Bucket": bucket, "Key": "x", "VersionId": marker}
    tags = {"Tagging": {"TagSet": [{"Key": "k", "Value": "v"}]}}
    with refused("NoSuchKey", 404, Key="x"):
        s3.get_object(**by_latest)

    def check(case: tuple[Callable[..., Any], str, dict[str, Any]]) -> None:
        call, method, members = case
        with refused("MethodNotAllowed", 405, Method=method, ResourceType="DeleteMarker") as raised:
            call(**members)
        headers = raised.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert (headers["allow"], headers["x-amz-delete-marker"]) == ("DELETE", "true") and "last-modified" in headers

    check_each(
        [
            (s3.get_object, "GET", by_id),
            *((s3.get_object_tagging, "GET", members) for members in (by_latest, by_id)),
            *((s3.put_object_tagging, "PUT", members | tags) for members in (by_latest, by_id)),
            *((s3.delete_object_tagging, "DELETE", members) for members in (by_latest, by_id)),
            *((s3.get_object_acl, "GET", members) for members in (by_latest, by_id)),
        ],
        check,
    )


# Versions


def test_version_ids_that_do_not_exist(s3, bucket):
    versioned = new_bucket(s3, versions=True)
    gone = s3.put_object(Bucket=versioned, Key="x", Body=TEXT)["VersionId"]
    s3.delete_object(Bucket=versioned, Key="x", VersionId=gone)
    assert s3.delete_object(Bucket=versioned, Key="x", VersionId=gone)["VersionId"] == gone  # a second delete succeeds
    with refused("NoSuchVersion", 404, Key="x", VersionId=gone):
        s3.get_object(Bucket=versioned, Key="x", VersionId=gone)
    for name in (bucket, versioned):
        s3.put_object(Bucket=name, Key="x", Body=TEXT)
        for call in (s3.get_object, s3.delete_object, s3.get_object_tagging):
            with refused(
                "InvalidArgument", 400, Message="Invalid version id specified", ArgumentName="versionId", ArgumentValue=FOREIGN_ID
            ):
                call(Bucket=name, Key="x", VersionId=FOREIGN_ID)
        with refused("400", 400):
            s3.head_object(Bucket=name, Key="x", VersionId=FOREIGN_ID)
        answer = s3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "x", "VersionId": FOREIGN_ID}]})
        said = {"Code": "NoSuchVersion", "Message": "The specified version does not exist.", "Key": "x", "VersionId": FOREIGN_ID}
        assert answer["Errors"] == [said] and "Deleted" not in answer
        assert s3.get_object(Bucket=name, Key="x")["Body"].read() == TEXT


def test_a_bucket_with_suspended_versioning(s3):
    bucket = new_bucket(s3, versions=True)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    assert "VersionId" not in s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    assert s3.get_object(Bucket=bucket, Key="x")["VersionId"] == "null"
    deleted = s3.delete_object(Bucket=bucket, Key="x")
    assert (deleted["DeleteMarker"], deleted["VersionId"]) == (True, "null")
    with refused("IllegalVersioningConfigurationException", 400, Message="The Versioning element must be specified"):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={})
    with refused("MalformedXML", 400, Message=MALFORMED_XML):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "enabled"})


def test_governance_retention_needs_object_lock(s3, bucket):
    header = "x-amz-bypass-governance-retention"
    for call, members in ((s3.delete_object, {"Key": "x"}), (s3.delete_objects, {"Delete": {"Objects": [{"Key": "x"}]}})):
        with refused("InvalidArgument", 400, ArgumentName=header):
            call(Bucket=bucket, BypassGovernanceRetention=False, **members)


# Tags


def test_an_empty_tag_set_deletes_the_tags(s3, bucket):
    put = {"Bucket": bucket, "Tagging": {"TagSet": [{"Key": "k", "Value": ""}]}}
    assert s3.put_bucket_tagging(**put)["ResponseMetadata"]["HTTPStatusCode"] == 204
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": []})
    with refused("NoSuchTagSet", 404, BucketName=bucket):
        s3.get_bucket_tagging(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT, Tagging="k=v")
    s3.put_object_tagging(Bucket=bucket, Key="x", Tagging={"TagSet": []})
    assert s3.get_object_tagging(Bucket=bucket, Key="x")["TagSet"] == []
    assert "TagCount" not in s3.get_object(Bucket=bucket, Key="x")


def test_invalid_tags(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)

    def check(case: tuple[list[tuple[str, str]], str, str, str, dict[str, str]]) -> None:
        tags, code, of_bucket, of_object, members = case
        document = {"TagSet": [{"Key": key, "Value": value} for key, value in tags]}
        with refused(code, 400, Message=of_bucket, **members):
            s3.put_bucket_tagging(Bucket=bucket, Tagging=document)
        with refused(code, 400, Message=of_object, **members):
            s3.put_object_tagging(Bucket=bucket, Key="x", Tagging=document)

    twice, key = "Cannot provide multiple Tags with the same key", "The TagKey you have provided is invalid"
    value, system = "The TagValue you have provided is invalid", "System tags cannot be added/updated by requester"
    many = [(str(number), "") for number in range(51)]
    counts = ("Bucket tag count cannot be greater than 50", "Object tags cannot be greater than 10")
    check_each(
        [
            ([("k", "1"), ("k", "2")], "InvalidTag", twice, twice, {"TagKey": "k"}),
            ([("a,b", "")], "InvalidTag", key, key, {"TagKey": "a,b"}),
            ([("k", "a,b")], "InvalidTag", value, value, {"TagKey": "k", "TagValue": "a,b"}),
            ([("aws:x", "")], "InvalidTag", system, "Your TagKey cannot be prefixed with aws:", {"TagKey": "aws:x"}),
            (many, "BadRequest", *counts, {}),
        ],
        check,
    )
    text = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates."
    for header in ("k=1&k=2", "k=1,j=2"):
        with refused("InvalidArgument", 400, Message=text, ArgumentName="x-amz-tagging", ArgumentValue=header):
            s3.put_object(Bucket=bucket, Key="x", Body=TEXT, Tagging=header)


# Bucket configurations


def test_missing_configurations_name_the_bucket(s3, bucket):
    s3.delete_bucket_ownership_controls(Bucket=bucket)
    s3.delete_public_access_block(Bucket=bucket)

    def check(case: tuple[Callable[..., Any], str]) -> None:
        with refused(case[1], 404, BucketName=bucket):
            case[0](Bucket=bucket)

    check_each(
        [
            (s3.get_bucket_policy, "NoSuchBucketPolicy"),
            (s3.get_bucket_policy_status, "NoSuchBucketPolicy"),
            (s3.get_bucket_cors, "NoSuchCORSConfiguration"),
            (s3.get_bucket_lifecycle_configuration, "NoSuchLifecycleConfiguration"),
            (s3.get_bucket_ownership_controls, "OwnershipControlsNotFoundError"),
            (s3.get_bucket_replication, "ReplicationConfigurationNotFoundError"),
            (s3.get_bucket_tagging, "NoSuchTagSet"),
            (s3.get_bucket_website, "NoSuchWebsiteConfiguration"),
            (s3.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"),
            (s3.get_public_access_block, "NoSuchPublicAccessBlockConfiguration"),
        ],
        check,
    )
    s3.delete_bucket_ownership_controls(Bucket=bucket)  # a second delete succeeds
    s3.delete_public_access_block(Bucket=bucket)


def test_invalid_configurations(s3, bucket, client):
    name = "x-amz-object-ownership"
    with refused("InvalidArgument", 400, Message=f"Invalid {name} header: Anybody", ArgumentName=name):
        s3.create_bucket(Bucket=f"{bucket}-2", ObjectOwnership="Anybody")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256", "KMSMasterKeyID": "k"}}
    with refused("InvalidArgument", 400, ArgumentName="ApplyServerSideEncryptionByDefault"):
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    s3.create_bucket(Bucket=f"{bucket}.dots")
    with refused("InvalidRequest", 400):
        s3.put_bucket_accelerate_configuration(Bucket=f"{bucket}.dots", AccelerateConfiguration={"Status": "Enabled"})
    for policy, message in (
        ("text", "Policies must be valid JSON and the first byte must be '{'"),
        ("{}", "Missing required field Statement"),
    ):
        with refused("MalformedPolicy", 400, Message=message):
            s3.put_bucket_policy(Bucket=bucket, Policy=policy)


def test_statuses_that_are_not_in_the_model(s3, bucket):
    policy = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    answers = [
        s3.put_bucket_policy(Bucket=bucket, Policy=f'{{"Statement": {str(policy).replace(chr(39), chr(34))}}}'),
        s3.put_bucket_metrics_configuration(Bucket=bucket, Id="m", MetricsConfiguration={"Id": "m"}),
        s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": []}),
    ]
    assert [answer["ResponseMetadata"]["HTTPStatusCode"] for answer in answers] == [204, 204, 204]
    s3.delete_bucket_metrics_configuration(Bucket=bucket, Id="m")
    with refused("NoSuchConfiguration", 404):
        s3.delete_bucket_metrics_configuration(Bucket=bucket, Id="m")


# Uploads


def test_an_upload_without_parts(s3, bucket):
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="x")["UploadId"]
    listed = s3.list_parts(Bucket=bucket, Key="x", UploadId=upload_id)
    assert (listed["PartNumberMarker"], listed["NextPartNumberMarker"], listed["MaxParts"]) == (0, 0, 1000)
    assert "Parts" not in listed


# Signatures and times


def answered(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_refused_signatures(corral, s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    url = f"{corral.url}/{bucket}/x"
    for method in ("GET", "PUT", "DELETE"):
        status, text = answered(url, method)
        why = f"User: anonymous is not authorized to perform: s3:{method.capitalize()}Object on resource: arn:aws:s3:::{bucket}/x "
        assert status == 403 and f"<Error><Code>AccessDenied</Code><Message>{why}because no resource-based policy allows" in text
    assert answered(url, "HEAD") == (403, "") and answered(f"{corral.url}/{bucket}?list-type=2")[0] == 403
    signed = presigned(corral, "GET", f"/{bucket}/x", {})
    status, text = answered(signed[:-4] + ("0000" if signed[-4:] != "0000" else "1111"))
    assert status == 403 and "<Code>SignatureDoesNotMatch</Code>" in text
    for member in ("AWSAccessKeyId", "StringToSign", "SignatureProvided", "StringToSignBytes", "CanonicalRequest"):
        assert f"<{member}>" in text, member
    assert f"<CanonicalRequest>GET\n/{bucket}/x\n" in text
    status, text = answered(presigned(corral, "GET", f"/{bucket}/x", {}).replace(corral.keys["access_key"], "AKIAUNKNOWNUNKNOWN00"))
    assert status == 403 and "<Code>InvalidAccessKeyId</Code><Message>The AWS Access Key Id you provided does not exist" in text
    assert "<AWSAccessKeyId>AKIAUNKNOWNUNKNOWN00</AWSAccessKeyId>" in text
    old = "20200101T000000Z"
    status, text = answered(re.sub(r"2\d{7}T\d{6}Z", old, signed).replace(datetime.now(UTC).strftime("%Y%m%d"), old[:8]))
    assert (
        status == 403
        and "<Code>AccessDenied</Code><Message>Request has expired</Message><X-Amz-Expires>600</X-Amz-Expires>" in text
    )
    assert "<Expires>2020-01-01T00:10:00Z</Expires><ServerTime>" in text


def test_times_have_milliseconds_that_are_zero(corral, s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    assert re.search(r"<LastModified>[\dT:-]+\.000Z</LastModified>", answered(presigned(corral, "GET", f"/{bucket}", {}))[1])
    assert re.search(r"<CreationDate>[\dT:-]+\.000Z</CreationDate>", answered(presigned(corral, "GET", "/", {}))[1])
    text = "The continuation token provided is incorrect"
    with refused("InvalidArgument", 400, Message=text, ArgumentName="continuation-token"):
        s3.list_objects_v2(Bucket=bucket, ContinuationToken="x")
