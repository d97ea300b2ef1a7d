"""CloudFormation types of IAM: roles, policies and instance profiles.

Corral has no users and groups. A stack can have resources of these types, but they have no effect. So a policy that names users,
groups and roles is attached to the roles only.
"""

from __future__ import annotations

from contextlib import suppress
from time import gmtime, strftime
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.iam_rules import SESSION_MIN_S
from corral.services.iam.errors import NoSuchEntityException
from corral.services.iam.policies import VERSIONS_MAX
from corral.services.iam.service_linked_roles import service_linked_role_name
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Setting, Tagging, api_type, changed, json_text, note_of
from corral.template_types.resource_types import Properties, TemplateType, ValidationError

MISSING = (NoSuchEntityException.code,)
DOCUMENTS = ("AssumeRolePolicyDocument", "PolicyDocument")


def _members(properties: Properties, *names: str) -> Params:
    """Return these properties for a request. Policy documents become text."""
    given = {name: properties[name] for name in names if name in properties}
    return {name: json_text(value) if name in DOCUMENTS else value for name, value in given.items()}


def _difference(old: Properties, new: Properties, member: str) -> tuple[list[Any], list[Any]]:
    """Return the elements that were removed from a list property, and the elements that were added."""
    before, after = old.get(member) or [], new.get(member) or []
    return [each for each in before if each not in after], [each for each in after if each not in before]


# Inline and attached policies of a role. `_detach` and `_delete_inline` ignore a missing policy or role, because a client may have
# deleted it already.


def _attach(tx: Tx[Store], caller: Caller, role: str, arn: str) -> None:
    call(tx, caller, "iam", "AttachRolePolicy", {"RoleName": role, "PolicyArn": arn})


def _detach(tx: Tx[Store], caller: Caller, role: str, arn: str) -> None:
    with suppress(NoSuchEntityException):
        call(tx, caller, "iam", "DetachRolePolicy", {"RoleName": role, "PolicyArn": arn})


def _put_inline(tx: Tx[Store], caller: Caller, role: str, policy: Properties) -> None:
    call(tx, caller, "iam", "PutRolePolicy", {"RoleName": role, **_members(policy, "PolicyName", "PolicyDocument")})


def _delete_inline(tx: Tx[Store], caller: Caller, role: str, name: str) -> None:
    with suppress(NoSuchEntityException):
        call(tx, caller, "iam", "DeleteRolePolicy", {"RoleName": role, "PolicyName": name})


# Roles


def _set_policies(tx: Tx[Store], caller: Caller, role: str, old: Properties, new: Properties) -> None:
    gone, added = _difference(old, new, "ManagedPolicyArns")
    for arn in gone:
        _detach(tx, caller, role, arn)
    for arn in added:
        _attach(tx, caller, role, arn)
    gone, added = _difference(old, new, "Policies")
    for policy in gone:
        _delete_inline(tx, caller, role, policy["PolicyName"])
    for policy in added:
        _put_inline(tx, caller, role, policy)


def _role_request(caller: Caller, properties: Properties) -> Params:
    return _members(
        properties, "RoleName", "Path", "AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary"
    )


def _role_update(identity: str, old: Properties, new: Properties) -> Params:
    return {
        "RoleName": identity,
        "Description": new.get("Description", ""),
        "MaxSessionDuration": new.get("MaxSessionDuration", SESSION_MIN_S),
    }


def _role_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    role = call(tx, caller, "iam", "GetRole", {"RoleName": identity})["Role"]
    return {"Arn": role["Arn"], "RoleId": role["RoleId"]}


# Managed policies


def _policy_arn(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return f"arn:aws:iam::{caller.account}:policy{properties.get('Path', '/')}{properties['ManagedPolicyName']}"


def _set_managed(tx: Tx[Store], caller: Caller, arn: str, old: Properties, new: Properties) -> None:
    """Store a changed document as the new default version. If there is no room for it, first delete the oldest other version."""
    if old and "PolicyDocument" in changed(old, new):
        others = _other_versions(tx, caller, arn)
        if len(others) + 1 >= VERSIONS_MAX:
            call(tx, caller, "iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": others[0]})
        version = {"PolicyArn": arn, "SetAsDefault": True, **_members(new, "PolicyDocument")}
        call(tx, caller, "iam", "CreatePolicyVersion", version)
    gone, added = _difference(old, new, "Roles")
    for role in gone:
        _detach(tx, caller, role, arn)
    for role in added:
        _attach(tx, caller, role, arn)


def _other_versions(tx: Tx[Store], caller: Caller, arn: str) -> list[str]:
    """Return the versions that are not the default version, the oldest first."""
    found = call(tx, caller, "iam", "ListPolicyVersions", {"PolicyArn": arn})["Versions"]
    return [each["VersionId"] for each in reversed(found) if not each["IsDefaultVersion"]]


def _empty_managed(tx: Tx[Store], caller: Caller, arn: str, properties: Properties) -> None:
    for role in properties.get("Roles", ()):
        _detach(tx, caller, role, arn)
    for version in _other_versions(tx, caller, arn):
        call(tx, caller, "iam", "DeletePolicyVersion", {"PolicyArn": arn, "VersionId": version})


def _managed_attributes(tx: Tx[Store], caller: Caller, arn: str) -> dict[str, Any]:
    policy = call(tx, caller, "iam", "GetPolicy", {"PolicyArn": arn})["Policy"]
    names = ("PolicyId", "DefaultVersionId", "IsAttachable", "PermissionsBoundaryUsageCount", "AttachmentCount")
    dates = {name: strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(tx.steps.wall_s(policy[name]))) for name in ("CreateDate", "UpdateDate")}
    return {"PolicyArn": arn, **{name: policy[name] for name in names}, **dates}


# Instance profiles


def _set_profile(tx: Tx[Store], caller: Caller, profile: str, old: Properties, new: Properties) -> None:
    gone, added = _difference(old, new, "Roles")
    for role in gone:
        with suppress(NoSuchEntityException):
            call(tx, caller, "iam", "RemoveRoleFromInstanceProfile", {"InstanceProfileName": profile, "RoleName": role})
    for role in added:
        call(tx, caller, "iam", "AddRoleToInstanceProfile", {"InstanceProfileName": profile, "RoleName": role})


def _profile_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    profile = call(tx, caller, "iam", "GetInstanceProfile", {"InstanceProfileName": identity})["InstanceProfile"]
    return {"Arn": profile["Arn"]}


# Inline policies. An AWS::IAM::Policy can belong to several roles, an AWS::IAM::RolePolicy belongs to one role.


def _create_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _update_policy(tx, caller, properties["PolicyName"], {}, properties)
    return str(properties["PolicyName"])


def _update_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    kept = set(new.get("Roles", ())) if old.get("PolicyName") == new["PolicyName"] else set()
    for role in old.get("Roles", ()):
        if role not in kept:
            _delete_inline(tx, caller, role, old["PolicyName"])
    for role in new.get("Roles", ()):
        _put_inline(tx, caller, role, new)


def _delete_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    for role in properties.get("Roles", ()):
        _delete_inline(tx, caller, role, properties["PolicyName"])


def _role_policy_request(caller: Caller, properties: Properties) -> Params:
    return _members(properties, "RoleName", "PolicyName", "PolicyDocument")


def _linked_role(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    if "AWSServiceName" not in properties:
        raise ValidationError("AWS::IAM::ServiceLinkedRole needs the property AWSServiceName.")
    return service_linked_role_name(properties)


TEMPLATE_TYPES = (
    api_type(
        "AWS::IAM::Role",
        "iam",
        identity="RoleName",
        target="RoleName",
        create="CreateRole",
        request=_role_request,
        delete="DeleteRole",
        before_delete=lambda tx, caller, identity, properties: _set_policies(tx, caller, identity, properties, {}),
        missing=MISSING,
        update="UpdateRole",
        update_request=_role_update,
        settings={
            "AssumeRolePolicyDocument": Setting(
                "UpdateAssumeRolePolicy", lambda document: {"PolicyDocument": json_text(document)}, is_created=True
            ),
            "PermissionsBoundary": Setting(
                "PutRolePermissionsBoundary",
                lambda arn: {"PermissionsBoundary": arn},
                "DeleteRolePermissionsBoundary",
                is_created=True,
            ),
        },
        tagging=Tagging("TagRole", "UntagRole", lambda caller, identity: {"RoleName": identity}),
        applies=("ManagedPolicyArns", "Policies"),
        apply=_set_policies,
        attributes=_role_attributes,
        name_property="RoleName",
    ),
    api_type(
        "AWS::IAM::ManagedPolicy",
        "iam",
        identity=_policy_arn,
        target="PolicyArn",
        create="CreatePolicy",
        request=lambda caller, properties: {
            "PolicyName": properties["ManagedPolicyName"],
            **_members(properties, "Path", "PolicyDocument", "Description"),
        },
        delete="DeletePolicy",
        before_delete=_empty_managed,
        missing=MISSING,
        applies=("PolicyDocument", "Roles"),
        apply=_set_managed,
        without_effect=("Users", "Groups"),
        attributes=_managed_attributes,
        name_property="ManagedPolicyName",
    ),
    api_type(
        "AWS::IAM::InstanceProfile",
        "iam",
        identity="InstanceProfileName",
        target="InstanceProfileName",
        create="CreateInstanceProfile",
        request=lambda caller, properties: _members(properties, "InstanceProfileName", "Path"),
        delete="DeleteInstanceProfile",
        before_delete=lambda tx, caller, identity, properties: _set_profile(tx, caller, identity, properties, {}),
        missing=MISSING,
        applies=("Roles",),
        apply=_set_profile,
        attributes=_profile_attributes,
        name_property="InstanceProfileName",
    ),
    TemplateType(
        "AWS::IAM::Policy",
        _create_policy,
        lambda tx, caller, name: {"Id": name},
        _update_policy,
        _delete_policy,
        settled=note_of("AWS::IAM::Policy", ("Users", "Groups")),
        checks_permissions=True,
    ),
    api_type(
        "AWS::IAM::RolePolicy",
        "iam",
        identity=lambda tx, caller, properties: f"{properties['PolicyName']}|{properties['RoleName']}",
        target=lambda identity, properties: _members(properties, "RoleName", "PolicyName"),
        create="PutRolePolicy",
        request=_role_policy_request,
        delete="DeleteRolePolicy",
        missing=MISSING,
        update="PutRolePolicy",
    ),
    api_type(
        "AWS::IAM::ServiceLinkedRole",
        "iam",
        identity=_linked_role,
        target="RoleName",
        create="CreateServiceLinkedRole",
        request=lambda caller, properties: _members(properties, "AWSServiceName", "CustomSuffix", "Description"),
        delete="DeleteServiceLinkedRole",
        missing=MISSING,
        update="UpdateRole",
        update_request=lambda identity, old, new: {"RoleName": identity, "Description": new.get("Description", "")},
        attributes=lambda tx, caller, identity: {"RoleName": identity},
    ),
)
