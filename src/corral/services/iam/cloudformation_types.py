"""CloudFormation types of IAM: users, groups, access keys, roles and instance profiles. Policies: `cloudformation_policies.py`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.access_key import ACTIVE
from corral.model.iam_rules import SESSION_MIN_S
from corral.operations.encryption import CannotDecrypt, decrypt
from corral.services.iam.cloudformation_policies import MISSING, POLICY_TYPES, difference, members, set_policies
from corral.services.iam.errors import NoSuchEntityException
from corral.services.iam.service_linked_roles import service_linked_role_name
from corral.store import Store
from corral.template_types.api_calls import authorize, call
from corral.template_types.api_types import Params, Setting, Tagging, api_type, json_text
from corral.template_types.generated_names import name_from_tags
from corral.template_types.resource_types import Properties, TemplateType, ValidationError

# Users and groups


def _set_user(tx: Tx[Store], caller: Caller, user: str, old: Properties, new: Properties) -> None:
    set_policies(tx, caller, "User", user, old, new)
    gone, added = difference(old, new, "Groups")
    for group in gone:
        _leave(tx, caller, user, group)
    for group in added:
        call(tx, caller, "iam", "AddUserToGroup", {"UserName": user, "GroupName": group})


def _leave(tx: Tx[Store], caller: Caller, user: str, group: str) -> None:
    with suppress(NoSuchEntityException):  # a client may have deleted the user or the group already
        call(tx, caller, "iam", "RemoveUserFromGroup", {"UserName": user, "GroupName": group})


def _set_group(tx: Tx[Store], caller: Caller, group: str, old: Properties, new: Properties) -> None:
    set_policies(tx, caller, "Group", group, old, new)


def _attributes_of(operation: str, word: str) -> Any:
    def attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
        return {"Arn": call(tx, caller, "iam", operation, {f"{word}Name": identity})[word]["Arn"]}

    return attributes


# Users of a group. The resource has a generated id.


def _add_users(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _set_users(tx, caller, "", {}, properties)
    return name_from_tags(tx, USERS_OF_GROUP, properties)


def _set_users(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    is_same = old.get("GroupName") == new.get("GroupName")
    gone, added = difference(old, new, "Users") if is_same else (old.get("Users", []), new.get("Users", []))
    for user in gone:
        _leave(tx, caller, user, old["GroupName"])
    for user in added:
        call(tx, caller, "iam", "AddUserToGroup", {"UserName": user, "GroupName": new["GroupName"]})


USERS_OF_GROUP = TemplateType(
    "AWS::IAM::UserToGroupAddition",
    _add_users,
    lambda tx, caller, identity: {"Id": identity},
    _set_users,
    lambda tx, caller, identity, properties: _set_users(tx, caller, identity, properties, {}),
    checks_permissions=True,
)


# Access keys


def _set_status(tx: Tx[Store], caller: Caller, key_id: str, old: Properties, new: Properties) -> None:
    status = new.get("Status", ACTIVE)
    if status != old.get("Status", ACTIVE):
        call(tx, caller, "iam", "UpdateAccessKey", {"UserName": new["UserName"], "AccessKeyId": key_id, "Status": status})


def _key_attributes(tx: Tx[Store], caller: Caller, key_id: str) -> dict[str, Any]:
    key = tx.store.access_keys.get(key_id)
    if key is None:
        raise NoSuchEntityException(f"The Access Key with id {key_id} cannot be found.")
    authorize(
        tx, caller, "iam", "CreateAccessKey", {"UserName": key.user}
    )  # on AWS, only the response of this operation has the secret
    try:
        return {"Id": key_id, "SecretAccessKey": decrypt(tx.settings.secrets_key, key.secret, key_id)}
    except CannotDecrypt:
        raise ValidationError(f"The access key {key_id} cannot be decrypted: restore secrets.json of the data folder.") from None


# Roles


def _set_role(tx: Tx[Store], caller: Caller, role: str, old: Properties, new: Properties) -> None:
    set_policies(tx, caller, "Role", role, old, new)


def _role_request(caller: Caller, properties: Properties) -> Params:
    return members(
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


# Instance profiles


def _set_profile(tx: Tx[Store], caller: Caller, profile: str, old: Properties, new: Properties) -> None:
    gone, added = difference(old, new, "Roles")
    for role in gone:
        with suppress(NoSuchEntityException):
            call(tx, caller, "iam", "RemoveRoleFromInstanceProfile", {"InstanceProfileName": profile, "RoleName": role})
    for role in added:
        call(tx, caller, "iam", "AddRoleToInstanceProfile", {"InstanceProfileName": profile, "RoleName": role})


def _profile_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    profile = call(tx, caller, "iam", "GetInstanceProfile", {"InstanceProfileName": identity})["InstanceProfile"]
    return {"Arn": profile["Arn"]}


def _linked_role(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    if "AWSServiceName" not in properties:
        raise ValidationError("AWS::IAM::ServiceLinkedRole needs the property AWSServiceName.")
    return service_linked_role_name(properties)


TEMPLATE_TYPES = (
    api_type(
        "AWS::IAM::User",
        "iam",
        identity="UserName",
        target="UserName",
        create="CreateUser",
        request=lambda caller, properties: members(properties, "UserName", "Path", "PermissionsBoundary"),
        delete="DeleteUser",
        before_delete=lambda tx, caller, identity, properties: _set_user(tx, caller, identity, properties, {}),
        missing=MISSING,
        update="UpdateUser",
        update_request=lambda identity, old, new: {"UserName": identity, "NewPath": new.get("Path", "/")},
        settings={
            "PermissionsBoundary": Setting(
                "PutUserPermissionsBoundary",
                lambda arn: {"PermissionsBoundary": arn},
                "DeleteUserPermissionsBoundary",
                is_created=True,
            ),
        },
        tagging=Tagging("TagUser", "UntagUser", lambda caller, identity: {"UserName": identity}),
        applies=("ManagedPolicyArns", "Policies", "Groups"),
        apply=_set_user,
        without_effect=("LoginProfile",),
        attributes=_attributes_of("GetUser", "User"),
        name_property="UserName",
    ),
    api_type(
        "AWS::IAM::Group",
        "iam",
        identity="GroupName",
        target="GroupName",
        create="CreateGroup",
        request=lambda caller, properties: members(properties, "GroupName", "Path"),
        delete="DeleteGroup",
        before_delete=lambda tx, caller, identity, properties: _set_group(tx, caller, identity, properties, {}),
        missing=MISSING,
        update="UpdateGroup",
        update_request=lambda identity, old, new: {"GroupName": identity, "NewPath": new.get("Path", "/")},
        applies=("ManagedPolicyArns", "Policies"),
        apply=_set_group,
        attributes=_attributes_of("GetGroup", "Group"),
        name_property="GroupName",
    ),
    USERS_OF_GROUP,
    api_type(
        "AWS::IAM::AccessKey",
        "iam",
        identity_in="AccessKey.AccessKeyId",
        target=lambda identity, properties: {"UserName": properties["UserName"], "AccessKeyId": identity},
        create="CreateAccessKey",
        request=lambda caller, properties: members(properties, "UserName"),
        delete="DeleteAccessKey",
        missing=MISSING,
        applies=("Status",),
        apply=_set_status,
        unsent=("Serial",),
        attributes=_key_attributes,
    ),
    *POLICY_TYPES,
    api_type(
        "AWS::IAM::Role",
        "iam",
        identity="RoleName",
        target="RoleName",
        create="CreateRole",
        request=_role_request,
        delete="DeleteRole",
        before_delete=lambda tx, caller, identity, properties: _set_role(tx, caller, identity, properties, {}),
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
        apply=_set_role,
        attributes=_role_attributes,
        name_property="RoleName",
    ),
    api_type(
        "AWS::IAM::InstanceProfile",
        "iam",
        identity="InstanceProfileName",
        target="InstanceProfileName",
        create="CreateInstanceProfile",
        request=lambda caller, properties: members(properties, "InstanceProfileName", "Path"),
        delete="DeleteInstanceProfile",
        before_delete=lambda tx, caller, identity, properties: _set_profile(tx, caller, identity, properties, {}),
        missing=MISSING,
        applies=("Roles",),
        apply=_set_profile,
        attributes=_profile_attributes,
        name_property="InstanceProfileName",
    ),
    api_type(
        "AWS::IAM::ServiceLinkedRole",
        "iam",
        identity=_linked_role,
        target="RoleName",
        create="CreateServiceLinkedRole",
        request=lambda caller, properties: members(properties, "AWSServiceName", "CustomSuffix", "Description"),
        delete="DeleteServiceLinkedRole",
        missing=MISSING,
        update="UpdateRole",
        update_request=lambda identity, old, new: {"RoleName": identity, "Description": new.get("Description", "")},
        attributes=lambda tx, caller, identity: {"RoleName": identity},
    ),
)
