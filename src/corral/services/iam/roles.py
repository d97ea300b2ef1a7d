"""Roles and their inline policies."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from corral.access.aws_policies import AWS_POLICY
from corral.access.caller import Caller
from corral.access.roles import document_of
from corral.core.transactions import Tx
from corral.model.iam_rules import SESSION_MIN_S
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, create, find, put, response_view
from corral.services.iam import errors
from corral.services.iam.style import IAM, IAM_ROLES, INLINE_MAX, PAGES, characters_of, check, identity_of, selects_path
from corral.store import Store

SERVICE_PATH = "/aws-service-role/"
BOUNDARY = re.compile(r"arn:aws[a-z-]*:iam::(?:\d{12}|aws):policy/.+")
# Members that responses about one role have, but neither the response to its creation nor instance profiles.
DESCRIBED = ("Description", "MaxSessionDuration", "RoleLastUsed")


def _role_view(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    view = {**role, "AssumeRolePolicyDocument": quote(role["AssumeRolePolicyDocument"], safe=""), "RoleLastUsed": {}}
    if "PermissionsBoundary" in role:
        view["PermissionsBoundary"] = {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": role["PermissionsBoundary"]}
    if not role.get("Tags"):
        view.pop("Tags", None)
    return view


def _role_removable(tx: Tx[Store], caller: Caller, role: Document) -> None:
    _check_changeable(role)
    if role["_attached"]:
        raise errors.DeleteConflictException("Cannot delete entity, must detach all policies first.")
    if role["_inline"]:
        raise errors.DeleteConflictException("Cannot delete entity, must delete policies first.")
    profiles = tx.store.stored.listed(IAM.service, "instance-profile", "")
    if any(role["RoleName"] in profile["_roles"] for _, profile in profiles):
        raise errors.DeleteConflictException("Cannot delete entity, must remove roles from instance profile first.")


ROLE = ResourceType(
    IAM_ROLES,
    "role",
    id="RoleName",
    one="Role",
    many="Roles",
    new=identity_of("AROA", "role", "RoleId"),
    members=("AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary", "_attached"),
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
    get="GetRole",
    list="ListRoles",
    delete="DeleteRole",
    tag="TagRole",
    untag="UntagRole",
    list_tags="ListRoleTags",
)


def created_role(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    """The role as the responses to its creation show it."""
    return {member: value for member, value in response_view(tx, caller, ROLE, role).items() if member not in DESCRIBED}


def changeable_role(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """Return the role that a request changes. Raise IAM's error if only AWS may change it."""
    role = find(tx, caller, ROLE, params)
    _check_changeable(role)
    return role


def _check_changeable(role: Document) -> None:
    if role["Path"].startswith(SERVICE_PATH):
        raise errors.UnmodifiableEntityException(
            f"Cannot perform the operation on the protected role '{role['RoleName']}' - this role is only modifiable by AWS"
        )


def create_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if params.get("Path", "/").startswith(SERVICE_PATH):
        raise errors.ValidationError(f"A role with the path prefix {SERVICE_PATH} cannot be created")
    if "PermissionsBoundary" in params:
        check_boundary(tx, params["PermissionsBoundary"])
    return {"Role": created_role(tx, caller, create(tx, caller, ROLE, params))}


def update_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change a role. Of the role of an AWS service, only the description can be changed."""
    role = changeable_role(tx, params, caller) if "MaxSessionDuration" in params else find(tx, caller, ROLE, params)
    check(params)
    changed: Document = {member: params[member] for member in ("Description", "MaxSessionDuration") if member in params}
    put(tx, caller, ROLE, {**role, **changed})
    return {}


def update_role_description(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = {**find(tx, caller, ROLE, params), "Description": params["Description"]}
    put(tx, caller, ROLE, role)
    return {"Role": {**created_role(tx, caller, role), "Description": params["Description"]}}


def update_assume_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = changeable_role(tx, params, caller)
    check(params)
    put(tx, caller, ROLE, {**role, "AssumeRolePolicyDocument": params["PolicyDocument"]})
    return {}


def check_boundary(tx: Tx[Store], policy_arn: str) -> None:
    if not BOUNDARY.fullmatch(policy_arn):
        raise errors.InvalidInputException(f"ARN {policy_arn} is not valid.")
    if not policy_arn.startswith(AWS_POLICY) and document_of(tx, policy_arn) is None:
        raise errors.NoSuchEntityException(f"Scope ARN: {policy_arn} does not exist or is not attachable.")


def put_role_permissions_boundary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = changeable_role(tx, params, caller)
    check_boundary(tx, params["PermissionsBoundary"])
    put(tx, caller, ROLE, {**role, "PermissionsBoundary": params["PermissionsBoundary"]})
    return {}


def delete_role_permissions_boundary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = changeable_role(tx, params, caller)
    if "PermissionsBoundary" not in role:
        raise errors.NoSuchEntityException(f"The role with name {role['RoleName']} has no permissions boundary.")
    put(tx, caller, ROLE, {member: value for member, value in role.items() if member != "PermissionsBoundary"})
    return {}


def put_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = changeable_role(tx, params, caller)
    check(params)
    inline = {**role["_inline"], params["PolicyName"]: params["PolicyDocument"]}
    if sum(map(characters_of, inline.values())) > INLINE_MAX:
        raise errors.LimitExceededException(f"Maximum policy size of {INLINE_MAX} bytes exceeded for role {role['RoleName']}")
    put(tx, caller, ROLE, {**role, "_inline": inline})
    return {}


def get_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    return {"RoleName": role["RoleName"], "PolicyName": name, "PolicyDocument": quote(role["_inline"][name], safe="")}


def delete_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    _check_changeable(role)
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
