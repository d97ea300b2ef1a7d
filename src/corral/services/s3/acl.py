"""Access control lists of buckets and objects: kept and shown. They open nothing here, for nobody asks without a signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.s3.documents import Params
from corral.services.s3.errors import InvalidArgument, InvalidRequest, malformed_xml
from corral.services.s3.naming import existing_bucket, existing_version, owner
from corral.store import Store

MissingSecurityHeader = api_error("MissingSecurityHeader")

KIND = "BucketAcl"
MEMBERS = ("ACL", "Grants")  # among the details of an object
GROUPS = "http://acs.amazonaws.com/groups/"
EVERYONE, SIGNED, LOGS = f"{GROUPS}global/AllUsers", f"{GROUPS}global/AuthenticatedUsers", f"{GROUPS}s3/LogDelivery"
CANNED: dict[str, tuple[tuple[str, str], ...]] = {  # beside the owner's full control
    "private": (),
    "public-read": ((EVERYONE, "READ"),),
    "public-read-write": ((EVERYONE, "READ"), (EVERYONE, "WRITE")),
    "authenticated-read": ((SIGNED, "READ"),),
    "aws-exec-read": (),
    "bucket-owner-read": (),
    "bucket-owner-full-control": (),
    "log-delivery-write": ((LOGS, "WRITE"), (LOGS, "READ_ACP")),
}
HEADERS = {
    "GrantFullControl": "FULL_CONTROL",
    "GrantRead": "READ",
    "GrantReadACP": "READ_ACP",
    "GrantWrite": "WRITE",
    "GrantWriteACP": "WRITE_ACP",
}
GRANTEE = re.compile(r"""\s*(id|uri|emailAddress)\s*=\s*"?([^",]+)"?\s*""")
KINDS = {"id": ("CanonicalUser", "ID"), "uri": ("Group", "URI"), "emailAddress": ("AmazonCustomerByEmail", "EmailAddress")}

Grants = list[dict[str, Any]]


def kept(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says of access, by name (`ACL`), in headers or as a document (`Grants`); nothing is nothing."""
    by_header = [member for member in HEADERS if member in params]
    document = params.get("AccessControlPolicy")
    if ("ACL" in params) + bool(by_header) + bool(document) > 1:
        raise InvalidRequest("Specifying both Canned ACLs and Header Grants is not allowed")
    if "ACL" in params:
        if params["ACL"] not in CANNED:
            raise InvalidArgument("The canned ACL is unknown.", ArgumentName="x-amz-acl", ArgumentValue=params["ACL"])
        return {"ACL": params["ACL"]}
    if by_header:
        return {"Grants": [grant for member in by_header for grant in _from_header(params[member], HEADERS[member])]}
    return {"Grants": _checked(document.get("Grants", []))} if document else {}


def put_bucket_acl(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    tx.store.documents.put(bucket.id, KIND, _required(params), tx.now_s)
    return {}


def get_bucket_acl(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = tx.store.documents.get(existing_bucket(tx, params, caller).id, KIND)
    return _shown(found[0] if found is not None else {}, caller)


def put_object_acl(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    version = existing_version(tx, existing_bucket(tx, params, caller), params["Key"], params.get("VersionId"))
    others = {member: value for member, value in version.details.items() if member not in MEMBERS}
    tx.store.objects.set_details(version.number, {**others, **_required(params)})
    return {}


def get_object_acl(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    version = existing_version(tx, existing_bucket(tx, params, caller), params["Key"], params.get("VersionId"))
    return _shown(version.details, caller)


def _required(params: Params) -> dict[str, Any]:
    """What a request says that is about nothing else."""
    found = kept(params)
    if not found:
        raise MissingSecurityHeader("Your request was missing a required header", MissingHeaderName="x-amz-acl")
    return found


def _shown(said: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    grants = said.get("Grants")
    if grants is None:
        groups = CANNED[said.get("ACL", "private")]
        grants = [_grant("CanonicalUser", "ID", owner(caller)["ID"], "FULL_CONTROL")]
        grants += [_grant("Group", "URI", uri, permission) for uri, permission in groups]
    return {"Owner": owner(caller), "Grants": grants}


def _grant(kind: str, member: str, name: str, permission: str) -> dict[str, Any]:
    return {"Grantee": {"Type": kind, member: name}, "Permission": permission}


def _from_header(text: str, permission: str) -> Grants:
    found = [GRANTEE.fullmatch(part) for part in text.split(",")]
    if None in found:
        raise InvalidArgument("Argument format not recognized", ArgumentName="x-amz-grant", ArgumentValue=text)
    return [_grant(*KINDS[each[1]], each[2], permission) for each in found if each is not None]


def _checked(grants: Grants) -> Grants:
    for grant in grants:
        if "Permission" not in grant or not grant.get("Grantee"):
            raise malformed_xml()
    return grants
