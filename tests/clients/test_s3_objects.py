"""Buckets and objects, through boto3 and the aws command."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest

from clients.s3_help import new_bucket, refused

TEXT = b"The quick brown fox jumps over the lazy dog"
HOUR = timedelta(hours=1)


@pytest.fixture
def s3(client):
    return client("s3")


@pytest.fixture
def bucket(s3):
    return new_bucket(s3)


def test_a_bucket(s3, client, aws):
    name = new_bucket(s3)
    assert s3.head_bucket(Bucket=name)["BucketRegion"] == "us-east-1"
    assert s3.get_bucket_location(Bucket=name)["LocationConstraint"] is None
    assert name in [each["Name"] for each in s3.list_buckets()["Buckets"]]
    assert [each["Name"] for each in s3.list_buckets(Prefix=name[:-1])["Buckets"]] == [name]
    assert name in [each["Name"] for each in aws("s3api", "list-buckets")["Buckets"]]
    s3.create_bucket(Bucket=name)  # in us-east-1 this is not an error
    s3.delete_bucket(Bucket=name)
    with refused("404", 404):
        s3.head_bucket(Bucket=name)
    with refused("NoSuchBucket", 404, BucketName=name):
        s3.list_objects_v2(Bucket=name)
    europe = client("s3", region="eu-west-1")
    europe.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert europe.get_bucket_location(Bucket=name)["LocationConstraint"] == "eu-west-1"
    assert s3.head_bucket(Bucket=name)["BucketRegion"] == "eu-west-1"
    assert [each["Name"] for each in s3.list_buckets(BucketRegion="eu-west-1")["Buckets"]] == [name]
    with refused("BucketAlreadyOwnedByYou", 409):
        europe.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    with refused("IllegalLocationConstraintException"):
        europe.create_bucket(Bucket="another-one")
    client("s3", region="US").create_bucket(Bucket=f"{name}-us")  # not a region: the error names the right one, and boto3 retries
    assert s3.get_bucket_location(Bucket=f"{name}-us")["LocationConstraint"] is None
    with refused("InvalidLocationConstraint"):
        s3.create_bucket(Bucket="another-one", CreateBucketConfiguration={"LocationConstraint": "us-east-1"})
    with refused("AccessDenied", 403):
        s3.list_objects_v2(Bucket=name, ExpectedBucketOwner="999999999999")


@pytest.mark.parametrize("name", ["ab", "Upper", "under_score", "a..b", "1.2.3.4", "-start", "end-", "a.-b", "xn--x", "x-s3alias"])
def test_invalid_bucket_names(s3, name):
    with refused("InvalidBucketName", 400, BucketName=name):
        s3.create_bucket(Bucket=name)


def test_an_object(s3, bucket):
    put = s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)
    assert put["ETag"] == f'"{hashlib.md5(TEXT).hexdigest()}"' and "VersionId" not in put
    got = s3.get_object(Bucket=bucket, Key="fox")
    assert got["Body"].read() == TEXT
    assert (got["ContentLength"], got["ContentType"], got["AcceptRanges"]) == (len(TEXT), "binary/octet-stream", "bytes")
    assert abs(got["LastModified"] - datetime.now(UTC)) < timedelta(minutes=1)
    head = s3.head_object(Bucket=bucket, Key="fox")
    assert (head["ContentLength"], head["ETag"]) == (len(TEXT), put["ETag"])
    s3.put_object(Bucket=bucket, Key="fox", Body=b"another")
    assert s3.get_object(Bucket=bucket, Key="fox")["Body"].read() == b"another"
    with refused("BucketNotEmpty", 409, BucketName=bucket):
        s3.delete_bucket(Bucket=bucket)
    s3.delete_object(Bucket=bucket, Key="fox")
    s3.delete_object(Bucket=bucket, Key="fox")  # deleting a missing key succeeds
    with refused("NoSuchKey", 404, Key="fox"):
        s3.get_object(Bucket=bucket, Key="fox")
    with refused("404", 404):
        s3.head_object(Bucket=bucket, Key="fox")
    s3.delete_bucket(Bucket=bucket)
    with refused("NoSuchBucket", 404):
        s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)


def test_an_empty_object(s3, bucket):
    s3.put_object(Bucket=bucket, Key="nothing")
    got = s3.get_object(Bucket=bucket, Key="nothing", ChecksumMode="ENABLED")
    assert (got["Body"].read(), got["ContentLength"]) == (b"", 0)
    with refused("InvalidRange", 416):
        s3.get_object(Bucket=bucket, Key="nothing", Range="bytes=0-")


KEYS = [
    "a",
    "a/../b",
    "..",
    "//",
    "a//b/",
    "./x",
    "line\nbreak",
    "a b+c%20d&e=f?g#h",
    "ünï/日本語/🐎",
    "'\"<>&",
    "\x01\x7f",
    "x" * 1024,
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_any_key(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert s3.get_object(Bucket=bucket, Key="copy")["Body"].read() == key.encode()
    for each in (key, "copy"):
        s3.delete_object(Bucket=bucket, Key=each)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_a_key_that_is_too_long(s3, bucket):
    with refused("KeyTooLongError", 400, MaxSizeAllowed="1024"):
        s3.put_object(Bucket=bucket, Key="é" * 513)


def test_stored_headers_and_metadata(s3, bucket):
    kept = {
        "CacheControl": "no-cache",
        "ContentDisposition": 'attachment; filename="x"',
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "ContentType": "text/plain",
        "Metadata": {"a": "1", "with-dash": "two words"},
        "StorageClass": "STANDARD_IA",
        "WebsiteRedirectLocation": "/elsewhere",
        "ServerSideEncryption": "aws:kms",
        "SSEKMSKeyId": "alias/mine",
    }
    put = s3.put_object(Bucket=bucket, Key="x", Body=TEXT, Tagging="a=1&b=two%20words", Expires=datetime(2030, 1, 1), **kept)
    assert (put["ServerSideEncryption"], put["SSEKMSKeyId"]) == ("aws:kms", "alias/mine")
    for got in (s3.head_object(Bucket=bucket, Key="x"), s3.get_object(Bucket=bucket, Key="x")):
        assert {name: got[name] for name in kept} == kept
        assert got["ExpiresString"] == "Tue, 01 Jan 2030 00:00:00 GMT"
    assert got["TagCount"] == 2
    tags = [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "two words"}]
    assert s3.get_object_tagging(Bucket=bucket, Key="x")["TagSet"] == tags
    assert s3.list_objects_v2(Bucket=bucket)["Contents"][0]["StorageClass"] == "STANDARD_IA"
    shown = s3.get_object(Bucket=bucket, Key="x", ResponseContentType="image/png", ResponseCacheControl="max-age=1")
    assert (shown["ContentType"], shown["CacheControl"]) == ("image/png", "max-age=1")
    with refused("MetadataTooLarge"):
        s3.put_object(Bucket=bucket, Key="y", Metadata={"a": "x" * 2100})
    with refused("InvalidStorageClass"):
        s3.put_object(Bucket=bucket, Key="y", StorageClass="SHELF")
    with refused("NotImplemented", 501):
        s3.put_object(Bucket=bucket, Key="y", SSECustomerAlgorithm="AES256", SSECustomerKey="k" * 32)


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-0", TEXT[:1]),
        ("bytes=4-8", TEXT[4:9]),
        ("bytes=40-", TEXT[40:]),
        ("bytes=40-4000", TEXT[40:]),
        ("bytes=-3", TEXT[-3:]),
        ("bytes=-3000", TEXT),
    ],
)
def test_a_range(s3, bucket, header, part):
    s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)
    got = s3.get_object(Bucket=bucket, Key="fox", Range=header)
    assert got["Body"].read() == part
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    first = TEXT.index(part)
    assert got["ContentRange"] == f"bytes {first}-{first + len(part) - 1}/{len(TEXT)}"
    assert s3.head_object(Bucket=bucket, Key="fox", Range=header)["ContentLength"] == len(part)


def test_invalid_and_unsatisfiable_ranges(s3, bucket):
    s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)
    for ignored in ("bytes=5-4", "lines=1-2", "bytes=0-1,3-4", "bytes=-"):
        got = s3.get_object(Bucket=bucket, Key="fox", Range=ignored)
        assert (got["Body"].read(), got["ResponseMetadata"]["HTTPStatusCode"]) == (TEXT, 200)
    for nothing in ("bytes=43-", "bytes=-0"):
        with refused("InvalidRange", 416, ActualObjectSize="43", RangeRequested=nothing):
            s3.get_object(Bucket=bucket, Key="fox", Range=nothing)


def test_conditional_reads(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)["ETag"]
    modified = s3.head_object(Bucket=bucket, Key="fox")["LastModified"]
    before, after = modified - HOUR, modified + HOUR

    def get(**conditions):
        return s3.get_object(Bucket=bucket, Key="fox", **conditions)["Body"].read()

    for holds in (
        {"IfMatch": etag},
        {"IfMatch": etag.strip('"')},
        {"IfMatch": "*"},
        {"IfMatch": f'"other", {etag}'},
        {"IfNoneMatch": '"other"'},
        {"IfModifiedSince": before},
        {"IfUnmodifiedSince": after},
        {"IfMatch": etag, "IfUnmodifiedSince": before},  # the ETag takes precedence
        {"IfNoneMatch": '"other"', "IfModifiedSince": after},
    ):
        assert get(**holds) == TEXT
    for changed in ({"IfNoneMatch": etag}, {"IfModifiedSince": modified}, {"IfNoneMatch": etag, "IfModifiedSince": before}):
        with refused("304", 304) as raised:
            get(**changed)
        assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["etag"] == etag
    for failed in ({"IfMatch": '"other"'}, {"IfUnmodifiedSince": before}, {"IfMatch": '"other"', "IfNoneMatch": etag}):
        with refused("PreconditionFailed", 412):
            get(**failed)
        with refused("412", 412):
            s3.head_object(Bucket=bucket, Key="fox", **failed)


def test_conditional_writes(s3, bucket):
    with refused("NoSuchKey", 404):
        s3.put_object(Bucket=bucket, Key="x", Body=b"1", IfMatch='"e"')
    first = s3.put_object(Bucket=bucket, Key="x", Body=b"1", IfNoneMatch="*")["ETag"]
    with refused("PreconditionFailed", 412, Condition="If-None-Match"):
        s3.put_object(Bucket=bucket, Key="x", Body=b"2", IfNoneMatch="*")
    second = s3.put_object(Bucket=bucket, Key="x", Body=b"2", IfMatch=first)["ETag"]
    with refused("PreconditionFailed", 412, Condition="If-Match"):
        s3.put_object(Bucket=bucket, Key="x", Body=b"3", IfMatch=first)
    with refused("PreconditionFailed", 412):
        s3.delete_object(Bucket=bucket, Key="x", IfMatch=first)
    with refused("NotImplemented", 501):
        s3.put_object(Bucket=bucket, Key="x", Body=b"3", IfNoneMatch=second)
    s3.delete_object(Bucket=bucket, Key="x", IfMatch=second)
    s3.put_object(Bucket=bucket, Key="x", Body=b"4", IfNoneMatch="*")


def test_copies(s3, bucket):
    other, source = new_bucket(s3), {"Bucket": bucket, "Key": "from"}
    etag = s3.put_object(
        Bucket=bucket,
        Key="from",
        Body=TEXT,
        Metadata={"a": "1"},
        ContentType="text/plain",
        Tagging="t=1",
        StorageClass="STANDARD_IA",
    )["ETag"]
    done = s3.copy_object(Bucket=other, Key="to", CopySource=source)
    assert done["CopyObjectResult"]["ETag"] == etag
    got = s3.get_object(Bucket=other, Key="to")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"], got["TagCount"]) == (TEXT, {"a": "1"}, "text/plain", 1)
    assert "StorageClass" not in got  # it comes from the request, not from the source
    s3.copy_object(
        Bucket=other,
        Key="to",
        CopySource=source,
        MetadataDirective="REPLACE",
        Metadata={"b": "2"},
        TaggingDirective="REPLACE",
        Tagging="u=2",
    )
    got = s3.head_object(Bucket=other, Key="to")
    assert (got["Metadata"], got["ContentType"]) == ({"b": "2"}, "binary/octet-stream")
    assert s3.get_object_tagging(Bucket=other, Key="to")["TagSet"] == [{"Key": "u", "Value": "2"}]
    with refused("InvalidRequest", 400):
        s3.copy_object(Bucket=bucket, Key="from", CopySource=source)
    s3.copy_object(Bucket=bucket, Key="from", CopySource=source, MetadataDirective="REPLACE", Metadata={"c": "3"})
    assert s3.head_object(Bucket=bucket, Key="from")["Metadata"] == {"c": "3"}
    with refused("NoSuchKey", 404):
        s3.copy_object(Bucket=other, Key="to", CopySource=f"{bucket}/nothing")
    with refused("NoSuchBucket", 404):
        s3.copy_object(Bucket=other, Key="to", CopySource="no-such-bucket-here/nothing")
    with refused("InvalidArgument", 400):
        s3.copy_object(Bucket=other, Key="to", CopySource="nothing")
    with refused("PreconditionFailed", 412):
        s3.copy_object(Bucket=other, Key="to", CopySource=source, CopySourceIfNoneMatch=etag)
    with refused("PreconditionFailed", 412):
        s3.copy_object(Bucket=other, Key="to", CopySource=source, CopySourceIfMatch='"other"')
    s3.copy_object(Bucket=other, Key="to", CopySource=source, CopySourceIfMatch=etag)
    s3.delete_object(Bucket=bucket, Key="from")  # the bytes are shared, and stay while an object refers to them
    assert s3.get_object(Bucket=other, Key="to")["Body"].read() == TEXT


def test_the_etag_with_a_kms_key_is_not_an_md5(s3, bucket):
    """As on S3, the ETag is random and differs from put to put. Content-MD5 is still verified."""
    md5 = hashlib.md5(TEXT)
    kms = {"Bucket": bucket, "Body": TEXT, "ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/mine"}
    first, second = (s3.put_object(Key=key, ContentMD5=b64encode(md5.digest()).decode(), **kms)["ETag"] for key in "ab")
    assert len({first, second, f'"{md5.hexdigest()}"'}) == 3
    assert s3.get_object(Bucket=bucket, Key="a", IfMatch=first)["Body"].read() == TEXT
    with refused("BadDigest"):
        s3.put_object(Key="c", ContentMD5=b64encode(bytes(16)).decode(), **kms)
    with refused("InvalidArgument", ArgumentName="x-amz-server-side-encryption"):
        s3.put_object(Bucket=bucket, Key="c", Body=TEXT, SSEKMSKeyId="alias/mine")

    plain = s3.copy_object(Bucket=bucket, Key="plain", CopySource=f"{bucket}/a")
    assert plain["CopyObjectResult"]["ETag"] == f'"{md5.hexdigest()}"', "the copy has its own encryption: the bytes were read anew"
    assert plain["CopyObjectResult"]["ChecksumCRC32"], "and has the kind of checksum that its source has"
    back = s3.copy_object(Bucket=bucket, Key="back", CopySource=f"{bucket}/plain", ServerSideEncryption="aws:kms")
    assert back["CopyObjectResult"]["ETag"] not in (first, second, f'"{md5.hexdigest()}"')
    assert s3.get_object(Bucket=bucket, Key="back")["Body"].read() == TEXT

    upload = {"Bucket": bucket, "Key": "parts"}
    upload["UploadId"] = s3.create_multipart_upload(**upload, ServerSideEncryption="aws:kms:dsse")["UploadId"]
    part = s3.upload_part(**upload, PartNumber=1, Body=TEXT)
    assert part["ETag"] != f'"{md5.hexdigest()}"'
    whole = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    assert (whole["ServerSideEncryption"], whole["ETag"][-3:]) == ("aws:kms:dsse", '-1"')
    assert s3.get_object(Bucket=bucket, Key="parts")["Body"].read() == TEXT


def test_objects_get_the_default_encryption_of_their_bucket(s3, bucket):
    assert s3.put_object(Bucket=bucket, Key="before", Body=TEXT)["ServerSideEncryption"] == "AES256"
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "k"}, "BucketKeyEnabled": True}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    shown = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k", "BucketKeyEnabled": True}
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts")
    put = s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    copied = s3.copy_object(Bucket=bucket, Key="copy", CopySource=f"{bucket}/before")
    for said in (upload, put, copied, s3.head_object(Bucket=bucket, Key="x"), s3.head_object(Bucket=bucket, Key="copy")):
        assert {name: said[name] for name in shown} == shown
    assert put["ETag"] != f'"{hashlib.md5(TEXT).hexdigest()}"'
    own = s3.put_object(Bucket=bucket, Key="own", Body=TEXT, ServerSideEncryption="AES256")
    assert (own["ServerSideEncryption"], own["ETag"]) == ("AES256", f'"{hashlib.md5(TEXT).hexdigest()}"')
    assert "SSEKMSKeyId" not in own
    s3.delete_bucket_encryption(Bucket=bucket)
    assert s3.put_object(Bucket=bucket, Key="x", Body=TEXT)["ServerSideEncryption"] == "AES256"


def test_a_copy_with_another_checksum(s3, bucket):
    s3.put_object(Bucket=bucket, Key="from", Body=TEXT, ChecksumAlgorithm="CRC32")
    done = s3.copy_object(Bucket=bucket, Key="to", CopySource=f"{bucket}/from", ChecksumAlgorithm="SHA256")["CopyObjectResult"]
    assert done["ChecksumSHA256"] == "16j7swfXgJRpypq8sAguT41WUeRtPNt2LQLQvzfJ5ZI="
    got = s3.get_object(Bucket=bucket, Key="to", ChecksumMode="ENABLED")
    assert (got["ChecksumSHA256"], got["Body"].read()) == (done["ChecksumSHA256"], TEXT)


def test_delete_objects(s3, bucket):
    for at in range(3):
        s3.put_object(Bucket=bucket, Key=f"k{at}")
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k0"}, {"Key": "nothing"}, {"Key": "x" * 1025}]})
    assert [each["Key"] for each in done["Deleted"]] == ["k0", "nothing"]
    assert [(each["Key"], each["Code"]) for each in done["Errors"]] == [("x" * 1025, "KeyTooLongError")]
    many = [{"Key": "k0"}] * 250  # more than fit into one command
    assert [each["Key"] for each in s3.delete_objects(Bucket=bucket, Delete={"Objects": many})["Deleted"]] == ["k0"] * 250
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k1", "ETag": '"other"'}, {"Key": "k2"}], "Quiet": True})
    assert "Deleted" not in done and [each["Code"] for each in done["Errors"]] == ["PreconditionFailed"]
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["k1"]
    with refused("MalformedXML", 400):
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": str(at)} for at in range(1001)]})


def test_tags(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=b"1")
    assert s3.get_object_tagging(Bucket=bucket, Key="x")["TagSet"] == []
    tags = [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}]
    s3.put_object_tagging(Bucket=bucket, Key="x", Tagging={"TagSet": tags})
    assert s3.get_object_tagging(Bucket=bucket, Key="x")["TagSet"] == tags
    s3.delete_object_tagging(Bucket=bucket, Key="x")
    assert s3.get_object_tagging(Bucket=bucket, Key="x")["TagSet"] == []
    for wrong in ([("a", "1")] * 2, [("k" * 129, "")], [("k", "v" * 257)], [("aws:x", "")]):
        with refused("InvalidTag", 400):
            document = {"TagSet": [{"Key": key, "Value": value} for key, value in wrong]}
            s3.put_object_tagging(Bucket=bucket, Key="x", Tagging=document)


def test_attributes(s3, bucket):
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    wanted = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    said = s3.get_object_attributes(Bucket=bucket, Key="x", ObjectAttributes=wanted)
    assert (said["ETag"], said["ObjectSize"], said["StorageClass"]) == (hashlib.md5(TEXT).hexdigest(), 43, "STANDARD")
    assert said["Checksum"]["ChecksumType"] == "FULL_OBJECT" and "ObjectParts" not in said


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_presigned_urls(corral, bucket, version):
    s3 = corral.client("s3", signature_version=version)
    where = {"Bucket": bucket, "Key": "a b/ü"}
    put = s3.generate_presigned_url("put_object", Params=where | {"ContentType": "text/plain"})
    request = urllib.request.Request(put, TEXT, {"Content-Type": "text/plain"}, method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["ETag"] == f'"{hashlib.md5(TEXT).hexdigest()}"'
    get = s3.generate_presigned_url("get_object", Params=where | {"ResponseContentType": "image/png"})
    with urllib.request.urlopen(get) as answer:
        assert (answer.read(), answer.headers["Content-Type"]) == (TEXT, "image/png")
    with urllib.request.urlopen(urllib.request.Request(get, headers={"Range": "bytes=4-8"})) as answer:
        assert (answer.read(), answer.status) == (b"quick", 206)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(get.replace("image", "text"))
    assert raised.value.code == 403 and b"SignatureDoesNotMatch" in raised.value.read()


def test_virtual_host_urls(corral, bucket):
    """`bucket.localhost:PORT` need not resolve: the Host header decides."""
    s3 = corral.client("s3", s3={"addressing_style": "path"})
    s3.put_object(Bucket=bucket, Key="fox", Body=TEXT)
    port = corral.url.rpartition(":")[2]
    for host in (f"{bucket}.localhost:{port}", f"{bucket}.s3.localhost:{port}", f"{bucket}.s3.us-east-1.amazonaws.com"):
        virtual = corral.new_client("s3", s3={"addressing_style": "path"})

        def as_host(request, host=host, **_):
            request.headers["Host"] = host
            request.url = request.url.replace(f"/{bucket}/", "/")

        virtual.meta.events.register("before-sign.s3", as_host)
        assert virtual.get_object(Bucket=bucket, Key="fox")["Body"].read() == TEXT


def test_the_aws_command(corral, aws, bucket, tmp_path):
    (tmp_path / "file").write_bytes(TEXT)
    corral.aws("s3api", "put-object", "--bucket", bucket, "--key", "x", "--body", str(tmp_path / "file"))
    assert aws("s3api", "head-object", "--bucket", bucket, "--key", "x")["ContentLength"] == len(TEXT)
    aws("s3api", "get-object", "--bucket", bucket, "--key", "x", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == TEXT


def test_operations_that_are_not_served(s3, bucket):
    with refused("NotImplemented", 501):
        s3.get_object_torrent(Bucket=bucket, Key="a")


def test_characters_that_no_header_can_have(corral, s3, bucket):
    """A presigned URL can set response headers to values that HTTP does not allow."""
    s3.put_object(Bucket=bucket, Key="x", Body=TEXT)
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "x", "ResponseContentType": "a\x00b\x7fc"})
    with pytest.raises(urllib.error.HTTPError) as answered:
        urllib.request.urlopen(url)
    assert (answered.value.code, b"<Code>InvalidArgument</Code>" in answered.value.read()) == (400, True)
    with refused("InvalidArgument", 400):
        s3.put_object(Bucket=bucket, Key="x", Body=TEXT, ServerSideEncryption="rot13")
    assert "Traceback" not in corral.log()
