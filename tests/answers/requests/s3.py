"""Requests of S3."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from answers.calls import ACCOUNT, NOW, OTHER, SAME, Calls
from corral.blobs.checksums import ALGORITHMS, checksum_text, digest_of

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::answers/none"}],
    }
)
TAGS = {"TagSet": [{"Key": "a", "Value": "b"}]}
HERE = {"Bucket": "answers"}
KEY = {**HERE, "Key": "a"}


LARGE = b"a" * 5_242_880
KEY_OF_KMS = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/a"
ENCRYPTED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": KEY_OF_KMS, "BucketKeyEnabled": True}


def checksum(algorithm: str, body: bytes) -> dict[str, str]:
    """The checksum of a body as a parameter. (botocore computes only some of them.)"""
    return {f"Checksum{algorithm}": checksum_text(digest_of(algorithm, body))}


def requests(calls: Calls) -> None:
    calls.twice("CreateBucket", SAME, **HERE)
    for operation in ("HeadBucket", "GetBucketLocation", "GetBucketVersioning", "GetBucketAcl"):
        calls(operation, **HERE)
    calls("ListBuckets")
    settings(calls)
    documents(calls)
    collections(calls)
    objects(calls)
    versions(calls)
    uploads(calls)
    checked_uploads(calls)
    encrypted(calls)
    expiring(calls)
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
    grant = {"Grantee": {"Type": "CanonicalUser", "ID": calls("ListBuckets")["Owner"]["ID"]}, "Permission": "READ"}
    logging = {"TargetBucket": "answers-log", "TargetPrefix": "a", "TargetGrants": [grant]}
    by_date = {"TargetObjectKeyFormat": {"PartitionedPrefix": {"PartitionDateSource": "EventTime"}}}
    calls.of("s3").create_bucket(Bucket="answers-log", ACL="log-delivery-write", ObjectOwnership="ObjectWriter")
    kept: dict[str, dict[str, Any]] = {
        "BucketNotificationConfiguration": {"NotificationConfiguration": {}},
        "BucketLogging": {"BucketLoggingStatus": {"LoggingEnabled": logging | by_date}},
        "BucketAccelerateConfiguration": {"AccelerateConfiguration": {"Status": "Suspended"}},
        "BucketRequestPayment": {"RequestPaymentConfiguration": {"Payer": "BucketOwner"}},
        "BucketAbac": {"AbacStatus": {"Status": "Disabled"}},
        "BucketAcl": {"ACL": "private"},
    }
    calls("PutBucketOwnershipControls", **HERE, OwnershipControls=owner)
    simple = {"LoggingEnabled": logging | {"TargetObjectKeyFormat": {"SimplePrefix": {}}}}
    calls("PutBucketLogging", **HERE, BucketLoggingStatus=simple)
    calls("GetBucketLogging", **HERE)
    for name, more in kept.items():
        calls.twice(f"Put{name}", SAME, **HERE, **more)
        calls(f"Get{name}", **HERE)


def documents(calls: Calls) -> None:
    """Settings with all their members: a Get returns what the Put had."""
    tag, day, name = {"Key": "a", "Value": "b"}, datetime(2099, 1, 1, tzinfo=UTC), {"Bucket": "answers-documents"}
    role, queue = f"arn:aws:iam::{ACCOUNT}:role/a", calls.arn("answers-notified", service="sqs")
    for created in ("answers-documents", "answers-target"):
        calls("CreateBucket", Bucket=created)
        calls("PutBucketVersioning", Bucket=created, VersioningConfiguration={"Status": "Enabled"})
    calls.of("sqs").create_queue(QueueName="answers-notified")
    allowed = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": queue}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    queue_url = calls.of("sqs").get_queue_url(QueueName="answers-notified")["QueueUrl"]
    calls.of("sqs").set_queue_attributes(QueueUrl=queue_url, Attributes={"Policy": policy})
    both = {"Prefix": "a", "Tags": [tag], "ObjectSizeGreaterThan": 1, "ObjectSizeLessThan": 9}
    old = {"NoncurrentDays": 40, "StorageClass": "GLACIER", "NewerNoncurrentVersions": 2}
    lifecycle = [
        {"ID": "a", "Filter": {"And": both}, "Status": "Enabled", "Expiration": {"Date": day}},
        {"ID": "b", "Filter": {"Tag": tag}, "Status": "Enabled", "Transitions": [{"Date": day, "StorageClass": "GLACIER"}]},
        {"ID": "c", "Filter": {"ObjectSizeGreaterThan": 1}, "Status": "Enabled", "NoncurrentVersionTransitions": [old]},
        {"ID": "d", "Filter": {"ObjectSizeLessThan": 9}, "Status": "Disabled", "Expiration": {"Days": 1}},
        {"ID": "e", "Filter": {"Prefix": "e"}, "Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"ID": "f", "Filter": {"Prefix": "f"}, "Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
        {
            "ID": "g",
            "Filter": {"Prefix": "g"},
            "Status": "Enabled",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 5, "NewerNoncurrentVersions": 2},
        },
    ]
    destination = {
        "Bucket": "arn:aws:s3:::answers-target",
        "Account": ACCOUNT,
        "StorageClass": "GLACIER",
        "AccessControlTranslation": {"Owner": "Destination"},
        "EncryptionConfiguration": {"ReplicaKmsKeyID": "a"},
        "ReplicationTime": {"Status": "Enabled", "Time": {"Minutes": 15}},
        "Metrics": {"Status": "Enabled", "EventThreshold": {"Minutes": 15}},
    }
    selected = {"SseKmsEncryptedObjects": {"Status": "Enabled"}, "ReplicaModifications": {"Status": "Enabled"}}
    copied = {
        "ID": "r",
        "Priority": 1,
        "Status": "Enabled",
        "Filter": {"And": {"Prefix": "a", "Tags": [tag]}},
        "SourceSelectionCriteria": selected,
        "ExistingObjectReplication": {"Status": "Enabled"},
        "DeleteMarkerReplication": {"Status": "Disabled"},
        "Destination": destination,
    }
    tagged = {**copied, "ID": "s", "Priority": 2, "Filter": {"Tag": tag}}
    redirect = {"HostName": "a", "HttpRedirectCode": "301", "Protocol": "https", "ReplaceKeyPrefixWith": "b"}
    routing = {"Condition": {"HttpErrorCodeReturnedEquals": "404", "KeyPrefixEquals": "a"}, "Redirect": redirect}
    replaced = {"Redirect": {"ReplaceKeyWith": "b"}}
    keys = {"Key": {"FilterRules": [{"Name": "Prefix", "Value": "a"}]}}
    notified = {"Id": "n", "QueueArn": queue, "Events": ["s3:ObjectCreated:*"], "Filter": keys}
    for operation, member, key, value in (
        ("LifecycleConfiguration", "LifecycleConfiguration", "Rules", lifecycle),
        ("Replication", "ReplicationConfiguration", "Rules", [copied, tagged]),
        ("Website", "WebsiteConfiguration", "RoutingRules", [routing, replaced]),
        ("Website", "WebsiteConfiguration", "RedirectAllRequestsTo", {"HostName": "a", "Protocol": "https"}),
        ("NotificationConfiguration", "NotificationConfiguration", "QueueConfigurations", [notified]),
    ):
        others = {"Role": role} if operation == "Replication" else {}
        others |= {"IndexDocument": {"Suffix": "i"}} if key == "RoutingRules" else {}
        calls(f"PutBucket{operation}", **name, **{member: {key: value, **others}})
        shown = calls(f"GetBucket{operation}", **name)
        shown = shown[member] if operation == "Replication" else shown
        if shown[key] != value:
            calls.wrong.append(f"GetBucket{operation} shows {shown[key]} instead of {value}")
    topic = {"Id": "t", "TopicArn": calls.arn("none", service="sns"), "Events": ["s3:ObjectCreated:*"], "Filter": keys}
    function = {"Id": "f", "LambdaFunctionArn": calls.arn("function:none", service="lambda"), "Filter": keys}
    skipped = {"TopicConfigurations": [topic], "LambdaFunctionConfigurations": [function | {"Events": ["s3:ObjectRemoved:*"]}]}
    calls("PutBucketNotificationConfiguration", **name, NotificationConfiguration=skipped, SkipDestinationValidation=True)
    shown = calls("GetBucketNotificationConfiguration", **name)
    if shown != skipped:
        calls.wrong.append(f"GetBucketNotificationConfiguration shows {shown} instead of {skipped}")
    kinds: dict[str, list[dict[str, Any]]] = {
        "Metrics": [{"And": {"Prefix": "a", "Tags": [tag]}}, {"Tag": tag}],
        "Analytics": [{"And": {"Prefix": "a", "Tags": [tag]}}, {"Tag": tag}, {"Prefix": "a"}],
        "IntelligentTiering": [{"And": {"Prefix": "a", "Tags": [tag]}}, {"Tag": tag}, {"Prefix": "a"}],
    }
    others = {
        "Metrics": {},
        "Analytics": {"StorageClassAnalysis": {}},
        "IntelligentTiering": {"Status": "Enabled", "Tierings": [{"Days": 90, "AccessTier": "ARCHIVE_ACCESS"}]},
    }
    for kind, filters in kinds.items():
        for value in filters:
            configuration = {"Id": "a", "Filter": value, **others[kind]}
            calls(f"PutBucket{kind}Configuration", **name, Id="a", **{f"{kind}Configuration": configuration})
            shown = calls(f"GetBucket{kind}Configuration", **name, Id="a")[f"{kind}Configuration"]
            if shown["Filter"] != value:
                calls.wrong.append(f"GetBucket{kind}Configuration shows {shown['Filter']} instead of {value}")
    upload = calls("CreateMultipartUpload", **name, Key="f", ChecksumAlgorithm="CRC32")
    calls("ListParts", **name, Key="f", UploadId=upload["UploadId"])
    calls("ListMultipartUploads", **name)


def collections(calls: Calls) -> None:
    """Settings of which a bucket has several."""
    target = {"S3BucketDestination": {"Bucket": "arn:aws:s3:::answers", "Format": "CSV", "Prefix": "p", "BucketAccountId": ACCOUNT}}
    export = {"StorageClassAnalysis": {"DataExport": {"OutputSchemaVersion": "V_1", "Destination": target}}}
    account: dict[str, Any] = {"Bucket": "arn:aws:s3:::answers", "Format": "CSV", "Prefix": "p", "AccountId": ACCOUNT}
    account["Encryption"] = {"SSEKMS": {"KeyId": KEY_OF_KMS}}
    inventory = {
        "Destination": {"S3BucketDestination": account},
        "IsEnabled": True,
        "IncludedObjectVersions": "All",
        "Filter": {"Prefix": "a"},
        "OptionalFields": ["Size"],
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


def versions(calls: Calls) -> None:
    one = {"Bucket": "answers-documents", "Key": "v"}
    version = {"VersionId": calls("PutObject", **one, Body=b"a", ChecksumAlgorithm="SHA256")["VersionId"]}
    calls("GetObjectAttributes", **one, ObjectAttributes=["Checksum", "ETag"])
    calls("PutObjectTagging", **one, **version, Tagging=TAGS)
    calls("DeleteObjectTagging", **one, **version)
    calls("CopyObject", Bucket=one["Bucket"], Key="w", CopySource={**one, **version}, ChecksumAlgorithm="SHA1")
    for algorithm in ALGORITHMS:
        calls("PutObject", **one, Body=b"a", **checksum(algorithm, b"a"))
        calls("CopyObject", Bucket=one["Bucket"], Key="w", CopySource=one, ChecksumAlgorithm=algorithm)
        calls("HeadObject", **one, ChecksumMode="ENABLED")
        calls("GetObject", **one, ChecksumMode="ENABLED")
        calls("GetObjectAttributes", **one, ObjectAttributes=["Checksum"])


def checked_uploads(calls: Calls) -> None:
    for algorithm in ALGORITHMS:
        big = {**HERE, "Key": f"checked-{algorithm}"}
        upload = {"UploadId": calls("CreateMultipartUpload", **big, ChecksumAlgorithm=algorithm)["UploadId"]}
        part = calls("UploadPart", **big, **upload, PartNumber=1, Body=LARGE, **checksum(algorithm, LARGE))
        copied = calls("UploadPartCopy", **big, **upload, PartNumber=2, CopySource="answers/a")["CopyPartResult"]
        calls("ListParts", **big, **upload)
        member = f"Checksum{algorithm}"
        parts = [{"PartNumber": at, "ETag": each["ETag"], member: each[member]} for at, each in enumerate((part, copied), 1)]
        calls("CompleteMultipartUpload", **big, **upload, MultipartUpload={"Parts": parts})
        calls("GetObjectAttributes", **big, ObjectAttributes=["Checksum", "ObjectParts"])
        calls("DeleteObject", **big)


def encrypted(calls: Calls) -> None:
    """Objects with a key of KMS, which is stored: given in a request, and as the default of a bucket."""
    one = {"Bucket": "answers-target", "Key": "k"}
    by_default = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY_OF_KMS}}
    rule = {**by_default, "BucketKeyEnabled": True, "BlockedEncryptionTypes": {"EncryptionType": ["SSE-C"]}}
    for given in (ENCRYPTED, {}):
        calls("PutObject", **one, Body=b"a", **given)
        calls("GetObject", **one)
        upload = {"UploadId": calls("CreateMultipartUpload", **one, **given)["UploadId"]}
        part = calls("UploadPart", **one, **upload, PartNumber=1, Body=b"a")
        calls("UploadPartCopy", **one, **upload, PartNumber=2, CopySource="answers/a")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        calls("CompleteMultipartUpload", **one, **upload, MultipartUpload=parts)
        calls("PutBucketEncryption", Bucket=one["Bucket"], ServerSideEncryptionConfiguration={"Rules": [rule]})
    shown = calls("GetBucketEncryption", Bucket=one["Bucket"])["ServerSideEncryptionConfiguration"]["Rules"]
    if shown != [rule]:
        calls.wrong.append(f"GetBucketEncryption shows {shown} instead of {rule}")


def expiring(calls: Calls) -> None:
    """Responses about an object that a lifecycle rule expires. The rule has the older form, without a filter."""
    rule = {"ID": "r", "Prefix": "", "Status": "Enabled", "Expiration": {"Days": 3}}
    calls("PutBucketLifecycleConfiguration", Bucket="answers-other", LifecycleConfiguration={"Rules": [rule]})
    calls("GetBucketLifecycleConfiguration", Bucket="answers-other")
    one = {"Bucket": "answers-other", "Key": "k"}
    calls("CopyObject", **one, CopySource="answers/a")
    upload = {"UploadId": calls("CreateMultipartUpload", **one)["UploadId"]}
    part = calls("UploadPart", **one, **upload, PartNumber=1, Body=b"a")
    calls("CompleteMultipartUpload", **one, **upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})


def uploads(calls: Calls) -> None:
    big = {**HERE, "Key": "big"}
    upload = {"UploadId": calls.twice("CreateMultipartUpload", OTHER, **big)["UploadId"]}
    part = calls.twice("UploadPart", SAME, **big, **upload, PartNumber=1, Body=b"abc")
    calls.twice("UploadPartCopy", NOW, **big, **upload, PartNumber=2, CopySource="answers/a")
    calls("ListParts", **big, **upload)
    calls("ListMultipartUploads", **HERE, EncodingType="url")
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
