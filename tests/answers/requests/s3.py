"""Requests of S3."""

from __future__ import annotations

import json
from typing import Any

from answers.calls import ACCOUNT, NOW, OTHER, SAME, Calls

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::answers/none"}],
    }
)
TAGS = {"TagSet": [{"Key": "a", "Value": "b"}]}
HERE = {"Bucket": "answers"}
KEY = {**HERE, "Key": "a"}


def requests(calls: Calls) -> None:
    calls.twice("CreateBucket", SAME, **HERE)
    for operation in ("HeadBucket", "GetBucketLocation", "GetBucketVersioning", "GetBucketAcl"):
        calls(operation, **HERE)
    calls("ListBuckets")
    settings(calls)
    collections(calls)
    objects(calls)
    uploads(calls)
    refusals(calls)
    calls.twice("DeleteObjects", SAME, **HERE, Delete={"Objects": [{"Key": key} for key in ("a", "b", "big", "copy")]})
    calls.twice("DeleteBucket", "NoSuchBucket", **HERE)


def settings(calls: Calls) -> None:
    """Each setting with its value, and what follows a second deletion. None: the setting has no Delete."""
    rule = {"ID": "r", "Filter": {"Prefix": "a"}, "Status": "Enabled", "Expiration": {"Days": 3}}
    owner = {"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]}
    sse = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": True}]}
    cors = {
        "CORSRules": [{"ID": "c", "AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "ExposeHeaders": ["x"], "MaxAgeSeconds": 5}]
    }
    block = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
    website = {"IndexDocument": {"Suffix": "i"}, "ErrorDocument": {"Key": "e"}}
    values: dict[str, dict[str, Any]] = {
        "BucketCors": {"CORSConfiguration": cors},
        "BucketTagging": {"Tagging": TAGS},
        "BucketPolicy": {"Policy": POLICY},
        "BucketEncryption": {"ServerSideEncryptionConfiguration": sse},
        "BucketOwnershipControls": {"OwnershipControls": owner},
        "PublicAccessBlock": {"PublicAccessBlockConfiguration": block},
        "BucketWebsite": {"WebsiteConfiguration": website},
    }
    for name, more in values.items():
        calls.twice(f"Put{name}", SAME, **HERE, **more)
        calls(f"Get{name}", **HERE)
        if name == "BucketPolicy":
            calls("GetBucketPolicyStatus", **HERE)
        calls.twice(f"Delete{name}", SAME, **HERE)
    calls.twice("PutBucketLifecycleConfiguration", SAME, **HERE, LifecycleConfiguration={"Rules": [rule]})
    calls("GetBucketLifecycleConfiguration", **HERE)
    calls.twice("DeleteBucketLifecycle", SAME, **HERE)
    calls.of("s3").create_bucket(Bucket="answers-log", ACL="log-delivery-write", ObjectOwnership="ObjectWriter")
    kept: dict[str, dict[str, Any]] = {
        "BucketNotificationConfiguration": {"NotificationConfiguration": {}},
        "BucketLogging": {"BucketLoggingStatus": {"LoggingEnabled": {"TargetBucket": "answers-log", "TargetPrefix": "a"}}},
        "BucketAccelerateConfiguration": {"AccelerateConfiguration": {"Status": "Suspended"}},
        "BucketRequestPayment": {"RequestPaymentConfiguration": {"Payer": "BucketOwner"}},
        "BucketAbac": {"AbacStatus": {"Status": "Disabled"}},
        "BucketAcl": {"ACL": "private"},
    }
    calls("PutBucketOwnershipControls", **HERE, OwnershipControls=owner)
    for name, more in kept.items():
        calls.twice(f"Put{name}", SAME, **HERE, **more)
        calls(f"Get{name}", **HERE)


def collections(calls: Calls) -> None:
    """Settings of which a bucket has several."""
    target = {"S3BucketDestination": {"Bucket": "arn:aws:s3:::answers", "Format": "CSV", "Prefix": "p", "BucketAccountId": ACCOUNT}}
    export = {"StorageClassAnalysis": {"DataExport": {"OutputSchemaVersion": "V_1", "Destination": target}}}
    account = {"Bucket": "arn:aws:s3:::answers", "Format": "CSV", "Prefix": "p", "AccountId": ACCOUNT}
    inventory = {
        "Destination": {"S3BucketDestination": account},
        "IsEnabled": True,
        "IncludedObjectVersions": "All",
        "Schedule": {"Frequency": "Daily"},
    }
    tiers = {"Status": "Enabled", "Tierings": [{"Days": 90, "AccessTier": "ARCHIVE_ACCESS"}]}
    for name, value in {
        "Analytics": export,
        "Inventory": inventory,
        "Metrics": {"Filter": {"Prefix": "a"}},
        "IntelligentTiering": tiers,
    }.items():
        one = {**HERE, "Id": "a"}
        calls.twice(f"PutBucket{name}Configuration", SAME, **one, **{f"{name}Configuration": {"Id": "a", **value}})
        calls(f"GetBucket{name}Configuration", **one)
        calls(f"ListBucket{name}Configurations", **HERE)
        calls.twice(f"DeleteBucket{name}Configuration", "NoSuchConfiguration", **one)
    calls.of("s3").create_bucket(Bucket="answers-other")
    calls.twice_refused("PutObjectLockConfiguration", "NotImplemented", **HERE, ObjectLockConfiguration={})
    calls.twice_refused("GetObjectLockConfiguration", "ObjectLockConfigurationNotFoundError", **HERE)
    calls.twice("PutBucketVersioning", SAME, Bucket="answers-log", VersioningConfiguration={"Status": "Enabled"})
    calls("PutBucketVersioning", Bucket="answers-other", VersioningConfiguration={"Status": "Enabled"})
    destination = {"Bucket": "arn:aws:s3:::answers-other"}
    rules = [{"ID": "r", "Status": "Enabled", "Priority": 1, "Filter": {"Prefix": ""}, "Destination": destination}]
    rules[0]["DeleteMarkerReplication"] = {"Status": "Disabled"}
    role = f"arn:aws:iam::{ACCOUNT}:role/a"
    calls.twice("PutBucketReplication", SAME, Bucket="answers-log", ReplicationConfiguration={"Role": role, "Rules": rules})
    calls("GetBucketReplication", Bucket="answers-log")
    calls.twice("DeleteBucketReplication", SAME, Bucket="answers-log")


def objects(calls: Calls) -> None:
    calls.twice("PutObject", SAME, **KEY, Body=b"abc", Metadata={"a": "b"}, ContentType="text/plain")
    calls("GetObject", **KEY)
    calls("HeadObject", **KEY)
    calls("GetObjectAttributes", **KEY, ObjectAttributes=["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"])
    calls.twice("PutObjectTagging", SAME, **KEY, Tagging=TAGS)
    calls("GetObjectTagging", **KEY)
    calls.twice("DeleteObjectTagging", SAME, **KEY)
    calls.twice("PutObjectAcl", SAME, **KEY, ACL="private")
    calls("GetObjectAcl", **KEY)
    calls.twice("CopyObject", NOW, **HERE, Key="copy", CopySource="answers/a")
    for operation in ("ListObjects", "ListObjectsV2", "ListObjectVersions"):
        calls(operation, **HERE)
    calls.twice("DeleteObject", SAME, **HERE, Key="copy")


def uploads(calls: Calls) -> None:
    big = {**HERE, "Key": "big"}
    upload = {"UploadId": calls.twice("CreateMultipartUpload", OTHER, **big)["UploadId"]}
    part = calls.twice("UploadPart", SAME, **big, **upload, PartNumber=1, Body=b"abc")
    calls.twice("UploadPartCopy", NOW, **big, **upload, PartNumber=2, CopySource="answers/a")
    calls("ListParts", **big, **upload)
    calls("ListMultipartUploads", **HERE)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    calls.twice("CompleteMultipartUpload", SAME, **big, **upload, MultipartUpload=parts)
    other = {"UploadId": calls("CreateMultipartUpload", **big)["UploadId"]}
    calls.twice("AbortMultipartUpload", "NoSuchUpload", **big, **other)
    for each in calls.of("s3").list_multipart_uploads(**HERE).get("Uploads", []):
        calls("AbortMultipartUpload", **HERE, Key=each["Key"], UploadId=each["UploadId"])


def refusals(calls: Calls) -> None:
    calls.refused("HeadBucket", "404", Bucket="answers-none")
    calls.refused("ListObjects", "NoSuchBucket", Bucket="answers-none")
    calls.refused("ListObjectsV2", "NoSuchBucket", Bucket="answers-none")
    none = {**HERE, "Key": "none"}
    for operation in ("GetObject", "GetObjectAcl"):
        calls.refused(operation, "NoSuchKey", **none)
    calls.refused("HeadObject", "404", **none)
    calls.refused("GetObjectAttributes", "NoSuchKey", **none, ObjectAttributes=["ETag"])
    calls.refused("PutObjectAcl", "NoSuchKey", **none, ACL="private")
