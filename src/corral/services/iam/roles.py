"""Roles and their inline policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.iam_rules import SESSION_MIN_S
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, Update, create, find, put, response_view
from corral.services.iam import errors
from corral.services.iam.style import IAM, PAGES, check, identity_of, selects_path
from corral.store import Store

SERVICE_ROLES = {  # service → suffix of its role's name; for other services, the suffix is the service's name in title case
    "autoscaling.amazonaws.com": "AutoScaling",
    "batch.amazonaws.com": "Batch",
    "ecs.amazonaws.com": "ECS",
    "ecs.application-autoscaling.amazonaws.com": "ApplicationAutoScaling_ECSService",
    "spot.amazonaws.com": "EC2Spot",
}


def _role_view(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    view = {**role, "AssumeRolePolicyDocument": quote(role["AssumeRolePolicyDocument"], safe=""), "RoleLastUsed": {}}
    if "PermissionsBoundary" in role:
        boundary = {"PermissionsBoundaryType": "PermissionsBoundaryPolicy", "PermissionsBoundaryArn": role["PermissionsBoundary"]}
        view["PermissionsBoundary"] = boundary
    return view


def _role_removable(tx: Tx[Store], caller: Caller, role: Document) -> None:
    if role["_attached"]:
        raise errors.DeleteConflictException("Cannot delete entity, must detach all policies first.")
    if role["_inline"]:
        raise errors.DeleteConflictException("Cannot delete entity, must delete policies first.")
    profiles = tx.store.stored.listed(IAM.service, "instance-profile", "")
    if any(role["RoleName"] in profile["_roles"] for _, profile in profiles):
        raise errors.DeleteConflictException("Cannot delete entity, must remove roles from instance profile first.")


ROLE = ResourceType(
    IAM,
    "role",
    id="RoleName",
    one="Role",
    many="Roles",
    new=identity_of("AROA", "role", "RoleId"),
    members=("AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary"),
    defaults={
        "MaxSessionDuration": SESSION_MIN_S,
        "_inline": {},  # inline policies by name
        "_attached": [],  # ARNs of managed policies
    },
    unlisted=("Tags", "PermissionsBoundary", "RoleLastUsed"),
    check=check,
    check_delete=_role_removable,
    selects=selects_path,
    view=_role_view,
    create="CreateRole",
    get="GetRole",
    list="ListRoles",
    delete="DeleteRole",
    update={
        "UpdateRole": Update({"Description": "Description", "MaxSessionDuration": "MaxSessionDuration"}),
        "UpdateRoleDescription": Update({"Description": "Description"}, returns_resource=True),
        "UpdateAssumeRolePolicy": Update({"PolicyDocument": "AssumeRolePolicyDocument"}),
        "PutRolePermissionsBoundary": Update({"PermissionsBoundary": "PermissionsBoundary"}),
    },
    tag="TagRole",
    untag="UntagRole",
    list_tags="ListRoleTags",
)


def service_linked_role_name(params: Mapping[str, Any]) -> str:
    service = params["AWSServiceName"]
    name = "AWSServiceRoleFor" + SERVICE_ROLES.get(service, service.partition(".")[0].title())
    return f"{name}_{params['CustomSuffix']}" if "CustomSuffix" in params else name


def create_service_linked_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    service, name = params["AWSServiceName"], service_linked_role_name(params)
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    wanted = {
        "RoleName": name,
        "Path": f"/aws-service-role/{service}/",
        "AssumeRolePolicyDocument": orjson.dumps({"Version": "2012-10-17", "Statement": [trust]}).decode(),
        **({"Description": params["Description"]} if "Description" in params else {}),
    }
    try:
        role = create(tx, caller, ROLE, wanted)
    except errors.EntityAlreadyExistsException:
        raise errors.InvalidInputException(
            f"Service role name {name} has been taken in this account, please try a different suffix."
        ) from None
    return {"Role": response_view(tx, caller, ROLE, role)}


def delete_role_permissions_boundary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    if "PermissionsBoundary" not in role:
        raise errors.NoSuchEntityException(f"The role with name {role['RoleName']} has no permissions boundary.")
    put(tx, caller, ROLE, {member: value for member, value in role.items() if member != "PermissionsBoundary"})
    return {}


def put_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    check(params)
    put(tx, caller, ROLE, {**role, "_inline": {**role["_inline"], params["PolicyName"]: params["PolicyDocument"]}})
    return {}


def get_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    return {"RoleName": role["RoleName"], "PolicyName": name, "PolicyDocument": quote(role["_inline"][name], safe="")}


def delete_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    put(tx, caller, ROLE, {**role, "_inline": {other: text for other, text in role["_inline"].items() if other != name}})
    return {}


def list_role_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    found, token = PAGES.page(params, among({name: name for name in role["_inline"]}))
    return {"PolicyNames": found, **token}


def _with_inline(tx: Tx[Store], params: Params, caller: Caller) -> tuple[Document, str]:
    role, name = find(tx, caller, ROLE, params), params["PolicyName"]
    if name not in role["_inline"]:
        raise errors.NoSuchEntityException(f"The role policy with name {name} cannot be found.")
    return role, name
