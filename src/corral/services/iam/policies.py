"""Managed policies, their versions, and the roles that they are attached to.

Callers can attach and read AWS's own policies (`aws_policies.py`), but cannot change them.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from collections import Counter
from typing import Any
from urllib.parse import quote

from corral.access.aws_policies import AWS_POLICY, find_aws_policy
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, create, delete, every, find, put, response_view
from corral.services.iam.errors import (
    AccessDenied,
    DeleteConflictException,
    LimitExceededException,
    NoSuchEntityException,
    PolicyNotAttachableException,
    ValidationError,
)
from corral.services.iam.roles import ROLE, SERVICE_PATH, changeable_role
from corral.services.iam.style import IAM, NAME, PAGES, check, check_managed_size, identity_of, on_path
from corral.store import Store

VERSIONS_MAX = 5
VERSIONS_TOP = 999_999_999  # larger than the number of any version: the newest version is listed first
POLICY_ARN = re.compile(r"arn:aws[a-z-]*:iam::(?:\d{12}|aws):policy/.+")


def attachments(tx: Tx[Store], caller: Caller) -> Counter[str]:
    return Counter(policy_arn for role in every(tx, caller, ROLE) for policy_arn in role["_attached"])


def boundaries(tx: Tx[Store], caller: Caller) -> Counter[str]:
    """How many roles have each policy as their permissions boundary."""
    return Counter(role["PermissionsBoundary"] for role in every(tx, caller, ROLE) if "PermissionsBoundary" in role)


def _policy_view(tx: Tx[Store], caller: Caller, policy: Document) -> Document:
    policy_arn = policy["Arn"]
    counts = {
        "AttachmentCount": attachments(tx, caller)[policy_arn],
        "PermissionsBoundaryUsageCount": boundaries(tx, caller)[policy_arn],
    }
    return {**policy, **counts, "Tags": policy.get("Tags", [])}


def create_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Create a policy. The response has neither its description nor an empty list of tags."""
    policy = response_view(tx, caller, POLICY, create(tx, caller, POLICY, params))
    return {"Policy": {member: value for member, value in policy.items() if member != "Description" and value != []}}


def _check_document(params: Params) -> None:
    check(params)
    if "PolicyDocument" in params:
        check_managed_size(params["PolicyDocument"])


def _policy_removable(tx: Tx[Store], caller: Caller, policy: Document) -> None:
    if attachments(tx, caller)[policy["Arn"]] or boundaries(tx, caller)[policy["Arn"]]:
        raise DeleteConflictException("Cannot delete a policy attached to entities.")
    if len(policy["_versions"]) > 1:
        raise DeleteConflictException(
            "This policy has more than one version. Before you delete a policy, you must delete the policy's versions. "
            "The default version is deleted with the policy."
        )


POLICY = ResourceType(
    IAM,
    "policy",
    id="PolicyName",
    one="Policy",
    many="Policies",
    new=lambda tx, params, caller: {
        **identity_of("ANPA", "policy", "PolicyId")(tx, params, caller),
        "UpdateDate": tx.now_s,
        "DefaultVersionId": "v1",
        "_versions": {"v1": {"document": params["PolicyDocument"], "created_at": tx.now_s}},
        "_last_version": 1,
    },
    members=("Description",),
    defaults={"PermissionsBoundaryUsageCount": 0, "IsAttachable": True},
    by_arn=("PolicyArn", "Arn"),
    check=_check_document,
    check_delete=_policy_removable,
    view=_policy_view,
    tag="TagPolicy",
    untag="UntagPolicy",
    list_tags="ListPolicyTags",
)


def _aws_policy(policy_arn: str) -> Document:
    path, _, name = policy_arn.removeprefix(AWS_POLICY).rpartition("/")
    digest = hashlib.sha256(policy_arn.encode()).digest()
    return {
        "PolicyName": name,
        "PolicyId": "ANPA" + b32encode(digest).decode()[:17],
        "Arn": policy_arn,
        "Path": f"/{path}/" if path else "/",
        "DefaultVersionId": "v1",
        "PermissionsBoundaryUsageCount": 0,
        "IsAttachable": True,
        **_facts(policy_arn),
    }


def _facts(policy_arn: str) -> Document:
    """Dates, version and document of one of AWS's policies; empty if Corral does not have the policy."""
    found = find_aws_policy(policy_arn)
    if found is None:
        return {}
    version = {"document": found.document, "created_at": found.updated_at_s}
    return {
        "DefaultVersionId": found.version,
        "CreateDate": found.created_at_s,
        "UpdateDate": found.updated_at_s,
        "_versions": {found.version: version},
    }


def find_policy(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """One of AWS's policies, or a policy of this account."""
    policy_arn = params["PolicyArn"]
    if not POLICY_ARN.fullmatch(policy_arn):
        raise ValidationError(f"ARN {policy_arn} is not valid.")
    if policy_arn.startswith(AWS_POLICY) and NAME.fullmatch(policy_arn.rpartition("/")[2]):
        return _aws_policy(policy_arn)
    return find(tx, caller, POLICY, params)


def get_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"Policy": response_view(tx, caller, POLICY, find_policy(tx, params, caller))}


def list_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """List the policies of this account, and AWS's policies that are attached to a role.

    Other policies of AWS are not listed.
    """
    attached, bounded = attachments(tx, caller), boundaries(tx, caller)
    usage = bounded if params.get("PolicyUsageFilter") == "PermissionsBoundary" else attached
    known = {policy["PolicyName"]: policy for policy in every(tx, caller, POLICY)} if params.get("Scope") != "AWS" else {}
    if params.get("Scope") != "Local":
        known |= {policy_arn: _aws_policy(policy_arn) for policy_arn in attached if policy_arn.startswith(AWS_POLICY)}
    chosen = {
        name: policy
        for name, policy in known.items()
        if on_path(params, policy) and (usage[policy["Arn"]] or not (params.get("OnlyAttached") or params.get("PolicyUsageFilter")))
    }
    found, token = PAGES.page(params, among(chosen))
    hidden = ("Tags", "Description")
    listed = [{member: value for member, value in policy.items() if member not in hidden and member[0] != "_"} for policy in found]
    counted = [
        {**each, "AttachmentCount": attached[each["Arn"]], "PermissionsBoundaryUsageCount": bounded[each["Arn"]]} for each in listed
    ]
    return {"Policies": counted, **token}


def create_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _own_policy(tx, params, caller, "CreatePolicyVersion")
    _check_document(params)
    if len(policy["_versions"]) >= VERSIONS_MAX:
        raise LimitExceededException(
            f"A managed policy can have up to {VERSIONS_MAX} versions. Before you create a new version, you must delete an "
            "existing version."
        )
    number = policy["_last_version"] + 1
    version = {"document": params["PolicyDocument"], "created_at": tx.now_s}
    policy = {
        **policy,
        "_versions": {**policy["_versions"], f"v{number}": version},
        "_last_version": number,
        "UpdateDate": tx.now_s,
    }
    if params.get("SetAsDefault"):
        policy["DefaultVersionId"] = f"v{number}"
    put(tx, caller, POLICY, policy)
    return {"PolicyVersion": _version(policy, f"v{number}", document=False)}


def get_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    return {"PolicyVersion": _version(policy, params["VersionId"], document=True)}


def list_policy_versions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = find_policy(tx, params, caller)
    by_number = {
        f"{VERSIONS_TOP - int(name[1:]):09d}": _version(policy, name, document=False) for name in policy.get("_versions", ())
    }
    found, token = PAGES.page(params, among(by_number))
    return {"Versions": found, **token}


def delete_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    _own_policy(tx, params, caller, "DeletePolicyVersion")
    if params["VersionId"] == policy["DefaultVersionId"]:
        raise DeleteConflictException("Cannot delete the default version of a policy.")
    left = {name: version for name, version in policy["_versions"].items() if name != params["VersionId"]}
    put(tx, caller, POLICY, {**policy, "_versions": left})
    return {}


def set_default_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    _own_policy(tx, params, caller, "SetDefaultPolicyVersion")
    put(tx, caller, POLICY, {**policy, "DefaultVersionId": params["VersionId"], "UpdateDate": tx.now_s})
    return {}


def _own_policy(tx: Tx[Store], params: Params, caller: Caller, operation: str) -> Document:
    """Return a policy of this account. AWS's own policies cannot be changed."""
    if params["PolicyArn"].startswith(AWS_POLICY):
        raise AccessDenied(
            f"User: {caller.principal.arn} is not authorized to perform: iam:{operation} on resource: policy {params['PolicyArn']}"
        )
    return find(tx, caller, POLICY, params)


def _with_version(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    try:
        policy = find_policy(tx, params, caller)
    except NoSuchEntityException:
        policy = {}
    if params["VersionId"] not in policy.get("_versions", ()):
        raise NoSuchEntityException(
            f"Policy {params['PolicyArn']} version {params['VersionId']} does not exist or is not attachable."
        )
    return policy


def _version(policy: Document, name: str, *, document: bool) -> Document:
    version = policy["_versions"][name]
    return {
        "VersionId": name,
        "IsDefaultVersion": name == policy["DefaultVersionId"],
        "CreateDate": version["created_at"],
        **({"Document": quote(version["document"], safe="")} if document else {}),
    }


def delete_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    delete(tx, caller, POLICY, _own_policy(tx, params, caller, "DeletePolicy"))
    return {}


# Attachments


def attach_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = changeable_role(tx, params, caller)
    try:
        policy = find_policy(tx, params, caller)
    except NoSuchEntityException:
        raise NoSuchEntityException(f"Policy {params['PolicyArn']} does not exist or is not attachable.") from None
    if policy["Path"].startswith(SERVICE_PATH):
        raise PolicyNotAttachableException("Cannot attach a Service Role Policy to a Customer Role.")
    if policy["Arn"] not in role["_attached"]:
        put(tx, caller, ROLE, {**role, "_attached": [*role["_attached"], policy["Arn"]]})
    return {}


def detach_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, policy_arn = changeable_role(tx, params, caller), params["PolicyArn"]
    if not POLICY_ARN.fullmatch(policy_arn):
        raise ValidationError(f"ARN {policy_arn} is not valid.")
    if policy_arn not in role["_attached"]:
        raise NoSuchEntityException(f"Policy {policy_arn} was not found.")
    put(tx, caller, ROLE, {**role, "_attached": [other for other in role["_attached"] if other != policy_arn]})
    return {}


def list_attached_role_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    policies = {policy_arn: find_policy(tx, {"PolicyArn": policy_arn}, caller) for policy_arn in role["_attached"]}
    named = {
        policy_arn: {"PolicyName": policy["PolicyName"], "PolicyArn": policy_arn}
        for policy_arn, policy in policies.items()
        if on_path(params, policy)
    }
    found, token = PAGES.page(params, among(named))
    return {"AttachedPolicies": found, **token}


def list_entities_for_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy_arn, usage = find_policy(tx, params, caller)["Arn"], params.get("PolicyUsageFilter")

    def has_policy(role: Document) -> bool:
        is_boundary, is_attached = role.get("PermissionsBoundary") == policy_arn, policy_arn in role["_attached"]
        return is_boundary if usage == "PermissionsBoundary" else is_attached or (usage is None and is_boundary)

    roles = {
        role["RoleName"]: {"RoleName": role["RoleName"], "RoleId": role["RoleId"]}
        for role in (every(tx, caller, ROLE) if params.get("EntityFilter", "Role") == "Role" else ())
        if has_policy(role) and on_path(params, role)
    }
    found, token = PAGES.page(params, among(roles))
    return {"PolicyGroups": [], "PolicyUsers": [], "PolicyRoles": found, **token}
