"""The account: its alias, its summary, and all users, groups, roles and policies together."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from corral.access.aws_policies import AWS_POLICY
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, every, response_view
from corral.services.iam import access_keys, errors, groups, policies, roles, style, users
from corral.services.iam.groups import GROUP
from corral.services.iam.instance_profiles import INSTANCE_PROFILE
from corral.services.iam.policies import POLICY, attachments, find_policy
from corral.services.iam.principal_policies import attached_policy
from corral.services.iam.roles import ROLE
from corral.services.iam.style import IAM, PAGES
from corral.services.iam.users import USER_TYPE
from corral.store import Store

ALIAS = "account-alias"
# Quotas that Corral does not enforce have the values of a new account of AWS.
QUOTAS = {
    "UsersQuota": users.USERS_MAX,
    "GroupsQuota": groups.GROUPS_MAX,
    "GroupsPerUserQuota": groups.GROUPS_OF_USER_MAX,
    "AccessKeysPerUserQuota": access_keys.KEYS_MAX,
    "AttachedPoliciesPerUserQuota": users.POLICIES_MAX,
    "AttachedPoliciesPerGroupQuota": groups.POLICIES_MAX,
    "AttachedPoliciesPerRoleQuota": 10,
    "UserPolicySizeQuota": users.INLINE_MAX,
    "GroupPolicySizeQuota": groups.INLINE_MAX,
    "RolePolicySizeQuota": roles.INLINE_MAX,
    "PolicySizeQuota": style.POLICY_MAX,
    "VersionsPerPolicyQuota": policies.VERSIONS_MAX,
    "PoliciesQuota": 1_500,
    "PolicyVersionsInUseQuota": 10_000,
    "RolesQuota": 1_000,
    "InstanceProfilesQuota": 1_000,
    "AssumeRolePolicySizeQuota": 2_048,
    "ServerCertificatesQuota": 20,
    "SigningCertificatesPerUserQuota": 2,
}
# What Corral does not have.
NONE = ("ServerCertificates", "Providers", "MFADevices", "MFADevicesInUse", "AccountMFAEnabled", "AccountPasswordPresent",
        "AccountSigningCertificatesPresent")  # fmt: skip


def create_account_alias(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Set the alias of the account. An account has one, so it replaces another one."""
    alias = params["AccountAlias"]
    if not tx.store.stored.add(IAM.service, ALIAS, "", alias, {}, tx.now_s, caller.owner):
        raise errors.EntityAlreadyExistsException(f"The account alias {alias} already exists.")
    for other, _ in tx.store.stored.listed(IAM.service, ALIAS, ""):
        if other != alias:
            tx.store.stored.drop(IAM.service, ALIAS, "", other)
    return {}


def delete_account_alias(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if not tx.store.stored.drop(IAM.service, ALIAS, "", params["AccountAlias"]):
        raise errors.NoSuchEntityException(f"The account alias with name {params['AccountAlias']} cannot be found.")
    return {}


def list_account_aliases(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found, token = PAGES.page(params, among({alias: alias for alias, _ in tx.store.stored.listed(IAM.service, ALIAS, "")}))
    return {"AccountAliases": found, **token}


def get_account_summary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    counts = {
        "Users": tx.store.stored.count(IAM.service, USER_TYPE.name, ""),
        "Groups": tx.store.stored.count(IAM.service, GROUP.name, ""),
        "Roles": tx.store.stored.count(IAM.service, ROLE.name, ""),
        "Policies": tx.store.stored.count(IAM.service, POLICY.name, ""),
        "InstanceProfiles": tx.store.stored.count(IAM.service, INSTANCE_PROFILE.name, ""),
        "PolicyVersionsInUse": sum(len(policy["_versions"]) for policy in every(tx, caller, POLICY)),
    }
    others = {"AccountAccessKeysPresent": 1, "GlobalEndpointTokenVersion": 2}
    return {"SummaryMap": {**counts, **QUOTAS, **dict.fromkeys(NONE, 0), **others}}


def get_account_authorization_details(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Return all users, groups, roles and policies, in pages. Of AWS's own policies, return those that are attached."""
    wanted = params.get("Filter") or ("User", "Group", "Role", "LocalManagedPolicy", "AWSManagedPolicy")
    members: dict[str, list[Document]] = {"UserDetailList": [], "GroupDetailList": [], "RoleDetailList": [], "Policies": []}
    found: dict[str, tuple[str, partial[Document]]] = {}
    if "User" in wanted:
        found |= {
            f"1{each['UserName']}": ("UserDetailList", partial(_user, tx, caller, each)) for each in every(tx, caller, USER_TYPE)
        }
    if "Group" in wanted:
        found |= {
            f"2{each['GroupName']}": ("GroupDetailList", partial(_group, tx, caller, each)) for each in every(tx, caller, GROUP)
        }
    if "Role" in wanted:
        found |= {f"3{each['RoleName']}": ("RoleDetailList", partial(_role, tx, caller, each)) for each in every(tx, caller, ROLE)}
    arns = [policy["Arn"] for policy in every(tx, caller, POLICY)] if "LocalManagedPolicy" in wanted else []
    if "AWSManagedPolicy" in wanted:
        arns += [arn for arn in attachments(tx) if arn.startswith(AWS_POLICY)]
    found |= {f"4{arn}": ("Policies", partial(_policy, tx, caller, arn)) for arn in arns}
    page, token = PAGES.page(params, among(found))
    for member, view in page:
        members[member].append(view())
    return {**members, **token}


def _user(tx: Tx[Store], caller: Caller, user: Document) -> Document:
    view = {**response_view(tx, caller, USER_TYPE, user), "GroupList": user["_groups"], **_policies(tx, caller, user, "User")}
    return {**view, "Tags": user.get("Tags", [])}


def _group(tx: Tx[Store], caller: Caller, group: Document) -> Document:
    return {**response_view(tx, caller, GROUP, group), **_policies(tx, caller, group, "Group")}


def _role(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    view = response_view(tx, caller, ROLE, role)
    profiles = tx.store.stored.containing(IAM.service, INSTANCE_PROFILE.name, "", f'"{role["RoleName"]}"')
    return {
        **{member: value for member, value in view.items() if member not in ("Description", "MaxSessionDuration")},
        "InstanceProfileList": [
            response_view(tx, caller, INSTANCE_PROFILE, each) for _, each in profiles if role["RoleName"] in each["_roles"]
        ],
        **_policies(tx, caller, role, "Role"),
        "Tags": role.get("Tags", []),
    }


def _policy(tx: Tx[Store], caller: Caller, arn: str) -> Document:
    policy = find_policy(tx, {"PolicyArn": arn}, caller)
    versions = [policies.version_view(policy, name, document=True) for name in policy.get("_versions", ())]
    view = response_view(tx, caller, POLICY, policy)
    return {**{member: value for member, value in view.items() if member != "Tags"}, "PolicyVersionList": versions}


def _policies(tx: Tx[Store], caller: Caller, principal: Document, word: str) -> Document:
    inline = [{"PolicyName": name, "PolicyDocument": quote(text, safe="")} for name, text in principal["_inline"].items()]
    attached = [attached_policy(find_policy(tx, {"PolicyArn": arn}, caller)) for arn in principal["_attached"]]
    return {f"{word}PolicyList": inline, "AttachedManagedPolicies": attached}
