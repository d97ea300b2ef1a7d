"""Roles."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.iam_rules import SESSION_MIN_S
from corral.model.principal import ROLE as ROLE_KIND
from corral.operations.stored_resources import Document, Params, ResourceType, create, find, put, response_view
from corral.services.iam import errors
from corral.services.iam.principal_policies import PrincipalKind, check_boundary, check_without_policies, shown
from corral.services.iam.style import IAM, IAM_ROLES, SERVICE_PATH, check, identity_of, selects_path
from corral.store import Store
from corral.store.iam_index import entity_of

INLINE_MAX = 10_240  # characters of all inline policies of a role, without white space
# Members that responses about one role have, but neither the response to its creation nor instance profiles.
DESCRIBED = ("Description", "MaxSessionDuration", "RoleLastUsed")


def _role_view(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    trust = quote(role["AssumeRolePolicyDocument"], safe="")
    return {**shown(role), "AssumeRolePolicyDocument": trust, "RoleLastUsed": _last_used(tx, role["RoleName"])}


def _last_used(tx: Tx[Store], name: str) -> Document:
    """When a role was last used, and in which region. Empty if it has not been used."""
    uses = tx.store.access_keys.uses_of(entity_of(ROLE_KIND, name)).values()
    last = max(uses, key=lambda use: use.at_s, default=None)
    return {"LastUsedDate": last.at_s, "Region": last.region} if last is not None else {}


def _role_removable(tx: Tx[Store], caller: Caller, role: Document) -> None:
    _check_changeable(role)
    check_without_policies(role)
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
    deleted=lambda tx, caller, role: tx.store.access_keys.forget_uses(entity_of(ROLE_KIND, role["RoleName"])),
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


ROLES = PrincipalKind(ROLE, "Role", INLINE_MAX, None, has_boundary=True, changeable=changeable_role)
