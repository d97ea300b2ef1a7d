"""Buckets: made, found, listed, deleted, and whether they keep versions."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.model.objects import Bucket
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.services.s3 import configurations
from corral.services.s3.contents import thrown_away
from corral.services.s3.errors import (
    AuthorizationHeaderMalformed,
    BucketAlreadyOwnedByYou,
    BucketNotEmpty,
    IllegalLocationConstraintException,
    InvalidArgument,
    InvalidLocationConstraint,
    malformed_xml,
    unsupported,
)
from corral.services.s3.naming import check_bucket_name, existing_bucket, owner
from corral.store import Store

FIRST_REGION = "us-east-1"  # the region whose buckets have no location
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
OLD_NAMES = {"EU": "eu-west-1"}
PAGES = Pagination(InvalidArgument, "MaxBuckets", "ContinuationToken", "ContinuationToken", default=10_000, largest=10_000)


def create_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["Bucket"]
    check_bucket_name(name)
    if params.get("ObjectLockEnabledForBucket"):
        raise unsupported("x-amz-bucket-object-lock-enabled", "Corral has no object lock")
    region = _region(params.get("CreateBucketConfiguration", {}).get("LocationConstraint"), caller.region)
    is_new = tx.store.buckets.add(name, region, tx.now_s)
    if not is_new and (region, caller.region) != (FIRST_REGION, FIRST_REGION):  # there S3 says yes once more, as it always has
        message = "Your previous request to create the named bucket succeeded and you already own it."
        raise BucketAlreadyOwnedByYou(message, BucketName=name)
    if is_new:
        configurations.begin(tx, existing_bucket(tx, params, caller), params)
    return {"Location": f"/{name}", "BucketArn": bucket_arn(name)}


def _region(constraint: str | None, asked_in: str) -> str:
    if constraint == FIRST_REGION:
        raise InvalidLocationConstraint("The specified location-constraint is not valid", LocationConstraint=constraint)
    region = OLD_NAMES.get(constraint or "", constraint) or FIRST_REGION
    if not constraint and asked_in and not REGION.fullmatch(asked_in):  # old tools sign for "US", and try again as they are told
        why = f"The authorization header is malformed; the region '{asked_in}' is wrong; expecting '{FIRST_REGION}'"
        raise AuthorizationHeaderMalformed(why, Region=FIRST_REGION)
    if asked_in not in (FIRST_REGION, "", region):
        said = f"The {constraint or 'unspecified'} location constraint is incompatible"
        raise IllegalLocationConstraintException(f"{said} for the region specific endpoint this request was sent to.")
    return region


def delete_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    if tx.store.objects.holds_versions(bucket.id):
        message = "The bucket you tried to delete is not empty"
        if bucket.versioning:
            message += ". You must delete all versions in the bucket."
        raise BucketNotEmpty(message, BucketName=bucket.name)
    thrown_away(tx, tx.store.objects.drop_uploads(bucket.id))
    tx.store.buckets.drop(bucket.id)
    return {}


def head_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    return {"BucketRegion": bucket.region, "BucketArn": bucket_arn(bucket.name)}


def list_buckets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix, region = params.get("Prefix", ""), params.get("BucketRegion")

    def listed(after: str, limit: int) -> list[tuple[str, Bucket]]:
        found = tx.store.buckets.named(after=after, prefix=prefix, region=region, limit=limit)
        return [(bucket.name, bucket) for bucket in found]

    page, token = PAGES.page(params, listed)
    return {
        "Buckets": [_shown(bucket) for bucket in page],
        "Owner": owner(caller),
        **({"Prefix": prefix} if prefix else {}),
        **token,
    }


def get_bucket_location(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    return {"LocationConstraint": bucket.region} if bucket.region != FIRST_REGION else {}


def put_bucket_versioning(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, wanted = existing_bucket(tx, params, caller), params["VersioningConfiguration"]
    if wanted.get("MFADelete", "Disabled") != "Disabled":
        raise unsupported("x-amz-mfa", "Corral has no devices to ask")
    if "Status" not in wanted:
        raise malformed_xml()
    tx.store.buckets.set_versioning(bucket.id, wanted["Status"])
    return {}


def get_bucket_versioning(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    versioning = existing_bucket(tx, params, caller).versioning
    return {"Status": versioning} if versioning else {}


def bucket_arn(name: str) -> str:
    return f"arn:aws:s3:::{name}"


def _shown(bucket: Bucket) -> dict[str, Any]:
    return {
        "Name": bucket.name,
        "CreationDate": bucket.created_at_s,
        "BucketRegion": bucket.region,
        "BucketArn": bucket_arn(bucket.name),
    }
