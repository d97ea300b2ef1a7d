"""Access control lists of buckets and objects. They are stored but not enforced: every request needs credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import S3_UNKNOWN_ACL
from corral.core.transactions import Tx
from corral.model.objects import Bucket, ObjectVersion
from corral.services.s3.errors import InvalidArgument, InvalidRequest, MissingSecurityHeader, malformed_xml
from corral.services.s3.lookup import existing_bucket, existing_version, owner
from corral.services.s3.notifications import acl_changed
from corral.store import Store

BUCKET_ACL = "BucketAcl"  # the name under which the ACL of a bucket is stored
ACL_MEMBERS = ("ACL", "Grants")  # the members of an object's details that hold its ACL
GROUPS = "http://acs.amazonaws.com/groups/"
EVERYONE, SIGNED, LOGS = f"{GROUPS}global/AllUsers", f"{GROUPS}global/AuthenticatedUsers", f"{GROUPS}s3/LogDelivery"
CANNED: dict[str, tuple[tuple[str, str], ...]] = {  # canned ACL → its grants in addition to the owner's full control
    "private": (),
    "public-read": ((EVERYONE, "READ"),),
    "public-read-write": ((EVERYONE, "READ"), (EVERYONE, "WRITE")),
    "authenticated-read": ((SIGNED, "READ"),),
    "aws-exec-read": (),
    "bucket-owner-read": (),
    "bucket-owner-full-control": (),
    "log-delivery-write": ((LOGS, "WRITE"), (LOGS, "READ_ACP")),
}
GRANT_HEADERS = {
    "GrantFullControl": "FULL_CONTROL",
    "GrantRead": "READ",
    "GrantReadACP": "READ_ACP",
    "GrantWrite": "WRITE",
    "GrantWriteACP": "WRITE_ACP",
}
GRANTEE = re.compile(r"""\s*(id|uri|emailAddress)\s*=\s*"?([^",]+)"?\s*""")
GRANTEE_TYPES = {"id": ("CanonicalUser", "ID"), "uri": ("Group", "URI"), "emailAddress": ("AmazonCustomerByEmail", "EmailAddress")}

Grants = list[dict[str, Any]]


def requested_acl(params: Mapping[str, Any]) -> dict[str, Any]:
    """The ACL in a request; empty if the request has none. A canned ACL is returned as `ACL`, other ACLs as `Grants`."""
    by_header = [member for member in GRANT_HEADERS if member in params]
    document = params.get("AccessControlPolicy")
    if ("ACL" in params) + bool(by_header) + bool(document) > 1:
        raise InvalidRequest("Specifying both Canned ACLs and Header Grants is not allowed")
    if "ACL" in params:
        if params["ACL"] not in CANNED:
            raise InvalidArgument(S3_UNKNOWN_ACL, ArgumentName="x-amz-acl", ArgumentValue=params["ACL"])
        return {"ACL": params["ACL"]}
    if by_header:
        return {"Grants": [grant for member in by_header for grant in _header_grants(params[member], GRANT_HEADERS[member])]}
    return {"Grants": _checked_grants(document.get("Grants", []))} if document else {}


def put_bucket_acl(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    tx.store.bucket_documents.put(bucket.id, BUCKET_ACL, _required_acl(params), tx.wall_s)
    return {}


def get_bucket_acl(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = tx.store.bucket_documents.get(existing_bucket(tx, params, caller).id, BUCKET_ACL)
    return _policy_members(found[0] if found is not None else {}, caller)


def put_object_acl(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, version = _existing(tx, params, caller)
    others = {member: value for member, value in version.details.items() if member not in ACL_MEMBERS}
    details = {**others, **_required_acl(params)}
    if _policy_members(details, caller) != _policy_members(version.details, caller):
        tx.store.objects.set_details(version.number, details)
        acl_changed(tx, bucket, version, caller)
    return {}


def get_object_acl(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _policy_members(_existing(tx, params, caller)[1].details, caller)


def _existing(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Bucket, ObjectVersion]:
    bucket = existing_bucket(tx, params, caller)
    return bucket, existing_version(tx, bucket, params["Key"], params.get("VersionId"), marker_hides_key=False)


def _required_acl(params: dict[str, Any]) -> dict[str, Any]:
    found = requested_acl(params)
    if not found:
        raise MissingSecurityHeader("Your request was missing a required header", MissingHeaderName="x-amz-acl")
    return found


def _policy_members(stored: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    grants = stored.get("Grants")
    if grants is None:
        groups = CANNED[stored.get("ACL", "private")]
        grants = [_grant("CanonicalUser", "ID", owner(caller)["ID"], "FULL_CONTROL")]
        grants += [_grant("Group", "URI", uri, permission) for uri, permission in groups]
    return {"Owner": owner(caller), "Grants": grants}


def _grant(grantee_type: str, member: str, name: str, permission: str) -> dict[str, Any]:
    return {"Grantee": {"Type": grantee_type, member: name}, "Permission": permission}


def _header_grants(text: str, permission: str) -> Grants:
    found = [GRANTEE.fullmatch(part) for part in text.split(",")]
    if None in found:
        raise InvalidArgument("Argument format not recognized", ArgumentName="x-amz-grant", ArgumentValue=text)
    return [_grant(*GRANTEE_TYPES[each[1]], each[2], permission) for each in found if each is not None]


def _checked_grants(grants: Grants) -> Grants:
    for grant in grants:
        if "Permission" not in grant or not grant.get("Grantee"):
            raise malformed_xml()
    return grants
