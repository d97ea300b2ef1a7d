"""CloudFormation types of IAM: roles, policies and instance profiles.

Corral does not serve users and groups. They are stored only, so a policy that names them is attached to its roles alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.cloudformation.resource_types import Properties, TemplateType, stored_type
from corral.services.iam import policies, roles
from corral.services.iam.errors import NoSuchEntityException
from corral.services.iam.instance_profiles import INSTANCE_PROFILE
from corral.services.iam.policies import POLICY, VERSIONS_MAX
from corral.services.iam.roles import ROLE
from corral.services.iam.style import check
from corral.services.stored_resources import Document, Params, find, put
from corral.store import Store

DOCUMENTS = ("AssumeRolePolicyDocument", "PolicyDocument")


def _text(document: Any) -> str:
    return document if isinstance(document, str) else orjson.dumps(document).decode()


def _request(properties: Properties) -> Params:
    """Convert template properties to the parameters of a request. Policy documents become text."""
    return {name: _text(value) if name in DOCUMENTS else value for name, value in properties.items()}


def _changed(old: Properties, new: Properties, member: str) -> tuple[list[Any], list[Any]]:
    """The elements that were removed from a list property, and the elements that were added."""
    before, after = old.get(member) or [], new.get(member) or []
    return [each for each in before if each not in after], [each for each in after if each not in before]


def _set_role(tx: Tx[Store], caller: Caller, role: Document, old: Properties, new: Properties) -> None:
    if old and "AssumeRolePolicyDocument" in new:
        request = {"RoleName": role["RoleName"], "PolicyDocument": _text(new["AssumeRolePolicyDocument"])}
        check(request)
        put(tx, caller, ROLE, {**role, "AssumeRolePolicyDocument": request["PolicyDocument"]})
    gone, added = _changed(old, new, "ManagedPolicyArns")
    for arn in gone:
        _detach(tx, caller, role["RoleName"], arn)
    for arn in added:
        policies.attach_role_policy(tx, {"RoleName": role["RoleName"], "PolicyArn": arn}, caller)
    gone, added = _changed(old, new, "Policies")
    for policy in gone:
        _delete_inline(tx, caller, role["RoleName"], policy["PolicyName"])
    for policy in added:
        _put_inline(tx, caller, role["RoleName"], policy)


def _empty_role(tx: Tx[Store], caller: Caller, role: Document, properties: Properties) -> None:
    _set_role(tx, caller, role, properties, {})


# A policy may have been detached or deleted by a client, or together with its role. Then there is nothing to do.


def _detach(tx: Tx[Store], caller: Caller, role: str, arn: str) -> None:
    with suppress(NoSuchEntityException):
        policies.detach_role_policy(tx, {"RoleName": role, "PolicyArn": arn}, caller)


def _delete_inline(tx: Tx[Store], caller: Caller, role: str, name: str) -> None:
    with suppress(NoSuchEntityException):
        roles.delete_role_policy(tx, {"RoleName": role, "PolicyName": name}, caller)


def _put_inline(tx: Tx[Store], caller: Caller, role: str, policy: Properties) -> None:
    request = {"RoleName": role, "PolicyName": policy["PolicyName"], "PolicyDocument": _text(policy["PolicyDocument"])}
    roles.put_role_policy(tx, request, caller)


def _managed_request(properties: Properties) -> Params:
    request = _request(properties)
    return {**request, "PolicyName": request.pop("ManagedPolicyName")}


def _set_managed(tx: Tx[Store], caller: Caller, policy: Document, old: Properties, new: Properties) -> None:
    """Store a changed document as the new default version. If the policy has too many versions, delete the oldest other one."""
    arn = policy["Arn"]
    if old and "PolicyDocument" in new and old.get("PolicyDocument") != new["PolicyDocument"]:
        if len(policy["_versions"]) >= VERSIONS_MAX:
            oldest = min(
                (name for name in policy["_versions"] if name != policy["DefaultVersionId"]), key=lambda name: int(name[1:])
            )
            policies.delete_policy_version(tx, {"PolicyArn": arn, "VersionId": oldest}, caller)
        version = {"PolicyArn": arn, "PolicyDocument": _text(new["PolicyDocument"]), "SetAsDefault": True}
        policies.create_policy_version(tx, version, caller)
    gone, added = _changed(old, new, "Roles")
    for role in gone:
        _detach(tx, caller, role, arn)
    for role in added:
        policies.attach_role_policy(tx, {"RoleName": role, "PolicyArn": arn}, caller)


def _empty_managed(tx: Tx[Store], caller: Caller, policy: Document, properties: Properties) -> None:
    _set_managed(tx, caller, policy, {"Roles": properties.get("Roles", [])}, {})
    for name in policy["_versions"]:
        if name != policy["DefaultVersionId"]:
            policies.delete_policy_version(tx, {"PolicyArn": policy["Arn"], "VersionId": name}, caller)


def _set_profile(tx: Tx[Store], caller: Caller, profile: Document, old: Properties, new: Properties) -> None:
    names = [find(tx, caller, ROLE, {"RoleName": name})["RoleName"] for name in new.get("Roles", [])]
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": names})


def _empty_profile(tx: Tx[Store], caller: Caller, profile: Document, properties: Properties) -> None:
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": []})


# Inline policies: an AWS::IAM::Policy can belong to several roles, an AWS::IAM::RolePolicy belongs to one role.


def _create_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _update_policy(tx, caller, properties["PolicyName"], {}, properties)
    return str(properties["PolicyName"])


def _update_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    kept = set(new.get("Roles", [])) if old.get("PolicyName") == new["PolicyName"] else set()
    for role in old.get("Roles", []):
        if role not in kept:
            _delete_inline(tx, caller, role, old["PolicyName"])
    for role in new.get("Roles", []):
        _put_inline(tx, caller, role, new)


def _delete_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    for role in properties.get("Roles", []):
        _delete_inline(tx, caller, role, properties["PolicyName"])


def _create_role_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _put_inline(tx, caller, properties["RoleName"], properties)
    return f"{properties['PolicyName']}|{properties['RoleName']}"


def _update_role_policy(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _put_inline(tx, caller, new["RoleName"], new)


def _delete_role_policy(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    _delete_inline(tx, caller, properties["RoleName"], properties["PolicyName"])


_linked = stored_type(
    "AWS::IAM::ServiceLinkedRole", ROLE, updates={"Description": "Description"}, attributes={"RoleName": "RoleName"}
)


def _create_linked(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return str(roles.create_service_linked_role(tx, dict(properties), caller)["Role"]["RoleName"])


TEMPLATE_TYPES = (
    stored_type(
        "AWS::IAM::Role",
        ROLE,
        request=_request,
        updates={name: name for name in ("Description", "MaxSessionDuration", "PermissionsBoundary")},
        applies=("AssumeRolePolicyDocument", "ManagedPolicyArns", "Policies"),
        apply=_set_role,
        before_delete=_empty_role,
        attributes={"Arn": "Arn", "RoleId": "RoleId"},
        name_property="RoleName",
    ),
    stored_type(
        "AWS::IAM::ManagedPolicy",
        POLICY,
        request=_managed_request,
        applies=("PolicyDocument", "Roles"),
        apply=_set_managed,
        before_delete=_empty_managed,
        physical_id="Arn",
        attributes={
            "PolicyArn": "Arn",
            "PolicyId": "PolicyId",
            "DefaultVersionId": "DefaultVersionId",
            "IsAttachable": "IsAttachable",
            "CreateDate": "CreateDate",
            "UpdateDate": "UpdateDate",
            "PermissionsBoundaryUsageCount": "PermissionsBoundaryUsageCount",
            "AttachmentCount": lambda tx, caller, policy: policies.attachments(tx, caller)[policy["Arn"]],
        },
        name_property="ManagedPolicyName",
    ),
    stored_type(
        "AWS::IAM::InstanceProfile",
        INSTANCE_PROFILE,
        applies=("Roles",),
        apply=_set_profile,
        before_delete=_empty_profile,
        attributes={"Arn": "Arn"},
        name_property="InstanceProfileName",
    ),
    TemplateType("AWS::IAM::Policy", _create_policy, lambda tx, caller, name: {"Id": name}, _update_policy, _delete_policy),
    TemplateType(
        "AWS::IAM::RolePolicy", _create_role_policy, lambda tx, caller, name: {}, _update_role_policy, _delete_role_policy
    ),
    TemplateType("AWS::IAM::ServiceLinkedRole", _create_linked, _linked.attributes, _linked.update, _linked.delete),
)
