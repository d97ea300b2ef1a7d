"""Bucket configurations and ACLs, through real clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

Client = Callable[..., Any]
READ_BY_ANYONE = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::configured/*"}


@pytest.fixture(scope="module")
def s3(corral: Any) -> Any:
    client = corral.client("s3")
    client.create_bucket(Bucket="configured")
    return client


def refused(code: str, call: Callable[..., Any], **params: Any) -> ClientError:
    with pytest.raises(ClientError) as error:
        call(Bucket="configured", **params)
    assert error.value.response["Error"]["Code"] == code
    return error.value


RULE = {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["http://*.example.com"], "AllowedHeaders": ["*"], "MaxAgeSeconds": 60}
WEBSITE = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}
LIFECYCLE = {"Rules": [{"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30},
                        "Transitions": [{"Days": 10, "StorageClass": "GLACIER"}]}]}  # fmt: skip
ALL_OPEN = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), False)
DOCUMENTS: list[tuple[str, str, str, dict[str, Any], dict[str, Any], str | dict[str, Any]]] = [
    # name of put and get; delete; members of put; response of get; get without a configuration: an error or a response
    ("policy", "bucket_policy", "bucket_policy", {"Policy": json.dumps({"Statement": [READ_BY_ANYONE]})},
     {"Policy": json.dumps({"Statement": [READ_BY_ANYONE]})}, "NoSuchBucketPolicy"),
    ("cors", "bucket_cors", "bucket_cors", {"CORSConfiguration": {"CORSRules": [RULE]}}, {"CORSRules": [RULE]},
     "NoSuchCORSConfiguration"),
    ("tagging", "bucket_tagging", "bucket_tagging", {"Tagging": {"TagSet": [{"Key": "team", "Value": "x"}]}},
     {"TagSet": [{"Key": "team", "Value": "x"}]}, "NoSuchTagSet"),
    ("website", "bucket_website", "bucket_website", {"WebsiteConfiguration": WEBSITE}, WEBSITE, "NoSuchWebsiteConfiguration"),
    ("lifecycle", "bucket_lifecycle_configuration", "bucket_lifecycle", {"LifecycleConfiguration": LIFECYCLE},
     {**LIFECYCLE, "TransitionDefaultMinimumObjectSize": "all_storage_classes_128K"}, "NoSuchLifecycleConfiguration"),
    ("encryption", "bucket_encryption", "bucket_encryption",
     {"ServerSideEncryptionConfiguration": {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]}},
     {"ServerSideEncryptionConfiguration": {
         "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}, "BucketKeyEnabled": False}]}},
     {"ServerSideEncryptionConfiguration": {
         "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}]}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("put", "delete", "given", "shown", "none"), [each[1:] for each in DOCUMENTS], ids=[each[0] for each in DOCUMENTS]
)
def test_put_get_and_delete(s3: Any, put: str, delete: str, given: Any, shown: Any, none: Any) -> None:
    def is_bare() -> None:
        if isinstance(none, str):
            refused(none, getattr(s3, f"get_{put}"))
        else:
            assert answer(s3, f"get_{put}") == none

    is_bare()
    getattr(s3, f"put_{put}")(Bucket="configured", **given)
    assert answer(s3, f"get_{put}") == shown
    getattr(s3, f"delete_{delete}")(Bucket="configured")
    is_bare()


def answer(s3: Any, call: str, **params: Any) -> Any:
    found = getattr(s3, call)(Bucket="configured", **params)
    del found["ResponseMetadata"]
    return found


@pytest.mark.parametrize(
    ("name", "given", "shown", "default", "missing"),
    [
        ("bucket_ownership_controls", {"OwnershipControls": {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}},
         {"OwnershipControls": {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}},
         {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}}, "OwnershipControlsNotFoundError"),
        ("public_access_block", {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}},
         {"PublicAccessBlockConfiguration": ALL_OPEN | {"BlockPublicAcls": True}},
         {"PublicAccessBlockConfiguration": dict.fromkeys(ALL_OPEN, True)}, "NoSuchPublicAccessBlockConfiguration"),
    ],
)  # fmt: skip
def test_defaults_that_can_be_deleted(s3: Any, name: str, given: Any, shown: Any, default: Any, missing: str) -> None:
    assert answer(s3, f"get_{name}") == default
    getattr(s3, f"delete_{name}")(Bucket="configured")
    refused(missing, getattr(s3, f"get_{name}"))
    getattr(s3, f"put_{name}")(Bucket="configured", **given)
    assert answer(s3, f"get_{name}") == shown


def test_configurations_that_are_empty_by_default(s3: Any) -> None:
    assert answer(s3, "get_bucket_logging") == {}
    assert answer(s3, "get_bucket_accelerate_configuration") == {}
    assert answer(s3, "get_bucket_notification_configuration") == {}
    assert answer(s3, "get_bucket_request_payment") == {"Payer": "BucketOwner"}
    assert answer(s3, "get_bucket_abac") == {"AbacStatus": {"Status": "Disabled"}}
    s3.put_bucket_logging(
        Bucket="configured", BucketLoggingStatus={"LoggingEnabled": {"TargetBucket": "configured", "TargetPrefix": "l/"}}
    )
    assert answer(s3, "get_bucket_logging") == {"LoggingEnabled": {"TargetBucket": "configured", "TargetPrefix": "l/"}}
    s3.put_bucket_accelerate_configuration(Bucket="configured", AccelerateConfiguration={"Status": "Enabled"})
    assert answer(s3, "get_bucket_accelerate_configuration") == {"Status": "Enabled"}
    s3.put_bucket_request_payment(Bucket="configured", RequestPaymentConfiguration={"Payer": "Requester"})
    assert answer(s3, "get_bucket_request_payment") == {"Payer": "Requester"}
    s3.put_bucket_abac(Bucket="configured", AbacStatus={"Status": "Enabled"})
    assert answer(s3, "get_bucket_abac") == {"AbacStatus": {"Status": "Enabled"}}


def test_replication_needs_versioning(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="replicated")
    rule = {"ID": "all", "Status": "Enabled", "Prefix": "", "Destination": {"Bucket": "arn:aws:s3:::elsewhere"}}
    configuration = {"Role": "arn:aws:iam::123456789012:role/r", "Rules": [rule]}
    with pytest.raises(ClientError, match="ReplicationConfigurationNotFoundError"):
        s3.get_bucket_replication(Bucket="replicated")
    with pytest.raises(ClientError, match="Versioning must be 'Enabled'"):
        s3.put_bucket_replication(Bucket="replicated", ReplicationConfiguration=configuration)
    s3.put_bucket_versioning(Bucket="replicated", VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_replication(Bucket="replicated", ReplicationConfiguration=configuration)
    assert s3.get_bucket_replication(Bucket="replicated")["ReplicationConfiguration"] == configuration
    s3.delete_bucket_replication(Bucket="replicated")
    with pytest.raises(ClientError, match="ReplicationConfigurationNotFoundError"):
        s3.get_bucket_replication(Bucket="replicated")


def test_object_lock_is_refused(s3: Any) -> None:
    refused("ObjectLockConfigurationNotFoundError", s3.get_object_lock_configuration)
    error = refused("NotImplemented", s3.put_object_lock_configuration, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    assert "does not support object lock" in str(error)


STORED = {"S3BucketDestination": {"Format": "CSV", "Bucket": "arn:aws:s3:::configured"}}
NAMED = {
    "metrics": {"Filter": {"Prefix": "a/"}},
    "analytics": {"StorageClassAnalysis": {"DataExport": {"OutputSchemaVersion": "V_1", "Destination": STORED}}},
    "intelligent_tiering": {"Status": "Enabled", "Tierings": [{"Days": 90, "AccessTier": "ARCHIVE_ACCESS"}]},
    "inventory": {"Destination": STORED, "IsEnabled": True, "IncludedObjectVersions": "All", "Schedule": {"Frequency": "Daily"}},
}


@pytest.mark.parametrize("word", NAMED)
def test_configurations_with_names(s3: Any, word: str) -> None:
    member = "".join(part.title() for part in word.split("_")) + "Configuration"
    calls = {
        verb: getattr(s3, f"{verb}_bucket_{word}_configuration{'s' if verb == 'list' else ''}")
        for verb in ("put", "get", "delete", "list")
    }
    for name in ("b", "a"):
        calls["put"](Bucket="configured", Id=name, **{member: {"Id": name, **NAMED[word]}})
    assert calls["get"](Bucket="configured", Id="a")[member] == {"Id": "a", **NAMED[word]}
    found = calls["list"](Bucket="configured")
    assert [each["Id"] for each in found[f"{member}List"]] == ["a", "b"]
    assert found["IsTruncated"] is False
    refused("InvalidArgument", calls["put"], Id="c", **{member: {"Id": "d", **NAMED[word]}})
    calls["delete"](Bucket="configured", Id="a")
    refused("NoSuchConfiguration", calls["get"], Id="a")
    refused("NoSuchConfiguration", calls["delete"], Id="a")


def test_listings_of_configurations_have_pages(s3: Any) -> None:
    for number in range(101):
        s3.put_bucket_metrics_configuration(Bucket="configured", Id=f"p{number:03d}", MetricsConfiguration={"Id": f"p{number:03d}"})
    first = s3.list_bucket_metrics_configurations(Bucket="configured")
    assert first["IsTruncated"]
    rest = s3.list_bucket_metrics_configurations(Bucket="configured", ContinuationToken=first["NextContinuationToken"])
    assert not rest["IsTruncated"]
    names = [each["Id"] for page in (first, rest) for each in page["MetricsConfigurationList"]]
    assert names == sorted({*names})
    assert len([name for name in names if name.startswith("p")]) == 101


def statement(**members: Any) -> str:
    return json.dumps({"Statement": [READ_BY_ANYONE | members]})


@pytest.mark.parametrize(
    ("call", "params", "code"),
    [
        ("put_bucket_policy", {"Policy": "no"}, "MalformedPolicy"),
        ("put_bucket_policy", {"Policy": statement(Resource="arn:aws:s3:::other/*")}, "MalformedPolicy"),
        ("put_bucket_policy", {"Policy": statement(Action="sqs:SendMessage")}, "MalformedPolicy"),
        ("put_bucket_policy", {"Policy": statement(Principal=None)}, "MalformedPolicy"),
        ("put_bucket_policy", {"Policy": statement(Sid="x" * 21_000)}, "PolicyTooLarge"),
        ("put_bucket_cors", {"CORSConfiguration": {"CORSRules": [RULE | {"AllowedMethods": ["PATCH"]}]}}, "InvalidRequest"),
        ("put_bucket_cors", {"CORSConfiguration": {"CORSRules": [RULE | {"AllowedOrigins": ["*.*"]}]}}, "InvalidRequest"),
        ("put_bucket_cors", {"CORSConfiguration": {"CORSRules": [RULE | {"ExposeHeaders": ["x-*"]}]}}, "InvalidRequest"),
        ("put_bucket_cors", {"CORSConfiguration": {"CORSRules": []}}, "MalformedXML"),
        ("put_bucket_tagging", {"Tagging": {"TagSet": [{"Key": "a", "Value": "1"}] * 2}}, "InvalidTag"),
        ("put_bucket_website", {"WebsiteConfiguration": {"ErrorDocument": {"Key": "e"}}}, "InvalidArgument"),
        ("put_bucket_website", {"WebsiteConfiguration": {"IndexDocument": {"Suffix": "a/b"}}}, "InvalidArgument"),
        ("put_bucket_logging", {"BucketLoggingStatus": {"LoggingEnabled": {"TargetBucket": "none-such", "TargetPrefix": ""}}},
         "InvalidTargetBucketForLogging"),
        ("put_bucket_request_payment", {"RequestPaymentConfiguration": {"Payer": "Unknown"}}, "MalformedXML"),
        ("put_bucket_accelerate_configuration", {"AccelerateConfiguration": {"Status": "Faster"}}, "MalformedXML"),
        ("put_bucket_ownership_controls", {"OwnershipControls": {"Rules": [{"ObjectOwnership": "Unknown"}]}}, "MalformedXML"),
        ("put_bucket_encryption", {"ServerSideEncryptionConfiguration": {"Rules": [
            {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "rot13"}}]}}, "MalformedXML"),
        ("put_bucket_encryption", {"ServerSideEncryptionConfiguration": {"Rules": [
            {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256", "KMSMasterKeyID": "k"}}]}}, "InvalidArgument"),
    ],
)  # fmt: skip
def test_invalid_configurations_are_refused(s3: Any, call: str, params: dict[str, Any], code: str) -> None:
    refused(code, getattr(s3, call), **params)


def lifecycle(**members: Any) -> dict[str, Any]:
    """A rule without the members that are None."""
    rule = {"Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}, **members}
    return {name: value for name, value in rule.items() if value is not None}


TAG = {"Key": "a", "Value": "b"}


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([], "MalformedXML"),
        ([lifecycle(Status="On")], "MalformedXML"),
        ([lifecycle(Filter=None)], "MalformedXML"),
        ([lifecycle(Prefix="")], "MalformedXML"),
        ([lifecycle(Filter={"Prefix": "a", "Tag": TAG})], "MalformedXML"),
        ([lifecycle(Expiration=None)], "InvalidRequest"),
        ([lifecycle(Expiration={})], "InvalidRequest"),
        ([lifecycle(Expiration={"Days": 1, "ExpiredObjectDeleteMarker": True})], "MalformedXML"),
        ([lifecycle(Expiration={"Days": 0})], "InvalidArgument"),
        ([lifecycle(Expiration={"Date": "2024-01-01T12:00:00Z"})], "InvalidArgument"),
        ([lifecycle(ID="x" * 256)], "InvalidArgument"),
        ([lifecycle(ID="same"), lifecycle(ID="same")], "InvalidArgument"),
        ([lifecycle(NoncurrentVersionExpiration={"NoncurrentDays": 0})], "InvalidArgument"),
        ([lifecycle(NoncurrentVersionExpiration={"NewerNoncurrentVersions": 3})], "MalformedXML"),
        ([lifecycle(NoncurrentVersionExpiration={"NoncurrentDays": 1, "NewerNoncurrentVersions": 101})], "InvalidArgument"),
        ([lifecycle(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 0})], "InvalidArgument"),
        ([lifecycle(Filter={"Tag": TAG}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})], "InvalidRequest"),
        (
            [lifecycle(Filter={"ObjectSizeLessThan": 9}, AbortIncompleteMultipartUpload={"DaysAfterInitiation": 1})],
            "InvalidRequest",
        ),
        ([lifecycle(Filter={"Tag": TAG}, Expiration={"ExpiredObjectDeleteMarker": True})], "InvalidRequest"),
    ],
)
def test_invalid_lifecycle_rules_are_refused(s3: Any, rules: list[dict[str, Any]], code: str) -> None:
    refused(code, s3.put_bucket_lifecycle_configuration, LifecycleConfiguration={"Rules": rules})


def test_whether_a_policy_is_public(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="opened")
    with pytest.raises(ClientError, match="NoSuchBucketPolicy"):
        s3.get_bucket_policy_status(Bucket="opened")
    public = READ_BY_ANYONE | {"Resource": "arn:aws:s3:::opened/*"}
    s3.put_bucket_policy(Bucket="opened", Policy=json.dumps({"Statement": public}))
    assert s3.get_bucket_policy_status(Bucket="opened")["PolicyStatus"] == {"IsPublic": True}
    narrow = public | {"Principal": {"AWS": "123456789012"}}
    s3.put_bucket_policy(Bucket="opened", Policy=json.dumps({"Statement": narrow}))
    assert s3.get_bucket_policy_status(Bucket="opened")["PolicyStatus"] == {"IsPublic": False}


def test_a_recreated_bucket_has_no_old_configuration(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="again")
    s3.put_bucket_tagging(Bucket="again", Tagging={"TagSet": [TAG]})
    s3.delete_bucket(Bucket="again")
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3.get_bucket_tagging(Bucket="again")
    s3.create_bucket(Bucket="again")
    with pytest.raises(ClientError, match="NoSuchTagSet"):
        s3.get_bucket_tagging(Bucket="again")


def test_configurations_in_create_bucket(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="made", ObjectOwnership="ObjectWriter", CreateBucketConfiguration={"Tags": [TAG]})
    assert s3.get_bucket_ownership_controls(Bucket="made")["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
    assert s3.get_bucket_tagging(Bucket="made")["TagSet"] == [TAG]


# Access control lists


def permissions(acl: dict[str, Any]) -> set[tuple[str, str]]:
    def name(grantee: dict[str, str]) -> str:
        if grantee.get("ID") == acl["Owner"]["ID"]:
            return "owner"
        return (grantee.get("URI") or grantee.get("ID") or grantee["EmailAddress"]).rpartition("/")[2]

    return {(name(grant["Grantee"]), grant["Permission"]) for grant in acl["Grants"]}


def test_acls_of_buckets(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="listed", ACL="public-read")
    assert permissions(s3.get_bucket_acl(Bucket="listed")) == {("owner", "FULL_CONTROL"), ("AllUsers", "READ")}
    s3.put_bucket_acl(Bucket="listed", ACL="private")
    assert permissions(s3.get_bucket_acl(Bucket="listed")) == {("owner", "FULL_CONTROL")}
    s3.put_bucket_acl(
        Bucket="listed", GrantRead='id="abc", uri="http://acs.amazonaws.com/groups/global/AllUsers"', GrantWriteACP="id=abc"
    )
    assert permissions(s3.get_bucket_acl(Bucket="listed")) == {("abc", "READ"), ("AllUsers", "READ"), ("abc", "WRITE_ACP")}
    acl = s3.get_bucket_acl(Bucket="listed")
    s3.put_bucket_acl(Bucket="listed", AccessControlPolicy={"Owner": acl["Owner"], "Grants": acl["Grants"][:1]})
    assert permissions(s3.get_bucket_acl(Bucket="listed")) == {("abc", "READ")}
    for params, code in (
        ({"ACL": "everything"}, "InvalidArgument"),
        ({"GrantRead": "somebody"}, "InvalidArgument"),
        ({"ACL": "private", "GrantRead": "id=abc"}, "InvalidRequest"),
    ):
        with pytest.raises(ClientError, match=code):
            s3.put_bucket_acl(Bucket="listed", **params)


def test_acls_of_objects(client: Client) -> None:
    s3 = client("s3")
    s3.create_bucket(Bucket="objects-listed")
    s3.put_object(Bucket="objects-listed", Key="a", Body=b"a")
    assert permissions(s3.get_object_acl(Bucket="objects-listed", Key="a")) == {("owner", "FULL_CONTROL")}
    s3.put_object_acl(Bucket="objects-listed", Key="a", ACL="authenticated-read")
    assert permissions(s3.get_object_acl(Bucket="objects-listed", Key="a")) == {
        ("owner", "FULL_CONTROL"),
        ("AuthenticatedUsers", "READ"),
    }
    s3.put_object(Bucket="objects-listed", Key="b", Body=b"b", ACL="public-read")
    assert permissions(s3.get_object_acl(Bucket="objects-listed", Key="b")) == {("owner", "FULL_CONTROL"), ("AllUsers", "READ")}
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object_acl(Bucket="objects-listed", Key="none")
