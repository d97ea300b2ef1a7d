"""Managed policies, their versions, and the users, groups and roles that they are attached to.

Callers can attach and read AWS's own policies (`aws_policies.py`), but cannot change them.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections import Counter
from collections.abc import Iterable, Iterator
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
)
from corral.services.iam.style import IAM, NAME, PAGES, check, check_managed_size, check_policy_arn, identity_of, on_path
from corral.store import Store

VERSIONS_MAX = 5
VERSIONS_TOP = 999_999_999  # larger than the number of any version: the newest version is listed first
PRINCIPALS = ("group", "user", "role")  # the types of resources that can have policies


def principals(tx: Tx[Store], kinds: Iterable[str] = PRINCIPALS, *, text: str = "") -> Iterator[tuple[str, Document]]:
    """Yield all users, groups and roles whose documents contain a text, each with the name of its type."""
    for kind in kinds:
        for _, document in tx.store.stored.containing(IAM.service, kind, "", text):
            yield kind, document


def attachments(tx: Tx[Store], policy_arn: str = "") -> Counter[str]:
    """How many users, groups and roles have each policy, or this one."""
    return Counter(arn for _, principal in principals(tx, text=policy_arn) for arn in principal["_attached"])


def boundaries(tx: Tx[Store], policy_arn: str = "") -> Counter[str]:
    """How many users and roles have each policy, or this one, as their permissions boundary."""
    found = principals(tx, text=policy_arn)
    return Counter(principal["PermissionsBoundary"] for _, principal in found if "PermissionsBoundary" in principal)


def _policy_view(tx: Tx[Store], caller: Caller, policy: Document) -> Document:
    policy_arn = policy["Arn"]
    counts = {
        "AttachmentCount": attachments(tx, policy_arn)[policy_arn],
        "PermissionsBoundaryUsageCount": boundaries(tx, policy_arn)[policy_arn],
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
    if attachments(tx, policy["Arn"])[policy["Arn"]] or boundaries(tx, policy["Arn"])[policy["Arn"]]:
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
    policy_arn = check_policy_arn(params["PolicyArn"])
    if policy_arn.startswith(AWS_POLICY) and NAME.fullmatch(policy_arn.rpartition("/")[2]):
        return _aws_policy(policy_arn)
    return find(tx, caller, POLICY, params)


def get_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"Policy": response_view(tx, caller, POLICY, find_policy(tx, params, caller))}


def list_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """List the policies of this account, and AWS's policies that are attached to a user, a group or a role.

    Other policies of AWS are not listed.
    """
    attached, bounded = attachments(tx), boundaries(tx)
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
    return {"PolicyVersion": version_view(policy, f"v{number}", document=False)}


def get_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    return {"PolicyVersion": version_view(policy, params["VersionId"], document=True)}


def list_policy_versions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = find_policy(tx, params, caller)
    by_number = {
        f"{VERSIONS_TOP - int(name[1:]):09d}": version_view(policy, name, document=False) for name in policy.get("_versions", ())
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


def version_view(policy: Document, name: str, *, document: bool) -> Document:
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


def list_entities_for_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy_arn, usage = find_policy(tx, params, caller)["Arn"], params.get("PolicyUsageFilter")
    wanted = params.get("EntityFilter")

    def has_policy(principal: Document) -> bool:
        is_boundary, is_attached = principal.get("PermissionsBoundary") == policy_arn, policy_arn in principal["_attached"]
        return is_boundary if usage == "PermissionsBoundary" else is_attached or (usage is None and is_boundary)

    kinds = [kind for kind in PRINCIPALS if wanted in (None, kind.capitalize())]
    named: dict[str, tuple[str, Document]] = {}
    for number, kind in enumerate(kinds):
        name, id_ = f"{kind.capitalize()}Name", f"{kind.capitalize()}Id"
        for _, found in principals(tx, (kind,), text=policy_arn):
            if has_policy(found) and on_path(params, found):
                named[f"{number}{found[name]}"] = f"Policy{kind.capitalize()}s", {name: found[name], id_: found[id_]}
    page, token = PAGES.page(params, among(named))
    members: dict[str, list[Document]] = {"PolicyGroups": [], "PolicyUsers": [], "PolicyRoles": []}
    for member, each in page:
        members[member].append(each)
    return {**members, **token}
