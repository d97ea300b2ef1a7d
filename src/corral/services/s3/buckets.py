"""Operations on buckets: create, delete, head, list, location and versioning."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.objects import Bucket
from corral.model.principal import ROOT
from corral.operations.pagination import Pagination
from corral.services.s3 import errors
from corral.services.s3.bucket_configurations import apply_create_options
from corral.services.s3.lookup import PRIVATE, bucket_arn, existing_bucket, owner
from corral.services.s3.versions import wake_blob_gc
from corral.store import Store

FIRST_REGION = "us-east-1"  # the region whose buckets have no location constraint
REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
OLD_REGION_NAMES = {"EU": "eu-west-1"}
PAGES = Pagination(errors.InvalidArgument, "MaxBuckets", "ContinuationToken", "ContinuationToken", default=10_000, largest=10_000)

_NAME = re.compile(r"(?=.{3,63}$)[a-z0-9][a-z0-9-]*(?:\.[a-z0-9][a-z0-9-]*)*")
_IP_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def create_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["Bucket"]
    _check_name(name)
    if params.get("ObjectLockEnabledForBucket"):
        raise errors.no_object_lock("x-amz-bucket-object-lock-enabled")
    region = _region(params.get("CreateBucketConfiguration", {}).get("LocationConstraint"), caller.region)
    is_new = tx.store.buckets.add(name, region, tx.wall_s, ROOT if name in PRIVATE else caller.owner)
    if not is_new and (region, caller.region) != (FIRST_REGION, FIRST_REGION):  # as on S3, us-east-1 accepts a second create
        message = "Your previous request to create the named bucket succeeded and you already own it."
        raise errors.BucketAlreadyOwnedByYou(message, BucketName=name)
    if is_new:
        apply_create_options(tx, existing_bucket(tx, params, caller, puts_object=True), params)
    return {"Location": f"/{name}", "BucketArn": bucket_arn(name)}


def _check_name(name: str) -> None:
    is_valid = _NAME.fullmatch(name) and not _IP_ADDRESS.fullmatch(name) and "-." not in name and not name.endswith("-")
    if not is_valid or name.startswith(_RESERVED_PREFIXES) or name.endswith(_RESERVED_SUFFIXES):
        raise errors.InvalidBucketName("The specified bucket is not valid.", BucketName=name)


def _region(constraint: str | None, signed_region: str) -> str:
    """The region of a new bucket. It must be the region in the request's signature, unless the request is signed for us-east-1."""
    if constraint == FIRST_REGION:
        raise errors.InvalidLocationConstraint("The specified location-constraint is not valid", LocationConstraint=constraint)
    region = OLD_REGION_NAMES.get(constraint or "", constraint) or FIRST_REGION
    # Old tools sign for the region "US". They repeat the request with the region in this error.
    if not constraint and signed_region and not REGION.fullmatch(signed_region):
        why = f"The authorization header is malformed; the region '{signed_region}' is wrong; expecting '{FIRST_REGION}'"
        raise errors.AuthorizationHeaderMalformed(why, Region=FIRST_REGION)
    if signed_region not in (FIRST_REGION, "", region):
        message = f"The {constraint or 'unspecified'} location constraint is incompatible"
        raise errors.IllegalLocationConstraintException(f"{message} for the region specific endpoint this request was sent to.")
    return region


def delete_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    if tx.store.objects.holds_versions(bucket.id):
        message = "The bucket you tried to delete is not empty"
        if bucket.versioning:
            message += ". You must delete all versions in the bucket."
        raise errors.BucketNotEmpty(message, BucketName=bucket.name)
    wake_blob_gc(tx, tx.store.objects.drop_uploads(bucket.id))
    tx.store.buckets.drop(bucket.id)
    return {}


def head_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    return {"BucketRegion": bucket.region, "BucketArn": bucket_arn(bucket.name), "AccessPointAlias": False}


def list_buckets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix, region = params.get("Prefix", ""), params.get("BucketRegion")

    def candidates(after: str, limit: int) -> list[tuple[str, Bucket]]:
        found = tx.store.buckets.named(after=after, prefix=prefix, region=region, limit=limit)
        return [(bucket.name, bucket) for bucket in found]

    page, token = PAGES.page(params, candidates)
    return {
        "Buckets": [_listed(bucket) for bucket in page],
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
        raise errors.unsupported("x-amz-mfa", "Corral does not support MFA delete")
    if "Status" not in wanted:
        raise errors.IllegalVersioningConfigurationException("The Versioning element must be specified")
    tx.store.buckets.set_versioning(bucket.id, wanted["Status"])
    return {}


def get_bucket_versioning(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    versioning = existing_bucket(tx, params, caller).versioning
    return {"Status": versioning} if versioning else {}


def _listed(bucket: Bucket) -> dict[str, Any]:
    return {
        "Name": bucket.name,
        "CreationDate": bucket.created_at_s // 1,
        "BucketRegion": bucket.region,
        "BucketArn": bucket_arn(bucket.name),
    }
