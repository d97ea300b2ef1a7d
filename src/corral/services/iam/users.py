"""Users."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import USER
from corral.operations.stored_resources import Document, Params, ResourceType, create, find, response_view
from corral.services.iam import errors
from corral.services.iam.roles import check_boundary
from corral.services.iam.style import IAM_ROLES, check, identity_of, selects_path
from corral.store import Store


def _user_view(tx: Tx[Store], caller: Caller, user: Document) -> Document:
    view = {**user}
    if "PermissionsBoundary" in user:
        view["PermissionsBoundary"] = {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": user["PermissionsBoundary"]}
    if not user.get("Tags"):
        view.pop("Tags", None)
    return view


USER_TYPE = ResourceType(
    IAM_ROLES,
    USER,
    id="UserName",
    one="User",
    many="Users",
    new=identity_of("AIDA", "user", "UserId"),
    members=("PermissionsBoundary",),
    defaults={
        "_inline": {},  # inline policies by name
        "_attached": [],  # ARNs of managed policies
        "_groups": [],  # names of the groups to which the user belongs
    },
    unlisted=("Tags", "PermissionsBoundary"),
    check=check,
    selects=selects_path,
    view=_user_view,
)


def named_user(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """Return the user that a request names, or else the user that sends the request."""
    if "UserName" not in params:
        if caller.principal.kind != USER:
            raise errors.ValidationError("Must specify userName when calling with non-User credentials")
        params = {"UserName": caller.principal.name}
    return find(tx, caller, USER_TYPE, params)


def create_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if "PermissionsBoundary" in params:
        check_boundary(tx, params["PermissionsBoundary"])
    return {"User": response_view(tx, caller, USER_TYPE, create(tx, caller, USER_TYPE, params))}


def get_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Return a user. For the root user, which has no name, return the account."""
    if caller.is_root and "UserName" not in params:
        return {"User": {"Path": "/", "UserId": caller.account, "Arn": caller.principal.arn}}
    return {"User": response_view(tx, caller, USER_TYPE, named_user(tx, params, caller))}
