"""Server-side encryption, on paper: nothing is encrypted. What is asked for is kept and shown, and ETags are as S3's then are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core import Tx
from corral.model.blob import MD5, Arrived
from corral.model.objects import Bucket
from corral.services.s3.errors import InvalidArgument
from corral.store import Store

METHOD = "ServerSideEncryption"
KEY_ID = "SSEKMSKeyId"
MEMBERS = (METHOD, KEY_ID, "BucketKeyEnabled")
OWN_KEYS = "AES256"
METHODS = (OWN_KEYS, "aws:kms", "aws:kms:dsse")


def asked_for(bucket: Bucket, params: Mapping[str, Any]) -> dict[str, Any]:
    """What a new object keeps of this: what its request says, or else what its bucket was told."""
    method = params.get(METHOD, OWN_KEYS)
    if method not in METHODS:
        raise InvalidArgument(
            "The encryption method specified is not supported", ArgumentName="x-amz-server-side-encryption", ArgumentValue=method
        )
    if KEY_ID in params and method == OWN_KEYS:
        raise InvalidArgument(
            "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms",
            ArgumentName="x-amz-server-side-encryption",
            ArgumentValue=params.get(METHOD, "null"),
        )
    said = {name: params[name] for name in MEMBERS if name in params}
    return said if METHOD in said else _by_default(bucket) | said


def _by_default(bucket: Bucket) -> dict[str, Any]:
    if bucket.encryption is None:
        return {}
    rule = bucket.encryption["Rules"][0]  # as PutBucketEncryption keeps it: the one, and complete
    named = rule.get("ApplyServerSideEncryptionByDefault", {"SSEAlgorithm": OWN_KEYS})
    return {
        METHOD: named["SSEAlgorithm"],
        **({KEY_ID: named["KMSMasterKeyID"]} if "KMSMasterKeyID" in named else {}),
        **({"BucketKeyEnabled": True} if rule["BucketKeyEnabled"] else {}),
    }


def shown(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: details[name] for name in MEMBERS if name in details}


def has_md5(details: Mapping[str, Any]) -> bool:
    """Whether the ETag of bytes that came in one piece is their MD5. With a key of KMS it says nothing of them."""
    return METHOD not in details or details[METHOD] == OWN_KEYS


def etag_of(tx: Tx[Store], arrived: Arrived, details: Mapping[str, Any]) -> str:
    return arrived.digests[MD5].hex() if has_md5(details) else tx.ids.hex32()
